"""Small TIK programs, each about one thing that the kernels count on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SIZE = 2048  # elements of the vectors
REPEATS = SIZE // 64
FRACTAL = 256
SHIFT = 64  # half a round of the banks of the Unified Buffer, in float32 elements
CORES = 4  # that add up atomically
UNROLLED = 4096  # instructions of the longest program
HALVES = 32768  # float16 numbers: more than are at or below 0
FAR = 1 << 31  # float16 numbers that are 4 GiB
PARTS = 16


@dataclass
class Body:
    """Hold the names a program's statements use. They are the tik module, the instance, the global tensors by name and
    the core's number.
    """

    module: Any
    tik: Any
    gm: dict[str, Any]
    core: Any

    def buffer(self, name: str, dtype: str, size: int, scope: str = "scope_ubuf"):
        """Return a tensor on chip."""
        return self.tik.Tensor(dtype, (size,), getattr(self.module, scope), name)

    def move(self, target, source, blocks: int) -> None:
        """Move contiguous blocks of 32 bytes."""
        self.tik.data_move(target, source, 0, 1, blocks, 0, 0)


@dataclass(frozen=True)
class Program:
    """A program with flat tensors, {name: (dtype, size)}.

    Attributes:
        added: outputs to which it adds. They must be zero at the start.
        workspace: tensors in global memory that are neither input nor output.
    """

    name: str
    statements: Callable[[Body], None]
    inputs: dict[str, tuple[str, int]]
    outputs: dict[str, tuple[str, int]]
    added: tuple[str, ...] = ()
    workspace: dict[str, tuple[str, int]] = field(default_factory=dict)
    cores: int = 1

    def build(self, tik, kernel_name: str, debug: bool):
        """Record and build the program, and return the Tik instance."""
        instance = tik.Tik(disable_debug=not debug)
        gm = {}
        for name, (dtype, size) in {**self.inputs, **self.outputs, **self.workspace}.items():
            kind = {"is_atomic_add": name in self.added, "is_workspace": name in self.workspace}
            gm[name] = instance.Tensor(
                dtype, (size,), tik.scope_gm, name, **{key: on for key, on in kind.items() if on}
            )
        with instance.for_range(0, self.cores, name="core", block_num=self.cores) as core:
            self.statements(Body(tik, instance, gm, core))
        inputs, outputs = ([gm[name] for name in side] for side in (self.inputs, self.outputs))
        instance.BuildCCE(kernel_name=kernel_name, inputs=inputs, outputs=outputs)
        return instance


def _exponential(body: Body) -> None:
    x = body.buffer("x_ub", "float32", SIZE)
    body.move(x, body.gm["x"], SIZE // 8)
    body.tik.vec_exp(64, x, x, REPEATS, 8, 8)
    body.move(body.gm["y"], x, SIZE // 8)


def _copy(body: Body) -> None:
    x = body.buffer("x_ub", "float32", SIZE)
    body.move(x, body.gm["x"], SIZE // 8)
    body.move(body.gm["y"], x, SIZE // 8)


def _exponential_half(body: Body) -> None:
    x = body.buffer("x_ub", "float16", HALVES)
    body.move(x, body.gm["x"], HALVES // 16)
    for half in range(2):
        part = x[half * HALVES // 2]
        body.tik.vec_exp(128, part, part, HALVES // 256, 8, 8)
    body.move(body.gm["y"], x, HALVES // 16)


def _unrolled(body: Body) -> None:
    x = body.buffer("x_ub", "float32", 64)
    body.move(x, body.gm["x"], 8)
    for _ in range(UNROLLED):
        body.tik.vec_adds(64, x, x, 1.0, 1, 8, 8)
    body.move(body.gm["y"], x, 8)


def _parts(body: Body) -> None:
    """Load the parts of a tensor without barriers between them, then use each."""
    x = body.buffer("x_ub", "float32", SIZE)
    size = SIZE // PARTS
    with body.tik.new_stmt_scope(disable_sync=True):
        for part in range(PARTS):
            body.move(x[part * size], body.gm["x"][part * size], size // 8)
    for part in range(PARTS):
        body.tik.vec_muls(64, x[part * size], x[part * size], 2.0, size // 64, 8, 8)
        body.move(body.gm["y"][part * size], x[part * size], size // 8)


def _far(body: Body) -> None:
    """Write to the beginning and to the end of 4 GiB, then read both."""
    x = body.buffer("x_ub", "float16", 32)
    body.move(x, body.gm["x"], 2)
    for writes in (True, False):
        with body.tik.for_range(0, 2, name="end") as end:
            place = body.tik.Scalar("int64", f"place_{writes}", init_value=end)
            far, near = body.gm["space"][place * FAR], x[end * 16]
            body.move(far, near, 1) if writes else body.move(near, far, 1)
        if writes:
            body.tik.vec_dup(32, x, 0.0, 1, 8)
    body.move(body.gm["y"], x, 2)


def _convert(body: Body) -> None:
    x, y = body.buffer("x_ub", "float32", SIZE), body.buffer("y_ub", "float16", SIZE)
    body.move(x, body.gm["x"], SIZE // 8)
    body.tik.vec_conv(64, "none", y, x, REPEATS, 4, 8)
    body.move(body.gm["y"], y, SIZE // 16)


def _sum(body: Body) -> None:
    x, y = body.buffer("x_ub", "float16", 128), body.buffer("y_ub", "float16", 128)
    body.move(x, body.gm["x"], 8)
    body.move(y, body.gm["y"], 8)
    body.tik.vec_add(128, x, x, y, 1, 8, 8, 8)
    body.move(body.gm["z"], x, 8)


def _shifted(body: Body) -> None:
    x, y = body.buffer("x_ub", "float32", SIZE + SHIFT), body.buffer("y_ub", "float32", SIZE)
    body.move(x[SHIFT:], body.gm["x"], SIZE // 8)
    body.move(y, body.gm["y"], SIZE // 8)
    body.tik.vec_mul(64, x, x[SHIFT:], y, REPEATS, 8, 8, 8)
    body.move(body.gm["z"], x, SIZE // 8)


def _mixed_axpy(body: Body) -> None:
    x, y = body.buffer("x_ub", "float32", SIZE), body.buffer("y_ub", "float16", SIZE)
    body.move(x, body.gm["x"], SIZE // 8)
    body.move(y, body.gm["y"], SIZE // 16)
    body.tik.vec_axpy(64, x, y, 0.75, REPEATS, 8, 4)
    body.move(body.gm["z"], x, SIZE // 8)


def _slice(body: Body) -> None:
    stage = body.buffer("stage", "float16", 2 * FRACTAL)
    a, b = (body.buffer(f"{name}_l1", "float16", n * FRACTAL, "scope_cbuf") for name, n in (("a", 2), ("b", 1)))
    for l1, name, n in ((a, "a", 2), (b, "b", 1)):
        body.move(stage, body.gm[name], n * 16)
        body.move(l1, stage, n * 16)
    left = body.buffer("left", "float16", 2 * FRACTAL, "scope_ca")
    right = body.buffer("right", "float16", FRACTAL, "scope_cb")
    product = body.buffer("product", "float32", 2 * FRACTAL, "scope_cc")
    result = body.buffer("result", "float32", 2 * FRACTAL)
    body.tik.load2dv1(left, a, 0, 2, 1, 0, False)
    body.tik.load2dv1(right, b, 0, 1, 1, 0, False)
    for index in range(2):
        body.tik.mmad(product[index * FRACTAL], left[index * FRACTAL], right, 16, 16, 16, 0)
    body.tik.data_move(result, product[FRACTAL], 0, 1, 1, 0, 0)
    body.tik.tensor_mov(result[FRACTAL], product[FRACTAL], "m", 1, 1, 0, 0)
    body.move(body.gm["c"], result, 2 * FRACTAL // 8)


def _workspace(body: Body) -> None:
    x, y = body.buffer("x_ub", "float32", SIZE), body.buffer("y_ub", "float32", SIZE)
    body.move(x, body.gm["x"], SIZE // 8)
    body.move(body.gm["space"], x, SIZE // 8)
    body.move(y, body.gm["space"], SIZE // 8)
    body.tik.vec_muls(64, y, y, 2.0, REPEATS, 8, 8)
    body.move(body.gm["y"], y, SIZE // 8)


def _atomic(body: Body) -> None:
    x = body.buffer("x_ub", "float32", SIZE)
    body.move(x, body.gm["x"], SIZE // 8)
    body.tik.set_atomic_add(1)
    body.move(body.gm["y"], x, SIZE // 8)
    body.tik.set_atomic_add(0)


_X, _Y, _Z = ({name: ("float32", SIZE)} for name in "xyz")
PROGRAMS = {
    program.name: program
    for program in (
        Program("exponential", _exponential, _X, _Y),
        Program("convert", _convert, _X, {"y": ("float16", SIZE)}),
        Program("sum", _sum, {"x": ("float16", 128), "y": ("float16", 128)}, {"z": ("float16", 128)}),
        Program("shifted", _shifted, {**_X, **_Y}, _Z),
        Program("unused_input", _copy, {"a": ("float32", 8), **_X}, _Y),
        Program("unused_output", _copy, _X, {**_Y, "z": ("float32", 8)}, added=("z",)),
        Program("unrolled", _unrolled, {"x": ("float32", 64)}, {"y": ("float32", 64)}),
        Program("parts", _parts, _X, _Y),
        Program("exponential_half", _exponential_half, {"x": ("float16", HALVES)}, {"y": ("float16", HALVES)}),
        Program(
            "far", _far, {"x": ("float16", 32)}, {"y": ("float16", 32)}, workspace={"space": ("float16", FAR + 16)}
        ),
        Program("mixed_axpy", _mixed_axpy, {**_X, "y": ("float16", SIZE)}, _Z),
        Program(
            "slice", _slice, {"a": ("float16", 2 * FRACTAL), "b": ("float16", FRACTAL)}, {"c": ("float32", 2 * FRACTAL)}
        ),
        Program("workspace", _workspace, _X, _Y, workspace={"space": ("float32", SIZE)}),
        Program("atomic", _atomic, _X, _Y, added=("y",), cores=CORES),
    )
}
