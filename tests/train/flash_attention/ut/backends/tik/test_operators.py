"""Test that operators' signatures fit their kernels, for every combination of features."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from types import ModuleType

import numpy as np
import pytest
from flash_attention.kernels.tik import instruction_forms, operators, signatures
from flash_attention.kernels.tik.instruction_forms import InstructionForms
from flash_attention.kernels.tik.operators import compile_entry
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.signatures import CONSTANTS, DECODE_STAGES, OPERATORS, STAGES

from tests.train.flash_attention.support.calls import changed, make_kernel_problem
from tests.train.flash_attention.ut.backends.tik.support.problems import PACKED, PROBLEMS, described

tikemu = pytest.importorskip("tikemu")
ir = pytest.importorskip("tikemu.program.ir")

_FEW = make_kernel_problem(2, 4, 2, 96, 32, kv_heads=2, causal=True, causal_alignment="bottom_right")
_EVERY = make_kernel_problem(2, 4, 2, 96, 32, kv_heads=2, alibi=True, sinks=True, softcap=9.0, value_dim=48)
DECODING = {"contiguous": _FEW, "paged": changed(_FEW, pages=(10, 24))}
DECODING.update({"contiguous-every": _EVERY, "paged-every": changed(_EVERY, pages=(10, 24))})
CHAINS = {name: (STAGES, problem) for name, problem in PROBLEMS.items()}
CHAINS.update((name, (DECODE_STAGES, problem)) for name, problem in DECODING.items())
CHAINS.update((name, (STAGES, problem)) for name, problem in PACKED.items())
# Building every kernel of every combination takes minutes.
BUILT = [name for index, name in enumerate(PROBLEMS) if index % 9 == 0] + ["plain-alibi", "causal-alibi", *DECODING]
BUILT += [name for index, name in enumerate(PACKED) if index % 5 == 0]


def test_every_request_has_an_operator_with_its_arguments() -> None:
    used = set()
    for stages, problem in CHAINS.values():
        for stage in stages:
            operator, signature = signatures.arguments(stage, problem)
            used.add(operator)
            assert operator.stage == stage
            called = operator.fill(signature)
            for kept, tensors, arguments in (
                (signature.inputs, called.inputs, operator.inputs),
                (signature.outputs, called.outputs, operator.outputs),
            ):
                assert [tensor for tensor in tensors if not tensor.absent] == list(kept)
                assert len(tensors) == len(arguments)
                for tensor, argument in zip(tensors, arguments):
                    wanted = (argument.name, argument.dtype, argument.format)
                    assert (tensor.name, tensor.dtype, tensor.format) == wanted
                    size = math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize
                    if tensor.absent:
                        assert size == (32 if argument.format == "ND" else 256 * np.dtype(tensor.dtype).itemsize)
                    else:
                        assert tensor.added == argument.added
                        assert (tensor.constant is not None) == (argument.name in CONSTANTS)
                        assert size > 0  # nothing of size 0 stands for an absent tensor
            constants = [argument.name in CONSTANTS for argument in operator.inputs]
            assert constants == sorted(constants)  # callers append them
    assert used == set(OPERATORS) and len(OPERATORS) <= 12


@pytest.mark.parametrize("name", BUILT)
def test_the_kernel_uses_what_its_signature_says(tik: ModuleType, name: str) -> None:
    """A kernel uses all tensors of its signature, and no others, which BuildCCE refuses."""
    stages, problem = CHAINS[name]
    for stage in stages:
        kernel = operators.build(stage, problem, tik, "named", True)
        program = kernel.tik._recorder.program
        assert (kernel.name, program.name) == ("named", "named")
        _, signature = signatures.arguments(stage, problem)
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
    assert all("flashattention" in operator.type.lower() for operator in OPERATORS)  # msprof-analyze looks for it
    assert len({(one.stage, one.inputs, one.outputs) for one in OPERATORS}) == len(OPERATORS)


@pytest.mark.parametrize(
    ("name", "stage", "said"),
    [
        ("plain", "grad", "grad"),
        ("plain-key_mask-key_bias-d_bias", "grad", "grad"),
        ("plain-mask", "forward", "forward_mask"),
        ("plain-bias", "grad", "grad_bias"),
        ("plain-mask-bias", "forward", "forward_bias"),
        ("plain-gqa-sinks-d_lse", "grad_rows", "grad_rows_sinks"),
    ],
)
def test_types_tell_matrices_and_sinks(name: str, stage: str, said: str) -> None:
    assert signatures.arguments(stage, PROBLEMS[name])[0].name == f"flash_attention_{said}"


def test_signatures_need_no_tik(run_python: Callable[..., str]) -> None:
    """Signatures work in a process without any tik module, neither CANN's nor the emulator's."""
    printed = run_python(
        "-c",
        """
import sys
sys.modules["tikemu"] = sys.modules["tbe"] = sys.modules["te"] = None
from flash_attention.kernels.tik import signatures
from flash_attention.kernels.tik.signatures import STAGES
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.call import AttentionRules, Call
problem = KernelProblem(Call(1, 2, 33, 50, 24, rules=AttentionRules(alibi=True)), slopes=(0.5, 0.25))
print(*(tensor.name for stage in STAGES for tensor in signatures.arguments(stage, problem)[1].inputs))
""",
    )
    assert "distances" in printed.split()


def test_a_request_survives_its_text() -> None:
    for problem in PROBLEMS.values():
        assert KernelProblem.from_text(problem.to_text()) == problem


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"problem": {}}', '{"problem": {"slopes": []}, "more": 1}'])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="problem: got"):
        KernelProblem.from_text(text)


def test_every_field_of_a_problem_is_in_the_text() -> None:
    problem = PROBLEMS["plain"]
    assert KernelProblem.from_text(changed(problem, cores=7).to_text()).cores == 7


def _compiled(problem: KernelProblem, text: str, stage: str = "forward") -> operators.BuiltKernel:
    """Return the kernel that CANN compiles for a problem and the attribute of its node."""
    operator, signature = signatures.arguments(stage, problem)
    return compile_entry(operator.name, described(operator.fill(signature)), text, "compiled")


def test_the_attribute_decides_about_forms(tik: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is compiled with the forms of the process that made it; the text differs, so no cache mixes them up."""
    problem = PROBLEMS["plain-bias"]
    usual, texts = problem.to_text(), set()
    for form in asdict(InstructionForms()):
        with instruction_forms.using(**{form: not getattr(InstructionForms(), form)}):
            texts.add(problem.to_text())
            buffers = operators.build("forward", problem, tik, "own", True).buffers
            text = problem.to_text()
        monkeypatch.setenv("FLASH_ATTENTION_FORMS", "mixed_axpy=1,shifted_operands=0")
        assert _compiled(problem, text).buffers == buffers
        monkeypatch.delenv("FLASH_ATTENTION_FORMS")
    assert len({usual, *texts}) == 1 + len(asdict(InstructionForms()))


def test_a_graph_of_another_version_is_compiled_with_a_warning(tik: ModuleType) -> None:
    problem = PROBLEMS["plain"]
    older = json.loads(problem.to_text())
    del older["forms"], older["version"]
    with pytest.warns(UserWarning, match="made by flash_attention an older version, and") as warned:
        _compiled(problem, json.dumps(older))
    assert len(warned) == 1
    assert json.loads(problem.to_text()) != json.loads(json.dumps({**older, "version": "25.1.0"}))


@pytest.mark.parametrize("problem", (PACKED["packed-dropout-one_core"], DECODING["paged-every"]))
def test_a_text_with_the_fields_of_the_call_among_the_others_is_read(problem: KernelProblem) -> None:
    flat = asdict(problem)
    call = flat.pop("call")
    del call["storage"], call["keep_bits"]
    flat.update(call, layout=problem.layout, sequences=problem.sequences, pages=problem.pages)
    assert KernelProblem.from_text(json.dumps(flat)) == problem


def test_global_tensors_are_defined_before_the_loop_over_the_cores(tik: ModuleType, monkeypatch) -> None:
    """They are defined in the order of the arguments, as in every public program; stand-ins too."""
    order: list = []
    define, loop = tik.Tik.Tensor, tik.Tik.for_range

    def defined(self, dtype, shape, scope, *rest, **options):
        order.append(scope == tik.scope_gm)
        return define(self, dtype, shape, scope, *rest, **options)

    def looped(self, *arguments, **options):
        order.extend(["loop"] if options.get("block_num") else [])
        return loop(self, *arguments, **options)

    monkeypatch.setattr(tik.Tik, "Tensor", defined)
    monkeypatch.setattr(tik.Tik, "for_range", looped)
    for stage in STAGES:
        order.clear()
        _compiled(PROBLEMS["plain"], PROBLEMS["plain"].to_text(), stage)
        start = order.index("loop")
        assert all(order[:start]) and True not in order[start:], stage


@pytest.mark.parametrize("on", (True, False))
def test_an_output_that_a_call_lacks_is_written_once(tik: ModuleType, on: bool) -> None:
    problem = PROBLEMS["plain"]
    operator, signature = signatures.arguments("grad", problem)
    called = operator.fill(signature)
    with instruction_forms.using(write_absent=on):
        kernel = operators.build("grad", problem, tik, "named", True, operator)
    feed = {one.name: np.zeros(one.shape, one.dtype) if one.constant is None else one.constant for one in called.inputs}
    feed |= {one.name: np.ones(one.shape, one.dtype) for one in called.outputs if one.absent}
    feed |= {one.name: np.zeros(one.shape, one.dtype) for one in called.outputs if one.added and not one.absent}
    results = tikemu.run(kernel.tik, feed, timing=False, options=tikemu.Options(progress=False)).outputs
    absent = [one for one in called.outputs if one.absent]
    assert absent
    for one in absent:
        written = np.ones(one.shape, one.dtype).reshape(-1)
        written[: 32 // written.itemsize] = not on
        np.testing.assert_array_equal(results[one.name].reshape(-1), written, err_msg=one.name)


def test_compile_names_the_wrong_tensor(tik: ModuleType) -> None:
    problem = PROBLEMS["plain"]
    operator, signature = signatures.arguments("forward", problem)
    right = described(operator.fill(signature))

    def compiled(**changes: dict | None) -> object:
        tensors = {name: {**right.get(name, {}), **change} if change else None for name, change in changes.items()}
        return compile_entry(operator.name, {**right, **tensors}, problem.to_text(), "compiled")

    assert compiled(mask=None).name == "compiled"
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
    with pytest.raises(ValueError, match="key_mask: got None, allowed is a tensor"):
        compiled(key_mask=None)
    with pytest.raises(ValueError, match="problem: got one for flash_attention_forward, allowed for this entry"):
        compile_entry("flash_attention_forward_mask", right, problem.to_text(), "compiled")
