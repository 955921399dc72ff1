"""flash_attention_varlen on the TIK operators, run by the emulator: what the native kernel gives, within rounding."""

from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from flash_attention import flash_attention_varlen
from flash_attention.backends import registry
from flash_attention.backends.emulator import EmulatorBackend
from flash_attention.backends.tik import integers as of_graphs
from flash_attention.call import Varlen
from flash_attention.kernels.tik import describe, integers, operators
from flash_attention.kernels.tik.problem import Request
from mindspore import Tensor, nn

from tests.train.flash_attention.support.arrays import ends
from tests.train.flash_attention.support.cells import Call
from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.problems import make_problem
from tests.train.flash_attention.ut.test_varlen import RESULTS, RULES, bits, packed, random_inputs, with_gradients

pytest.importorskip("tikemu")

QUERIES, KEYS = (5, 0, 40, 33, 1, 7), (5, 4, 40, 36, 0, 50)
# The rules of test_varlen but for windows in blocks.
TAKEN = {name: rules for name, rules in RULES.items() if name != "blocks"}
TOLERANCE = {"atol": 4e-3, "rtol": 4e-3}


def both(lengths, **rules) -> tuple[list, list]:
    """Return results and gradients of backends emulator and cpu for the same float16 inputs."""
    tensors, (d_output, d_logsumexp) = random_inputs(ms.float16, QUERIES, KEYS)
    call = packed(*lengths, backend="emulator", **rules)
    found = with_gradients(call, tensors, (d_output, d_logsumexp))
    with in_mode("pynative"):
        expected = with_gradients(packed(*lengths, backend="cpu", **rules), tensors, (d_output, d_logsumexp))
    return found, expected


def compare(found: list, expected: list) -> None:
    """Assert that all results agree within rounding."""
    for name, one, other in zip(RESULTS, found, expected):
        np.testing.assert_allclose(one, other, **TOLERANCE, err_msg=name)


@pytest.mark.daily("pynative-bottom_right")
@pytest.mark.parametrize("rules", TAKEN.values(), ids=TAKEN)
def test_gives_what_the_native_kernel_gives(rules, mode):
    compare(*both((Tensor(ends(QUERIES), ms.int32), Tensor(ends(KEYS), ms.int64)), **rules))


@pytest.mark.slow
@pytest.mark.parametrize("zero", (True, False))
def test_dropout_goes_by_the_index_of_the_sequence(zero):
    """However the lengths are given: as constants, as data, with or without the leading 0."""
    queries, keys = (3, 40, 9), (8, 40, 9)
    tensors, _ = random_inputs(ms.float16, queries, keys)
    rules = {"dropout_rate": 0.5, "seed": Tensor([3, 5], ms.int64), "return_lse": False}
    expected = bits(flash_attention_varlen(*tensors, ends(queries), ends(keys), backend="cpu", **rules))
    constants = ends(queries, zero), ends(keys, zero)
    for lengths in (constants, [Tensor(side, ms.int32) for side in constants]):
        found = bits(flash_attention_varlen(*tensors, *lengths, backend="emulator", **rules))
        np.testing.assert_allclose(found, expected, **TOLERANCE)


def packed_problem(**given):
    """Return four sequences in all tokens."""
    tokens = given.pop("tokens", 300)
    given = {"layout": "BSND", "dtype": "float16", "storage": Varlen(count=4), **given}
    return make_problem(1, 2, tokens, tokens, 32, **given)


@pytest.mark.parametrize(
    "rules",
    (
        {"causal": True, "causal_alignment": "bottom_right"},
        pytest.param({"alibi": True, "window_left": 9}, marks=pytest.mark.slow),
    ),
)
def test_tables_made_in_a_graph_are_those_of_the_host(rules):
    request = Request(describe.varlen_problem(packed_problem(**rules), cores=5))
    stages = ("forward", "grad", "blocks")

    class Tables(nn.Cell):
        def __init__(self):
            super().__init__()
            self.tables = (operators.work_tables(of_graphs, request, stages),)

        def construct(self, ends_q, ends_k, prefix):
            return self.tables[0](ends_q, ends_k, prefix)

    lengths = [np.array(side, np.int32) for side in ((5, 5, 200, 300), (90, 94, 100, 300), (0, 0, 0, 0))]
    expected = operators.work_tables(integers, request, stages)(*lengths)
    with in_mode("graph"):
        found = Tables()(*map(Tensor, lengths))
    for stage, one, other in zip(stages, found, expected):
        assert one.dtype == ms.int32
        np.testing.assert_array_equal(one.asnumpy(), other, err_msg=stage)


def test_lengths_that_are_not_allowed_fail():
    tensors, _ = random_inputs(ms.float16, (8,), (8,))
    for lengths in ((5,), (0, 9), (5, 3, 8)):
        with pytest.raises(ValueError, match=r"cu_seqlens_q: got .* ascend from 0 to the number of rows, here 8"):
            flash_attention_varlen(
                *tensors, Tensor(lengths, ms.int32), (8,) * len(lengths), backend="emulator"
            ).asnumpy()


def test_lengths_that_are_not_allowed_are_nan_on_a_device(monkeypatch):
    """A device has no Python function that looks at them."""
    monkeypatch.setattr(EmulatorBackend, "check_lengths", lambda self, problem: None)
    net = Call(flash_attention_varlen, return_lse=True, backend="emulator", scale=0.21)  # a scale of no other test
    tensors, _ = random_inputs(ms.float16, (7,), (7,))
    with in_mode("graph"):
        for lengths in ((3, 7), (5, 3), (3, 6), (3, 9), (-1, 7)):
            for result in net(*tensors, Tensor(lengths, ms.int32), Tensor([3, 7], ms.int32)):
                assert np.isnan(result.asnumpy()).all() == (lengths != (3, 7))


def test_what_the_operators_do_not_take_is_refused_with_a_reason():
    reason = registry.refusal("emulator", packed_problem(prev_blocks=1))
    assert "whose lengths are data the TIK operators take no windows in blocks" in reason
    assert "multiplies float16 only" in registry.refusal("emulator", packed_problem(dtype="float32"))
    dropped = {"dropout_rate": 0.1, "training": True}
    assert registry.refusal("emulator", packed_problem(**dropped)) is None
    data = packed_problem(**dropped, tokens=1 << 16)
    ends = tuple(range(0, 1 + (1 << 16), 1 << 14))
    known = replace(data, storage=Varlen(ends, ends, 4))
    assert "dropout takes its keep decisions packed, up to 1080824352" in registry.refusal("emulator", data)
    assert registry.refusal("emulator", known) is None
