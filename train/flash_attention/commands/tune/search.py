"""The search: every strategy that fits, case by case, and a table of those that beat the usual choice."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Callable

from flash_attention.commands.tune.variants import Case, Variant, best, emulated, plan_of, variants
from flash_attention.kernels.tik import tuning
from flash_attention.measuring import tik_kernels
from flash_attention.text_table import table

#: Time of a case with a variant, in any unit.
Timer = Callable[[Case, Variant], float]


def run(cases: Sequence[Case], device: str, out: Path | None, state: Path) -> int:
    """Searches, prints what was found and writes the table.

    Raises:
        RuntimeError: tikemu or the device is missing.
    """
    times = Times(timer_of(device), state, device)
    found = search(cases, times)
    print(report(found))
    result = entries(found, times)
    target = out or tuning.PATH
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(tuning.to_json(result), encoding="utf-8")
    print(f"\nwritten: {target}, {len(result)} entries; measured: {state}")
    return 0


def timer_of(device: str) -> Timer:
    """The timer of "emulator" or "ascend"."""
    if device == "ascend":
        from flash_attention.commands.tune.device import DeviceTimer

        return DeviceTimer()
    tik_kernels.require_tikemu("--device emulator")
    return emulated


class Times:
    """Times by a timer, in a file that is written after each measurement: what it holds is not measured again.

    Args:
        path: the file. What it holds of other kernels or another device is dropped.
        device: where times are taken.
    """

    def __init__(self, timer: Timer, path: Path, device: str) -> None:
        self.timer, self.path, self.of = timer, path, {"device": device, "kernels": digest()}
        self.times: dict[str, dict[str, float]] = {}
        if path.exists():
            held = json.loads(path.read_text(encoding="utf-8"))
            if {name: held.get(name) for name in self.of} == self.of:
                self.times = held["times"]
            else:
                print(f"{path} holds times of other kernels or another device: the search starts anew")

    def __call__(self, case: Case, variant: Variant) -> float:
        known = self.times.setdefault(str(case), {})
        if str(variant) in known:
            return known[str(variant)]
        known[str(variant)] = self.timer(case, variant)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")  # an interrupted write leaves the old file
        part.write_text(json.dumps({**self.of, "times": self.times}, indent=1), encoding="utf-8")
        part.replace(self.path)
        return known[str(variant)]


def digest() -> str:
    """Changes with the sources of the kernels."""
    sources = sorted(tuning.PATH.parent.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


#: By case, the time of every variant, the usual one first.
Found = dict[Case, dict[Variant, float]]


def search(cases: Sequence[Case], time: Timer) -> Found:
    """Times of all variants of all cases."""
    from tqdm import tqdm

    pairs = [(case, variant) for case in cases for variant in variants(case)]
    found: Found = {}
    for case, variant in (bar := tqdm(pairs, unit="variant", leave=False)):
        bar.set_description(f"{case} {variant}")
        found.setdefault(case, {})[variant] = time(case, variant)
    return found


def entries(found: Found, time: Timer) -> list[tuple[tuning.Entry, dict]]:
    """Entries of the table with their gains, for the lengths around those at which a variant beat the usual one.

    Where it is slower than the usual one at the first or last of these, they begin or end with the one that was timed.
    """
    result = []
    for case, times in found.items():
        variant, gain = best(times)
        if gain:
            lengths = sorted(other.seq for other in found if replace(other, seq=case.seq) == case)
            ends = [
                end if _holds(replace(case, seq=end), variant, time) else case.seq for end in around(case.seq, lengths)
            ]
            result.append((case.entry(variant, *ends), {"gain": round(gain, 4)}))
    return result


def _holds(case: Case, variant: Variant, time: Timer) -> bool:
    """Whether a variant is no slower than the usual one."""
    usual = variants(case)[0]
    if plan_of(case, (case.entry(variant),)) == plan_of(case, ()):
        return True
    return time(case, variant) <= time(case, usual)


def around(seq: int, lengths: Sequence[int]) -> tuple[int, int]:
    """The lengths nearer to `seq` than to the others of the sorted `lengths`, by ratio; at most half and twice `seq`
    at the ends."""
    known = [lengths[0] // 4, *lengths, lengths[-1] * 4]
    before, after = known[known.index(seq) - 1], known[known.index(seq) + 1]
    return math.isqrt(before * seq) + 1, math.isqrt(seq * after - 1)


def report(found: Found) -> str:
    """A row per case: the usual variant, the fastest one, what is gained."""
    rows = []
    for case, times in found.items():
        usual, fastest = next(iter(times)), min(times, key=lambda variant: times[variant])
        chosen, gain = best(times)
        others = ", ".join(f"{v} {t / times[usual] - 1:+.1%}" for v, t in times.items() if v not in (usual, fastest))
        mark = f"{gain:+.1%}" if chosen != usual else "-"
        rows.append([str(case), str(usual), str(fastest), f"{times[usual] / times[fastest] - 1:+.1%}", mark, others])
    return table(["case", "usual", "fastest", "faster", "table", "time of the others"], rows)
