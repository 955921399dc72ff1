"""The table of operators says what the kernels really take and give, and compiles them as CANN would."""

from __future__ import annotations

import dataclasses

import pytest
from flash_attention.kernels.tik import KernelProblem
from flash_attention.kernels.tik.operators import (
    FORWARD,
    GRAD,
    GRAD_FINISH,
    GRAD_ROWS,
    OPERATORS,
    Request,
    compile_operator,
)

tikemu = pytest.importorskip("tikemu")

BASE = {"batch": 1, "heads": 2, "seq_q": 48, "seq_k": 80, "head_dim": 32}
REQUESTS = {
    "plain": Request(KernelProblem(**BASE)),
    "causal-alibi": Request(KernelProblem(**BASE, causal=True, alibi="computed", slopes=(0.5, 0.25))),
    "mask-bias-dropout": Request(
        KernelProblem(**BASE, mask="full", alibi="bias", bias_heads=2, dropout_threshold=6554), bias_gradient=True
    ),
    "key-mask-key-bias": Request(KernelProblem(**BASE, mask="key", alibi="given"), bias_gradient=True),
    "window-atomic": Request(KernelProblem(**BASE, window_left=9, window_right=3), variant="atomic"),
}


@pytest.fixture
def tik():
    tikemu.install(soc="Ascend910A")
    from tbe import tik

    yield tik
    tikemu.uninstall()


def _ordered_subset(tensors, arguments):
    remaining = iter(arguments)
    for tensor in tensors:
        argument = next((one for one in remaining if one.name == tensor.name), None)
        assert argument is not None, f"{tensor.name} is not in the table, or in another place"
        assert argument.dtype == tensor.dtype
        assert tensor.format in argument.formats
    names = {tensor.name for tensor in tensors}
    assert not [one.name for one in arguments if one.required and one.name not in names]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.type)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_the_table_lists_what_the_kernel_takes(tik, operator, request_name):
    kernel = operator.build(REQUESTS[request_name], tik, "name", True)
    assert kernel.name == "name"
    _ordered_subset(kernel.inputs, operator.inputs)
    _ordered_subset(kernel.outputs, operator.outputs)


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_request_survives_its_text(request_name):
    request = REQUESTS[request_name]
    assert Request.from_text(request.to_text()) == request


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"problem": {}}', '{"problem": {"slopes": []}, "more": 1}'])
def test_another_text_is_refused(text):
    with pytest.raises(ValueError, match="request: got"):
        Request.from_text(text)


def _tensors(kernel):
    return [{"shape": list(t.shape), "dtype": t.dtype, "format": t.format} for t in (*kernel.inputs, *kernel.outputs)]


@pytest.mark.parametrize("operator", [FORWARD, GRAD_ROWS, GRAD, GRAD_FINISH], ids=lambda operator: operator.type)
def test_compile(tik, operator):
    request = REQUESTS["plain"]
    tensors = _tensors(operator.build(request, tik, "learn", True))
    absent = [None] * 3
    kernel = compile_operator(operator, tensors + absent, request.to_text(), "compiled")
    assert kernel.name == "compiled"


def test_compile_names_the_wrong_tensor(tik):
    request = REQUESTS["plain"]
    tensors = _tensors(FORWARD.build(request, tik, "learn", True))
    with pytest.raises(ValueError, match="key: got shape"):
        wrong = [dict(tensor) for tensor in tensors]
        wrong[1]["shape"] = wrong[1]["shape"][:-1]
        compile_operator(FORWARD, wrong, request.to_text(), "compiled")
    with pytest.raises(TypeError, match="value: got dtype float32, allowed is float16"):
        wrong = [dict(tensor) for tensor in tensors]
        wrong[2]["dtype"] = "float32"
        compile_operator(FORWARD, wrong, request.to_text(), "compiled")
    with pytest.raises(ValueError, match="query: got format ND, allowed is FRACTAL_NZ"):
        compile_operator(FORWARD, [{**tensors[0], "format": "ND"}, *tensors[1:]], request.to_text(), "compiled")
    with pytest.raises(ValueError, match="got 5 tensors, allowed are 6: query, key, value"):
        compile_operator(FORWARD, tensors[:-1], request.to_text(), "compiled")


def test_every_field_of_a_problem_is_in_the_text():
    changed = dataclasses.replace(REQUESTS["plain"], problem=dataclasses.replace(REQUESTS["plain"].problem, cores=7))
    assert Request.from_text(changed.to_text()).problem.cores == 7
