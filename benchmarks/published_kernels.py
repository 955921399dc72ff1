"""Predict kernels with published times on a first-generation Ascend 910, written after their description.

    PYTHONPATH=train:emulator python -m benchmarks.published_kernels

The kernels are a recurrence over tokens ("gated delta") and its ablations, a convolution of four taps, and a probe that
reads the memory. In the recurrence, the state S of a head is a float32 matrix in the Unified Buffer. A token scales S,
takes k S, adds an outer product and takes q S. The exit status is 1 if no reading of the evidence fits all of them.
Sources: lvyufeng/relic-engine (docs/performance), XieMenghuan21/legacy-ascend-qwen38 (docs/OPERATORS.md).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Union

import tikemu
from flash_attention.measuring import readings
from flash_attention.text_table import table
from tikemu import tik
from tikemu.frontend import platform_info

LANES = 64  # of float32 in a repeat
KEYS = 128  # rows of the state
CONVOLUTION_CHANNELS, TAPS, CONVOLUTION_BLOCKS = 10240, 4, 32
TILE, BATCH_TILES, SAMPLES = 64 * 256, 6, 4  # of the probe: float16 numbers, tiles in flight, numbers looked at
CORES, CLOCK = 30, 0.9e9  # of the cards, by their platform file
FITS = 0.06  # how far predictions may be from what was published


@dataclass(frozen=True)
class Recurrence:
    """One variant of the recurrence.

    Attributes:
        columns, rows: size of the state that a core works on.
        accumulators: partial sums that the rows of a product are added to in turn.
        folded: products are a broadcast, a multiplication and a fold in halves, in place of an axpy for each row.
        pieces: number of instructions for the broadcast of a row.
        from_buffer: whether the broadcast number comes from the Unified Buffer; else it is a constant.
    """

    columns: int = 128
    rows: int = KEYS
    accumulators: int = 1
    folded: bool = False
    pieces: int = 1
    from_buffer: bool = True

    lengths, active_cores = (1, 3), 12

    def figure(self, cycles: list[float]) -> float:
        """Return the cycles of a token: the slope between two lengths."""
        return (cycles[1] - cycles[0]) / 2

    def build(self, tokens: int) -> Any:
        """Build one core's work on some tokens."""
        core = _Recurrence(self, tokens)
        for token in range(tokens):
            core.token(token)
        return core.finish()


class _Recurrence:
    """Record a variant."""

    def __init__(self, shape: Recurrence, tokens: int) -> None:
        self.shape, self.tik = shape, tik.Tik(disable_debug=False)
        sizes = {"q": shape.rows, "k": shape.rows, "v": shape.columns, "out": shape.columns, "gates": 16}
        dtypes = {"q": "float32", "k": "float32"}
        self.gm = {
            name: self.tik.Tensor(dtypes.get(name, "float16"), (tokens * size,), tik.scope_gm, name)
            for name, size in sizes.items()
        }
        self.sizes = sizes
        self.state, self.work = self.buffer("state", shape.rows * shape.columns), self.buffer("work", KEYS * 128)
        self.q, self.k = self.buffer("q_row", KEYS), self.buffer("k_row", KEYS)
        self.v, self.sums = self.buffer("v_row", 128), self.buffer("sums", 128 * shape.accumulators)
        self.half = self.buffer("half", 128, "float16")
        self.gate, self.exponential = self.buffer("gate", 16, "float16"), self.buffer("exponential", 8)
        self.over("vec_dup", shape.rows * shape.columns, self.state, scalar=0.0)

    def buffer(self, name: str, size: int, dtype: str = "float32") -> Any:
        return self.tik.Tensor(dtype, (size,), tik.scope_ubuf, name)

    def scalar(self, element: Any, dtype: str = "float32") -> Any:
        """Return a number that the scalar unit reads from the Unified Buffer."""
        return self.tik.Scalar(dtype, "number", element)

    def load(self, target: Any, name: str, token: int) -> None:
        size = self.sizes[name]
        per_block = 8 if target.dtype == "float32" else 16
        self.tik.data_move(target, self.gm[name][token * size], 0, 1, size // per_block, 0, 0)

    def over(self, name: str, size: int, *operands: Any, scalar: Any = None) -> None:
        """Emit an elementwise instruction over ``size`` float32 numbers, 255 repeats at a time."""
        lanes, per_call = min(size, LANES), 255 * LANES
        for first in range(0, size, per_call):
            repeats = -(-min(per_call, size - first) // LANES)
            given = [operand[first] for operand in operands] + ([] if scalar is None else [scalar])
            getattr(self.tik, name)(lanes, *given, repeats, *[8] * len(operands))

    def token(self, token: int) -> None:
        """Emit one step of the recurrence."""
        shape, columns = self.shape, self.shape.columns
        for row, name in ((self.q, "q"), (self.k, "k")):
            self.load(row, name, token)
            if not shape.folded:  # the later form waits for every row with the scalar unit
                self.scalar(row[0])
        self.load(self.half, "v", token)
        self.tik.vec_conv(LANES, "none", self.v, self.half, columns // LANES, 8, 4)
        self.load(self.gate, "gates", token)
        self.scalar(self.gate[1], "float16")
        decay = self.scalar(self.gate[0], "float16")
        self.tik.vec_dup(8, self.exponential, 1.0, 1, 8)
        self.tik.vec_exp(8, self.exponential, self.exponential, 1, 8, 8)
        decay = self.scalar(self.exponential[0])
        self.over("vec_muls", shape.rows * columns, self.state, self.state, scalar=decay)
        product = self.product(self.k)
        delta = self.work[KEYS * 64]
        self.over("vec_muls", columns, delta, product, scalar=-1.0)
        self.over("vec_add", columns, delta, delta, self.v)
        self.over("vec_muls", columns, delta, delta, scalar=0.5)
        for row in range(shape.rows):
            self.over("vec_axpy", columns, self.state[row * columns], delta, scalar=self.scalar(self.k[row]))
        self.over("vec_muls", columns, self.v, self.product(self.q), scalar=0.5)
        self.tik.vec_conv(LANES, "none", self.half, self.v, columns // LANES, 4, 8)
        self.tik.data_move(self.gm["out"][token * columns], self.half, 0, 1, columns // 16, 0, 0)
        self.tik.set_flag("PIPE_MTE3", "PIPE_MTE2", 0)
        self.tik.wait_flag("PIPE_MTE3", "PIPE_MTE2", 0)

    def product(self, row: Any) -> Any:
        """Multiply the vector ``row`` by the state."""
        shape, columns = self.shape, self.shape.columns
        if shape.folded:
            return self.folded_product(row)
        for part in range(shape.accumulators):
            self.over("vec_dup", columns, self.sums[part * columns], scalar=0.0)
        for number in range(shape.rows):
            target = self.sums[number % shape.accumulators * columns]
            self.over("vec_axpy", columns, target, self.state[number * columns], scalar=self.scalar(row[number]))
        for part in range(1, shape.accumulators):
            self.over("vec_add", columns, self.sums, self.sums, self.sums[part * columns])
        return self.sums

    def folded_product(self, row: Any) -> Any:
        """Multiply ``row`` by the state: broadcast the row, multiply, and add halves."""
        shape, columns = self.shape, self.shape.columns
        piece = columns // shape.pieces
        for number in range(shape.rows):
            value = self.scalar(row[number]) if shape.from_buffer else 0.5
            for part in range(shape.pieces):
                self.over("vec_dup", piece, self.work[number * columns + part * piece], scalar=value)
        size = shape.rows * columns
        self.over("vec_mul", size, self.work, self.work, self.state)
        while size > columns:
            size //= 2
            self.over("vec_add", size, self.work, self.work, self.work[size])
        return self.work

    def finish(self) -> Any:
        inputs = [self.gm[name] for name in ("q", "k", "v", "gates")]
        self.tik.BuildCCE("gated_delta", inputs, [self.gm["out"]])
        return self.tik


@dataclass(frozen=True)
class Convolution:
    """A causal convolution of one token: a channel's four products are added up by the scalar unit, in order."""

    lengths, active_cores = (1,), None

    def figure(self, cycles: list[float]) -> float:
        """Return the microseconds of a token."""
        return cycles[0] / CLOCK * 1e6

    def build(self, tokens: int) -> Any:
        """Build the convolution: 32 blocks of 320 channels each, four channels an iteration."""
        instance = tik.Tik(disable_debug=False)
        size = CONVOLUTION_CHANNELS * TAPS
        x_gm, weight_gm = (instance.Tensor("float32", (size,), tik.scope_gm, name) for name in ("x", "weight"))
        y_gm = instance.Tensor("float32", (CONVOLUTION_CHANNELS,), tik.scope_gm, "y")
        channels = CONVOLUTION_CHANNELS // CONVOLUTION_BLOCKS
        with instance.for_range(0, CONVOLUTION_BLOCKS, block_num=CONVOLUTION_BLOCKS) as block:
            x, weight = (instance.Tensor("float32", (channels * TAPS,), tik.scope_ubuf, f"{name}_ub") for name in "xw")
            y = instance.Tensor("float32", (channels,), tik.scope_ubuf, "y_ub")
            for target, source in ((x, x_gm), (weight, weight_gm)):
                instance.data_move(target, source[block * channels * TAPS], 0, 1, channels * TAPS // 8, 0, 0)
            instance.vec_mul(LANES, x, x, weight, channels * TAPS // LANES, 8, 8, 8)
            with instance.for_range(0, channels // 4) as group:
                products = [
                    [instance.Scalar("float32", "product", x[(group * 4 + number) * TAPS + tap]) for tap in range(TAPS)]
                    for number in range(4)
                ]
                for number, (first, *others) in enumerate(products):
                    total = first
                    for product in others:
                        total = total + product
                    y[group * 4 + number].set_as(total)
            instance.data_move(y_gm[block * channels], y, 0, 1, channels // 8, 0, 0)
        instance.BuildCCE("convolution", [x_gm, weight_gm], [y_gm])
        return instance


@dataclass(frozen=True)
class MemoryProbe:
    """Read with all cores. The scalar unit looks at some numbers of each batch before the buffers are filled again."""

    lengths, active_cores = (4, 12), None

    def figure(self, cycles: list[float]) -> float:
        """Return the rate in GB a second."""
        return (12 - 4) * CORES * BATCH_TILES * TILE * 2 / ((cycles[1] - cycles[0]) / CLOCK) / 1e9

    def build(self, batches: int) -> Any:
        """Build some batches on every core."""
        instance = tik.Tik(disable_debug=False)
        x_gm = instance.Tensor("float16", (CORES * batches * BATCH_TILES * TILE,), tik.scope_gm, "x")
        with instance.for_range(0, CORES, block_num=CORES) as core:
            tiles = [instance.Tensor("float16", (TILE,), tik.scope_ubuf, f"tile_{i}") for i in range(BATCH_TILES)]
            total = instance.Scalar("float32", "total", 0.0)
            with instance.for_range(0, batches) as batch:
                for number, tile in enumerate(tiles):
                    first = ((core * batches + batch) * BATCH_TILES + number) * TILE
                    instance.data_move(tile, x_gm[first], 0, 1, TILE // 16, 0, 0)
                for tile in tiles:
                    for sample in range(SAMPLES):
                        seen = instance.Scalar("float16", "seen", tile[sample * (TILE - 1) // (SAMPLES - 1)])
                        total.set_as(total + instance.Scalar("float32", "wide", seen))
                instance.set_flag("PIPE_S", "PIPE_MTE2", 0)
                instance.wait_flag("PIPE_S", "PIPE_MTE2", 0)
        instance.BuildCCE("memory_probe", [x_gm], [])
        return instance


Kernel = Union[Recurrence, Convolution, MemoryProbe]


@dataclass(frozen=True)
class Published:
    """Hold a measurement: ``low`` to ``high`` in ``unit``."""

    name: str
    kernel: Kernel
    low: float
    high: float
    unit: str = "cycles a token"

    def predicted(self, constants: Mapping[str, float]) -> float:
        """Return the model's figure under other values of its constants."""
        given = dict(constants)
        if isinstance(self.kernel, Recurrence):
            # Its compiler is Ascend C's. The kernel before wrote rows and gates, so they come from the L2 buffer.
            given.update(mask_every=1, gm_read_latency=given.get("l2_read_latency", 150))
        options = tikemu.Options(constants=given, active_cores=self.kernel.active_cores, trace=False, progress=False)
        results = [tikemu.run(program, {}, numerics=False, options=options) for program in programs(self.kernel)]
        return self.kernel.figure([float(result.cycles or 0) for result in results])

    def ratio(self, predicted: float) -> float:
        """Return the ratio of predicted to published; 1 inside the published range."""
        return predicted / min(max(predicted, self.low), self.high)


@cache
def programs(kernel: Kernel) -> tuple[Any, ...]:
    """Record a kernel at its lengths, for the chip that was measured."""
    selected = platform_info.selection()
    platform_info.select("Ascend910B")
    try:
        return tuple(kernel.build(length) for length in kernel.lengths)
    finally:
        platform_info.restore(selected)


PUBLISHED = (
    Published("gated delta", Recurrence(), 8385, 8385),
    Published("gated delta, 64 columns", Recurrence(columns=64), 7309, 7309),
    Published("gated delta, 64 rows", Recurrence(rows=64), 4588, 4588),
    Published("gated delta, 2 accumulators", Recurrence(accumulators=2), 8546, 8546),
    Published("gated delta, 8 accumulators", Recurrence(accumulators=8), 9010, 9010),
    Published("gated delta, broadcast and fold", Recurrence(folded=True), 9198, 9198),
    Published("the same, 64 columns", Recurrence(folded=True, columns=64), 7533, 7533),
    Published("the same, two instructions for one", Recurrence(folded=True, pieces=2), 11994, 11994),
    Published("the same, a constant for the number", Recurrence(folded=True, from_buffer=False), 9190, 9190),
    Published("convolution of 4 taps, without its launch", Convolution(), 18.9, 24.2, "us"),
    Published("read of the memory, 30 cores", MemoryProbe(), 1148, 1148, "GB/s"),
)

_LATE = {"l2_read_latency": 240, "vector_reads_add": 0}
#: Readings of the evidence by name, as other values of constants.
READINGS: dict[str, dict[str, float]] = {
    **{name: values for name, values in readings.READINGS.items() if name != "slowest"},
    "head 12.5, late L2": {"vector_head": 12.5, "vector_latency": 14, **_LATE},
    "drain 12.5, late L2": {"mask_drain": 1, "vector_latency": 12.5, **_LATE},
}


def main() -> int:
    """Print predictions beside published measurements; return 0 if a reading fits them all."""
    ratios = {name: [row.ratio(row.predicted(constants)) for row in PUBLISHED] for name, constants in READINGS.items()}
    print("predicted over published under readings of the evidence, first-generation 910 of 30 cores at 900 MHz\n")
    rows = []
    for row, *found in zip(PUBLISHED, *ratios.values()):
        figure = f"{row.low:g}" if row.low == row.high else f"{row.low:g} to {row.high:g}"
        rows.append([row.name, f"{figure} {row.unit}", *(f"{ratio:.2f}" for ratio in found)])
    print(table(["kernel", "published", *READINGS], rows))
    fitting = [name for name, found in ratios.items() if all(abs(ratio - 1) <= FITS for ratio in found)]
    print(f"\nwithin {FITS:.0%} of everything: {', '.join(fitting) or 'none'}")
    for name, found in ratios.items():
        if name not in fitting:
            worst, row = max(zip(found, PUBLISHED), key=lambda pair: abs(pair[0] - 1))
            print(f"not {name}: {row.name} {worst:.2f}")
    return 0 if fitting else 1


if __name__ == "__main__":
    sys.exit(main())
