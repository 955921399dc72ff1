"""Test that an expression loads an element of a tensor into a hidden Scalar."""

import numpy as np
import pytest
import tikemu
from tikemu import tik
from tikemu.errors import TikParamError, TikScopeError

SIZE = 8


@pytest.fixture
def x(kernel):
    """Return an int32 tensor in global memory, the input."""
    return kernel.Tensor("int32", (SIZE,), tik.scope_gm, "x")


@pytest.fixture
def tensor(kernel, x):
    """Return an int32 tensor in the Unified Buffer, loaded from the input."""
    tensor = kernel.Tensor("int32", (SIZE,), tik.scope_ubuf, "ub")
    kernel.data_move(tensor, x, 0, 1, 1, 0, 0)
    return tensor


@pytest.fixture
def result(kernel, x, tensor):
    """Return ``f(*values)``: it gives the tensor's contents at the end of a run on these values."""

    def contents(*values):
        y = kernel.Tensor("int32", (SIZE,), tik.scope_gm, "y")
        kernel.data_move(y, tensor, 0, 1, 1, 0, 0)
        kernel.BuildCCE("elements", [x], [y])
        fed = np.array([*values, *[0] * (SIZE - len(values))], np.int32)
        return tikemu.run(kernel, {"x": fed}).outputs["y"].tolist()

    return contents


@pytest.mark.parametrize("value", [3, 4])
@pytest.mark.parametrize("how", ["element", "reflected", "bare", "all", "negate"])
def test_conditions(kernel, tensor, result, no_warnings, value, how):
    condition = {
        "element": lambda: tensor[0] > 3,
        "reflected": lambda: 3 < tensor[0],  # noqa: SIM300 - this way round
        "bare": lambda: tensor[1],
        "all": lambda: tik.all(tensor[0] > 3, tensor[1]),
        "negate": lambda: tik.negate(tensor[0] <= 3),
    }[how]()
    with kernel.if_scope(condition):
        tensor[7].set_as(1)
    with kernel.else_scope():
        tensor[7].set_as(2)
    assert result(value, value - 3)[7] == (1 if value > 3 else 2)


@pytest.mark.parametrize(
    "op, expected",
    [
        (lambda a, b: a + b, 14),
        (lambda a, b: a - b, 8),
        (lambda a, b: 100 - a, 89),
        (lambda a, b: a * b, 33),
        (lambda a, b: a // b, 3),
        (lambda a, b: a % 4, 3),
        (lambda a, b: a & b, 3),
        (lambda a, b: a << 1, 22),
        (lambda a, b: -a, -11),
        (lambda a, b: a + a * 2, 33),
    ],
)
def test_expressions(kernel, tensor, result, no_warnings, op, expected):
    scalar = kernel.Scalar("int32")
    scalar.set_as(op(tensor[0], tensor[1]))
    tensor[7].set_as(scalar)
    assert result(11, 3)[7] == expected


@pytest.mark.parametrize("second, expected", [(5, 1), (6, 2)])
def test_two_elements_compare_by_value(kernel, tensor, result, second, expected):
    with kernel.if_scope(tensor[0] == tensor[1]):
        tensor[7].set_as(1)
    with kernel.elif_scope(tensor[0] != tensor[1]):
        tensor[7].set_as(2)
    assert result(5, second)[7] == expected


@pytest.mark.parametrize("value, expected", [(0, 10), (1, 11), (2, 12), (3, 13)])
def test_a_chain_reads_its_elements_before_any_branch_runs(kernel, tensor, result, value, expected):
    with kernel.if_scope(tensor[0] == 0):
        tensor[0].set_as(10)
    with kernel.elif_scope(tensor[0] == 1):
        tensor[0].set_as(11)
    with kernel.elif_scope(tensor[0] == 2):
        tensor[0].set_as(12)
    with kernel.else_scope():
        tensor[0].set_as(13)
    assert result(value)[0] == expected


def test_a_value_once_read_stays_what_it_was(tensor, result):
    before = tensor[0] + 0
    doubled = before * 2
    tensor[0].set_as(50)
    tensor[1].set_as(doubled)
    assert result(4)[:2] == [50, 8]


def test_a_tensor_that_is_gone_has_no_elements(kernel):
    with kernel.new_stmt_scope():
        tensor = kernel.Tensor("int32", (8,), tik.scope_ubuf, "tensor")
        element = tensor[0]
    with pytest.raises(TikScopeError):
        element + 1


def test_an_index_may_be_a_list(kernel):
    tensor = kernel.Tensor("int32", (4, 8), tik.scope_ubuf, "tensor")
    assert tensor[[1, 0]].shape == (1, 1) and tensor[[1, 0]].offset == 8


def test_an_element_as_an_argument_is_named_as_what_it_is(kernel, x, tensor):
    for use, name in (
        (lambda: kernel.data_move(tensor, x, 0, 1, tensor[0], 0, 0), "burst"),
        (lambda: kernel.vec_dup(8, tensor, tensor[0], 1, 8), "scalar"),
    ):
        with pytest.raises(TikParamError, match=f"{name} must be .*, got a Tensor of int32") as raised:
            use()
        assert "TensorInfo" not in str(raised.value)
