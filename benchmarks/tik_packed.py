"""Packed sequences on tikemu's timing model: the kernels beside a call for each sequence. Nothing runs on a device.

    PYTHONPATH=train:emulator python -m benchmarks.gates tik_packed

One core's share of 32 heads on 32 busy cores is the work of one head: every core has a row block of every rank.
"""

from __future__ import annotations

import numpy as np
from flash_attention.call.rules import AttentionRules
from flash_attention.commands.bench import tik
from flash_attention.commands.bench.sequences import DIM, DOCUMENTS, TOKENS, document_ends
from flash_attention.kernels.tik import integers, operators
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.figures import Figure

OPERATORS = ("forward", "backward")


def cycles(ends: np.ndarray, operator: str) -> list[float]:
    """Return the cycles of the kernels of an operator on sequences that end there, causal."""
    tokens = int(ends[-1])
    rules = AttentionRules(causal=True)
    problem = KernelProblem(1, 1, tokens, tokens, DIM, rules=rules, layout="TH", sequences=len(ends), cores=1)
    no_prefix = np.zeros(len(ends), np.int32)
    result = []
    for stage in ("forward",) if operator == "forward" else operators.stages(problem)[1:]:
        wanted = (stage if stage in ("forward", "grad") else "blocks", "blocks")
        work, blocks = operators.work_tables(integers, problem, wanted)(ends, ends, no_prefix)
        kernel = tik_kernels.record(stage, problem)
        result.append(tik_kernels.simulate(kernel, given={"work": work, "blocks": blocks}).cycles)
    return result


def figures(quick: bool) -> list[Figure]:
    """Compare single calls of the sequences with packed calls, in percent.

    Args:
        quick: fewer tokens, whose figures mean nothing.
    """
    tokens = TOKENS // tik.QUICK if quick else TOKENS
    print(
        f"{DOCUMENTS} documents in {tokens} tokens, D={DIM} causal, beside calls for each, one of 32 busy cores, "
        "tikemu's model of the Ascend 910A (no device)"
    )
    ends = np.array(document_ends(tokens), np.int32)
    result = []
    for name in OPERATORS:
        packed = sum(cycles(ends[1:], name))
        alone = 0.0
        for length in np.diff(ends).tolist():
            alone += sum(measured.cycles for measured in tik.measure((name, DIM, True), length))
        note = f"{packed:.0f} cycles, {alone:.0f} of a call for each"
        result.append(Figure(f"packed {name} in TIK: of the ideal share", 100 * alone / packed, "%", note))
    return result
