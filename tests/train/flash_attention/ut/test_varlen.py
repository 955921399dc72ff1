"""flash_attention_varlen: every sequence as a call of its own, forward and backward, on every backend."""

import copy
import re
from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
import tikemu
from flash_attention import flash_attention, flash_attention_varlen
from flash_attention.backends import emulator, registry
from flash_attention.backends.tik import graph_integers as of_graphs
from flash_attention.call import ALL_BLOCKS, Varlen
from flash_attention.dropout import philox
from flash_attention.kernels.tik import describe, host_integers, operators
from flash_attention.kernels.tik.backward import preprocess, row_block
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support import varlen
from tests.train.flash_attention.support.arrays import draw, ends
from tests.train.flash_attention.support.calls import make_call
from tests.train.flash_attention.support.cases import SEED, assert_same
from tests.train.flash_attention.support.cells import Call, Sloped
from tests.train.flash_attention.support.modes import GRAPHS_ARE_SLOW, in_mode
from tests.train.flash_attention.support.run import VarlenRun, array, bias_tensor, tensor
from tests.train.flash_attention.support.varlen import VarlenCase


def loop(case: VarlenCase, backend: str) -> dict:
    """Return the results of a call for each sequence, not compiled, over all rows. Only called if there is something to
    do.
    """
    data = case.inputs()
    found = {name: np.zeros(getattr(data, name[2:] or "d_output").shape) for name in ("d_query", "d_key", "d_value")}
    found["output"] = np.zeros(data.d_output.shape)
    rules = {**case.options(), "alibi": case.alibi == "computed", "backend": backend}
    for index, (one, rows, keys) in enumerate(case.sequences()):
        if one is None:
            continue
        (query, key, value), given = case.inputs_of(index, one, rows, keys)
        tensors = [tensor(np.ascontiguousarray(part), case.dtype) for part in (query, key, value)]
        optional = {"sinks": tensor(given["sinks"]), "prefix": tensor(given["prefix"])}
        if case.bias is not None:
            optional["bias"] = bias_tensor(case, np.ascontiguousarray(given["bias"]))
        if case.slopes is not None:
            optional["alibi_slopes"] = tensor(case.slopes[index : index + 1] if case.per_sequence else case.slopes)
        if case.dropout:
            optional["keep_bits"] = Tensor(philox.keep_bits(one, SEED))
        sens = tensor(np.ascontiguousarray(given["d_output"])), Tensor(np.ascontiguousarray(given["d_logsumexp"]))

        def loss(query, key, value, optional=optional, sens=sens):
            output, logsumexp = flash_attention(query, key, value, return_lse=True, **optional, **rules)
            return (output.astype(ms.float32) * sens[0]).sum() + (logsumexp * sens[1]).sum(), output

        with in_mode("pynative"):
            (_, output), gradients = ops.value_and_grad(loss, (0, 1, 2), has_aux=True)(*tensors)
        for name, result in zip(("output", "d_query", "d_key", "d_value"), (output, *gradients)):
            found[name][:, :, keys if name in varlen.OF_KEYS else rows] = array(result)
    return found


def check(case: VarlenCase, backend: str, data: bool, exact: bool) -> None:
    """Compare a case with the truth. An exact case has the bits of a loop over calls."""
    found = VarlenRun(case, backend, data)(case)
    varlen.check(case, found)
    for name, right in (loop(case, backend) if exact else {}).items():
        np.testing.assert_array_equal(getattr(found, name), right, err_msg=name)


@pytest.mark.asynchronous
@pytest.mark.spread
@pytest.mark.parametrize("case", varlen.params(costly=True))
def test_cpu(case, mode):
    check(case, "cpu", data=True, exact=True)


# Shorter than the cases of cpu: math has no tiles, and the emulator takes a second for some hundred tokens.
SHORT = {"queries": (5, 0, 33, 1, 7), "keys": (5, 4, 36, 0, 20)}
HALF = {**SHORT, "dtype": "float16"}
# Two sequences with something to do, and one without queries or keys each.
TWO = {"queries": (5, 0, 33, 1), "keys": (5, 4, 36, 0), "dtype": "float16"}


@pytest.mark.spread
@pytest.mark.parametrize("way", ("data", "constants", "data of a graph"))
@pytest.mark.parametrize("case", varlen.params(costly=True, **SHORT))
def test_math(case, way):
    in_graph = way == "data of a graph" and not case.dropout  # drawn bits need constant lengths there
    with in_mode("graph" if in_graph else "pynative"):
        check(replace(case, dtype="float32") if in_graph else case, "math", way != "constants", exact=False)


HEADS, KV_HEADS, DIM, VALUE_DIM = 4, 2, 24, 40
LENGTHS = ends((5, 0, 3, 130, 2)), ends((5, 4, 0, 140, 600))
PREFIX = (2, 4, 0, 77, 590)


def tensors_of(queries: int = LENGTHS[0][-1], keys: int = LENGTHS[1][-1], dtype=ms.float32) -> list:
    """Return query, key and value of so many tokens."""
    shapes = (queries, HEADS, DIM), (keys, KV_HEADS, DIM), (keys, KV_HEADS, VALUE_DIM)
    return [Tensor(draw(*shape, seed=index)).astype(dtype) for index, shape in enumerate(shapes)]


def test_math_takes_constant_lengths_in_a_graph():
    @ms.jit
    def constant(query, key, value):
        return flash_attention_varlen(query, key, value, (3, 8), (0, 4, 6), backend="math")

    tensors = tensors_of(8, 6)
    expected = flash_attention_varlen(*tensors, (3, 8), (0, 4, 6), backend="math")
    np.testing.assert_array_equal(constant(*tensors).asnumpy(), expected.asnumpy())


def test_math_takes_a_bias_beside_lengths_of_a_graph():
    with in_mode("graph"):
        check(VarlenCase(1, 4, 2, alibi="given", dtype="float32", **SHORT), "math", data=True, exact=False)


def test_math_gives_nan_for_wrong_lengths_in_a_graph():
    tensors = tensors_of(8, 6)
    net = Call(flash_attention_varlen, backend="math")
    dropping = Call(flash_attention_varlen, backend="math", dropout_rate=0.2, seed=Tensor(SEED, ms.int64))
    with in_mode("graph"):
        for lengths in (((3, 8), (4, 7)), ((3, 5), (4, 6)), ((8, 3), (4, 6)), ((0, 8), (4, 6))):
            assert np.isnan(net(*tensors, *(Tensor(one, ms.int32) for one in lengths)).asnumpy()).all()
        with pytest.raises(ValueError, match="dropout_rate: got dropout beside cu_seqlens_q"):
            dropping(*tensors, Tensor([3, 8]), Tensor([4, 6]))


def test_merged_heads_give_the_same():
    tensors = tensors_of()
    expected = flash_attention_varlen(*tensors, *LENGTHS, causal=True).asnumpy()
    merged = [tensor.reshape(tensor.shape[0], -1) for tensor in tensors]
    output = flash_attention_varlen(*merged, *LENGTHS, causal=True, head_dim=DIM, value_head_dim=VALUE_DIM)
    assert output.shape == (expected.shape[0], HEADS * VALUE_DIM)
    np.testing.assert_array_equal(output.asnumpy().reshape(expected.shape), expected)


@pytest.mark.parametrize("backend", ("cpu", pytest.param("emulator", marks=pytest.mark.slow)))
def test_lengths_and_slopes_are_data_to_a_compiled_graph(backend):
    dtype, error = (ms.float32, 0) if backend == "cpu" else (ms.float16, 4e-3)
    tensors = tensors_of(40, 40, dtype)
    given = [
        (Tensor(ends(lengths), ms.int32), Tensor(draw(3, HEADS, seed=index)))
        for index, lengths in enumerate(((10, 10, 20), (1, 38, 1), (0, 40, 0)))
    ]
    expected = [
        flash_attention_varlen(*tensors, one, one, causal=True, alibi_slopes=slopes, backend="cpu")
        for one, slopes in given
    ]
    net = Sloped(flash_attention_varlen, causal=True, backend=backend)
    with in_mode("graph"):
        outputs = [net(*tensors, one, one, slopes) for one, slopes in given]
    assert len(net.compile_cache) == 1
    for output, other in zip(outputs, expected):
        one, right = (found.astype(ms.float32).asnumpy() for found in (output, other))
        np.testing.assert_allclose(one, right, atol=error, rtol=error)


def test_half_precision_sinks_are_taken_as_they_are(mode):
    sinks, tensors = np.array([1.0, -2.0, 0.5, 4.0]), tensors_of(dtype=ms.float16)
    outputs = [
        flash_attention_varlen(*tensors, *LENGTHS, sinks=Tensor(sinks.astype(dtype)), causal=True).asnumpy()
        for dtype in (np.float16, np.float32)
    ]
    np.testing.assert_array_equal(*outputs)


def test_lengths_may_leave_the_first_zero_out():
    """Then there are as many numbers as sequences. Only the tensor's contents tell the two forms apart."""

    def call(lengths_q, lengths_k):
        lengths = Tensor(lengths_q, ms.int32), Tensor(lengths_k, ms.int32)
        return flash_attention_varlen(*tensors_of(), *lengths, causal=True, prefix=PREFIX).asnumpy()

    np.testing.assert_array_equal(call(*LENGTHS), call(*(ends[1:] for ends in LENGTHS)))


@pytest.mark.spread
@pytest.mark.parametrize("backend", ["cpu", "math"])
def test_a_prefix_longer_than_the_keys_is_refused(backend, mode):
    x, ends = Tensor(draw(8, 2, 16)), (3, 8)

    def call(prefix, ends):
        return flash_attention_varlen(x, x, x, ends, ends, causal=True, prefix=prefix, backend=backend)

    with pytest.raises(ValueError, match="prefix: got 4 for sequence 0, allowed are 0 to its 3 keys"):
        call((4, 5), ends)
    call((3, 5), (0, *ends))
    if backend == "math":  # the kernel of cpu raises by itself
        for given in (ends, Tensor(ends, ms.int32)):
            if mode == "pynative":
                with pytest.raises(ValueError, match="prefix: got 6"):
                    call(Tensor([3, 6], ms.int32), given)
            else:
                found = call(Tensor([3, 6], ms.int32), given).asnumpy()
                assert np.isnan(found[3:]).all()


def test_bad_biases_and_bits_are_named():
    tensors, keys = tensors_of(), LENGTHS[1][-1]
    for shape in ((4, 3), (1, 4, 1, keys)):
        with pytest.raises(ValueError, match=re.escape(f"bias: got shape {shape}, allowed is (heads or 1, ")):
            flash_attention_varlen(*tensors, *LENGTHS, bias=Tensor(draw(*shape)))
    bias = Tensor(draw(4, keys))
    bits = Tensor(np.zeros(4 * (5 + 3 * 0 + 130 * 18 + 2 * 75), np.uint8))
    with pytest.raises(ValueError, match=r"keep_bits: got shape \(1, 4, 5, 1\), allowed is \(bytes,\)"):
        flash_attention_varlen(*tensors, *LENGTHS, dropout_rate=0.5, keep_bits=bits[:20].reshape(1, 4, 5, 1))
    for backend, error in (("cpu", RuntimeError), ("math", ValueError)):
        with pytest.raises(error, match="keep_bits"):
            flash_attention_varlen(*tensors, *LENGTHS, dropout_rate=0.5, keep_bits=bits[1:], backend=backend).asnumpy()
    half, lengths = tensors_of(dtype=ms.float16), (Tensor(LENGTHS[0], ms.int32), LENGTHS[1])
    for given in ({"bias": bias.astype(ms.float16)}, {"keep_bits": bits, "dropout_rate": 0.5}):
        with pytest.raises(RuntimeError, match=f"lengths are data the TIK operators take no {next(iter(given))}"):
            flash_attention_varlen(*half, *lengths, **given, backend="emulator")


def taken_as_data(case: VarlenCase) -> bool:
    """Return whether the operators take the case with lengths that are data."""
    return case.blocks == (ALL_BLOCKS, ALL_BLOCKS) and case.bias is None and not case.given_bits


@GRAPHS_ARE_SLOW
@pytest.mark.parametrize("case", varlen.params(taken_as_data, costly=True, **HALF))
def test_lengths_are_data(case, mode):
    check(case, "emulator", data=True, exact=False)


@GRAPHS_ARE_SLOW
@pytest.mark.parametrize(
    "case", varlen.params(lambda case: not taken_as_data(case) or case.dropout, costly=True, **TWO)
)
def test_with_constant_lengths_each_sequence_that_runs_alone_has_the_bits_of_a_call(case, mode):
    check(case, "emulator", data=False, exact=not taken_as_data(case))


@pytest.fixture
def kernels(monkeypatch):
    """Return the kernels by stage, of the last run of each."""
    found, recorded = {}, emulator._recorded

    def watched(stage, *given):
        found[stage] = recorded(stage, *given)
        return found[stage]

    watched.cache_clear = recorded.cache_clear
    monkeypatch.setattr(emulator, "_recorded", watched)
    return found


def on_one_core() -> list:
    """Return the cases whose lengths are data. Every day it is one with tiles behind each other."""
    cases = varlen.params(taken_as_data, dtype="float16")
    return [pytest.param(*case.values, id=case.id, marks=[pytest.mark.slow] * (case is not cases[0])) for case in cases]


@pytest.mark.parametrize("case", on_one_core())
def test_one_core_for_a_head_rounds_the_gradients_of_its_queries(case, cores, kernels):
    cores(1)
    check(case, "emulator", data=True, exact=False)
    writes_d_query = kernels["grad"].outputs[-1].name == "d_query"
    assert writes_d_query == ("grad_finish" not in kernels)
    # With a window to the left, no order of the key tiles has a known last tile.
    # For a soft cap memory may be too small.
    assert writes_d_query == (case.window[0] < 0) or case.softcap


def causal(*lengths: int, **fields) -> VarlenCase:
    """Return a case of causal sequences in float16."""
    return VarlenCase(queries=lengths, keys=lengths, mask="causal", kv_heads=1, dtype="float16", **fields)


def test_places_of_blocks_come_one_at_a_time_where_they_are_many(cores, kernels, monkeypatch):
    case, found = causal(5, 0, 130, 33, 1, 7, 270, heads=3), []
    run = VarlenRun(case, "emulator", data=True)
    for most, copies in ((row_block.MOST_BLOCKS, 1), (1, preprocess.COPIES)):
        monkeypatch.setattr(row_block, "MOST_BLOCKS", most)
        cores(2)
        found.append(run(case))
        assert [part.copies for part in kernels["grad_rows"].buffers if part.name == "block"] == [copies]
    varlen.check(case, found[0])
    assert_same(*found)


@pytest.mark.slow
def test_scores_of_long_sequences_leave_the_cube_as_float16(kernels):
    check(causal(600, 40, 520, heads=1, head_dim=64), "emulator", data=True, exact=False)
    assert kernels["forward"].plan.half_scores


@pytest.mark.parametrize("spoiled", (2, pytest.param(3, marks=pytest.mark.slow)))
def test_a_sequence_of_nan_spoils_no_other(spoiled, cores, monkeypatch):
    options = tikemu.Options  # strict mode takes no NaN
    monkeypatch.setattr(tikemu, "Options", lambda strict, progress: options(progress=progress))
    cores(1)
    case, found = replace(causal(5, 20, 60, 33, heads=1), keys=(5, 30, 70, 40)), []
    (_, rows, columns), data = list(case.sequences())[spoiled], case.inputs()
    run, others = VarlenRun(case, "emulator", data=True), copy.deepcopy(data)
    for name, part in (("query", rows), ("key", columns), ("value", columns), ("d_output", rows)):
        getattr(others, name)[:, :, part] = np.nan
    for given in (data, others):
        monkeypatch.setattr(VarlenCase, "inputs", lambda case, given=given: given)
        found.append(run(case))
    for name, right in found[0].named().items():
        part, result = columns if name in varlen.OF_KEYS else rows, getattr(found[1], name)
        np.testing.assert_array_equal(*(np.delete(one, part, axis=2) for one in (result, right)), err_msg=name)
        assert not np.array_equal(result, right)


def packed_call(**given):
    """Return a call of four sequences in all tokens."""
    tokens = given.pop("tokens", 300)
    given = {"layout": "BSND", "dtype": "float16", "storage": Varlen(count=4), **given}
    return make_call(1, 2, tokens, tokens, 32, **given)


@pytest.mark.parametrize(
    "rules",
    (
        {"causal": True, "causal_alignment": "bottom_right"},
        pytest.param({"alibi": True, "window_left": 9}, marks=pytest.mark.slow),
    ),
)
def test_tables_made_in_a_graph_are_those_of_the_host(rules):
    call = describe.kernel_problem(packed_call(**rules), cores=5)
    stages = ("forward", "grad", "blocks")

    class Tables(nn.Cell):
        def __init__(self):
            super().__init__()
            self.tables = (operators.work_tables(of_graphs, call, stages),)

        def construct(self, ends_q, ends_k, prefix):
            return self.tables[0](ends_q, ends_k, prefix)

    lengths = [np.array(side, np.int32) for side in ((5, 5, 200, 300), (90, 94, 100, 300), (0, 0, 0, 0))]
    expected = operators.work_tables(host_integers, call, stages)(*lengths)
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
    monkeypatch.setattr(emulator.EmulatorBackend, "check_lengths", lambda self, call: None)
    net = Call(flash_attention_varlen, return_lse=True, backend="emulator", scale=0.21)  # a scale of no other test
    tensors = tensors_of(7, 7, ms.float16)
    with in_mode("graph"):
        for lengths in ((3, 7), (5, 3), (3, 6), (3, 9), (-1, 7)):
            for result in net(*tensors, Tensor(lengths, ms.int32), Tensor([3, 7], ms.int32)):
                assert np.isnan(result.asnumpy()).all() == (lengths != (3, 7))


def test_what_the_operators_do_not_take_is_refused_with_a_reason():
    reason = registry.refusal("emulator", packed_call(prev_blocks=1))
    assert "whose lengths are data the TIK operators take no windows in blocks" in reason
    assert "multiplies float16 only" in registry.refusal("emulator", packed_call(dtype="float32"))
    dropped = {"dropout_rate": 0.1, "training": True}
    assert registry.refusal("emulator", packed_call(**dropped)) is None
    data = packed_call(**dropped, tokens=1 << 16)
    ends = tuple(range(0, 1 + (1 << 16), 1 << 14))
    known = replace(data, storage=Varlen(ends, ends, 4))
    assert "dropout takes its keep decisions packed, up to 1080824352" in registry.refusal("emulator", data)
    assert registry.refusal("emulator", known) is None
