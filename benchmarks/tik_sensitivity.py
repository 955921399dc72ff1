"""How shares of the peak, and the fastest variant, depend on what is not known of the timing model's constants.

PYTHONPATH=train:emulator python -m benchmarks.tik_sensitivity [--seq 4096]   shares under each reading of the evidence
PYTHONPATH=train:emulator python -m benchmarks.tik_sensitivity --variants    which tiling is the fastest under each
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flash_attention.commands.tune.variants import GAIN, Case, Variant, best, variants
from flash_attention.kernels.tik import tuning
from flash_attention.kernels.tik.hardware import INSTRUCTION_CACHE
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.readings import READINGS, STALLS
from flash_attention.text_table import table

SEQ = 4096
FACTORS = (0.5, 2.0)
CLOSE = 0.25  # variants that are slower than the usual one by more are not tried with other constants
GROUPS: dict[str, tuple[str, ...]] = {
    "exponential": ("vector_transcendental_f16", "vector_transcendental_f32"),
    "L0C to UB": ("l0c_ub_bandwidth",),
    "mmad head": ("mmad_latency",),
    "flags": ("flag_cycles", "flag_handshake"),
    "L1 to L0": ("l1_l0a_bandwidth", "l1_l0b_bandwidth"),
    "memory": ("hbm_bandwidth",),
    "code size": ("instruction_bytes", "scalar_instruction_bytes"),
}
CASES = tuple(
    Case(operator, SEQ, head_dim, rules)
    for operator in ("forward", "backward")
    for head_dim in (128, 64)
    for rules in ("full", "causal")
)


@dataclass(frozen=True)
class Setting:
    """The constants of a group multiplied by a factor, or of a reading; ("", 1.0) is the model as it is."""

    group: str = ""
    factor: float = 1.0

    @property
    def constants(self) -> dict[str, float]:
        """Values by name."""
        from tikemu.soc import ASCEND_910A

        if self.group in READINGS:
            return READINGS[self.group]
        return {name: getattr(ASCEND_910A.timing, name) * self.factor for name in GROUPS.get(self.group, ())}

    def __str__(self) -> str:
        return self.group if self.group in READINGS else f"{self.group} x{self.factor:g}"


SETTINGS = (
    *(Setting(name) for name in READINGS if name != "model"),
    *(Setting(group, factor) for group in GROUPS for factor in FACTORS),
)

#: By case and setting, the measurement of every variant that was tried, the usual one first.
Measured = dict[tuple[Case, Setting], dict[Variant, tik_kernels.Measurement]]


def run(seq: int, compare_variants: bool) -> int:
    """Measures and prints the tables.

    Raises:
        RuntimeError: tikemu is not installed.
    """
    tik_kernels.require_tikemu("benchmarks.tik_sensitivity")
    cases = [Case(case.operator, seq, case.head_dim, case.rules) for case in CASES]
    if not compare_variants:
        print(f"share of the Cube's peak, S={seq}, main kernels, under readings of the evidence\n")
        print(ranges(cases))
        return 0
    measured = measure(cases)
    print(f"share of the Cube's peak, S={seq}, main kernels, constants of tikemu's model at half / double\n")
    print(shares(cases, measured))
    print(f"\ncode bytes; the instruction cache holds {INSTRUCTION_CACHE}, and the model charges nothing for more\n")
    print(code(cases, measured))
    changed = changes(cases, measured)
    print(f"\nwhere another variant becomes faster by more than {GAIN:.0%}: " + ("\n" if changed else "nowhere"))
    if changed:
        print(table(["case", "constants", "chosen", "fastest", "faster", "in the model"], changed))
    return 0


def ranges(cases: Sequence[Case]) -> str:
    """A row per case: the share under every reading, their range, and what it were if every mask write stalled."""
    rows = []
    for case in cases:
        kernel = tik_kernels.build(case.problem, case.operator)
        shares = []
        for constants in (*READINGS.values(), STALLS):
            result = tik_kernels.simulate(kernel, constants=constants)
            shares.append(100 * tik_kernels.Measurement.of(kernel, result, case.operator).utilisation)
        *open_questions, stalls = shares
        span = f"{shares[0]:.1f} ({min(open_questions):.0f} to {max(open_questions):.0f})"
        cells = [f"{share:.1f}" for share in open_questions[1:]]
        rows.append([f"{case.operator} D={case.head_dim} {case.rules}", span, *cells, f"{stalls:.1f}"])
    return table(["kernel", "model (range)", *list(READINGS)[1:], "stalls at masks"], rows)


def measure(cases: Sequence[Case]) -> Measured:
    """All cases under all settings, with the variants that come close to the usual one."""
    from tqdm import tqdm

    result: Measured = {}
    for case in (bar := tqdm(cases, unit="case", leave=False)):
        bar.set_description(str(case))
        kernels = {variant: _build(case, variant) for variant in variants(case)}
        plain = {variant: _simulate(case, kernel, Setting()) for variant, kernel in kernels.items()}
        usual = next(iter(plain.values())).cycles
        near = [variant for variant, measured in plain.items() if measured.cycles < (1 + CLOSE) * usual]
        result[case, Setting()] = {variant: plain[variant] for variant in near}
        for setting in SETTINGS:
            tried = near if setting.group != "code size" else near[:1]  # costs no cycles
            result[case, setting] = {variant: _simulate(case, kernels[variant], setting) for variant in tried}
    return result


def _build(case: Case, variant: Variant):
    with tuning.using((case.entry(variant),)):
        return tik_kernels.build(case.problem, case.operator)


def _simulate(case: Case, kernel, setting: Setting) -> tik_kernels.Measurement:
    result = tik_kernels.simulate(kernel, constants=setting.constants)
    return tik_kernels.Measurement.of(kernel, result, case.operator)


def shares(cases: Iterable[Case], measured: Measured) -> str:
    """A row per case, a column per group: the usual variant's shares at half and double."""
    groups = [group for group in GROUPS if group != "code size"]
    rows = []
    for case in cases:
        cells = [_share(measured[case, Setting()])]
        cells += [" / ".join(_share(measured[case, Setting(g, factor)]) for factor in FACTORS) for g in groups]
        rows.append([f"{case.operator} D={case.head_dim} {case.rules}", *cells])
    return table(["kernel", "model", *groups], rows)


def code(cases: Iterable[Case], measured: Measured) -> str:
    """A row per case: bytes with instructions of half, the assumed and double size."""
    settings = (Setting("code size", FACTORS[0]), Setting(), Setting("code size", FACTORS[1]))
    rows = []
    for case in cases:
        sizes = [_usual(measured[case, setting]).code_bytes for setting in settings]
        over = [f"x{setting.factor:g}" for setting, size in zip(settings, sizes) if size > INSTRUCTION_CACHE]
        rows.append([f"{case.operator} D={case.head_dim} {case.rules}", *sizes, ", ".join(over) or "never"])
    return table(["kernel", "half", "model", "double", "beyond the cache"], rows)


def changes(cases: Iterable[Case], measured: Measured) -> list[list[str]]:
    """Rows for settings under which a variant beats the one that `tune` chooses in the model as it is: both, the gain
    there, and the loss that the same change means in the model as it is."""
    rows = []
    for case in cases:
        plain = {variant: tried.cycles for variant, tried in measured[case, Setting()].items()}
        chosen, _ = best(plain)
        for setting in SETTINGS:
            cycles = {variant: tried.cycles for variant, tried in measured[case, setting].items()}
            fastest = min(cycles, key=lambda variant: cycles[variant])
            gain = cycles.get(chosen, 0.0) / cycles[fastest] - 1
            if gain > GAIN:
                before = plain[chosen] / plain[fastest] - 1
                rows.append([str(case), str(setting), str(chosen), str(fastest), f"{gain:+.1%}", f"{before:+.1%}"])
    return rows


def _usual(tried: dict[Variant, tik_kernels.Measurement]) -> tik_kernels.Measurement:
    return next(iter(tried.values()))


def _share(tried: dict[Variant, tik_kernels.Measurement]) -> str:
    return f"{100 * _usual(tried).utilisation:.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seq", type=int, default=SEQ, help="tokens")
    parser.add_argument("--variants", action="store_true", help="compare tilings too; takes long")
    given = parser.parse_args()
    sys.exit(run(given.seq, given.variants))
