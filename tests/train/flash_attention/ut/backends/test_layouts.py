"""Layouts: right, bit-equal, in place on backend `cpu`, as matrices of tokens on the TIK operators."""

import functools
import re
from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from flash_attention import flash_attention
from flash_attention.backends.registry import get_backend
from flash_attention.backends.tik import BACKEND
from flash_attention.call import LAYOUTS
from flash_attention.call.layout import CALL_LAYOUTS
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support import cases
from tests.train.flash_attention.support.calls import make_call
from tests.train.flash_attention.support.cases import Case, assert_same
from tests.train.flash_attention.support.cells import Call, Gradients
from tests.train.flash_attention.support.layouts import OTHER_LAYOUTS, laid_out
from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.run import run_case, tensor
from tests.train.flash_attention.support.versions import dtype_named

DTYPES = ("float32", "float16", "bfloat16")
# Several tiles of both sides, partly filled. Sums of float32 query gradients lie in the result if head_dim is a
# multiple of 16, else beside it. No row sees the keys beyond the last query.
SMALL = Case(batch=2, heads=4, kv_heads=2, seq_q=150, seq_k=201, head_dim=32, mask="causal")
CASES = {
    "plain": SMALL,
    "narrow": replace(SMALL, head_dim=7, mask="none"),
    "everything": replace(SMALL, head_dim=40, mask="3d", alibi="bias", window=(90, 20), dropout=0.2),
    "computed-alibi": replace(SMALL, batch=3, seq_q=33, seq_k=20, alibi="computed", alignment="bottom_right"),
}


def attention(layout, head_dim, logsumexp=False) -> Call:
    """Return the call that a user writes; with `logsumexp` it gives both results."""
    rules = {"causal": True, "input_layout": layout, "head_dim": head_dim, "return_lse": logsumexp}
    return Call(flash_attention, **rules, backend="cpu")


class Loss(nn.Cell):
    """A loss that uses the logsumexp; d_output is float32."""

    def __init__(self, layout, head_dim):
        super().__init__()
        self.attention = attention(layout, head_dim, True)

    def construct(self, query, key, value, d_output):
        output, logsumexp = self.attention(query, key, value)
        return (output.astype(ms.float32) * d_output).sum() + logsumexp.sum()


class LossGradients(nn.Cell):
    """Gradients of a loss with regard to query, key and value."""

    def __init__(self, loss):
        super().__init__()
        self.loss, self.gradients = loss, ops.GradOperation(get_all=True)

    def construct(self, query, key, value, d_output):
        return self.gradients(self.loss)(query, key, value, d_output)[:3]


def tensors(layout, dtype, case=SMALL):
    """Return query, key, value and gradients of the output and logsumexp, in a layout."""
    inputs = case.inputs()
    arrays = inputs.query, inputs.key, inputs.value, inputs.d_output
    return [tensor(laid_out(array, layout), dtype) for array in arrays], tensor(inputs.d_logsumexp)


def bits(result):
    """Return the elements as float32, which holds each of them exactly."""
    return result.astype(ms.float32).asnumpy()


@pytest.mark.spread
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_is_right_and_gives_the_same_bits(name, dtype, mode):
    """Output, logsumexp and the gradients through both have the bits of BNSD. The kernel: native/test_cases.py."""
    case = replace(CASES[name], dtype=dtype)
    first = run_case(case, "cpu")
    cases.check(case, first)
    for layout in OTHER_LAYOUTS:
        cases.assert_same(run_case(case, "cpu", layout), first, f"of {layout}")


@pytest.mark.parametrize(
    "layout", ["BSND", "TH", *(pytest.param(one, marks=pytest.mark.slow) for one in ("SBH", "BSH"))]
)
def test_a_bfloat16_graph_of_backend_math_is_right(layout):
    """MindSpore lacks Reshape, ExpandDims and AddN of bfloat16 in graphs on a CPU; the backend converts layouts."""
    dtype_named("bfloat16")
    case = replace(SMALL, seq_q=9, seq_k=9, dtype="bfloat16")
    with in_mode("graph"):
        cases.check(case, run_case(case, "math", layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_compiled_graph_moves_nothing_around_the_kernel(layout, tmp_path):
    (*inputs, d_output), d_logsumexp = tensors(layout, "float32")
    ms.set_context(mode=ms.GRAPH_MODE, save_graphs=2, save_graphs_path=str(tmp_path))
    try:
        Gradients(attention(layout, SMALL.head_dim, True))(*inputs, (d_output, d_logsumexp))
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE, save_graphs=0)
    (dump,) = tmp_path.rglob("*_validate_*.ir")
    called = set(re.findall(r"\) = (?:PrimFunc_)?(\w+)\(", dump.read_text()))
    assert "Custom" in called
    assert called <= {"Custom", "TupleGetItem", "MakeTuple", "Return", "Depend", "Load", "UpdateState"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_bfloat16_graph_for_all_sizes(layout):
    if not get_backend("cpu").dynamic:
        pytest.skip("this MindSpore compiles no dynamic shapes for the kernel")
    bfloat16 = dtype_named("bfloat16")

    def unknown(heads, dtype=bfloat16):
        shape = {"BNSD": (None, heads, None, 32), "BSND": (None, None, heads, 32)}
        return Tensor(shape=shape.get(layout, (None, None, heads * 32)), dtype=dtype)

    ms.set_context(mode=ms.GRAPH_MODE)
    dynamic, static = ((attention(layout, 32, True), LossGradients(Loss(layout, 32))) for _ in range(2))
    dynamic[0].set_inputs(*map(unknown, (4, 2, 2)))
    dynamic[1].set_inputs(*map(unknown, (4, 2, 2)), unknown(4, ms.float32))
    for case in (SMALL, replace(SMALL, batch=1, seq_q=9, seq_k=300)):
        (*inputs, d_output), _ = tensors(layout, "bfloat16", case)
        d_output = d_output.astype(ms.float32)
        found = [*dynamic[0](*inputs), *dynamic[1](*inputs, d_output)]
        with in_mode("pynative"):
            known = [*static[0](*inputs), *static[1](*inputs, d_output)]
        for got, expected in zip(found, known):
            np.testing.assert_array_equal(bits(got), bits(expected))


def test_gradients_through_the_logsumexp_of_a_compiled_function():
    """The gradients are right if MindSpore can add; if it cannot, the error says so."""
    (*inputs, d_output), _ = tensors("BNSD", dtype_named("bfloat16") and "bfloat16")
    inputs, loss = (*inputs, d_output.astype(ms.float32)), Loss("BNSD", SMALL.head_dim)

    def gradients(function, inputs=inputs):
        return list(map(bits, ops.grad(function, (0, 1, 2))(*inputs)))

    @ms.jit
    def compiled(query, key, value, d_output):
        return loss(query, key, value, d_output)

    expected = gradients(loss)
    for got, wanted in zip(map(bits, ms.jit(ops.grad(loss, (0, 1, 2)))(*inputs)), expected):
        np.testing.assert_array_equal(got, wanted)
    assert np.isfinite(compiled(*inputs).asnumpy())
    with pytest.raises(RuntimeError, match="return_lse: got bfloat16 in a @jit function that PYNATIVE differentiates"):
        gradients(compiled)
    gradients(compiled, [one.astype(ms.float16) for one in inputs[:3]] + [inputs[3]])
    with in_mode("graph"):
        for got, wanted in zip(gradients(compiled), expected):
            np.testing.assert_array_equal(got, wanted)


OF_OPERATORS = Case(
    batch=2, heads=2, kv_heads=1, seq_q=19, seq_k=37, head_dim=16, mask="causal", dropout=0.2, alibi="slopes_all"
)
MASKED = replace(OF_OPERATORS, mask="3d", alibi="bias", sinks=True)


# A graph of each takes seconds.
EACH = [("pynative", layout, OF_OPERATORS) for layout in OTHER_LAYOUTS] + [("pynative", "TH", MASKED)]
EACH += [
    pytest.param("graph", layout, OF_OPERATORS, marks=[] if layout == "BSH" else pytest.mark.slow)
    for layout in OTHER_LAYOUTS
]


@functools.cache
def of_operators(case):
    """Return the results of the operators in BNSD, in PYNATIVE."""
    with in_mode("pynative"):
        return run_case(case, "emulator")


@pytest.mark.parametrize(("mode", "layout", "case"), EACH, indirect=["mode"], ids=str)
def test_every_layout_gives_the_same_bits(mode, layout, case):
    assert_same(run_case(case, "emulator", layout), of_operators(case))


def test_heads_that_share_fractals_are_separated_first():
    case = replace(OF_OPERATORS, head_dim=24)
    assert_same(run_case(case, "emulator", "TH"), run_case(case, "emulator"))


@pytest.mark.parametrize("backend", [BACKEND, get_backend("emulator")], ids=["tik", "emulator"])
def test_what_the_kernels_take(backend):
    sizes = {"batch": 2, "heads": 4, "seq_q": 20, "seq_k": 20}
    for layout in CALL_LAYOUTS:
        expected = "BNSD" if layout == "BNSD" else "TH"
        assert backend.layout(make_call(**sizes, head_dim=32, layout=layout)) == expected
        assert backend.layout(make_call(**sizes, head_dim=40, layout=layout)) == "BNSD"
        assert backend.layout(make_call(**sizes, head_dim=32, layout=layout), sharded=True) == "BNSD"
