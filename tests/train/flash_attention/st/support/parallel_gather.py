"""One process of several: attention over its part of a sequence, compared with the truth. Started by msrun.

Arguments are what to check, in this order: gather:CASES (PYNATIVE), graph:CASES (GRAPH mode), with names of CASES
separated by commas; twice. Prints one JSON object: the results by argument.
"""

import json
import sys
import time
from dataclasses import replace

import mindspore as ms
import numpy as np
from flash_attention import BlockMask, FlashAttention, reference
from flash_attention.call import ALL_BLOCKS
from flash_attention.context_parallel import GatherAttention, SequenceSplit, finalize, initialize
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.support.cells import with_gradients
from tests.train.flash_attention.support.layouts import heads_first, laid_out


def whole(seq: int = 128, batch: int = 1, heads: int = 2, **fields) -> Case:
    """Return one attention over the whole sequence. Windows in blocks go by tiles of 64."""
    sizes = {"batch": batch, "heads": heads, "kv_heads": heads, "seq_q": seq, "seq_k": seq, "head_dim": 16}
    return Case(**{**sizes, "dtype": "float32", "tiling": "sparse_64", **fields})


CAUSAL = {"mask": "causal"}
DOCUMENTS = {"prefix": True, "segments": "documents", "sinks": True, "value_dim": 8}
CONTIGUOUS = {"order": "contiguous"}
#: By name: the case, and the layer's order, layout and backend if they are not zigzag, BNSD and cpu. With "data" the
#: block mask is an input.
CASES: dict[str, tuple] = {
    "causal": (whole(batch=2, **CAUSAL), {}),
    "causal-float16-gqa": (whole(256, heads=4, kv_heads=2, dtype="float16", head_dim=32, **CAUSAL), {}),
    "causal-bfloat16-mqa": (whole(heads=3, kv_heads=1, dtype="bfloat16", **CAUSAL), {}),
    "everything": (whole(heads=4, kv_heads=1, head_dim=20), {"layout": "SBH"}),
    "everything-contiguous": (whole(), {**CONTIGUOUS, "layout": "BSND"}),
    "alibi": (whole(heads=3, batch=2, alibi="computed", **CAUSAL), {"layout": "BSH"}),
    "alibi-float16-both-sides": (whole(heads=4, kv_heads=2, dtype="float16", alibi="computed"), {}),
    "alibi-window": (whole(alibi="computed", window=(30, 40)), {}),
    "window": (whole(window=(13, -1), **CAUSAL), CONTIGUOUS),
    "window-zigzag": (whole(window=(40, -1), dtype="float16", **CAUSAL), {}),
    "window-both-sides": (whole(window=(21, 9)), {}),
    "blocks": (whole(1024, blocks=(1, ALL_BLOCKS), **CAUSAL), {}),
    "blocks-both-sides-alibi": (whole(1024, blocks=(1, 0), alibi="computed"), CONTIGUOUS),
    "sinks-softcap-width": (whole(sinks=True, softcap=2.0, value_dim=24, **CAUSAL), {"layout": "SBH"}),
    "prefix-documents": (whole(batch=2, **DOCUMENTS, **CAUSAL), {}),
    "tiles": (whole(512, batch=2, block_mask="all", **CAUSAL), {}),
    "tiles-data": (whole(512, heads=4, kv_heads=2, block_mask="heads", tile=128), {**CONTIGUOUS, "data": True}),
    "math": (whole(heads=4, kv_heads=2, **CAUSAL), {"backend": "math"}),
    "math-alibi-float16": (whole(dtype="float16", alibi="computed", draw=1, **CAUSAL), {"backend": "math"}),
}


class Attend(nn.Cell):
    """The layer with the inputs that have no gradient."""

    def __init__(self, layer, prefix, segment_ids, tiles):
        super().__init__()
        self.layer, self.prefix, self.segment_ids, self.tiles = layer, prefix, segment_ids, tiles

    def construct(self, query, key, value, sinks=None):
        return self.layer(query, key, value, None, None, sinks, self.prefix, self.segment_ids, self.tiles)


#: Rules of `flash_attention` that layers over several processes do not have.
NOT_TAKEN = "causal_alignment", "dropout_rate"


def run(name: str, rank: int, world: int, **changes) -> list:
    """Return the names and figures of the results of this process that are wrong. The dtype and backend may change."""
    case, way = CASES[name]
    case = replace(case, dtype=changes.pop("dtype", case.dtype))
    way = {"order": "zigzag", "layout": "BNSD", "backend": "cpu", **way, **changes}
    layout, inputs, optional = way.pop("layout"), case.inputs(), case.inputs().optional()
    tiles, data = optional["block_mask"], way.pop("data", False)
    arrays = [inputs.query, inputs.key, inputs.value, inputs.d_output]
    split = SequenceSplit(world, way["order"])
    parts = (laid_out(split.split(array, rank, 2), layout) for array in arrays)
    tensors = [Tensor(part, getattr(ms, case.dtype)) for part in parts]
    rules = {rule: value for rule, value in case.options().items() if rule not in NOT_TAKEN}
    rules.update(alibi=case.alibi == "computed", value_head_dim=case.value_dim or None)
    if tiles is not None and not data:
        rules.update(block_mask=BlockMask(tiles, case.tile))
    attention = GatherAttention(case.head_dim, input_layout=layout, **way, **rules)
    sinks, prefix, ids = (
        None if optional[one] is None else Tensor(optional[one]) for one in ("sinks", "prefix", "segment_ids")
    )
    attention = Attend(attention, prefix, ids, Tensor(tiles) if data else None)
    given = tensors[:3] if sinks is None else [*tensors[:3], sinks]
    found = with_gradients(attention, *given, tensors[3])
    d_sinks = [tensor.asnumpy() for tensor in found[4:]]
    widths = [arrays[place].shape[-1] for place in (3, 0, 1, 2)]
    found = [heads_first(one.astype(ms.float32).asnumpy(), layout, width) for one, width in zip(found, widths)]
    names = "output", "d_query", "d_key", "d_value"
    exact, low = (
        side(case.call, *arrays[:3], d_output=arrays[3], **optional) for side in (reference.truth, reference.baseline)
    )
    # The limits belong to the whole sequence, and this process's share of the whole is right by itself.
    results = {one: np.array(getattr(exact, one)) for one in names}
    positions = split.positions(rank, case.seq_q)
    for one, value in zip(names, found):
        results[one][:, :, positions] = value
    actual = reference.Attention(logsumexp=exact.logsumexp, **results)
    wrong = [str(error) for error in reference.compare(actual, exact, low) if not error.ok]
    if d_sinks:
        # This process's share is what its rows add.
        own = np.zeros_like(arrays[3])
        own[:, :, positions] = arrays[3][:, :, positions]
        share = reference.truth(case.call, *arrays[:3], d_output=own, **optional).d_sinks
        limit = 2 * exact.unavoidable["d_sinks"][0]
        if not np.abs(d_sinks[0] - share).max() <= limit:
            wrong.append(f"d_sinks: {d_sinks[0]}, expected {share}, allowed {limit}")
    return wrong


def check_cases(kind: str, names: str, rank: int, world: int) -> dict:
    """Run cases and return their errors by name."""
    ms.set_context(mode=ms.GRAPH_MODE if kind == "graph" else ms.PYNATIVE_MODE)
    return {name: run(name, rank, world) for name in names.split(",")}


SHAPE = 1, 2, 64, 16


def total(first, second):
    """Return a function that calls one layer behind the other and sums their weighted outputs."""

    def summed(query, key, value, weights):
        result = first(query, key, value)
        return ((result + second(query + result, key * 2, value * 3)) * weights).sum()

    return summed


def gradients(function, arrays):
    return ops.grad(function, (0, 1, 2))(*map(Tensor, arrays))


def check_twice(rank: int, world: int) -> dict:
    """Return the largest relative errors against one process."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(SHAPE).astype(np.float32) for _ in range(4)]
    split = SequenceSplit(world)
    parts = [np.ascontiguousarray(split.split(array, rank, 2)) for array in arrays]
    alone = FlashAttention(SHAPE[3], causal=True)
    expected = [split.split(one.asnumpy(), rank, 2) for one in gradients(total(alone, alone), arrays)]
    found = {}
    for kind, compiled in (("gather", False), ("gather in @jit", True)):
        first, other = (GatherAttention(SHAPE[3], causal=True) for _ in range(2))
        for calls, second in (("one layer", first), ("two alike", other)):
            function = total(first, second)
            results = gradients(ms.jit(function) if compiled else function, parts)
            found[f"{kind}, {calls}"] = max(
                float(np.abs(one.asnumpy() - right).max() / np.abs(right).max())
                for one, right in zip(results, expected)
            )
    return found


def main() -> None:
    """Run the named cases, and print the greatest errors as JSON."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    rank, world = initialize(timeout=120)
    results = {}
    for argument in sys.argv[1:]:
        start = time.perf_counter()
        kind, _, names = argument.partition(":")
        results[kind] = check_cases(kind, names, rank, world) if names else check_twice(rank, world)
        print(f"{argument}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    print("RESULT " + json.dumps(results), flush=True)
    finalize()


if __name__ == "__main__":
    main()
