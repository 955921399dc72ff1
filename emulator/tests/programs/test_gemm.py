"""The tiled GEMM and the loops that stand beside published measurements: correct, and their predicted shares plausible.

Nothing here asks predictions and measurements to agree; ``python -m emulator.tests.support.programs.gemm`` prints both.
"""

import numpy as np
import pytest
import tikemu
from tikemu import Options

from emulator.tests.support.programs import gemm


@pytest.mark.parametrize("buffers", [1, 2])
@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("cores", [1, 2])
def test_gemm_is_right(buffers, terms, cores):
    generator = np.random.default_rng(1)
    m, k, n = 96, 128, 160
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    instance = gemm.gemm(m, k, n, (48, 32, 80), buffers, terms, cores)
    result = tikemu.run(
        instance, {"a": gemm.split(a, terms), "b": gemm.split(b.T.copy(), terms)}, options=Options(strict=True)
    )
    c = result.outputs["c"].transpose(1, 0, 2).reshape(m, n)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error = np.abs(c - exact).max()
    assert error < (2e-2 if terms == 1 else 2e-5), "three products give float32 accuracy, one that of float16"
    assert error > 1e-4 or terms == 3
    assert result.macs == m * k * n * terms
    assert result.instructions["mmad"].count == terms * 4 * k // 32


def test_sizes_must_fit_the_blocks():
    with pytest.raises(ValueError, match="do not fit"):
        gemm.gemm(100, 128, 160, (48, 32, 80))


@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("l2", [False, True])
def test_double_buffers_raise_the_share_of_the_cube(terms, l2):
    """With the same block and traffic, double buffers save time: loads overlap with products."""
    blocks = {"block": gemm.DOUBLE, "terms": terms, "l2": l2, "depth": 256, "cores": 8}
    single, double = (gemm.gemm_share(buffers=buffers, **blocks) for buffers in (1, 2))
    assert 0.1 < single < 1 and 0.1 < double < 1
    assert double > single or (terms, l2) == (1, False), "without the L2 buffer one product is bound by the memory"


def test_published_blocks_fill_the_memories():
    """With the largest block, 176, L0C and the planned Unified Buffer hold two tiles of C."""
    for block, buffers in ((gemm.SINGLE, 1), (gemm.DOUBLE, 2)):
        bm, bk, bn = block
        instance = gemm.gemm(bm * 2, bk * buffers, bn, block, buffers, 3, 1)
        peak = tikemu.run(instance, {}, numerics=False, options=Options(strict=True)).peak_bytes
        assert peak["L0C"] == peak["UB"] == buffers * bm * bn * 4
        assert peak["L0A"] == 2 * bm * bk * 2
    assert 2 * 176 * 176 * 4 <= 253952 < 2 * 192 * 192 * 4


def test_loops_come_close_to_the_peak_and_never_exceed_it():
    for share in (
        gemm.cube_share(count=50),
        gemm.cube_share(gemm.DOUBLE, 50),
        gemm.vector_share("vadd", count=50),
        gemm.vector_share("vmuls", count=50),
    ):
        assert 0.5 < share < 1
    assert gemm.vector_share("vmuls", 1, 50) < gemm.vector_share("vmuls", 2, 50), "a dependent instruction waits"


def test_loops_compute_what_they_say():
    generator = np.random.default_rng(2)
    size = gemm.VECTOR_REPEATS * 128
    x = generator.standard_normal(2 * size).astype(np.float16)
    result = tikemu.run(gemm.vector_loop(count=4), {"x": x}, options=Options(strict=True)).outputs["y"]
    np.testing.assert_array_equal(result, x[:size] + x[size:])
    a, b = (generator.integers(-4, 4, 32 * 48).astype(np.float16) for _ in range(2))
    c = tikemu.run(gemm.mmad_loop((32, 48, 32), 5), {"a": a, "b": b}, options=Options(strict=True)).outputs["c"]
    left = a.reshape(2, 3, 16, 16).transpose(0, 2, 1, 3).reshape(32, 48).astype(np.float64)
    right = b.reshape(3, 2, 16, 16).transpose(0, 3, 1, 2).reshape(48, 32).astype(np.float64)
    np.testing.assert_array_equal(c.reshape(2, 32, 16).transpose(1, 0, 2).reshape(32, 32), 5 * left @ right)


def test_the_l2_buffer_takes_load_off_the_memory():
    """Several blocks read the same rows: from the second time on the L2 buffer has them."""
    instance = gemm.gemm(352, 256, 704, gemm.DOUBLE, 2, 1, 8)
    with_l2, without = (tikemu.run(instance, {}, numerics=False, options=Options(l2=l2)) for l2 in (True, False))
    once = (352 + 704) * 256 * 2 + 352 * 704 * 4
    assert with_l2.memory_floor == pytest.approx(once / (1160 / 8) / 8, rel=1e-6)
    assert without.memory_floor > with_l2.memory_floor
    assert with_l2.core_cycles[-1] < without.core_cycles[-1]
