"""The TIK operators on tikemu's timing model: required figures beside reached, and what each kernel asks of a core.

One core's share of 32 heads on 32 busy cores is the work of one head. Estimates: nothing here runs on a device.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
from pathlib import Path

from flash_attention import plotting
from flash_attention.commands.bench import conversions, tik_kernels
from flash_attention.commands.bench.figures import Figure
from flash_attention.commands.bench.lengths import PANELS, draw
from flash_attention.kernels.tik import forms
from flash_attention.kernels.tik.hardware import EVENTS, INSTRUCTION_CACHE
from flash_attention.kernels.tik.problem import CAPACITY, KernelProblem
from flash_attention.text_table import table

# Share of the Cube's peak: (operator, head_dim, causal). The backward operator with the passes around its main kernel.
REQUIRED = {
    ("forward", 128, False): 0.83,
    ("forward", 128, True): 0.76,
    ("forward", 64, False): 0.59,
    ("forward", 64, True): 0.51,
    ("forward", 256, False): 0.78,
    ("forward", 256, True): 0.68,
    ("backward", 128, False): 0.86,
    ("backward", 128, True): 0.81,
    ("backward", 64, False): 0.81,
    ("backward", 64, True): 0.74,
}
# The same where synchronisation looks at whole tensors.
REQUIRED_CONSERVATIVE = {
    ("backward", 128, False): 0.78,
    ("backward", 128, True): 0.72,
    ("backward", 64, False): 0.74,
    ("backward", 64, True): 0.68,
}
SEQ = 4096
BUILD_SECONDS = 10.0
FORM_SEQ = 2048  # for the costs of doubtful forms
_FORM_CASES: tuple[tuple[str, int, dict], ...] = (
    *((operator, head_dim, {}) for operator in ("forward", "backward") for head_dim in (128, 64)),
    ("forward", 64, {"bias": "per_score"}),
)
SYNC = ("auto", "conservative")
_TITLES = {
    "forward": "forward",
    "backward": "backward",
    "rows": "backward, pre-pass",
    "finish": "backward, last pass",
}


def run(seq: int, out: Path, strict: bool) -> int:
    """Measures, prints the tables and writes tik.csv; the exit status of `flash-attention bench --tik`.

    Args:
        seq: tokens; the required figures are those of SEQ.
        out: folder for the CSV file.
        strict: exit status 1 when a figure is missed or a kernel asks for too much.

    Raises:
        RuntimeError: tikemu is not installed.
    """
    measurements = measure(seq)
    figures = speed(measurements)
    print(f"share of the Cube's peak, S={seq}, 32 busy cores, tikemu's model of the Ascend 910A (no device)\n")
    rows = [[*figure.row()[:4], figure.note] for figure in figures]
    print(table(["figure", "required", "reached", "", "with conservative synchronisation"], rows))
    rows = [figure.row()[:4] for figure in conservative_speed(measurements)]
    print("\nthe same with conservative synchronisation, which takes any two accesses to a tensor for a conflict\n")
    print(table(["figure", "required", "reached", ""], rows))
    efficiencies = ", ".join(f"{100 * share:g} %" for share in conversions.EFFICIENCIES)
    print(f"\nwith the framework's conversions around the operators, at {efficiencies} of the memory's rate, and the")
    print("passes of the backward operator (docs/ascend.md: what remains for which layout)\n")
    print(table(["operator", "alone", *conversions.LAYOUTS], conversion_rows(measurements)))
    print("\nwhat a kernel asks of a core / what there is; a tile is 128 x 128 scores\n")
    auto = [measured for measured in measurements if measured.sync == "auto"]
    print(table(_NEEDS, [needs_row(measured) for measured in auto]))
    print(
        "\ntime that the usual form costs where the kernels use, or could use, a doubtful one (kernels/tik/forms.py)\n"
    )
    names = (" ".join((operator, f"D={head_dim}", *rules)) for operator, head_dim, rules in _FORM_CASES)
    print(table(["form", "used", *names], form_costs(FORM_SEQ)))
    out.mkdir(parents=True, exist_ok=True)
    path = write_csv(out / "tik.csv", measurements)
    print(f"\nwritten: {path}")
    figures += conservative_speed(measurements)
    missed = any(not figure.ok for figure in figures) or any(excess(measured) for measured in auto)
    return int(strict and missed)


def plot(lengths: tuple[int, ...], out: Path) -> int:
    """Draws tik_lengths.png, shares of the peak over lengths; backward counts the passes around its main kernel.

    Raises:
        RuntimeError: tikemu or matplotlib is not installed.
    """
    plotting.require()
    require_tikemu()
    from tqdm import tqdm

    curves: dict = {}
    for panel, seq in tqdm([(panel, seq) for panel in PANELS for seq in lengths], unit="kernel", leave=False):
        problem = tik_kernels.problem_of(seq, panel.head_dim, causal=panel.causal)
        names = kernels_of(panel.kind, problem)
        for sync in SYNC:
            main, *around = (tik_kernels.measure(problem, sync, operator=name) for name in names)
            share = _share(main, around)
            name = f"TIK operator, {sync} synchronisation"
            curves.setdefault(panel, {}).setdefault(name, []).append((seq, 100 * share))
    title = "share of the Cube's peak, one of 32 busy cores: tikemu's model of the Ascend 910A (no device)"
    print(f"written: {draw(curves, 100.0, '% of the peak', title, out / 'tik_lengths.png')}")
    return 0


def require_tikemu() -> None:
    """Raises RuntimeError if tikemu is not installed."""
    if importlib.util.find_spec("tikemu") is None:
        raise RuntimeError("--tik needs tikemu: pip install ./emulator in the repository, or its wheel")


def measure(seq: int) -> list[tik_kernels.Measurement]:
    """Every kernel for every required shape, under both variants of synchronisation."""
    require_tikemu()
    result = []
    for operator, head_dim, causal in REQUIRED:
        problem = tik_kernels.problem_of(seq, head_dim, causal=causal)
        for name in kernels_of(operator, problem):
            result += [tik_kernels.measure(problem, sync, operator=name) for sync in SYNC]
    return result


def speed(measurements: list[tik_kernels.Measurement]) -> list[Figure]:
    """Required beside reached; the note holds what remains with conservative synchronisation."""
    figures = []
    for key, required in REQUIRED.items():
        auto, conservative = (_of_operator(measurements, key, sync) for sync in SYNC)
        reached, note = _share(*auto) * 100, f"{_share(*conservative) * 100:.1f} %"
        if auto[1]:
            alone = " / ".join(f"{main.utilisation * 100:.1f}" for main, _ in (auto, conservative))
            note += f"; its main kernel alone {alone} %"
        figures.append(Figure(_name(key), required * 100, reached, "%", note))
    return figures


def conservative_speed(measurements: list[tik_kernels.Measurement]) -> list[Figure]:
    """Required beside reached with conservative synchronisation."""
    shares = {key: _share(*_of_operator(measurements, key, "conservative")) for key in REQUIRED}
    required = {key: share for key, share in REQUIRED_CONSERVATIVE.items() if key in shares}
    return [Figure(_name(key), share * 100, shares[key] * 100, "%") for key, share in required.items()]


def conversion_rows(measurements: list[tik_kernels.Measurement]) -> list[list[str]]:
    """Cells of every required shape with the conversions around it, by layout."""
    return [conversions.row(_name(key), *_of_operator(measurements, key, "auto")) for key in REQUIRED]


def kernels_of(operator: str, problem: KernelProblem) -> tuple[str, ...]:
    """Names in tik_kernels.OPERATORS: the kernel that does the work, and the passes around it."""
    return (operator, *(tik_kernels.passes(problem) if operator == "backward" else ()))


def _of_operator(
    measurements: list[tik_kernels.Measurement], key: tuple[str, int, bool], sync: str
) -> tuple[tik_kernels.Measurement, list[tik_kernels.Measurement]]:
    """(the kernel that does the work, the passes around it) of a key of REQUIRED."""
    found = {_key(measured): measured for measured in measurements if measured.sync == sync}
    main, *around = kernels_of(key[0], found[key].problem)
    return found[key], [found[(name, *key[1:])] for name in around]


def _share(main: tik_kernels.Measurement, around: list[tik_kernels.Measurement]) -> float:
    """Share of the Cube's peak of a kernel with the passes around it."""
    return main.utilisation * main.cycles / (main.cycles + sum(other.cycles for other in around))


def form_costs(seq: int) -> list[list[str]]:
    """Cells of every doubtful form: whether the kernels use it, and how much longer they take without it."""

    def cycles() -> list[float]:
        """Of each case, with the forms that are used now."""
        problems = [(tik_kernels.problem_of(seq, head_dim, **rules), name) for name, head_dim, rules in _FORM_CASES]
        return [tik_kernels.measure(problem, operator=name).cycles for problem, name in problems]

    rows, usual = [], cycles()
    for field in dataclasses.fields(forms.Forms):
        used = getattr(forms.current(), field.name)
        with forms.using(**{field.name: not used}):
            changed = cycles()
        pairs = zip(usual, changed) if used else zip(changed, usual)
        costs = [f"{(without / form - 1) * 100:+.2f} %" for form, without in pairs]
        rows.append([field.name, "yes" if used else "no", *costs])
    return rows


_NEEDS = ["kernel", *(f"{memory} KiB/{CAPACITY[memory] / 1024:g}" for memory in CAPACITY)]
_NEEDS += [f"code/{INSTRUCTION_CACHE}", f"events/{EVENTS}", "instructions", "GM KiB/tile", "build s", ""]


def needs_row(measured: tik_kernels.Measurement) -> list[str]:
    """Cells of one kernel; the last one names what is too much."""
    memory = [f"{measured.peak_bytes[name] / 1024:.1f}" for name in CAPACITY]
    cells = [str(measured.code_bytes), str(max(measured.events.values())), str(measured.instructions)]
    cells += [f"{measured.gm_bytes_per_tile / 1024:.1f}", f"{measured.build_seconds:.2f}"]
    over = excess(measured)
    return [_name(_key(measured)), *memory, *cells, "TOO MUCH: " + ", ".join(over) if over else "within"]


def excess(measured: tik_kernels.Measurement) -> list[str]:
    """Names of the limits that a kernel exceeds."""
    over = [name for name in CAPACITY if measured.peak_bytes[name] > CAPACITY[name]]
    limits = (
        ("code", measured.code_bytes, INSTRUCTION_CACHE),
        ("events", max(measured.events.values()), EVENTS),
        ("build time", measured.build_seconds, BUILD_SECONDS),
    )
    return over + [name for name, value, limit in limits if value > limit]


def write_csv(path: Path, measurements: list[tik_kernels.Measurement]) -> Path:
    """One row per kernel and variant of synchronisation; returns the path. Shares count the passes around a kernel."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        header = ["kernel", "head_dim", "causal", "seq", "sync", "required_share", "share_of_peak", "cycles"]
        header += [f"{name.lower()}_bytes" for name in CAPACITY]
        header += ["code_bytes", "events", "instructions", "gm_bytes_per_tile", "build_seconds"]
        writer.writerow([*header, "vector_share", "cube_share"])
        for measured in measurements:
            key = _key(measured)
            required = REQUIRED if measured.sync == "auto" else REQUIRED_CONSERVATIVE
            row = [*key, measured.problem.seq_q, measured.sync, required.get(key, "")]
            share = f"{_share(*_of_operator(measurements, key, measured.sync)):.4f}" if key in REQUIRED else ""
            row += [share, f"{measured.cycles:.0f}"]
            row += [measured.peak_bytes[name] for name in CAPACITY]
            row += [measured.code_bytes, max(measured.events.values()), measured.instructions]
            row += [f"{measured.gm_bytes_per_tile:.0f}", f"{measured.build_seconds:.3f}"]
            writer.writerow([*row, *(f"{measured.pipes[pipe]:.4f}" for pipe in ("V", "M"))])
    return path


def _key(measured: tik_kernels.Measurement) -> tuple[str, int, bool]:
    return measured.operator, measured.problem.head_dim, measured.problem.rules.causal


def _name(key: tuple[str, int, bool]) -> str:
    operator, head_dim, causal = key
    return f"{_TITLES[operator]} D={head_dim} {'causal' if causal else 'full'}"
