"""The decoding kernels on tikemu's timing model: how much of the memory's rate they reach. Nothing runs on a device.

PYTHONPATH=train:emulator python -m benchmarks.figures tik_decode
"""

from __future__ import annotations

import numpy as np
from flash_attention.call import AttentionRules, Call, Paged
from flash_attention.commands.bench import tik
from flash_attention.kernels.tik.hardware import EVENTS
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.signatures import DECODE_STAGES
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.figures import Figure

#: batch, heads, seq_q, seq_k, head_dim, kv_heads, and the blocks of a paged cache, 0 for a contiguous one.
CASES = (
    (1, 32, 1, 4096, 128, 8, 0),
    (1, 32, 1, 131072, 128, 8, 0),
    (8, 32, 1, 4096, 128, 8, 0),
    (64, 32, 1, 1024, 128, 8, 0),
    (8, 32, 1, 4096, 64, 8, 0),
    (4, 8, 4, 8192, 256, 8, 0),
    (8, 32, 1, 4096, 128, 8, 16),
    (8, 32, 1, 4096, 128, 8, 128),
    (1, 32, 16, 16384, 128, 8, 0),
)


def name_of(case: tuple) -> str:
    """Return a case in words."""
    batch, heads, seq_q, seq_k, head_dim, kv_heads, block = case
    cache = f"blocks of {block}" if block else "contiguous"
    return f"B={batch} H={heads} Hkv={kv_heads} Sq={seq_q} Sk={seq_k} D={head_dim} {cache}"


def measure(case: tuple, sync: str = "auto") -> tuple[float, dict]:
    """Time both kernels on all cores of the modelled chip, without numerics.

    Block tables are in random order. Return the share of the memory's rate, as if only keys and values were read, and
    the results by stage.
    """
    from tikemu.soc import ASCEND_910A as chip

    *sizes, block = case
    batch, _, _, seq_k, head_dim, kv_heads = sizes
    pages = Paged(block, batch * seq_k // block) if block else None
    rules = AttentionRules(causal=True, causal_alignment="bottom_right")
    call = Call(*sizes, rules=rules, layout="BSND" if pages else "BNSD", storage=pages)
    problem = KernelProblem(call, cores=chip.core_count)
    given = {"context_lens": np.full(batch, seq_k, np.int32)}
    if problem.pages is not None:
        given["block_tables"] = np.random.default_rng(0).permutation(problem.pages[0]).astype(np.int32)
    results = {}
    for stage in DECODE_STAGES:
        kernel = tik_kernels.record(stage, problem)
        results[stage] = tik_kernels.simulate(kernel, sync, active_cores=kernel.cores, given=given)
    least = 4 * batch * kv_heads * seq_k * head_dim / (chip.gm_share(chip.core_count) * chip.core_count)
    return least / sum(result.cycles for result in results.values()), results


def figures(quick: bool) -> list[Figure]:
    """Measure and print the time of the kernels.

    Args:
        quick: contexts that are tik.QUICK times shorter, whose figures mean nothing.
    """
    found, over = [], []
    for case in CASES:
        if quick:
            case = (*case[:3], case[3] // tik.QUICK, *case[4:])
        name, (share, results) = name_of(case), measure(case)
        cycles = " and ".join(f"{result.cycles:.0f}" for result in results.values())
        note = f"{cycles} cycles, conservative synchronisation {measure(case, 'conservative')[0]:.1%}"
        found.append(Figure(f"{name}: of the memory's rate", 100 * share, "%", note))
        for stage, result in results.items():
            # Events past the ids only cost time.
            events = max(result.events_in_flight.values())
            needs = tik_kernels.excess(result.peak_bytes, result.code_bytes, events, 2 * EVENTS)
            over += [f"{name}: {stage} {what}" for what in needs]
    print("main and merging kernel, 32 cores, tikemu's model of the Ascend 910A (no device)")
    print("needs of the kernels: " + ("; ".join(over) or "within the core"))
    return found
