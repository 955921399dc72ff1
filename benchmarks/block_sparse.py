"""Block masks on backend `cpu`: the time of dense attention times the share of visible tiles, over the time taken.

    PYTHONPATH=train python -m benchmarks.figures block_sparse

1 is the most that a block mask can save. The calls of a dtype and pass take turns. If torch is installed, its
flex_attention, compiled, runs the forward pass with the tiles of one pattern; it has no backward pass on a CPU.

    PYTHONPATH=train:emulator python -m benchmarks.figures block_sparse_tik

says the same of the TIK operators on the modelled core: which share of the Cube's peak the visible tiles reach, of the
share that dense attention reaches. One head stands for one core's share of 32. The masks are known before the kernels
run, as the ones of a layer are.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from flash_attention.backends.cpu import library
from flash_attention.call import DTYPES, Call
from flash_attention.call.block_mask import BlockMask
from flash_attention.kernels.tik.common import tile_lists
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.figures import Figure
from flash_attention.measuring.implementations import stored
from flash_attention.measuring.timing import medians

SEQ, HEADS, DIM, ROUNDS = 8192, 4, 128, 5
SHARE = 0.125
PASSES = ("forward", "backward")
DENSE = "dense"
PATTERNS = ("random, tiles of 64", "random, tiles of 128", "random, tiles of 256", "bigbird")


def patterns(seq: int, heads: int = HEADS) -> dict[str, BlockMask]:
    """Return the masks by the names in PATTERNS."""

    def random(tile: int) -> BlockMask:
        generator = np.random.default_rng(0)
        return BlockMask.from_rule(
            lambda *at: generator.random(np.broadcast(*at).shape) < SHARE, seq, heads=heads, tile=tile
        )

    masks = *map(random, (64, 128, 256)), BlockMask.bigbird(seq, seed=0, random_tiles=3, heads=heads)
    return dict(zip(PATTERNS, masks))


def names() -> list[str]:
    """Return the names of all figures."""
    return [f"block mask, {dtype} {step}, {name}" for dtype in DTYPES for step in PASSES for name in PATTERNS]


def figures(quick: bool) -> list[Figure]:
    """Measure, print and return the figures."""
    seq, rounds = (512, 1) if quick else (SEQ, ROUNDS)
    found = []
    for dtype in DTYPES:
        masks = patterns(seq)
        runs = {DENSE: _calls(dtype, seq, None), **{name: _calls(dtype, seq, mask) for name, mask in masks.items()}}
        there = importlib.util.find_spec("torch") is not None
        note = f"torch {_torch_share(dtype, masks[PATTERNS[1]], rounds):.2f}" if there else ""
        for step, name in enumerate(PASSES):
            times = medians({pattern: calls[step] for pattern, calls in runs.items()}, rounds)
            for pattern, mask in masks.items():
                share, seconds = mask.density() * times[DENSE][0] / times[pattern][0], times[pattern][0]
                beside = note if (name, pattern) == ("forward", PATTERNS[1]) else ""
                label = f"block mask, {dtype} {name}, {pattern}"
                print(f"{label}: {share:.2f} of the dense speed, {1e3 * seconds:.1f} ms {beside}".rstrip(), flush=True)
                found.append(Figure(label, 100 * share, "%", beside))
    return found


def tik_names() -> list[str]:
    """Return the names of all figures of the TIK operators."""
    return [f"tile lists, {step}, {name}" for step in PASSES for name in PATTERNS]


def tik_figures(quick: bool) -> list[Figure]:
    """Simulate, print and return the figures of the TIK operators."""
    seq, found = 1024 if quick else SEQ, []
    masks = patterns(seq, 1)
    for step in PASSES:
        dense = _tik_cycles(seq, step, None)
        for pattern, mask in masks.items():
            label = f"tile lists, {step}, {pattern}"
            cycles = _tik_cycles(seq, step, mask)
            share = mask.density() * dense / cycles
            print(f"{label}: {share:.2f} of the dense share of the Cube's peak, {cycles:.0f} cycles", flush=True)
            found.append(Figure(label, 100 * share, "%", ""))
    return found


def _tik_cycles(seq: int, step: str, mask: BlockMask | None) -> float:
    """Return the cycles of a kernel on the modelled core, with or without a mask."""
    tiles = {} if mask is None else {"block_mask_shape": mask.tiles.shape, "block_mask_tile": mask.tile}
    problem = tik_kernels.problem_of(seq, DIM, **tiles)
    if mask is not None:
        problem = replace(problem, keeps_tiles=True, scattered=tile_lists.scattered(mask.tiles, mask.tile))
    return tik_kernels.measured(problem, step, mask)[0].cycles


def _calls(dtype: str, seq: int, mask: BlockMask | None) -> tuple[Callable, Callable]:
    """Return the forward and the backward pass of one call."""
    described = {} if mask is None else {"block_mask_shape": mask.tiles.shape, "block_mask_tile": mask.tile}
    call = Call(batch=1, heads=HEADS, seq_q=seq, seq_k=seq, head_dim=DIM, dtype=dtype, **described)
    given = {} if mask is None else {"block_mask": mask.tiles}
    random = np.random.default_rng(0)
    query, key, value, d_output = (
        stored(random.standard_normal(call.shape_query(), np.float32), dtype) for _ in range(4)
    )
    results = library.forward(call, query, key, value, **given)
    return (
        lambda: library.forward(call, query, key, value, **given),
        lambda: library.backward(call, query, key, value, *results, d_output, **given),
    )


def _torch_share(dtype: str, mask: BlockMask, rounds: int) -> float:
    """Return what torch's flex_attention reaches of its own dense attention with a mask."""
    import torch
    from torch.nn.attention.flex_attention import BlockMask as FlexMask
    from torch.nn.attention.flex_attention import flex_attention

    seq = mask.tiles.shape[-1] * mask.tile
    tensors = [torch.randn(1, HEADS, seq, DIM).to(getattr(torch, dtype)) for _ in range(3)]
    compiled = torch.compile(flex_attention, dynamic=False)

    def call(tiles: BlockMask) -> Callable:
        lists = map(torch.from_numpy, tiles.to_lists())
        flex = FlexMask.from_kv_blocks(*lists, BLOCK_SIZE=mask.tile, seq_lengths=(seq, seq))
        return lambda: compiled(*tensors, block_mask=flex)

    calls = {"dense": call(BlockMask(np.ones_like(mask.tiles), mask.tile)), "own": call(mask)}
    with torch.no_grad():
        times = medians(calls, rounds)
    return mask.density() * times["dense"][0] / times["own"][0]
