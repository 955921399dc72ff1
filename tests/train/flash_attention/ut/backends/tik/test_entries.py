"""Entries get the tensors that their kernels expect, and their files lie in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flash_attention.backends.tik import entries, opp_package
from flash_attention.kernels.tik import operators, signatures
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.signatures import STAGES, Operator

from tests.train.flash_attention.ut.backends.tik.support.problems import PROBLEMS, described

tikemu = pytest.importorskip("tikemu")


def _in_process(operator: Operator) -> Callable:
    """Return the entry that MindSpore's compile code calls: by position, the kernel's name last, and a mode."""
    entry = entries.entry(operator)
    return lambda tensors, text: entry(*tensors, text, "kernel", impl_mode="high_performance")


def _package(operator: Operator) -> Callable:
    """Return the entry that CANN calls: the kernel's name is a keyword."""
    names = {"__file__": __file__}
    exec(compile(opp_package.entry_source(operator), operator.name, "exec"), names)
    return lambda tensors, text: names[operator.name](*tensors, text, kernel_name="kernel", impl_mode="")


@pytest.fixture
def built(monkeypatch, tmp_path) -> Iterator[list]:
    """Record what entries would build: (stage, problem, kernel name). Building all takes minutes."""
    result: list = []

    def build(
        stage: str, problem: KernelProblem, tik: object, name: str, debug: bool, operator: Operator, config: None
    ) -> None:
        assert not debug and config is None and operator == signatures.arguments(stage, problem)[0]
        result.append((stage, problem, name))

    monkeypatch.setattr(operators, "build", build)
    monkeypatch.setenv("FLASH_ATTENTION_ENTRIES", str(tmp_path))
    entries.entry.cache_clear()
    tikemu.install(soc="Ascend910A")
    yield result
    tikemu.uninstall()
    entries.entry.cache_clear()


@pytest.mark.system
@pytest.mark.parametrize("route", (_in_process, _package))
def test_entries_take_what_the_kernels_take(built: list, route: Callable) -> None:
    functions: dict[Operator, Callable] = {}
    for problem in PROBLEMS.values():
        for stage in STAGES:
            operator, signature = signatures.arguments(stage, problem)
            entry = functions.setdefault(operator, functions.get(operator) or route(operator))
            of_name = described(operator.fill(signature))
            arguments = [argument.name for argument in (*operator.inputs, *operator.outputs)]
            assert list(of_name) == arguments
            entry([of_name[name] for name in arguments], problem.to_text())
            assert built.pop() == (stage, problem, "kernel")


@pytest.mark.system
@pytest.mark.parametrize("route", (_in_process, _package))
def test_entries_refuse_other_tensors(built: list, route: Callable) -> None:
    problem = PROBLEMS["causal-key_mask-bias-dropout-gqa-sinks-d_bias-d_lse"]
    for stage in STAGES:
        operator, signature = signatures.arguments(stage, problem)
        tensors = list(described(operator.fill(signature)).values())
        with pytest.raises(ValueError, match="got None, allowed is a tensor"):
            route(operator)([None, *tensors[1:]], problem.to_text())
        with pytest.raises((ValueError, TypeError), match="got (shape|format|dtype)"):
            route(operator)([*tensors[1:], tensors[0]], problem.to_text())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLASH_ATTENTION_ENTRIES", str(tmp_path / "file"))
    with pytest.raises(RuntimeError, match="cannot be written: .*file.*; set FLASH_ATTENTION_ENTRIES"):
        entries.load("nothing", "def nothing(): ...")


def test_a_user_without_a_home_is_told_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASH_ATTENTION_ENTRIES", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", _homeless)
    with pytest.raises(RuntimeError, match="no home. Set FLASH_ATTENTION_ENTRIES"):
        entries.folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert entries.folder().is_relative_to(tmp_path)


def _homeless() -> Path:
    """Raise the error of Path.home for a user that the system does not know."""
    raise RuntimeError("no home.")
