"""The decoding kernels on tikemu's timing model: how much of the memory's rate they reach. Nothing runs on a device.

PYTHONPATH=train:emulator python -m benchmarks.figures tik_decode
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from flash_attention.call import AttentionRules, Call, Paged
from flash_attention.commands.bench import tik
from flash_attention.kernels.tik.hardware import EVENTS
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.signatures import DECODE_STAGES
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.figures import Figure


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
        """Return the bytes of keys and values."""
        return 4 * self.batch * self.kv_heads * self.seq_k * self.head_dim

    def problem(self, cores: int) -> KernelProblem:
        """Return the problem that the kernels are built for."""
        rules = AttentionRules(causal=True, causal_alignment="bottom_right")
        sizes = self.batch, self.heads, self.seq_q, self.seq_k, self.head_dim, self.kv_heads
        pages = Paged(self.block_size, self.batch * self.seq_k // self.block_size) if self.block_size else None
        return KernelProblem(Call(*sizes, rules=rules, layout="BSND" if pages else "BNSD", storage=pages), cores=cores)


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


def measure(case: Decoding, sync: str = "auto") -> tuple[float, dict]:
    """Time both kernels on all cores of the modelled chip, without numerics. Block tables are in random order. Gives
    the share of the memory's rate, as if only keys and values were read, and results by stage.
    """
    from tikemu.soc import ASCEND_910A as chip

    problem = case.problem(chip.core_count)
    given = {"context_lens": np.full(case.batch, case.seq_k, np.int32)}
    if problem.pages is not None:
        given["block_tables"] = np.random.default_rng(0).permutation(problem.pages[0]).astype(np.int32)
    results = {}
    for stage in DECODE_STAGES:
        kernel = tik_kernels.record(stage, problem)
        results[stage] = tik_kernels.simulate(kernel, sync, active_cores=kernel.cores, given=given)
    least = case.bytes / (chip.gm_share(chip.core_count) * chip.core_count)
    return least / sum(result.cycles for result in results.values()), results


def figures(quick: bool) -> list[Figure]:
    """Measure and print the time of the kernels.

    Args:
        quick: contexts that are tik.QUICK times shorter, whose figures mean nothing.
    """
    found, over = [], []
    for case in CASES:
        if quick:
            case = dataclasses.replace(case, seq_k=case.seq_k // tik.QUICK)
        share, results = measure(case)
        cycles = " and ".join(f"{result.cycles:.0f}" for result in results.values())
        note = f"{cycles} cycles, conservative synchronisation {measure(case, 'conservative')[0]:.1%}"
        found.append(Figure(f"{case}: of the memory's rate", 100 * share, "%", note))
        for stage, result in results.items():
            # Events past the ids only cost time.
            events = max(result.events_in_flight.values())
            needs = tik_kernels.excess(result.peak_bytes, result.code_bytes, events, 2 * EVENTS)
            over += [f"{case}: {stage} {what}" for what in needs]
    print("main and merging kernel, 32 cores, tikemu's model of the Ascend 910A (no device)")
    print("needs of the kernels: " + ("; ".join(over) or "within the core"))
    return found
