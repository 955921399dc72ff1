"""`flash-attention selftest`: it runs completely on the emulator, and finds a broken chip or kernel of each kind."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from flash_attention import cli
from flash_attention.backends.tik import entries
from flash_attention.commands.selftest import card, experiments, loops, programs
from flash_attention.kernels.tik import describe

from tests.train.flash_attention.support.calls import changed

pytest.importorskip("tikemu")


class Twisted:
    """A Tik instance with one changed instruction: change(instance) returns it."""

    def __init__(self, tik, name: str, change: Callable):
        self.tik, self.name, self.change = tik, name, change

    def __getattr__(self, name: str):
        return self.change(self.tik) if name == self.name else getattr(self.tik, name)


def _after(name: str, instruction: str, value: float) -> Callable:
    """Return the instruction followed by another one on its result: vec_muls or vec_adds by a value."""

    def change(tik):
        def both(mask, target, *rest):
            getattr(tik, name)(mask, target, *rest)
            getattr(tik, instruction)(64, target, target, value, 32, 8, 8)

        return both

    return change


def _before(name: str, value: float) -> Callable:
    """Return the conversion `name` that first multiplies its source."""

    def change(tik):
        def both(mask, mode, target, source, *rest):
            tik.vec_muls(64, source, source, value, 32, 8, 8)
            getattr(tik, name)(mask, mode, target, source, *rest)

        return both

    return change


def _other_scalar(tik) -> Callable:
    """Return a vec_axpy with another factor."""
    return lambda mask, target, source, scalar, *rest: tik.vec_axpy(mask, target, source, 0.5, *rest)


def _own_source(tik) -> Callable:
    """Return a vec_mul that takes one source twice."""
    return lambda mask, target, a, b, *rest: tik.vec_mul(mask, target, b, b, *rest)


def _twice(tik) -> Callable:
    """Return a vec_add that takes one source twice."""
    return lambda mask, target, a, b, *rest: tik.vec_add(mask, target, a, a, *rest)


def _doubled(tik) -> Callable:
    """Return an mmad that adds its product twice."""

    def both(*arguments):
        tik.mmad(*arguments)
        tik.mmad(*arguments[:-1], 1)

    return both


def _nothing(tik) -> Callable:
    """Return an instruction without effect."""
    return lambda *arguments: None


def _moves_one_less(tik) -> Callable:
    """Return a data_move that leaves the last block out."""
    return lambda target, source, sid, bursts, blocks, *gaps: tik.data_move(
        target, source, sid, bursts, blocks - 1, *gaps
    )


def _every_second(tik) -> Callable:
    """Return an instruction that every second call leaves out."""
    count = itertools.count()
    return lambda *arguments: tik.vec_adds(*arguments) if next(count) % 2 else None


def _half_of_it(tik) -> Callable:
    """Return a float16 exponential of half the numbers' size."""

    def both(mask, target, source, *rest):
        tik.vec_muls(mask, source, source, 0.5, *rest)
        tik.vec_exp(mask, target, source, *rest)

    return both


# By experiment: program, instruction, and the wrong operation that replaces the instruction.
BROKEN = {
    "shifted operands": ("shifted", "vec_mul", _own_source),
    "unused input": ("unused_input", "data_move", _moves_one_less),
    "unused output": ("unused_output", "data_move", _moves_one_less),
    "synchronisation of parts": ("parts", "vec_muls", _nothing),
    "code size": ("unrolled", "vec_adds", _every_second),
    "float16 exponential": ("exponential_half", "vec_exp", _half_of_it),
    "conversion of infinities": ("convert", "vec_conv", _before("vec_conv", 0.5)),
    "float16 axpy to float32": ("mixed_axpy", "vec_axpy", _other_scalar),
    "slice of L0C": ("slice", "mmad", _doubled),
    "exponential": ("exponential", "vec_exp", _after("vec_exp", "vec_muls", 1.0001)),
    "ends of the exponential": ("exponential", "vec_exp", _after("vec_exp", "vec_adds", 1e-3)),
    "conversion": ("convert", "vec_conv", _before("vec_conv", 1.001)),
    "saturation": ("convert", "vec_conv", _before("vec_conv", 0.01)),
    "overflow status": ("sum", "vec_add", _twice),
    "workspace": ("workspace", "vec_muls", _nothing),
    "atomic addition": ("atomic", "set_atomic_add", _nothing),
}
BY_NAME = {experiment.name: experiment for experiment in experiments.EXPERIMENTS}
ON_CARDS = "times", "time of events", "tensor beyond 4 GiB"
ATTENTION = [name for name in BY_NAME if name.startswith("attention")]


def last_is_slow(names) -> list:
    """Return the names as parameters. The longest attention takes seconds on the emulator and is slow."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name == ATTENTION[-1] else []) for name in names]


@pytest.fixture(scope="module")
def emulator() -> card.Emulator:
    """Return the emulator as the card under test."""
    return card.Emulator()


@pytest.mark.parametrize("name", last_is_slow(BY_NAME))
def test_the_emulator_does_what_is_expected(emulator: card.Emulator, name: str) -> None:
    result = experiments.perform(BY_NAME[name], emulator)
    assert result["result"] == ("not run" if name in ON_CARDS else "ok"), result["found"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_instruction_is_found(emulator: card.Emulator, monkeypatch, name: str) -> None:
    program, instruction, change = BROKEN[name]
    right = programs.PROGRAMS[program]

    def statements(body: programs.Body) -> None:
        right.statements(dataclasses.replace(body, tik=Twisted(body.tik, instruction, change)))

    monkeypatch.setitem(programs.PROGRAMS, program, dataclasses.replace(right, statements=statements))
    result = experiments.perform(BY_NAME[name], emulator)
    assert result["result"] == "FAILED"
    assert result["change"]


@pytest.mark.parametrize("name", last_is_slow(ATTENTION))
def test_a_broken_kernel_is_found(emulator: card.Emulator, monkeypatch, name: str) -> None:
    right = describe.kernel_problem

    def wrong(problem, **options):
        described = right(problem, **options)
        rules = dataclasses.replace(described.call.rules, scale=1.02 * described.call.scale)
        return changed(described, rules=rules)

    monkeypatch.setattr(describe, "kernel_problem", wrong)
    result = experiments.perform(BY_NAME[name], emulator)
    assert result["result"] == "FAILED" and "error over the baseline's" in result["found"]


def test_another_chip_is_found(emulator: card.Emulator, monkeypatch) -> None:
    monkeypatch.setattr(emulator, "platform", lambda name: 8 if name == "CORE_NUM" else 262144)
    result = experiments.perform(BY_NAME["chip"], emulator)
    assert result["result"] == "FAILED" and result["found"].startswith("8 cores")


def test_a_slow_card_is_found(emulator: card.Emulator, monkeypatch) -> None:
    monkeypatch.setattr(emulator, "timed", True)
    monkeypatch.setattr(emulator, "milliseconds", lambda heads, seq, head_dim: 50.0)
    result = experiments.perform(BY_NAME["times"], emulator)
    assert result["result"] == "FAILED" and "measured 50.00 ms, model 0." in result["found"]


def test_every_kind_has_a_broken_one() -> None:
    timed = {name for name in BY_NAME if name.startswith(experiments.PREFIX)}
    assert {*BROKEN, *ATTENTION, "chip", *ON_CARDS, *timed} == set(BY_NAME)


@pytest.mark.parametrize("wraps", (True, False))
def test_a_card_whose_offsets_wrap_is_found(emulator: card.Emulator, monkeypatch, wraps: bool) -> None:
    """The end of a tensor of 4 GiB falls upon its beginning."""

    def run(name: str, x: np.ndarray) -> card.Run:
        return card.Run({"y": np.concatenate([x[16:], x[16:]]) if wraps else x}, False)

    monkeypatch.setattr(emulator, "timed", True)
    monkeypatch.setattr(emulator, "run", run)
    result = experiments.perform(BY_NAME["tensor beyond 4 GiB"], emulator)
    assert result["result"] == ("FAILED" if wraps else "ok"), result["found"]


@pytest.mark.parametrize("seconds, result", [((0.01, 0.02), "ok"), ((0.0, 0.02), "FAILED"), ((0.03, 0.02), "FAILED")])
def test_events_without_time_are_found(emulator: card.Emulator, monkeypatch, seconds: tuple, result: str) -> None:
    monkeypatch.setattr(emulator, "events", lambda: seconds)
    assert experiments.perform(BY_NAME["time of events"], emulator)["result"] == result


# By question: the model's answer, one of its constants, another value of it, and the answer with this value.
ANSWERS = {
    "dup, 255 repeats": (255, "vector_head", 14, 269),
    "dup, 32 repeats": (32, "vector_head", 14, 46),
    "dup, 8 repeats": (8, "vector_head", 14, 22),
    "dup, 2 repeats": (4.5, "vector_head", 14, 16),
    "dup, 1 repeat": (4.5, "issue_cycles", 8, 9),
    "dup, 32 repeats, two masks": (32, "mask_drain", 1, 47),
    "axpy, eight targets": (4.5, "vector_head", 14, 18),
    "axpy, one target": (19, "vector_latency", 20, 24),
    "add, sources apart": (64, "vector_two_sources", 2, 128),
    "add, sources equal": (128, "vector_two_sources", 2, 128),
    "add in place": (207, "vector_reads_add", 0, 143),
    "exp float16": (1020, "vector_transcendental_f16", 2, 510),
    "exp float32": (510, "vector_transcendental_f32", 4, 1020),
    "L0C to UB": (128, "l0c_ub_bandwidth", 128, 256),
    "memory, 15 cores": (1160, "hbm_bandwidth", 1.0e12, 1000),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_questions_separate_the_readings(emulator: card.Emulator, name: str) -> None:
    (loop,) = (loop for loop in loops.LOOPS if loop.name == name)
    answer, constant, value, other = ANSWERS[name]
    assert loop.answer(emulator.seconds(loop), 1e9) == pytest.approx(answer, rel=0.01)
    assert loop.answer(emulator.seconds(loop, {constant: value}), 1e9) == pytest.approx(other, rel=0.01)


def test_a_report_holds_the_times_of_a_loop(tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    assert cli.main(["selftest", "--only", "dup, 32 repeats", "--report", str(path)]) == 0
    for one in json.loads(path.read_text())["experiments"]:
        few, many = one["times"]
        assert many > few > 0 and one["result"] == "ok" and "cycles at 1000 MHz" in one["found"]


def test_report(tmp_path: Path, capsys) -> None:
    path = tmp_path / "card.json"
    assert cli.main(["selftest", "--only", "chip", "--report", str(path)]) == 0
    report = json.loads(path.read_text())
    assert report["device"] == "emulator" and report["mindspore"] == ms.__version__
    (one,) = report["experiments"]
    assert {"name", "expected", "result", "found", "change", "seconds"} == set(one)
    assert "all as expected; no chip was asked: --device ascend asks one" in capsys.readouterr().out


def test_the_device_says_what_it_lacks(capsys) -> None:
    assert cli.main(["selftest", "--device", "ascend"]) == 2
    assert "--device ascend: runs on Ascend 910, and the device target is CPU" in capsys.readouterr().err
    assert cli.main(["selftest", "--only", "nothing"]) == 2


@pytest.mark.parametrize("name", [*programs.PROGRAMS, "dup__1_repeat_2000"])
def test_the_card_gets_the_same_programs(emulator: card.Emulator, monkeypatch, tmp_path: Path, name: str) -> None:
    """The card gets them as primitives; the compiler's processes call the entries with all arguments by position."""
    monkeypatch.setenv("FLASH_ATTENTION_ENTRIES", str(tmp_path))
    card._primitive.cache_clear()
    primitive = card._primitive(name)
    assert primitive.attrs["func_name"] == f"selftest_{name}"
    program = loops.ALL_PROGRAMS[name]
    tensors = [
        {"shape": (size,), "dtype": dtype} for dtype, size in (*program.inputs.values(), *program.outputs.values())
    ]
    entries.load(f"selftest_{name}", Path(primitive.attrs["imply_path"]).read_text())(*tensors, "kernel", impl_mode="")
    card._primitive.cache_clear()
