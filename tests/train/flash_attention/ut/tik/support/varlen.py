"""Packed sequences through the kernels, and what each of them is by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flash_attention import reference
from flash_attention.call import AttentionRules, Call, Varlen
from flash_attention.dropout import philox
from flash_attention.kernels.tik import describe, integers, layout, operators
from flash_attention.kernels.tik.problem import Request

from tests.train.flash_attention.ut.tik.support import stored_arrays

SEED = (3, 5)


def ends(lengths, count: int) -> np.ndarray:
    """Return cumulative lengths without the leading 0; sequences up to `count` are empty."""
    last = np.cumsum((0, *lengths))[1:]
    return np.concatenate([last, np.repeat(last[-1:], count - len(lengths))]).astype(np.int32)


class Packing:
    """A problem with its data, standard normal numbers in float16.

    Args:
        room: sequences that the kernels have room for.
        prefix: of each sequence.
    """

    def __init__(
        self, queries, keys=None, *, heads=2, kv_heads=1, head_dim=32, value_dim=0, room=0, prefix=None, **given
    ):
        self.queries, self.keys = queries, keys or queries
        self.room, self.prefix = room or len(queries), prefix
        self.sinks = given.pop("sinks", False)
        self.logsumexp_gradient = given.pop("logsumexp_gradient", False)
        rules = AttentionRules(**given)
        self.rows = Call(
            *(1, heads, sum(self.queries), sum(self.keys), head_dim),
            kv_heads=kv_heads,
            value_dim=value_dim or head_dim,
            rules=rules,
            layout="BSND",
            sinks=self.sinks,
            prefix=prefix is not None,
            training=rules.dropout_rate > 0,
        )
        self.problem = replace(self.rows, storage=Varlen(count=self.room))
        random = np.random.default_rng(7)

        def draw(rows, heads, width):
            return random.standard_normal((rows, heads, width)).astype(np.float16)

        p = self.rows
        self.data = {
            "query": draw(p.seq_q, heads, head_dim),
            "key": draw(p.seq_k, kv_heads, head_dim),
            "value": draw(p.seq_k, kv_heads, p.value_dim),
            "d_output": draw(p.seq_q, heads, p.value_dim),
        }
        self.logits = random.standard_normal(heads).astype(np.float32)
        self.d_logsumexp = random.standard_normal((heads, p.seq_q)).astype(np.float32)

    def request(self, cores: int = 3, tiling: str = "auto") -> Request:
        """Return the request that kernels are built for."""
        described = describe.varlen_problem(self.problem, cores=cores, tiling=tiling)
        return Request(described, logsumexp_gradient=self.logsumexp_gradient)

    def tables(self, request: Request, *stages: str) -> tuple:
        """Return work tables, see operators.work_tables."""
        prefix = np.zeros(self.room, np.int32)
        prefix[: len(self.prefix or ())] = self.prefix or ()
        lengths = ends(self.queries, self.room), ends(self.keys, self.room)
        return operators.work_tables(integers, request, stages)(*lengths, prefix)

    def run(self, tik, execute, request: Request, stages: tuple[str, ...] | None = None) -> dict:
        """Return results by name, heads apart: output (T, H, Dv), logsumexp (H, T), d_query (T, H, D), ..., d_sinks
        (H,).
        """
        p, stages = request.problem, stages or operators.stages(request)
        with_work = [stage for stage in ("forward", "grad") if stage in stages]
        blocks, *tables = self.tables(request, "blocks", *with_work)
        work = dict(zip(with_work, tables))
        arrays = {name: layout.to_nz(array.reshape(len(array), -1)) for name, array in self.data.items()}
        arrays.update(blocks=blocks, sinks=stored_arrays.pack_sinks(self.logits, p))
        arrays["d_logsumexp"] = _stored(self.d_logsumexp, blocks)
        if p.dropout_threshold:
            bits = [philox.keep_bits(one, SEED)[0] for one, *_ in self.sequences() if one is not None]
            arrays["keep"] = layout.pack_keep_bits_of_sequences(bits, p)
        kernels = []
        for stage in stages:
            kernel = operators.build(stage, request, tik, f"packed_{stage}", True)
            kernels.append(kernel)
            arrays["work"] = work.get(stage)
            feed = kernel.feed(**{name: arrays[name] for name in kernel.given})
            arrays.update(execute(kernel.tik, feed, [tensor.name for tensor in kernel.outputs]))
        self.kernels = kernels
        shapes = {"output": "d_output", "d_query": "query", "d_key": "key", "d_value": "value"}
        results = {
            name: layout.from_nz(arrays[name], len(self.data[like]), self.data[like][0].size).reshape(
                self.data[like].shape
            )
            for name, like in shapes.items()
            if name in arrays
        }
        results["logsumexp"] = _unstored(arrays["logsumexp"][0], blocks, p.seq_q)
        if "d_sink_rows" in arrays:
            results["d_sinks"] = arrays["d_sink_rows"].sum(axis=(0, 2))
        return results

    def sequences(self):
        """Yield (problem, rows of queries, rows of keys) of every sequence. The problem is None if there is nothing
        to do.
        """
        first, first_key = 0, 0
        for index, (count, count_k) in enumerate(zip(self.queries, self.keys)):
            one = None
            if count and count_k:
                one = replace(self.rows, seq_q=count, seq_k=count_k, layout="BNSD", batch_offset=index)
            yield one, slice(first, first + count), slice(first_key, first_key + count_k)
            first, first_key = first + count, first_key + count_k

    def check(self, found: dict) -> None:
        """Compare every sequence with the truth of its own call. Sequences without queries or keys have zeros."""
        d_sinks = np.zeros(self.rows.heads)
        for index, (one, rows, columns) in enumerate(self.sequences()):
            if one is None:
                assert not found["output"][rows].any()
                for name, part in (("d_query", rows), ("d_key", columns), ("d_value", columns)):
                    assert not (name in found and found[name][part].any()), (index, name)
                continue
            parts = {"query": rows, "key": columns, "value": columns, "d_output": rows}
            given = {name: self.data[name][part].swapaxes(0, 1)[None] for name, part in parts.items()}
            if self.logsumexp_gradient:
                given["d_logsumexp"] = self.d_logsumexp[None, :, rows]
            if self.sinks:
                given["sinks"] = self.logits
            if self.prefix is not None:
                given["prefix"] = np.array([self.prefix[index]])
            if one.dropout_threshold:
                given["keep"] = reference.keep_mask(one, SEED)
            exact, low = reference.truth(one, **given), reference.baseline(one, **given)
            names = {"output": rows, "d_query": rows, "d_key": columns, "d_value": columns}
            results = {name: found[name][part].swapaxes(0, 1)[None] for name, part in names.items() if name in found}
            logsumexp = found["logsumexp"][None, :, rows]
            actual = reference.Attention(logsumexp=np.where(logsumexp < -1e38, -np.inf, logsumexp), **results)
            errors = reference.compare(actual, exact, low)
            assert all(error.ok for error in errors), (index, errors)
            if self.sinks:
                d_sinks += exact.d_sinks
        if "d_sinks" in found:
            np.testing.assert_allclose(found["d_sinks"], d_sinks, rtol=2e-3, atol=2e-2)


def _stored(values: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Return (H, T) as stored per row, (1, H, rows), zeros elsewhere."""
    result = np.zeros((1, len(values), len(blocks) * layout.BLOCK), np.float32)
    for index, (first, rows, *_) in enumerate(blocks):
        result[0, :, index * layout.BLOCK :][:, :rows] = values[:, first : first + rows]
    return result


def _unstored(stored: np.ndarray, blocks: np.ndarray, tokens: int) -> np.ndarray:
    """Return inverse of `_stored`."""
    result = np.zeros((len(stored), tokens), np.float32)
    for index, (first, rows, *_) in enumerate(blocks):
        result[:, first : first + rows] = stored[:, index * layout.BLOCK :][:, :rows]
    return result
