"""The decoding kernels on tikemu's timing model: how much of the memory's rate they reach. Nothing runs on a device."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from flash_attention.commands.bench.figures import Figure
from flash_attention.kernels.tik import operators
from flash_attention.kernels.tik.hardware import EVENTS, INSTRUCTION_CACHE
from flash_attention.kernels.tik.problem import CAPACITY, KernelProblem
from flash_attention.kernels.tik.signature import DECODE_STAGES, Request
from flash_attention.problem.rules import AttentionRules

QUICK = 16  # how much shorter the contexts of --quick are


@dataclass(frozen=True)
class Decoding:
    """A decoding problem; block_size 0 is a contiguous cache."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    block_size: int = 0

    def __str__(self) -> str:
        cache = f"blocks of {self.block_size}" if self.block_size else "contiguous"
        sizes = f"B={self.batch} H={self.heads} Hkv={self.kv_heads} Sq={self.seq_q} Sk={self.seq_k} D={self.head_dim}"
        return f"{sizes} {cache}"

    @property
    def bytes(self) -> int:
        """Of keys and values."""
        return 4 * self.batch * self.kv_heads * self.seq_k * self.head_dim

    def request(self, cores: int) -> Request:
        """What the kernels are built for."""
        rules = AttentionRules(causal=True, causal_alignment="bottom_right")
        sizes = self.batch, self.heads, self.seq_q, self.seq_k, self.head_dim, self.kv_heads
        pages = (self.batch * self.seq_k // self.block_size, self.block_size) if self.block_size else None
        return Request(KernelProblem(*sizes, rules=rules, cores=cores), pages=pages)


CASES = (
    Decoding(1, 32, 8, 1, 4096, 128),
    Decoding(1, 32, 8, 1, 131072, 128),
    Decoding(8, 32, 8, 1, 4096, 128),
    Decoding(64, 32, 8, 1, 1024, 128),
    Decoding(8, 32, 8, 1, 4096, 64),
    Decoding(4, 8, 8, 4, 8192, 256),
    Decoding(8, 32, 8, 1, 4096, 128, block_size=16),
    Decoding(8, 32, 8, 1, 4096, 128, block_size=128),
    Decoding(1, 32, 8, 16, 16384, 128),
)


@dataclass(frozen=True)
class Measurement:
    """Both kernels on all cores of the modelled chip.

    Attributes:
        cycles: of the kernels.
        share: of the memory's rate, as if keys and values were all that is read.
        results: what tikemu measured, by stage.
    """

    cycles: tuple[float, ...]
    share: float
    results: dict


def measure(case: Decoding, sync: str = "auto") -> Measurement:
    """Times both kernels without computing anything; block tables are in random order."""
    import tikemu

    tikemu.install(soc="Ascend910A")
    from tbe import tik
    from tikemu import soc

    chip = soc.ASCEND_910A
    request = case.request(chip.core_count)
    given = {"context_lens": np.full(case.batch, case.seq_k, np.int32)}
    if request.pages is not None:
        given["block_tables"] = np.random.default_rng(0).permutation(request.pages[0]).astype(np.int32)
    results = {}
    for stage in DECODE_STAGES:
        kernel = operators.build(stage, request, tik, stage, False)
        feed = {}
        for tensor in kernel.inputs:
            if tensor.constant is None:
                feed[tensor.name] = np.zeros(tensor.shape, tensor.dtype)
                if tensor.name in given:
                    feed[tensor.name][: given[tensor.name].size] = given[tensor.name]
        options = tikemu.Options(sync=sync, progress=False, trace=False)
        results[stage] = tikemu.run(kernel.tik, kernel.feed(**feed), numerics=False, options=options)
    cycles = tuple(result.cycles for result in results.values())
    least = case.bytes / (chip.gm_share(chip.core_count) * chip.core_count)
    return Measurement(cycles, least / sum(cycles), results)


def figures(quick: bool) -> list[Figure]:
    """Measures and prints what the kernels need.

    Args:
        quick: contexts that are QUICK times shorter, whose figures mean nothing.
    """
    found, over = [], []
    for case in CASES:
        if quick:
            case = dataclasses.replace(case, seq_k=case.seq_k // QUICK)
        measured = measure(case)
        main, merge = (f"{cycles:.0f}" for cycles in measured.cycles)
        note = f"{main} and {merge} cycles, conservative synchronisation {measure(case, 'conservative').share:.1%}"
        found.append(Figure(f"{case}: of the memory's rate", 100 * measured.share, "%", note))
        over += [f"{case}: {stage} {what}" for stage, what in excess(measured)]
    print("main and merging kernel, 32 cores, tikemu's model of the Ascend 910A (no device)")
    print("needs of the kernels: " + ("; ".join(over) or "within the core"))
    return found


def excess(measured: Measurement) -> list[tuple[str, str]]:
    """(stage, name of a limit) for what the kernels ask too much of; events past the ids only cost time."""
    result = []
    for stage, one in measured.results.items():
        limits = [(name, one.peak_bytes.get(name, 0), size) for name, size in CAPACITY.items()]
        limits += [("code", one.code_bytes, INSTRUCTION_CACHE)]
        limits += [("events", max(one.events_in_flight.values()), 2 * EVENTS)]
        result += [(stage, name) for name, value, most in limits if value > most]
    return result
