"""Tensors of more than 2^31 elements and 2^32 bytes: offsets in global memory are 64-bit.

Only the far end of each tensor holds data: memory is virtual until it is touched, and only some cores run.
"""

import numpy as np
import pytest
from flash_attention.kernels.tik.backward import schedule as backward_work
from flash_attention.kernels.tik.forward import schedule as forward_work
from flash_attention.kernels.tik.layout import from_nz, to_nz
from flash_attention.kernels.tik.problem import padded

from tests.train.flash_attention.support.calls import make_kernel_problem
from tests.train.flash_attention.ut.tik.support.programs import build_backward, build_forward

LENGTH, DEPTH, WINDOW = 2**17 + 40, 256, 100
PROBLEM = make_kernel_problem(3, 22, LENGTH, LENGTH, DEPTH, causal=True, window_left=WINDOW, cores=65535)
PLANE = PROBLEM.call.batch * PROBLEM.call.heads - 1  # the last head of the last batch
FIRST = 2**17 - 512  # tokens from here on hold data; a multiple of every tile of queries


class _Far(np.ndarray):
    """Contents of a global tensor, too large to copy."""

    def copy(self, order="C"):
        return self


@pytest.fixture
def run_blocks(monkeypatch, on_emulator):
    """Run some blocks of a kernel: run(kernel, blocks, parts) with {name: (index, values)} written beforehand."""
    import tikemu
    from tikemu.machine import cores, memories

    chosen, written = [], {}

    def fill(tensor, fed) -> None:
        for index, values in written.get(tensor.info.name, ()):
            tensor.array[index] = values

    def run_some(given) -> None:
        for block in chosen:
            cores.begin_block(given.runtime, block, 0.0)
            given.runtime.core.reset()
            given.compiled.main()

    contents = memories.GlobalTensor.array.fget
    monkeypatch.setattr(memories.GlobalTensor, "fill", fill)
    monkeypatch.setattr(memories.GlobalTensor, "array", property(lambda tensor: contents(tensor).view(_Far)))
    monkeypatch.setattr(cores.Cores, "run", run_some)

    def run(kernel, blocks, parts: dict) -> dict:
        chosen[:] = blocks
        written.clear()
        written.update(parts)
        feed = {t.name: np.broadcast_to(np.zeros((), t.dtype), t.shape) for t in kernel.inputs + kernel.outputs}
        for tensor in kernel.inputs:
            if tensor.constant is not None:
                written[tensor.name] = [(..., tensor.constant)]
        return tikemu.run(kernel.tik, feed, timing=False, options=tikemu.Options(progress=False)).outputs

    return run


LAST_TOKENS = PROBLEM.call.batch - 1, PROBLEM.call.heads - 1, slice(None), slice(FIRST // 16, None)  # in FRACTAL_NZ


def _last(stored: np.ndarray) -> np.ndarray:
    """Return the tokens of the last head from FIRST on, (tokens, D)."""
    return from_nz(np.asarray(stored[LAST_TOKENS]), LENGTH - FIRST, DEPTH).astype(np.float64)


def _numbers(rows: int) -> np.ndarray:
    """Return the numbers, over all heads, of the last head's tiles from FIRST on. A tile has `rows` tokens."""
    tiles = -(-LENGTH // rows)
    return PLANE * tiles + np.arange(FIRST // rows, tiles)


def _apart(problem, plan, families, costs, _):
    """Deal single key tiles to the cores."""
    units = [(cost, 0, [(head, tile)]) for family in families for head in family for tile, cost in enumerate(costs)]
    return backward_work._dealt(units, 1, problem.cores)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_last_head_of_tensors_past_32_bits(tik, run_blocks, monkeypatch):
    # A core for every key tile, so that few of them have to run, which leaves the sums to the last pass.
    monkeypatch.setattr(backward_work, "_finals", lambda *_: None)
    monkeypatch.setattr(backward_work, "_shared", _apart)
    backward_work._choose.cache_clear()
    assert PLANE * padded(LENGTH) * DEPTH > 2**31
    random = np.random.default_rng(0)
    names = "query", "key", "value", "d_output"
    data = [random.standard_normal((LENGTH - FIRST, DEPTH)).astype(np.float16) for _ in names]
    parts = {name: [(LAST_TOKENS, to_nz(array))] for name, array in zip(names, data)}
    expected = _expected(*(array.astype(np.float64) for array in data))
    found = {}

    def run(kernel, blocks) -> None:
        found.update(run_blocks(kernel, sorted({int(block) for block in blocks}), parts))

    kernel = build_forward(PROBLEM, tik)
    items = forward_work.choose(PROBLEM).split.table
    mine = (items["head"] == PLANE) & (items["row_blocks"]["start"].max(2) >= FIRST)
    run(kernel, np.flatnonzero(mine.any(1)))
    parts["output"] = [(LAST_TOKENS, found["output"][LAST_TOKENS])]
    far = PROBLEM.call.batch - 1, PROBLEM.call.heads - 1, slice(FIRST, None)
    parts["logsumexp"] = [(far, found["logsumexp"][far])]

    rows, main, finish = build_backward(PROBLEM, tik).kernels
    run(rows, _numbers(rows.plan.rows) % rows.cores)
    far = slice(None), PLANE, slice(FIRST // 16, None)
    parts["row_lanes"] = [(far, found["row_lanes"][far])]

    items = backward_work.choose(PROBLEM).split.table
    mine = (items["head"] == PLANE) & (items["steps"] > 0)
    ends = (items["tile"] + 1) * main.plan.keys  # FIRST may lie inside a tile of keys
    run(main, np.flatnonzero((mine & (ends > FIRST)).any(1)))
    far = 0, PLANE, slice(FIRST // main.plan.rows, None)
    parts["d_query_sums"] = [(far, found["d_query_sums"][far])]

    run(finish, _numbers(main.plan.rows) // finish.units[0])
    sure = slice(128, None)  # tokens before see keys that hold no data here
    for name, exact in expected.items():
        error = np.abs(_last(found[name]) - exact)[sure].max()
        assert error < 2.0**-9 * np.abs(exact[sure]).max(), name
    backward_work._choose.cache_clear()


def _expected(query, key, value, d_output) -> dict:
    """Return the output and gradients for the tokens that hold data, in float64."""
    row = np.arange(LENGTH - FIRST)
    seen = (row[None, :] <= row[:, None]) & (row[None, :] >= row[:, None] - WINDOW)
    weights = np.where(seen, np.exp(query @ key.T * PROBLEM.call.scale), 0)
    weights /= weights.sum(1, keepdims=True)
    output = weights @ value
    d_scores = weights * (d_output @ value.T - (d_output * output).sum(1, keepdims=True)) * PROBLEM.call.scale
    return {"output": output, "d_query": d_scores @ key, "d_key": d_scores.T @ query, "d_value": weights.T @ d_output}
