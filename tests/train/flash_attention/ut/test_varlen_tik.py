"""flash_attention_varlen on the TIK operators, run by the emulator."""

from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from flash_attention import flash_attention_varlen
from flash_attention.backends import registry
from flash_attention.backends.emulator import EmulatorBackend
from flash_attention.backends.tik import integers as of_graphs
from flash_attention.call import ALL_BLOCKS, Varlen
from flash_attention.kernels.tik import describe, integers, operators
from mindspore import Tensor, nn

from tests.train.flash_attention.support import varlen
from tests.train.flash_attention.support.cells import Call
from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.problems import make_problem
from tests.train.flash_attention.support.varlen import VarlenCase
from tests.train.flash_attention.ut.test_varlen import check, tensors_of

pytest.importorskip("tikemu")

# Shorter than other backends' cases: the emulator takes a second for some hundred tokens.
SHORT = {"queries": (5, 0, 40, 33, 1, 7), "keys": (5, 4, 40, 36, 0, 50), "dtype": "float16"}

GRAPHS_ARE_SLOW = pytest.mark.parametrize(
    "mode", ("pynative", pytest.param("graph", marks=pytest.mark.slow)), indirect=True
)


def taken_as_data(case: VarlenCase) -> bool:
    """Return whether the operators take the case with lengths that are data."""
    return case.blocks == (ALL_BLOCKS, ALL_BLOCKS) and case.bias is None and not case.given_bits


@GRAPHS_ARE_SLOW
@pytest.mark.parametrize("case", varlen.params(taken_as_data, costly=True, **SHORT))
def test_lengths_are_data(case, mode):
    check(case, "emulator", data=True, exact=False)


@pytest.mark.parametrize(
    "case", varlen.params(lambda case: not taken_as_data(case) or case.dropout, costly=True, **SHORT)
)
def test_with_constant_lengths_each_sequence_has_the_bits_of_a_call(case, mode):
    check(case, "emulator", data=False, exact=True)


def packed_problem(**given):
    """Return a call of four sequences in all tokens."""
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
    problem = describe.varlen_problem(packed_problem(**rules), cores=5)
    stages = ("forward", "grad", "blocks")

    class Tables(nn.Cell):
        def __init__(self):
            super().__init__()
            self.tables = (operators.work_tables(of_graphs, problem, stages),)

        def construct(self, ends_q, ends_k, prefix):
            return self.tables[0](ends_q, ends_k, prefix)

    lengths = [np.array(side, np.int32) for side in ((5, 5, 200, 300), (90, 94, 100, 300), (0, 0, 0, 0))]
    expected = operators.work_tables(integers, problem, stages)(*lengths)
    with in_mode("graph"):
        found = Tables()(*map(Tensor, lengths))
    for stage, one, other in zip(stages, found, expected):
        assert one.dtype == ms.int32
        np.testing.assert_array_equal(one.asnumpy(), other, err_msg=stage)


def test_lengths_that_are_not_allowed_fail():
    tensors = tensors_of(8, 8, ms.float16)
    for lengths in ((5,), (0, 9), (5, 3, 8)):
        with pytest.raises(ValueError, match=r"cu_seqlens_q: got .* ascend from 0 to the number of rows, here 8"):
            flash_attention_varlen(
                *tensors, Tensor(lengths, ms.int32), (8,) * len(lengths), backend="emulator"
            ).asnumpy()


def test_lengths_that_are_not_allowed_are_nan_on_a_device(monkeypatch):
    """A device has no Python function that checks the lengths."""
    monkeypatch.setattr(EmulatorBackend, "check_lengths", lambda self, problem: None)
    net = Call(flash_attention_varlen, return_lse=True, backend="emulator", scale=0.21)  # a scale of no other test
    tensors = tensors_of(7, 7, ms.float16)
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
