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
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from flash_attention.backends.cpu import library
from flash_attention.call import DTYPES, Call
from flash_attention.call.block_mask import BlockMask
from flash_attention.kernels.tik import operators
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.figures import Figure
from flash_attention.measuring.timing import rounds_in_turns

SEQ, HEADS, DIM, ROUNDS = 8192, 4, 128, 5
SHARE = 0.125
PASSES = ("forward", "backward")
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
        runs = {None: _calls(dtype, seq, None), **{name: _calls(dtype, seq, mask) for name, mask in masks.items()}}
        theirs = _torch_shares(dtype, seq, {PATTERNS[1]: masks[PATTERNS[1]]}, rounds)
        for step, name in enumerate(PASSES):
            times = dict(zip(runs, rounds_in_turns([_seconds_of(calls[step]) for calls in runs.values()], rounds)))
            for pattern, mask in masks.items():
                shares = [mask.density() * dense / own for dense, own in zip(times[None], times[pattern])]
                share, note = statistics.median(shares), ""
                if name == "forward" and pattern in theirs:
                    note = f"torch {theirs[pattern]:.2f}"
                label = f"block mask, {dtype} {name}, {pattern}"
                milliseconds = 1e3 * statistics.median(times[pattern])
                print(f"{label}: {share:.2f} of the dense speed, {milliseconds:.1f} ms {note}".rstrip(), flush=True)
                found.append(Figure(label, 100 * share, "%", note))
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
    if mask is None:
        return tik_kernels.simulate(tik_kernels.build(problem, step)).cycles
    problem = replace(problem, keeps_tiles=True)
    work = operators.known_table(problem, tik_kernels.OPERATORS[step][0], mask.tiles)
    return tik_kernels.simulate(tik_kernels.build(problem, step), given={"work": work}).cycles


def _calls(dtype: str, seq: int, mask: BlockMask | None) -> tuple[Callable, Callable]:
    """Return the forward and the backward pass of one call."""
    described = {} if mask is None else {"block_mask_shape": mask.tiles.shape, "block_mask_tile": mask.tile}
    call = Call(batch=1, heads=HEADS, seq_q=seq, seq_k=seq, head_dim=DIM, dtype=dtype, **described)
    given = {} if mask is None else {"block_mask": mask.tiles}
    random = np.random.default_rng(0)
    query, key, value, d_output = (
        _stored(random.standard_normal(call.shape_query(), np.float32), dtype) for _ in range(4)
    )
    results = library.forward(call, query, key, value, **given)
    return (
        lambda: library.forward(call, query, key, value, **given),
        lambda: library.backward(call, query, key, value, *results, d_output, **given),
    )


def _stored(array: np.ndarray, dtype: str) -> np.ndarray:
    return (array.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else array.astype(dtype)


def _seconds_of(run: Callable) -> Callable[[], float]:
    def seconds() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return seconds


def _torch_shares(dtype: str, seq: int, masks: dict[str, BlockMask], rounds: int) -> dict[str, float]:
    """Return what torch's flex_attention reaches of its own dense attention, by pattern."""
    if importlib.util.find_spec("torch") is None:
        return {}
    import torch
    from torch.nn.attention.flex_attention import BlockMask as FlexMask
    from torch.nn.attention.flex_attention import flex_attention

    tensors = [torch.randn(1, HEADS, seq, DIM).to(getattr(torch, dtype)) for _ in range(3)]
    compiled = torch.compile(flex_attention, dynamic=False)
    found = {}
    for pattern, mask in masks.items():
        whole = BlockMask(np.ones_like(mask.tiles), mask.tile)
        flex = [
            FlexMask.from_kv_blocks(
                *map(torch.from_numpy, one.to_lists()), BLOCK_SIZE=mask.tile, seq_lengths=(seq, seq)
            )
            for one in (whole, mask)
        ]
        steps = [lambda one=one: compiled(*tensors, block_mask=one) for one in flex]
        with torch.no_grad():
            dense, own = rounds_in_turns([_seconds_of(step) for step in steps], rounds + 1)
        found[pattern] = mask.density() * statistics.median(dense[1:]) / statistics.median(own[1:])
    return found
