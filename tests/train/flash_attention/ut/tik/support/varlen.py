"""Cases of packed sequences through the kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flash_attention import reference
from flash_attention.call import Varlen
from flash_attention.kernels.tik import describe, host_integers, layout, operators
from flash_attention.kernels.tik.problem import KernelProblem

from tests.train.flash_attention.support.arrays import ends
from tests.train.flash_attention.support.varlen import VarlenCase, check
from tests.train.flash_attention.ut.tik.support import stored_arrays

# What results are stored like.
SHAPES = {"output": "d_output", "d_query": "query", "d_key": "key", "d_value": "value"}


class Packing:
    """Hold a case with its data in float16, and run the kernels on them.

    Args:
        room: sequences that the kernels have room for.
        return_lse: whether the logsumexp has a gradient, as the case says.

    Attributes:
        data: query, key, value and d_output, (tokens, heads, width).
        kernels: of the last run.
    """

    def __init__(self, case: VarlenCase, room: int = 0, return_lse: bool = False):
        self.case, self.room = case, room or len(case.queries)
        self.return_lse = return_lse
        self.rows = replace(case.call, layout="BSND")
        inputs = case.inputs()
        self.data = {
            name: getattr(inputs, name)[0].swapaxes(0, 1).astype(np.float16)
            for name in ("query", "key", "value", "d_output")
        }

    def problem(self, cores: int = 3, tiling: str = "auto") -> KernelProblem:
        """Return the problem that kernels are built for."""
        call = replace(self.rows, storage=Varlen(count=self.room), return_lse=self.return_lse)
        return describe.kernel_problem(call, cores=cores, tiling=tiling)

    def tables(self, problem: KernelProblem, *stages: str) -> tuple:
        """Return the work tables, see operators.work_tables."""
        prefix = np.zeros(self.room, np.int32)
        if self.case.prefixes is not None:
            prefix[: len(self.case.prefixes)] = self.case.prefixes
        lengths = (np.array(ends(side, False), np.int32) for side in (self.case.queries, self.case.keys))
        padded = (np.pad(side, (0, self.room - len(side)), "edge") for side in lengths)
        return operators.work_tables(host_integers, problem, stages)(*padded, prefix)

    def run(self, tik, execute, problem: KernelProblem, stages: tuple[str, ...] | None = None) -> reference.Attention:
        """Return the results of all rows, (1, heads, tokens, width); gradients if stages give them."""
        p, stages = problem, stages or operators.stages(problem)
        with_work = [stage for stage in ("forward", "grad") if stage in stages]
        blocks, *tables = self.tables(problem, "blocks", *with_work)
        work = dict(zip(with_work, tables))
        inputs = self.case.inputs()
        arrays = {name: layout.to_nz(array.reshape(len(array), -1)) for name, array in self.data.items()}
        arrays.update(blocks=blocks, d_logsumexp=_stored(inputs.d_logsumexp[0], blocks))
        if p.call.sinks:
            arrays["sinks"] = stored_arrays.pack_sinks(inputs.sinks, p)
        if p.call.dropout_threshold:
            arrays["keep"] = layout.store_keep_bits_of_sequences([bits[0] for bits in self.case.keep_bits()], p)
        self.kernels = []
        for stage in stages:
            kernel = operators.build(stage, problem, tik, f"packed_{stage}", True)
            self.kernels.append(kernel)
            arrays["work"] = work.get(stage)
            feed = kernel.feed(**{name: arrays[name] for name in kernel.given})
            arrays.update(execute(kernel.tik, feed, [tensor.name for tensor in kernel.outputs]))
        found = {}
        for name, like in SHAPES.items():
            if name in arrays:
                rows = layout.from_nz(arrays[name], len(self.data[like]), self.data[like][0].size)
                found[name] = rows.reshape(self.data[like].shape).swapaxes(0, 1)[None]
        logsumexp = _unstored(arrays["logsumexp"][0], blocks, p.call.seq_q)[None]
        d_sinks = arrays["d_sink_rows"].sum(axis=(0, 2)) if "d_sink_rows" in arrays else None
        return reference.Attention(logsumexp=np.where(logsumexp < -1e38, -np.inf, logsumexp), d_sinks=d_sinks, **found)

    def check(self, found: reference.Attention) -> None:
        """Compare every sequence with the truth of its own call."""
        check(self.case, found, self.return_lse)


def _stored(values: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Return (H, T) values as stored per row, (1, H, rows), zeros elsewhere."""
    result = np.zeros((1, len(values), len(blocks) * layout.BLOCK), np.float32)
    for index, (first, rows, *_) in enumerate(blocks):
        result[0, :, index * layout.BLOCK :][:, :rows] = values[:, first : first + rows]
    return result


def _unstored(stored: np.ndarray, blocks: np.ndarray, tokens: int) -> np.ndarray:
    """Undo `_stored`."""
    result = np.zeros((len(stored), tokens), np.float32)
    for index, (first, rows, *_) in enumerate(blocks):
        result[:, first : first + rows] = stored[:, index * layout.BLOCK :][:, :rows]
    return result
