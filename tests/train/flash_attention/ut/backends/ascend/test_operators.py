"""The signatures of the operators are what their kernels take and give, for every combination of features."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType

import pytest
from flash_attention.kernels.tik import operators
from flash_attention.kernels.tik.operators import compile_entry, describe
from flash_attention.kernels.tik.signature import DECODE_STAGES, OPERATORS, STAGES, Request

from tests.train.flash_attention.support.problems import make_kernel_problem
from tests.train.flash_attention.ut.backends.ascend.support.requests import PACKED, REQUESTS, described

ir = pytest.importorskip("tikemu.program.ir")

_FEW = make_kernel_problem(2, 4, 2, 96, 32, kv_heads=2, causal=True, causal_alignment="bottom_right")
_EVERY = make_kernel_problem(2, 4, 2, 96, 32, kv_heads=2, alibi=True, sinks=True, softcap=9.0, value_dim=48)
DECODING = {"contiguous": Request(_FEW), "paged": Request(_FEW, pages=(10, 24))}
DECODING.update({"contiguous-every": Request(_EVERY), "paged-every": Request(_EVERY, pages=(10, 24))})
CHAINS = {name: (STAGES, request) for name, request in REQUESTS.items()}
CHAINS.update((name, (DECODE_STAGES, request)) for name, request in DECODING.items())
CHAINS.update((name, (STAGES, request)) for name, request in PACKED.items())
# Accumulators that several cores add to; otherwise the main kernel gives d_query.
SHARED = {f"{name}-shared": dataclasses.replace(one, variant="atomic") for name, one in REQUESTS.items()}
CHAINS.update((name, (("grad", "grad_finish"), request)) for name, request in SHARED.items())
# Building every kernel of every combination takes minutes.
BUILT = [name for index, name in enumerate(REQUESTS) if index % 9 == 0] + ["plain-alibi", "causal-alibi", *DECODING]
BUILT += [name for index, name in enumerate(PACKED) if index % 5 == 0]
BUILT += [name for index, name in enumerate(SHARED) if index % 25 == 0]


@pytest.mark.parametrize("name", CHAINS)
def test_every_request_has_an_operator_with_its_arguments(name: str) -> None:
    stages, request = CHAINS[name]
    for stage in stages:
        operator, signature = describe(stage, request)
        assert operator.stage == stage
        for tensors, arguments in ((signature.inputs, operator.inputs), (signature.outputs, operator.outputs)):
            assert len(tensors) == len(arguments)
            for tensor, argument in zip(tensors, arguments):
                assert (tensor.name, tensor.dtype, tensor.format) == (argument.name, argument.dtype, argument.format)
                assert (tensor.constant is not None, tensor.added) == (argument.constant, argument.added)
                assert 0 not in tensor.shape  # nothing of size 0 stands for an absent tensor
        constants = [argument.constant for argument in operator.inputs]
        assert constants == sorted(constants)  # callers append them


@pytest.mark.parametrize("name", BUILT)
def test_the_kernel_uses_what_its_signature_says(tik: ModuleType, name: str) -> None:
    """Neither more, which BuildCCE refuses, nor less."""
    stages, request = CHAINS[name]
    for stage in stages:
        kernel = operators.build(stage, request, tik, "named", True)
        program = kernel.tik._recorder.program
        assert (kernel.name, program.name) == ("named", "named")
        _, signature = describe(stage, request)
        tensors = {tensor.name: tensor for tensor in (*signature.inputs, *signature.outputs)}
        leaves = (node for statement in ir.statements(program.body) for node in ir.leaves(statement))
        used = {node.name for node in leaves if isinstance(node, ir.TensorInfo) and node.memory == "GM"}
        assert used - {tensor.name for tensor in program.workspaces} == set(tensors)
        declared = [node.tensor for node in (*program.inputs, *program.outputs)]
        assert [tensor.name for tensor in declared] == list(tensors)
        assert {tensor.name for tensor in declared if tensor.is_atomic_add} == {
            tensor.name for tensor in signature.outputs if tensor.added
        }


def test_operators_differ_in_name_and_arguments() -> None:
    assert len({operator.type for operator in OPERATORS}) == len({operator.name for operator in OPERATORS})
    assert len({(one.stage, one.inputs, one.outputs) for one in OPERATORS}) == len(OPERATORS)
    used = {describe(stage, request)[0] for stages, request in CHAINS.values() for stage in stages}
    # Causal rules leave partly visible tiles, but for a single query; query tiles of the backward operator have 16 rows
    # at least, and a mask for a single query is a mask per key.
    unused = {operator.name for operator in OPERATORS if operator not in used}
    masks = ("", "_mask", "_key_mask")
    ends = [("forward_mask", "_sinks"), ("forward_mask", "_dropout_sinks")]
    ends += [("forward_mask", end) for end in ("", "_dropout")]
    ends += [(f"grad{mask}", end + query) for mask in masks for end in ("", "_dropout") for query in ("", "_query")]
    assert unused == {f"flash_attention_{stem}_alibi{end}" for stem, end in ends}


def test_names_tell_the_features() -> None:
    names = {"plain-bias": "bias_tiles", "plain-bias-d_bias": "bias_grad_tiles", "plain-alibi": "signed_alibi_tiles"}
    for name, words in names.items():
        assert describe("grad", REQUESTS[name])[0].name == f"flash_attention_grad_{words}_query"
        assert describe("grad", SHARED[f"{name}-shared"])[0].name == f"flash_attention_grad_{words}"


def test_signatures_need_no_tik(run_python: Callable[..., str]) -> None:
    """In a process without any tik module, neither CANN's nor the emulator's."""
    printed = run_python(
        "-c",
        """
import sys
sys.modules["tikemu"] = sys.modules["tbe"] = sys.modules["te"] = None
from flash_attention.kernels.tik.operators import describe
from flash_attention.kernels.tik.signature import STAGES, KernelProblem, Request
from flash_attention.problem import AttentionRules
request = Request(KernelProblem(1, 2, 33, 50, 24, rules=AttentionRules(alibi=True), slopes=(0.5, 0.25)))
print(*(tensor.name for stage in STAGES for tensor in describe(stage, request)[1].inputs))
""",
    )
    assert "distances" in printed.split()


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_survives_its_text(name: str) -> None:
    assert Request.from_text(REQUESTS[name].to_text()) == REQUESTS[name]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"problem": {}}', '{"problem": {"slopes": []}, "more": 1}'])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="request: got"):
        Request.from_text(text)


def test_every_field_of_a_problem_is_in_the_text() -> None:
    request = REQUESTS["plain"]
    changed = dataclasses.replace(request, problem=dataclasses.replace(request.problem, cores=7))
    assert Request.from_text(changed.to_text()).problem.cores == 7


def test_compile_names_the_wrong_tensor(tik: ModuleType) -> None:
    request = REQUESTS["plain"]
    operator, signature = describe("forward", request)
    right = described(signature)

    def compiled(**changes: dict | None) -> object:
        tensors = {name: {**right.get(name, {}), **change} if change else None for name, change in changes.items()}
        return compile_entry(operator.name, {**right, **tensors}, request.to_text(), "compiled")

    assert compiled(mask=None, key_mask=None).name == "compiled"
    with pytest.raises(ValueError, match="key: got shape"):
        compiled(key={"shape": [2, 2]})
    with pytest.raises(TypeError, match="value: got dtype float32, allowed is float16"):
        compiled(value={"dtype": "float32"})
    with pytest.raises(ValueError, match="query: got format ND, allowed is FRACTAL_NZ"):
        compiled(query={"format": "ND"})
    with pytest.raises(ValueError, match="table: got None, allowed is a tensor"):
        compiled(table=None)
    with pytest.raises(ValueError, match="mask: got a tensor, allowed is None"):
        compiled(mask={"shape": [1], "dtype": "float16"})
    with pytest.raises(ValueError, match="request: got one for flash_attention_forward_tiles, allowed for this entry"):
        compile_entry("flash_attention_forward", right, request.to_text(), "compiled")
