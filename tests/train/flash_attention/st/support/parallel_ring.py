"""One process of several: attention over its part of a sequence, compared with the truth. Started by msrun.

Arguments are what to check, in this order: ring:CASES, gather:CASES (PYNATIVE), graph:CASES (GatherAttention in GRAPH
mode), with names of CASES separated by commas; memory, uneven, heads, twice. Prints one JSON object: the results by
argument.
"""

import json
import sys
import time
from dataclasses import dataclass

import mindspore as ms
import numpy as np
import parallel_failures
import parallel_heads
import parallel_memory
import parallel_twice
from flash_attention import reference
from flash_attention.call import ALL_BLOCKS, Call
from flash_attention.context_parallel import GatherAttention, RingAttention, SequenceSplit, finalize, initialize
from mindspore import Tensor, nn

from tests.train.flash_attention.support.cells import with_gradients
from tests.train.flash_attention.support.layouts import heads_first, laid_out
from tests.train.flash_attention.support.problems import make_problem


@dataclass(frozen=True)
class RingCase:
    """One attention over the whole sequence; fields as in Call."""

    name: str
    seq: int = 128
    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 16
    dtype: str = "float32"
    causal: bool = False
    window: tuple = (-1, -1)
    blocks: tuple = (ALL_BLOCKS, ALL_BLOCKS)
    alibi: bool = False
    value_dim: int = 0  # 0 = head_dim
    softcap: float = 0.0
    sinks: bool = False
    prefix: bool = False
    segments: bool = False
    order: str = "zigzag"
    layout: str = "BNSD"
    backend: str = "cpu"

    def rules(self) -> dict:
        return {
            "causal": self.causal,
            "window_size": self.window,
            "prev_block_num": self.blocks[0],
            "next_block_num": self.blocks[1],
            "tiling_stgy_name": "sparse_64",
            "alibi": self.alibi,
            "softcap": self.softcap,
            "value_head_dim": self.value_dim or None,
        }

    def problem(self) -> Call:
        names = "batch", "heads", "kv_heads", "head_dim", "value_dim", "dtype", "causal", "softcap", "sinks", "prefix"
        sizes = {name: getattr(self, name) for name in (*names, "segments")}
        return make_problem(
            seq_q=self.seq,
            seq_k=self.seq,
            window_left=self.window[0],
            window_right=self.window[1],
            prev_blocks=self.blocks[0],
            next_blocks=self.blocks[1],
            tile=64,
            alibi=self.alibi,
            **sizes,
        )

    def optional(self) -> dict:
        """Return sinks, prefix and segment ids as the reference takes them."""
        random, optional = np.random.default_rng(1), {}
        if self.sinks:
            optional["sinks"] = random.standard_normal(self.heads).astype(np.float32)
        if self.prefix:
            optional["prefix"] = random.integers(0, self.seq, self.batch).astype(np.int32)
        if self.segments:
            ids = np.sort(random.integers(-1, 3, (self.batch, self.seq)).astype(np.int32))
            optional.update(segment_ids=ids, kv_segment_ids=ids)
        return optional


CASES = (
    RingCase("causal", causal=True, batch=2),
    RingCase("causal-float16-gqa", causal=True, heads=4, kv_heads=2, dtype="float16", seq=256, head_dim=32),
    RingCase("causal-bfloat16-mqa", causal=True, heads=3, kv_heads=1, dtype="bfloat16"),
    RingCase("everything", heads=4, kv_heads=1, head_dim=20, layout="SBH"),
    RingCase("everything-contiguous", order="contiguous", layout="BSND"),
    RingCase("alibi", causal=True, alibi=True, heads=3, kv_heads=3, batch=2, layout="BSH"),
    RingCase("alibi-float16-both-sides", alibi=True, heads=4, kv_heads=2, dtype="float16"),
    RingCase("alibi-window", alibi=True, window=(30, 40)),
    RingCase("window", causal=True, window=(13, -1), order="contiguous"),
    RingCase("window-zigzag", causal=True, window=(40, -1), dtype="float16"),
    RingCase("window-both-sides", window=(21, 9)),
    RingCase("blocks", causal=True, blocks=(1, ALL_BLOCKS), seq=1024),
    RingCase("blocks-both-sides-alibi", blocks=(1, 0), seq=1024, alibi=True, order="contiguous"),
    RingCase("sinks-softcap-width", sinks=True, softcap=2.0, value_dim=24, layout="SBH", causal=True),
    RingCase("prefix-documents", prefix=True, segments=True, sinks=True, causal=True, batch=2, value_dim=8),
    RingCase("math", causal=True, heads=4, kv_heads=2, backend="math"),
    RingCase("math-alibi-float16", causal=True, alibi=True, dtype="float16", backend="math"),
)


class Attend(nn.Cell):
    """The layer with the inputs that have no gradient."""

    def __init__(self, layer, prefix, segment_ids):
        super().__init__()
        self.layer, self.prefix, self.segment_ids = layer, prefix, segment_ids

    def construct(self, query, key, value, sinks=None):
        return self.layer(query, key, value, None, None, sinks, self.prefix, self.segment_ids)


def run(case: RingCase, layer: type, rank: int, world: int) -> list:
    """Return the names and figures of the results of this process that are wrong."""
    random = np.random.default_rng(len(case.name))
    problem = case.problem()
    arrays = [
        reference.round_to(random.standard_normal(shape), case.dtype)
        for shape in (problem.shape_query(), problem.shape_key(), problem.shape_value(), problem.shape_output())
    ]
    split = SequenceSplit(world, case.order)
    parts = (laid_out(split.split(array, rank, 2), case.layout) for array in arrays)
    tensors = [Tensor(part, getattr(ms, case.dtype)) for part in parts]
    attention = layer(case.head_dim, order=case.order, input_layout=case.layout, backend=case.backend, **case.rules())
    optional = case.optional()
    sinks, prefix, ids = (
        Tensor(optional[name]) if name in optional else None for name in ("sinks", "prefix", "segment_ids")
    )
    attention = Attend(attention, prefix, ids)
    given = tensors[:3] if sinks is None else [*tensors[:3], sinks]
    found = with_gradients(attention, *given, tensors[3])
    widths = [getattr(problem, f"{name}_dim") for name in ("value", "head", "head", "value")]
    d_sinks = [tensor.asnumpy() for tensor in found[4:]]
    found = [
        heads_first(tensor.astype(ms.float32).asnumpy(), case.layout, width) for tensor, width in zip(found, widths)
    ]
    names = "output", "d_query", "d_key", "d_value"
    wrong = []
    exact, low = (
        side(problem, *arrays[:3], d_output=arrays[3], **optional) for side in (reference.truth, reference.baseline)
    )
    # The limits belong to the whole sequence, and this process's share of the whole is right by itself.
    whole = {name: np.array(getattr(exact, name)) for name in names}
    positions = split.positions(rank, case.seq)
    for name, value in zip(names, found):
        whole[name][:, :, positions] = value
    actual = reference.Attention(logsumexp=exact.logsumexp, **whole)
    wrong = [str(error) for error in reference.compare(actual, exact, low) if not error.ok]
    if d_sinks:
        # This process's share is what its rows add.
        own = np.zeros_like(arrays[3])
        own[:, :, positions] = arrays[3][:, :, positions]
        share = reference.truth(problem, *arrays[:3], d_output=own, **optional).d_sinks
        limit = 2 * exact.unavoidable["d_sinks"][0]
        if not np.abs(d_sinks[0] - share).max() <= limit:
            wrong.append(f"d_sinks: {d_sinks[0]}, expected {share}, allowed {limit}")
    return wrong


def check_cases(kind: str, names: str, rank: int, world: int) -> dict:
    """Run cases and return their errors by name."""
    ms.set_context(mode=ms.GRAPH_MODE if kind == "graph" else ms.PYNATIVE_MODE)
    layer = RingAttention if kind == "ring" else GatherAttention
    by_name = {case.name: case for case in CASES}
    return {name: run(by_name[name], layer, rank, world) for name in names.split(",")}


def main() -> None:
    """Run the named cases, and print the greatest errors as JSON."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    rank, world = initialize(timeout=120)
    others = {"memory": parallel_memory.check, "uneven": parallel_failures.check_uneven, "heads": parallel_heads.check}
    others["twice"] = parallel_twice.check
    results = {}
    for argument in sys.argv[1:]:
        start = time.perf_counter()
        kind, _, names = argument.partition(":")
        results[kind] = check_cases(kind, names, rank, world) if names else others[kind](rank, world)
        print(f"{argument}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    print("RESULT " + json.dumps(results), flush=True)
    finalize()


if __name__ == "__main__":
    main()
