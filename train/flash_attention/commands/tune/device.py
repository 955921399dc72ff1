"""Times of the operators on a device: a process per variant, whose compiler reads a table of that variant alone.

    python -m flash_attention.commands.tune.device OPERATOR SEQ HEAD_DIM full|causal

prints the median seconds of one call; it is what `DeviceTimer` starts.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from flash_attention.backends.ascend.environment import is_virtual
from flash_attention.kernels.tik import tuning
from flash_attention.measuring.turns import environment

if TYPE_CHECKING:
    from flash_attention.commands.tune.variants import Case, Variant

HEADS = 32  # one per core
ROUNDS, CALLS = 5, 20


class DeviceTimer:
    """Seconds of a call on this machine's device.

    Raises:
        RuntimeError: the card is virtual.
    """

    def __init__(self) -> None:
        if is_virtual():
            raise RuntimeError(
                "--device ascend: a virtual card has no times of a device; --device emulator takes those of the model"
            )

    def __call__(self, case: Case, variant: Variant) -> float:
        """Raises RuntimeError: the process failed; the message ends with what it printed last."""
        with tempfile.TemporaryDirectory() as folder:  # compiled kernels of another variant must not be found
            path = Path(folder) / "tuning.json"
            path.write_text(tuning.to_json([(case.entry(variant), {})]), encoding="utf-8")
            command = [sys.executable, "-m", __name__, case.operator, str(case.seq), str(case.head_dim), case.rules]
            variables = environment(FLASH_ATTENTION_TUNING=str(path))
            done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines:
            said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            raise RuntimeError(f"{case} with {variant} failed with status {done.returncode}: {said}")
        return float(lines[-1])


def main(operator: str, seq: str, head_dim: str, rules: str) -> None:
    """Prints the seconds of one call."""
    from flash_attention.measuring.case import Case as Call
    from flash_attention.measuring.implementations import Flash

    call = Call(int(seq), "float16", heads=HEADS, head_dim=int(head_dim), causal=rules == "causal")
    passes = Flash("tik").prepare(call)
    seconds = seconds_of(passes["forward"])
    if operator == "backward":
        seconds = seconds_of(passes["both"]) - seconds
    print(seconds)


def seconds_of(function: Callable[[], None]) -> float:
    """Median over rounds of the time of a call, after one that compiles."""
    function()
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            function()
        rounds.append((time.perf_counter() - start) / CALLS)
    return statistics.median(rounds)


if __name__ == "__main__":
    main(*sys.argv[1:])
