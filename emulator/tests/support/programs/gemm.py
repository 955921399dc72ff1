"""Programs that stand beside published measurements of a first-generation Ascend 910: a tiled GEMM, a loop of matrix
products and a loop of vector instructions.

    python -m emulator.tests.support.programs.gemm

prints the predicted share of the peak beside the measured share. arXiv 2507.23387 publishes the block sizes of the
GEMM for the 910A: bm, bk, bn = 192, 80, 192 with single and 176, 64, 176 with double buffers. That paper computes
float32 products as three float16 products of the high and low parts of the operands. ``terms=3`` does the same,
``terms=1`` is the plain float16 GEMM. No constant of the timing model was chosen to fit these figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tikemu
from tikemu import tik

SINGLE = (192, 80, 192)
DOUBLE = (176, 64, 176)
#: Which parts (0: high, 1: low) of A and B the products of a block combine.
TERMS = {1: ((0, 0),), 3: ((0, 0), (0, 1), (1, 0))}


def gemm(m: int, k: int, n: int, block: tuple[int, int, int], buffers: int = 1, terms: int = 1, cores: int = 1) -> Any:
    """Compute c = A B, tiled over the cores.

    Inputs ``a`` (parts, K1, M, 16) and ``b`` (parts, K1, N, 16) in float16, the FRACTAL_NZ forms of A and of B
    transposed; output ``c`` (N1, M, 16) in float32. With ``terms=3`` there are two parts, high and low.

    Args:
        m, k, n: sizes, multiples of the block (k: of ``buffers`` blocks).
        block: bm, bk, bn.
        buffers: 1 or 2. With 2, a block is loaded while the block before is multiplied, and a tile of C is stored
            while the next tile is computed.
        terms: 1 or 3 products per block.
        cores: blocks of the multi-core loop; the tiles of C are dealt out evenly.
    """
    bm, bk, bn = block
    tiles = (m // bm) * (n // bn)
    if m % bm or n % bn or k % (bk * buffers) or tiles % cores:
        raise ValueError(f"sizes {(m, k, n)} do not fit blocks {block}, {buffers} buffers and {cores} cores")
    parts = 1 if terms == 1 else 2
    instance = tik.Tik(tik.Dprofile("v100", "cloud"), disable_debug=False)
    a_gm = instance.Tensor("float16", (parts, k // 16, m, 16), tik.scope_gm, "a")
    b_gm = instance.Tensor("float16", (parts, k // 16, n, 16), tik.scope_gm, "b")
    c_gm = instance.Tensor("float32", (n // 16, m, 16), tik.scope_gm, "c")
    with instance.for_range(0, cores, block_num=cores) as core:
        a_l1 = [
            instance.Tensor("float16", (parts, bk // 16, bm, 16), tik.scope_cbuf, f"a_l1_{i}") for i in range(buffers)
        ]
        b_l1 = [
            instance.Tensor("float16", (parts, bk // 16, bn, 16), tik.scope_cbuf, f"b_l1_{i}") for i in range(buffers)
        ]
        # L0A and L0B hold one part at a time, twice if memory allows.
        l0a = [
            instance.Tensor("float16", (bm // 16, bk // 16, 16, 16), tik.scope_ca, f"l0a_{i}")
            for i in range(2 if buffers == 2 or parts == 2 else 1)
        ]
        l0b = [
            instance.Tensor("float16", (bk // 16, bn // 16, 16, 16), tik.scope_cb, f"l0b_{i}") for i in range(len(l0a))
        ]
        with instance.for_range(0, tiles // cores, thread_num=buffers) as turn:
            tile = core * (tiles // cores) + turn
            row, column = (tile % (m // bm)) * bm, (tile // (m // bm)) * bn
            l0c = instance.Tensor("float32", (bn // 16, bm, 16), tik.scope_cc, "l0c")
            ub = instance.Tensor("float32", (bn // 16, bm, 16), tik.scope_ubuf, "ub")
            with instance.for_range(0, k // (bk * buffers)) as step:
                for i in range(buffers):
                    depth = (step * buffers + i) * (bk // 16)
                    for part in range(parts):
                        for l1, gm, size, held, first in ((a_l1, a_gm, m, bm, row), (b_l1, b_gm, n, bn, column)):
                            source = gm[part * size * k + (depth * size + first) * 16]
                            instance.data_move(l1[i][part, 0, 0, 0], source, 0, bk // 16, held, size - held, 0)
                    _multiply_block(instance, block, a_l1[i], b_l1[i], l0a, l0b, l0c, TERMS[terms], i, step)
            instance.tensor_mov(ub, l0c, "m", 1, bm * bn // 256, 0, 0)
            instance.data_move(c_gm[(column // 16 * m + row) * 16], ub, 0, bn // 16, bm * 2, 0, (m - bm) * 2)
    instance.BuildCCE("gemm", [a_gm, b_gm], [c_gm])
    return instance


def _multiply_block(
    instance: Any,
    block: tuple[int, int, int],
    a_l1: Any,
    b_l1: Any,
    l0a: list,
    l0b: list,
    l0c: Any,
    terms: tuple[tuple[int, int], ...],
    buffer: int,
    step: Any,
) -> None:
    """Multiply one block of K. A part stays in L0A or L0B while it is needed."""
    bm, bk, bn = block
    held: dict[str, int | None] = {"a": None, "b": None}
    for turn, (a_part, b_part) in enumerate(terms):
        slot = (buffer + turn) % len(l0a)
        if len(l0a) == 1 or held["a"] != a_part or turn == 0:
            a_slot, held["a"] = slot, a_part
            for i in range(bm // 16):
                instance.load2dv1(l0a[a_slot][i, 0, 0, 0], a_l1[a_part, 0, i * 16, 0], 0, bk // 16, bm // 16, 0, False)
        if len(l0b) == 1 or held["b"] != b_part or turn == 0:
            b_slot, held["b"] = slot, b_part
            instance.load2dv1(l0b[b_slot], b_l1[b_part, 0, 0, 0], 0, bk * bn // 256, 1, 0, False)
        if buffer == 0 and turn == 0:
            with instance.if_scope(step == 0):
                instance.mmad(l0c, l0a[a_slot], l0b[b_slot], bm, bk, bn, 0)
            with instance.else_scope():
                instance.mmad(l0c, l0a[a_slot], l0b[b_slot], bm, bk, bn, 1)
        else:
            instance.mmad(l0c, l0a[a_slot], l0b[b_slot], bm, bk, bn, 1)


def split(x: np.ndarray, terms: int) -> np.ndarray:
    """Return a float32 (R, K) matrix as FRACTAL_NZ parts (parts, K1, R, 16) in float16."""
    high = x.astype(np.float16)
    parts = [high] if terms == 1 else [high, (x - high.astype(np.float32)).astype(np.float16)]
    return np.stack([part.reshape(x.shape[0], -1, 16).transpose(1, 0, 2) for part in parts])


def mmad_loop(block: tuple[int, int, int] = (128, 256, 128), count: int = 1000) -> Any:
    """Run ``count`` products on operands that stay in L0A and L0B."""
    m, k, n = block
    instance = tik.Tik(tik.Dprofile("v100", "cloud"), disable_debug=False)
    a_gm = instance.Tensor("float16", (m * k,), tik.scope_gm, "a")
    b_gm = instance.Tensor("float16", (k * n,), tik.scope_gm, "b")
    c_gm = instance.Tensor("float32", (m * n,), tik.scope_gm, "c")
    l0a = instance.Tensor("float16", (m * k,), tik.scope_ca, "l0a")
    l0b = instance.Tensor("float16", (k * n,), tik.scope_cb, "l0b")
    l0c = instance.Tensor("float32", (m * n,), tik.scope_cc, "l0c")
    ub = instance.Tensor("float32", (m * n,), tik.scope_ubuf, "ub")
    for tensor, source, size in ((l0a, a_gm, m * k), (l0b, b_gm, k * n)):
        for first in range(0, size // 256, 255):
            instance.load2dv1(tensor[first * 256], source, first, min(255, size // 256 - first), 1, 0, False)
    instance.mmad(l0c, l0a, l0b, m, k, n, 0)
    with instance.for_range(0, count - 1):
        instance.mmad(l0c, l0a, l0b, m, k, n, 1)
    instance.tensor_mov(ub, l0c, "m", 1, m * n // 256, 0, 0)
    instance.data_move(c_gm, ub, 0, 1, m * n // 8, 0, 0)
    instance.BuildCCE("mmad_loop", [a_gm, b_gm], [c_gm])
    return instance


VECTOR_REPEATS = 240
_LANES = 128


def vector_loop(name: str = "vadd", targets: int = 2, count: int = 1000) -> Any:
    """Run ``count`` float16 instructions of 240 full repeats on the Unified Buffer.

    Args:
        name: "vadd" or "vmuls".
        targets: 1 or 2 tensors for the results. With 1, each instruction waits for the instruction before; with 2, the
            tensors take turns.
    """
    size = VECTOR_REPEATS * _LANES
    instance = tik.Tik(tik.Dprofile("v100", "cloud"), disable_debug=False)
    x_gm = instance.Tensor("float16", (2 * size,), tik.scope_gm, "x")
    y_gm = instance.Tensor("float16", (size,), tik.scope_gm, "y")
    # Half a row of banks between the operands, as the bank rules advise (timing.md 6).
    x = instance.Tensor("float16", (2 * size + _LANES,), tik.scope_ubuf, "sources")
    y = [instance.Tensor("float16", (size + _LANES,), tik.scope_ubuf, f"target_{i}") for i in range(targets)]
    second = x[size + _LANES]
    instance.data_move(x, x_gm, 0, 1, size // 16, 0, 0)
    instance.data_move(second, x_gm[size], 0, 1, size // 16, 0, 0)
    with instance.for_range(0, count // targets):
        for target in y:
            if name == "vadd":
                instance.vadd(_LANES, target, x, second, VECTOR_REPEATS, 1, 1, 1, 8, 8, 8)
            else:
                instance.vmuls(_LANES, target, x, 1.5, VECTOR_REPEATS, 1, 1, 8, 8)
    instance.data_move(y_gm, y[-1], 0, 1, size // 16, 0, 0)
    instance.BuildCCE("vector_loop", [x_gm], [y_gm])
    return instance


# ------------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True)
class Prediction:
    """A predicted share of a peak and the measured one."""

    name: str
    predicted: float
    published: float | None
    source: str

    def __str__(self) -> str:
        measured = "-" if self.published is None else f"{100 * self.published:.1f}%"
        return f"{self.name:<46} {100 * self.predicted:8.1f}%  {measured:>8}  {self.source}".rstrip()


SGEMM = "arXiv 2507.23387, 910A"
AIBENCH = "AIBench 2024"
#: Sizes of the GEMM: 4 tiles of C for each of 32 cores.
GRID = (8, 16)


def gemm_share(
    block: tuple[int, int, int], buffers: int, terms: int, l2: bool, depth: int = 960, cores: int = 32
) -> float:
    """Return the predicted share of the Cube peak of the GEMM, without computing it."""
    bm, bk, bn = block
    k = depth // (bk * buffers) * bk * buffers
    instance = gemm(GRID[0] * bm, k, GRID[1] * bn, block, buffers, terms, cores)
    result = tikemu.run(instance, {}, numerics=False, options=tikemu.Options(l2=l2, progress=False))
    return result.cube_utilisation


def cube_share(block: tuple[int, int, int] = (128, 256, 128), count: int = 1000) -> float:
    """Return the predicted share of the Cube peak for a loop of products."""
    result = tikemu.run(mmad_loop(block, count), {}, numerics=False, options=tikemu.Options(progress=False))
    return result.cube_utilisation


def vector_share(name: str = "vadd", targets: int = 2, count: int = 1000) -> float:
    """Return the predicted share of the Vector peak of a loop on one core. The peak is one repeat of 128 float16 a
    cycle.
    """
    result = tikemu.run(vector_loop(name, targets, count), {}, numerics=False, options=tikemu.Options(progress=False))
    return VECTOR_REPEATS * count / result.cycles


def predictions(depth: int = 960, cores: int = 32, count: int = 1000) -> list[Prediction]:
    """Return all predictions on the 910A beside what was measured."""
    rows = []
    for terms in (3, 1):
        for l2 in (False, True):
            for block, buffers, measured in ((SINGLE, 1, 0.49), (DOUBLE, 1, None), (DOUBLE, 2, 0.77)):
                name = (
                    f"GEMM {_by(block)} {'double' if buffers == 2 else 'single'}, {terms} product"
                    f"{'s' if terms > 1 else ''}, {'L2' if l2 else 'HBM'}"
                )
                share = gemm_share(block, buffers, terms, l2, depth, cores)
                known = (measured, SGEMM) if terms == 3 and measured is not None else (None, "")
                rows.append(Prediction(name, share, *known))
    for block in ((128, 256, 128), DOUBLE):
        rows.append(Prediction(f"mmad loop {_by(block)}", cube_share(block, count), 0.976, AIBENCH))
    for name in ("vadd", "vmuls"):
        for targets in (1, 2):
            label = f"vector loop, {name} float16, {targets} target{'s' if targets > 1 else ''}"
            rows.append(Prediction(label, vector_share(name, targets, count), 0.98, AIBENCH))
    return rows


def _by(block: tuple[int, int, int]) -> str:
    """Return a block size as text."""
    return "x".join(map(str, block))


def main() -> None:
    """Print the table."""
    print(f"{'share of the peak, 910A':<46} predicted  measured  source")
    for row in predictions():
        print(row)


if __name__ == "__main__":
    main()
