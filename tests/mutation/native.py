"""Mutation test of the native kernel: which mistakes of edits.py do its tests notice?

    PYTHONPATH=train:emulator python -m tests.mutation.native          # all edits; goes on where it was interrupted
    PYTHONPATH=train:emulator python -m tests.mutation.native backward # those whose file or text holds this word

Each edit is made in a copy of the package and compiled with -Og for one instruction set. It is killed when the copy
does not compile, or when one of a few hundred small random cases fails, crashes or hangs with
FLASH_ATTENTION_CPU_POISON=1. Those left then have to pass the everyday tests in ut/native. A killed edit is remembered
until its file changes, a survivor until the tests change too.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["FLASH_ATTENTION_CPU_POISON"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "2")  # or nobody waits for turns
os.environ["OMP_WAIT_POLICY"] = "passive"

from flash_attention.backends.cpu import build, library

from tests.fuzz import REPOSITORY, digest
from tests.mutation.edit import Edit
from tests.mutation.edits import EDITS
from tests.mutation.verdicts import Verdicts, in_child, outcome, run_pytest
from tests.train.flash_attention import cases
from tests.train.flash_attention.random_cases import random_case
from tests.train.flash_attention.ut.native.calls import run_case

CSRC = "train/flash_attention/backends/cpu/csrc"
TESTS = "tests/train/flash_attention/ut/native"
CASES = 300
LIMITS = {"cases": 120.0, "tests": 300.0}  # seconds
LARGEST = 60_000  # elements of query and key of a case
# Files that judge what passes the random cases, those that take least first; some judge edits of few sources only.
NATIVE_TESTS = {
    "stale": None,
    "borders": None,
    "band": ("problem.h",),
    "philox": ("scores-inl.h", "philox-inl.h", "simd/portable.h"),
    "softcap": ("forward-inl.h", "backward-inl.h", "scores-inl.h"),
    "cases": None,
    "nonfinite": None,
    "values": None,
    "memory": ("forward-inl.h", "backward-inl.h", "scores-inl.h", "pack-inl.h", "gemm-inl.h", "target-inl.h"),
    "order": ("attention.cpp", "backward-inl.h"),
}
LEFT_OUT = "65536 or test_case[ or notice or many_runs"  # other tests see the same sooner
_FLAGS = ("-Og", "-std=c++17", "-ffp-contract=off", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-w")


class Workshop:
    """A copy of the package whose kernel holds an edit, and the objects that no edit changes."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.package = folder / "train" / "flash_attention"
        ignored = shutil.ignore_patterns("lib", "__pycache__")
        shutil.copytree(REPOSITORY / "train" / "flash_attention", self.package, ignore=ignored)
        self.csrc = self.package / "backends" / "cpu" / "csrc"
        self.library = self.package / "backends" / "cpu" / "lib" / build.LIBRARY.name
        self.library.parent.mkdir()
        self.objects = folder / "objects"
        self.objects.mkdir()

    @functools.cached_property
    def parts(self) -> list[Path]:
        """Sources of what is common to all instruction sets."""
        return sorted(self.csrc.glob("*.cpp"))

    def compile(self, source: Path, isa: str, result: Path) -> Path:
        """The object of a source; a target other than `isa` is left empty."""
        flags = build.target_flags(source.stem) if source.stem == isa else ()
        if source.stem == "scalar" != isa:
            empty = self.folder / "scalar.cpp"
            empty.write_text(
                f'#include "{self.csrc}/kernels.h"\n'
                "namespace flash_attention { const Kernels* const kScalarKernels = nullptr; }\n"
            )
            source = empty
        command = ["g++", *_FLAGS, *flags, "-c", str(source), "-o", str(result)]
        subprocess.run(command, check=True, capture_output=True)
        return result

    def unchanged(self, source: Path, isa: str) -> Path:
        """The object of the source without an edit."""
        own = isa if source.stem in (isa, "scalar") else "any"
        result = self.objects / f"{source.stem}-{own}.o"
        return result if result.exists() else self.compile(source, isa, result)

    def build(self, isa: str, edit: Edit | None = None) -> None:
        """Compiles the library with `edit` for one instruction set.

        Raises:
            subprocess.CalledProcessError: it does not compile.
        """
        targets = [self.csrc / "targets" / f"{name}.cpp" for name in build._TARGETS]
        sources = [*self.parts, *targets]
        objects = {source: self.unchanged(source, isa) for source in sources}
        if edit is not None:
            with self.edited(edit):
                for source in self.affected(edit, isa):
                    objects[source] = self.compile(source, isa, self.folder / f"{source.stem}.o")
        new = self.library.with_suffix(".new")
        subprocess.run(["g++", "-shared", "-fopenmp", *map(str, objects.values()), "-o", str(new)], check=True)
        os.replace(new, self.library)

    def affected(self, edit: Edit, isa: str) -> list[Path]:
        """The sources that see the edited file."""
        if edit.file.endswith(".cpp"):
            return [self.csrc / edit.file]
        target = self.csrc / "targets" / f"{isa}.cpp"
        shared = "-inl" not in edit.file and "/" not in edit.file
        return [*self.parts, target] if shared else [target]

    @contextlib.contextmanager
    def edited(self, edit: Edit):
        path = self.csrc / edit.file
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise ValueError(f"{edit.file}: {edit.old!r} stands {text.count(edit.old)} times, must stand once")
        path.write_text(text.replace(edit.old, edit.new))
        try:
            yield
        finally:
            path.write_text(text)


def small_cases() -> list:
    """The first random cases of little work, with their expected results computed."""
    chosen = []
    seed = 0
    while len(chosen) < CASES:
        case = random_case(seed)
        seed += 1
        rows = case.heads * case.seq_q + case.kv_heads * case.seq_k
        if case.batch * rows * case.head_dim <= LARGEST:
            chosen.append(case)
    cases._expected = functools.cache(cases._expected.__wrapped__)
    for case in chosen:
        case.expected()
    return sorted(chosen, key=lambda case: case.batch * case.heads * case.seq_q * case.seq_k * case.head_dim)


def digest_of_cases() -> str:
    """A digest of what makes and checks the random cases."""
    folder = REPOSITORY / "tests" / "train" / "flash_attention"
    return hashlib.sha256(
        b"".join((folder / name).read_bytes() for name in ("cases.py", "random_cases.py"))
    ).hexdigest()


def failing_case(kernel: Path, chosen: list, limit: float) -> str | None:
    """How a kernel fails in the cases, run in a process of its own until the first that fails; None when all pass."""

    def run() -> int:
        loaded = library.Library(kernel)
        with contextlib.suppress(AssertionError):
            for case in chosen:
                cases.check_random(case, run_case(case, kernel=loaded))
            return 0
        return 1

    return outcome(in_child(run, limit))


class FirstFailure:
    """A pytest plugin that writes the name of the first failing test into a file."""

    def __init__(self, path: Path):
        self.path = path

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed and not self.path.exists():
            self.path.write_text(report.nodeid.split("/")[-1])


def failing_test(workshop: Workshop, file: str, limit: float) -> str | None:
    """The first everyday test that fails with the kernel in a workshop, edited in `file`; None when all pass.

    Programs that a test starts find the package of the workshop first.
    """
    failed = workshop.folder / "failed"
    failed.unlink(missing_ok=True)
    tests = [
        f"{REPOSITORY}/{TESTS}/test_{name}.py" for name, files in NATIVE_TESTS.items() if file in (files or (file,))
    ]
    train = workshop.folder / "train"
    options = ["-o", f"pythonpath={train} emulator .", "-x", "-k", f"not ({LEFT_OUT})", *tests]

    def run() -> int:
        library.LIBRARY = workshop.library
        return run_pytest(options, FirstFailure(failed))

    verdict = outcome(in_child(run, limit))
    return failed.read_text() if verdict and failed.exists() else verdict


def main() -> int:
    """Judges the edits and prints the survivors."""
    parser = argparse.ArgumentParser(description="Mutation test of the native kernel.")
    parser.add_argument("word", nargs="?", default="", help="part of a file's name or of its text")
    parser.add_argument("--first", type=int, default=len(EDITS), metavar="N", help="judge N edits, spread evenly")
    arguments = parser.parse_args()
    edits = [edit for edit in EDITS if arguments.word in edit.file or arguments.word in edit.old]
    edits.sort(key=lambda edit: hashlib.sha256(repr(edit).encode()).digest())
    edits = edits[: arguments.first]
    verdicts = Verdicts("native")
    text = {edit.file: (REPOSITORY / CSRC / edit.file).read_text() for edit in edits}
    chosen = small_cases()
    stages = {"cases": digest_of_cases(), "tests": digest((TESTS,))}
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder))

        def judge(stage: str, file: str) -> str | None:
            if stage == "cases":
                return failing_case(workshop.library, chosen, LIMITS[stage])
            return failing_test(workshop, file, LIMITS[stage])

        for stage, tests in stages.items():
            healthy = set()
            for edit in edits:
                mutant = edit, text[edit.file]
                if verdicts.of(mutant) or verdicts.has((mutant, stage), tests):
                    continue
                if edit.isa not in healthy:
                    workshop.build(edit.isa)
                    failed = judge(stage, "backward-inl.h")
                    assert failed is None, f"{edit.isa} fails without an edit: {failed}"
                    healthy.add(edit.isa)
                started = time.monotonic()
                try:
                    workshop.build(edit.isa, edit)
                    verdict = judge(stage, edit.file)
                except subprocess.CalledProcessError:
                    verdict = "compiler refuses"
                verdicts.add(mutant if verdict else (mutant, stage), tests, verdict)
                seconds = time.monotonic() - started
                print(f"{seconds:5.1f} s  {edit.described()}: {verdict or 'passes ' + stage}", flush=True)
    verdicts.report("csrc", {edit.described(): verdicts.of((edit, text[edit.file])) for edit in edits})
    return 0


if __name__ == "__main__":
    sys.exit(main())
