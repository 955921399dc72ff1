"""Doubtful forms of instructions: switches that change no bit, names of scalars, costs."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from flash_attention.kernels.tik import KernelProblem, instruction_forms

from benchmarks.tik_kernels import form_costs
from tests.train.flash_attention.support.calls import make_kernel_problem
from tests.train.flash_attention.ut.tik.support.passes import both_passes, random_data
from tests.train.flash_attention.ut.tik.support.programs import build_backward, build_forward


def _results(tik, execute, problem: KernelProblem) -> dict:
    """Return all results for random inputs."""
    return both_passes(tik, execute, problem, random_data(problem))[0]


@functools.lru_cache
def _usual_results(tik, execute, problem: KernelProblem) -> dict:
    """Return the results without `instruction_forms.using`."""
    return _results(tik, execute, problem)


@pytest.mark.spread
@pytest.mark.parametrize("bias", ("per_key", "per_score", "alibi"))
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(instruction_forms.InstructionForms)])
def test_a_form_changes_no_bit(tik, execute, name: str, bias: str) -> None:
    rules = {"alibi": True} if bias == "alibi" else {"causal": True, "bias": bias}
    problem = make_kernel_problem(1, 1, 150, 150, 32, cores=1, **rules)
    with instruction_forms.using(**{name: not getattr(instruction_forms.current(), name)}):
        other = _results(tik, execute, problem)
    for tensor, array in _usual_results(tik, execute, problem).items():
        np.testing.assert_array_equal(other[tensor], array, err_msg=tensor)


def test_names_of_scalars_are_unique(tik) -> None:
    ir = pytest.importorskip("tikemu.program.ir")
    problem = make_kernel_problem(1, 1, 300, 300, 64, causal=True, alibi=True, cores=1)
    for kernel in (build_forward(problem, tik), *build_backward(problem, tik).kernels):
        statements = ir.statements(kernel.tik._recorder.program.body)
        defined = [statement for statement in statements if isinstance(statement, ir.DefineScalar)]
        names = [variable.name for statement in defined for variable in statement.variables]
        assert len(names) > 5 and len(set(names)) == len(names)


def test_instruction_forms_come_from_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("FLASH_ATTENTION_FORMS", "shifted_operands=0,tensor_move=1")
    assert instruction_forms.current() == instruction_forms.InstructionForms(shifted_operands=False, tensor_move=True)
    monkeypatch.setenv("FLASH_ATTENTION_FORMS", "shifted_operands=no")
    with pytest.raises(ValueError, match="FLASH_ATTENTION_FORMS: got 'shifted_operands=no', allowed are shifted_op"):
        instruction_forms.current()


@pytest.mark.slow
def test_a_doubtful_form_is_used_only_where_the_usual_one_costs_more_than_a_percent() -> None:
    for name, _, *costs in form_costs(1024):
        most = max(float(cost.split()[0]) for cost in costs)
        assert getattr(instruction_forms.InstructionForms(), name) == (most > 1), (name, costs)
