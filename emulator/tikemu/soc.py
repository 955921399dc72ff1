"""Describe one chip: capacities, cores, clock, and timing constants with their sources.

Sizes and the five members of the family come from the public platform description files ``Ascend910{A,B,ProA,ProB,
PremiumA}.ini``. They are equal except for cores, clock and AI CPUs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KIB = 1024
MIB = 1024 * KIB

#: The on-chip memories of a core.
ON_CHIP = ("UB", "L1", "L0A", "L0B", "L0C")
#: Its pipes: scalar unit, Vector, Cube, and three movers.
PIPES = ("S", "V", "M", "MTE1", "MTE2", "MTE3")

MEASURED_910 = "measured on a first-generation 910"
VENDOR_910 = "vendor figure that names the 910"
MEASURED_A2 = "measured on A2/A3 (proxy)"
VENDOR_A2 = "vendor figure for A2/A3 (proxy)"
INFERRED = "inferred"
ASSUMED = "assumed"
#: The confidence labels, best first.
CONFIDENCES = (MEASURED_910, VENDOR_910, MEASURED_A2, VENDOR_A2, INFERRED, ASSUMED)

_INI = "platform description file Ascend910A.ini"
_CORE_PAPER = "HotChips-31 (2019) and HPCA 2021, Ascend core"
_DOC_A2 = "Ascend C documentation: Mmad and LoadData pages, dav-2201 architecture page"
_FIT_A2 = "public cost model of hicann/pto-isa, fits to 910B3"
_SIM_A2 = "public pipe-simulator constants of hicann/pypto"
_DELTA = "recurrent kernel on a first-generation 910 (lvyufeng/relic-engine)"
_SMALL = "small kernels of XieMenghuan21/legacy-ascend-qwen38, CANN 8.5.0, around a whole graph"


@dataclass(frozen=True)
class Constant:
    """One number of the timing model.

    Read through an instance of the owning class it is the plain number; read through the class it is the Constant.
    """

    value: float
    unit: str
    source: str
    confidence: str
    low: float | None = None  # with high: what the evidence allows
    high: float | None = None

    def __str__(self) -> str:
        span = "" if self.low is None or self.high is None else f" ({self.low:g} to {self.high:g})"
        return f"{self.value:g}{span}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self.value


class TimingModel:
    """The constants of the timing model: ``timing.mmad_latency`` is a number, ``timing.constant("mmad_latency")`` tells
    unit, source and confidence.

    Args:
        overrides: numbers that replace defaults, by name, for recalibration against a device.

    Raises:
        TypeError: an override names no constant.
    """

    # -- cube
    cube_macs_f16 = Constant(4096, "MAC/cycle", f"{_INI}; {_CORE_PAPER}: 16x16x16", VENDOR_910)
    cube_macs_i8 = Constant(8192, "MAC/cycle", f"{_INI}; {_CORE_PAPER}: 16x32x16", VENDOR_910)
    mmad_latency = Constant(20, "cycles", f"head of a matrix instruction, {_SIM_A2}", VENDOR_A2)
    accumulate_blocks = Constant(10, "fractals", f"{_DOC_A2}: mmad into the same tile needs a barrier below", VENDOR_A2)

    # -- vector
    vector_latency = Constant(
        15,
        "cycles",
        f"from a result to the instruction that needs it, sums in 1 to 8 parts of the {_DELTA}",
        MEASURED_910,
        9,
        15,
    )
    vector_minimum = Constant(1, "cycles", "shortest occupation of a pipe by an instruction", INFERRED)
    vector_head = Constant(
        0,
        "cycles",
        "occupation of Vector by an instruction beside its repeats: 11 to 14 in short instructions of the "
        f"{_DELTA}, at most 5 in long ones of AIBench 2024",
        ASSUMED,
        0,
        15,
    )
    vector_two_sources = Constant(
        1, "cycles/repeat", f"least of an instruction that reads two operands: 2 in {_FIT_A2}", ASSUMED, 1, 2
    )
    vector_reads_add = Constant(
        1,
        "0 or 1",
        f"1: the reads of both sources add to a write in their bank; 0 fits in-place additions of the {_DELTA}",
        ASSUMED,
        0,
        1,
    )
    vector_simple = Constant(
        1, "cycles/repeat", "256 B a cycle; 3390 GFLOPS measured per chip (AIBench 2024)", MEASURED_910
    )
    vector_mla = Constant(2, "cycles/repeat", _DOC_A2, VENDOR_A2)
    vector_axpy = Constant(1, "cycles/repeat", _DOC_A2, VENDOR_A2)
    vector_transcendental_f16 = Constant(4, "cycles/repeat", f"{_DOC_A2}: 32 elements a cycle", VENDOR_A2)
    vector_transcendental_f32 = Constant(2, "cycles/repeat", f"{_DOC_A2}; {_FIT_A2}", MEASURED_A2)
    vector_div_f16 = Constant(4, "cycles/repeat", f"{_DOC_A2}: 32 elements a cycle", VENDOR_A2)
    vector_div_f32 = Constant(4, "cycles/repeat", _FIT_A2, MEASURED_A2)
    vector_conv = Constant(1, "cycles/repeat", f"{_DOC_A2}: 64 elements a cycle", VENDOR_A2)
    vector_cmp = Constant(1, "cycles/repeat", _DOC_A2, VENDOR_A2)
    vector_sel = Constant(2, "cycles/repeat", _FIT_A2, MEASURED_A2)
    vector_dup = Constant(1, "cycles/repeat", f"{_DOC_A2}; {_FIT_A2}", VENDOR_A2)
    vector_whole_reduce = Constant(7, "cycles/repeat", f"{_DOC_A2}; {_FIT_A2}", VENDOR_A2)
    vector_group_reduce = Constant(1, "cycles/repeat", _FIT_A2, ASSUMED)
    vector_pair_reduce = Constant(1, "cycles/repeat", _SIM_A2, VENDOR_A2)
    vector_transpose_b16 = Constant(4, "cycles/512 B", f"{_SIM_A2}: 128 B a cycle", VENDOR_A2)
    vector_transpose_b8 = Constant(8, "cycles/512 B", "twice the 16-bit transpose", ASSUMED)
    vector_mergesort = Constant(78, "cycles/repeat", f"mrgsort4, {_FIT_A2}", ASSUMED)
    vector_proposal = Constant(2, "cycles/repeat", "256 B of proposals read and written", ASSUMED)

    # -- scalar unit and issue
    issue_cycles = Constant(
        4, "cycles", f"address arithmetic for an instruction or a loop iteration; bound by the {_DELTA}", INFERRED, 4, 8
    )
    scalar_cycles = Constant(1, "cycles", "one scalar arithmetic instruction (Ascend C documentation)", VENDOR_A2)
    mask_write_cycles = Constant(
        1, "cycles", "writing the mask register when it changes (Ascend C documentation)", VENDOR_A2
    )
    mask_every = Constant(
        0, "0 or 1", "1: the compiler writes the mask before every vector instruction, as Ascend C does", ASSUMED, 0, 1
    )
    mask_drain = Constant(
        0,
        "0 to 2",
        "1: Vector drains before an instruction with another mask, which explains the "
        f"{_DELTA} with vector_latency 10 as well as vector_head does; 2: the scalar unit waits for it",
        ASSUMED,
        0,
        2,
    )
    ub_scalar_read = Constant(
        4, "cycles", f"occupation of the scalar unit by a read from the Unified Buffer, {_DELTA}", MEASURED_910, 2, 8
    )
    ub_scalar_latency = Constant(12, "cycles", "from the start of that read to its value, 6 to 20", INFERRED, 6, 20)
    gm_scalar_read = Constant(350, "cycles", "miss of the scalar data cache", INFERRED)
    queue_depth = Constant(32, "instructions", f"waiting per pipe, {_SIM_A2}", VENDOR_A2)
    instruction_bytes = Constant(32, "B", "an instruction with its argument set-up: eight 4-byte words", ASSUMED)
    scalar_instruction_bytes = Constant(8, "B", "scalar arithmetic, branch or loop step: two 4-byte words", ASSUMED)
    icache_bytes = Constant(32 * KIB, "B", _CORE_PAPER, VENDOR_910)

    # -- synchronisation
    flag_cycles = Constant(1, "cycles", "issue of set_flag or wait_flag", VENDOR_A2)
    flag_handshake = Constant(10, "cycles", "from set_flag to the waiting pipe, 10 to 20", INFERRED)
    event_ids = Constant(4, "events", "per pair of pipes (Ascend C documentation, training series)", VENDOR_910)

    # -- paths inside a core
    load2d_latency = Constant(28, "cycles", _DOC_A2, VENDOR_A2)
    load3d_latency = Constant(50, "cycles", _DOC_A2, VENDOR_A2)
    load3d_bandwidth = Constant(128, "B/cycle", f"{_DOC_A2}: 32 to 256", ASSUMED)
    l1_l0a_bandwidth = Constant(512, "B/cycle", f"{_CORE_PAPER}: 4096-bit bus", VENDOR_910)
    l1_l0b_bandwidth = Constant(256, "B/cycle", f"{_CORE_PAPER}: 2048-bit bus", VENDOR_910)
    l0c_to_ub_latency = Constant(20, "cycles", "by analogy with the start of a fix-pipe instruction", INFERRED)
    l0c_ub_bandwidth = Constant(256, "B/cycle", f"{_INI}; bytes read from L0C", VENDOR_910)
    ub_l0c_bandwidth = Constant(256, "B/cycle", f"{_CORE_PAPER}; bytes written to L0C", INFERRED)
    ub_l1_latency = Constant(20, "cycles", "moves between the Unified Buffer and L1", INFERRED)
    ub_l1_bandwidth = Constant(128, "B/cycle", _INI, VENDOR_910)
    l1_ub_bandwidth = Constant(128, "B/cycle", _INI, VENDOR_910)
    ub_ub_latency = Constant(12, "cycles", _SIM_A2, VENDOR_A2)
    ub_ub_bandwidth = Constant(256, "B/cycle", _SIM_A2, VENDOR_A2)

    # -- global memory
    gm_read_latency = Constant(350, "cycles", _SIM_A2, VENDOR_A2)
    l2_read_latency = Constant(
        150, "cycles", "hit of the L2 buffer; decode attention of lvyufeng/relic-engine", MEASURED_910, 130, 240
    )
    gm_write_latency = Constant(200, "cycles", _SIM_A2, VENDOR_A2)
    hbm_bandwidth = Constant(
        1.16e12,
        "B/s",
        "GM to L1 of a whole 910A (arXiv 2507.23387); 1.148e12 in the read probe of lvyufeng/relic-engine",
        MEASURED_910,
        1.148e12,
        1.229e12,
    )
    hbm_borrow_cycles = Constant(
        1024,
        "cycles",
        "a core that paused for so long catches up with the bandwidth that the others left",
        ASSUMED,
        0,
        4096,
    )
    gm_read_bandwidth = Constant(78, "B/cycle", f"one core alone, {_FIT_A2}", MEASURED_A2)
    gm_write_bandwidth = Constant(64, "B/cycle", f"{_INI}: ub_to_ddr, ub_to_l2", VENDOR_910)
    l2_read_bandwidth = Constant(110, "B/cycle", f"{_INI}: hit of the L2 buffer", VENDOR_910)
    gm_read_beat = Constant(128, "B", f"{_CORE_PAPER}: core port, a short burst costs a whole beat", VENDOR_910)
    gm_write_beat = Constant(64, "B", _INI, VENDOR_910)
    gm_line = Constant(128, "B", "cache line of the L2 buffer, 128 to 512 by chip", ASSUMED)

    # -- launch (reported beside the kernel's cycles, never added)
    launch_seconds_queued = Constant(
        10.5e-6, "s", "an addition behind others in a stream, lvyufeng/relic-engine, CANN 9.0.0", MEASURED_910
    )
    launch_seconds_synchronised = Constant(
        19.5e-6, "s", "a memset and a synchronisation, lvyufeng/relic-engine, CANN 9.0.0", MEASURED_910
    )
    launch_seconds_graph = Constant(63e-6, "s", _SMALL, MEASURED_910, 63e-6, 107e-6)

    def __init__(self, **overrides: float) -> None:
        for name, value in overrides.items():
            if not isinstance(getattr(type(self), name, None), Constant):
                raise TypeError(f"{name!r} is no constant of the timing model; known: {', '.join(self.names())}")
            # An instance attribute hides the class's descriptor.
            self.__dict__[name] = value

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all constants, in order of definition."""
        return [name for name, entry in vars(cls).items() if isinstance(entry, Constant)]

    def constant(self, name: str) -> Constant:
        """Return the constant with unit, source and confidence, as it holds for this model."""
        entry = getattr(type(self), name)
        if name in self.__dict__:
            return dataclasses.replace(entry, value=self.__dict__[name], source=f"override of: {entry.source}")
        return entry

    def vector_cycles(self, kind: str, dtype: str) -> float:
        """Return the cycles per repeat (256 B of the wider operand) of a vector instruction.

        Args:
            kind: simple, mla, axpy, transcendental (exp, ln, sqrt), div, conv, cmp, sel, dup, whole_reduce (vcadd,
                vcmax, vcmin), group_reduce, pair_reduce, transpose_b16 and transpose_b8 (per 512 B), mergesort,
                proposal.
            dtype: of the operands; matters for transcendental and div.

        Raises:
            KeyError: there is no such kind.
        """
        name = self.vector_constant_name(kind, dtype)
        if name not in type(self).__dict__:
            raise KeyError(f"no cycle count for vector instructions of kind {kind!r} and dtype {dtype!r}")
        return getattr(self, name)

    @staticmethod
    def vector_constant_name(kind: str, dtype: str) -> str:
        """Return the name of the constant that :meth:`vector_cycles` uses."""
        if kind in ("transcendental", "div"):
            return f"vector_{kind}_{'f16' if dtype == 'float16' else 'f32'}"
        return f"vector_{kind}"


@dataclass(frozen=True)
class SocProfile:
    """One chip of the family.

    Attributes:
        name: as in the platform file.
        core_count: AI cores.
        clock_mhz: one clock for Cube, Vector, scalar unit and movers.
        ub_size: Unified Buffer of a core, bytes; ``ub_planned`` is the part that TBE operators plan with.
        l1_size, l0a_size, l0b_size, l0c_size: other buffers of a core, bytes.
        l2_size: L2 buffer of the chip, bytes.
        timing: constants of the timing model.
    """

    name: str
    core_count: int
    clock_mhz: int
    ub_size: int = 256 * KIB
    ub_planned: int = 248 * KIB
    l1_size: int = MIB
    l0a_size: int = 64 * KIB
    l0b_size: int = 64 * KIB
    l0c_size: int = 256 * KIB
    l2_size: int = 32 * MIB
    cube_size: tuple[int, int, int] = (16, 16, 16)
    smask_size: int = 0
    timing: TimingModel = dataclasses.field(default_factory=TimingModel, repr=False, compare=False)

    @property
    def clock_hz(self) -> float:
        return self.clock_mhz * 1e6

    @property
    def peak_f16_flops(self) -> float:
        """Return the float16 operations per second of the Cubes of the whole chip."""
        return 2 * self.timing.cube_macs_f16 * self.clock_hz * self.core_count

    def capacity(self, memory: str) -> int:
        """Return the size in bytes of an on-chip memory of one core: "UB", "L1", "L0A", "L0B" or "L0C"."""
        return getattr(self, f"{memory.lower()}_size")

    def gm_share(self, active_cores: int) -> float:
        """Return the bytes per cycle of HBM bandwidth that each of ``active_cores`` gets."""
        return self.timing.hbm_bandwidth / (self.clock_hz * max(1, active_cores))

    def with_constants(self, constants: Mapping[str, float]) -> SocProfile:
        """Return the same chip with other values of some constants of the timing model.

        Raises:
            TypeError: there is no such constant.
        """
        own = {name: value for name, value in vars(self.timing).items() if name in TimingModel.names()}
        return dataclasses.replace(self, timing=TimingModel(**{**own, **constants}))

    def with_cores(self, core_count: int) -> SocProfile:
        """Return the same chip restricted to ``core_count`` cores."""
        return dataclasses.replace(self, core_count=core_count)


ASCEND_910A = SocProfile("Ascend910A", 32, 1000)
ASCEND_910B = SocProfile("Ascend910B", 30, 900)
ASCEND_910PROA = SocProfile("Ascend910ProA", 32, 1100)
ASCEND_910PROB = SocProfile("Ascend910ProB", 30, 1150)
ASCEND_910PREMIUMA = SocProfile("Ascend910PremiumA", 32, 1220)
PROFILES = {soc.name: soc for soc in (ASCEND_910A, ASCEND_910B, ASCEND_910PROA, ASCEND_910PROB, ASCEND_910PREMIUMA)}
_ALIASES = {"Ascend910": "Ascend910A"}


def find(name: str) -> SocProfile | None:
    """Return the profile of a SoC version string; plain "Ascend910" is the 910A. None when the name is unknown.

    "Ascend910B" is the first-generation part with 30 cores; "Ascend910B1" to "Ascend910B4" are other chips and unknown.
    """
    return PROFILES.get(_ALIASES.get(name, name))
