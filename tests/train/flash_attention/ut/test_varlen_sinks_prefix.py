"""Sinks and prefixes of packed sequences, against the truth of every sequence by itself."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import flash_attention, flash_attention_varlen, reference
from mindspore import Tensor, ops

from tests.train.flash_attention.support.arrays import draw, ends
from tests.train.flash_attention.support.modes import MODES_AND_BACKENDS
from tests.train.flash_attention.support.problems import make_problem

HEADS, KV_HEADS, DIM, VALUE_DIM = 4, 2, 24, 40
# The second sequence has no query, the third no key; the fifth is decoded, by chunks of keys.
LENGTHS_Q = (5, 0, 3, 130, 2)
LENGTHS_K = (5, 4, 0, 140, 600)
PREFIX = (2, 4, 0, 77, 590)
ENDS_Q, ENDS_K = ends(LENGTHS_Q), ends(LENGTHS_K)


QUERY, KEY = draw(ENDS_Q[-1], HEADS, DIM, seed=1), draw(ENDS_K[-1], KV_HEADS, DIM, seed=2)
VALUE, SINKS = draw(ENDS_K[-1], KV_HEADS, VALUE_DIM, seed=3), np.array([1.0, -2.0, 0.5, 4.0], np.float32)
D_OUTPUT, D_LOGSUMEXP = draw(ENDS_Q[-1], HEADS, VALUE_DIM, seed=4), draw(HEADS, ENDS_Q[-1], seed=5)


def results(lengths, prefix, backend, **rules):
    """Return output, logsumexp, d_query, d_key, d_value and d_sinks by name."""

    def call(query, key, value, sinks):
        return flash_attention_varlen(
            query, key, value, *lengths, sinks=sinks, prefix=prefix, return_lse=True, backend=backend, **rules
        )

    tensors = tuple(map(Tensor, (QUERY, KEY, VALUE, SINKS)))
    found = call(*tensors)
    sens = Tensor(D_OUTPUT), Tensor(D_LOGSUMEXP)
    found += ops.GradOperation(get_all=True, sens_param=True)(call)(*tensors, sens)
    names = "output", "logsumexp", "d_query", "d_key", "d_value", "d_sinks"
    return {name: tensor.asnumpy() for name, tensor in zip(names, found)}


def heads_first(rows):
    """Return (1, heads, tokens, width) of (tokens, heads, width)."""
    return rows.swapaxes(0, 1)[None]


def check_sequence(index, found, prefix, **rules):
    """Compare a sequence; gives the gradient of the sinks with what it may be off."""
    rows, columns = slice(*ENDS_Q[index : index + 2]), slice(*ENDS_K[index : index + 2])
    if LENGTHS_Q[index] == 0:
        assert not found["d_key"][columns].any()
        return np.zeros(HEADS), 0.0
    if LENGTHS_K[index] == 0:
        assert not found["output"][rows].any()
        np.testing.assert_array_equal(found["logsumexp"][:, rows], np.repeat(SINKS[:, None], LENGTHS_Q[index], 1))
        return D_LOGSUMEXP[:, rows].sum(1), 1e-6
    sizes = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "value_dim": VALUE_DIM, "dtype": "float32"}
    given = {"sinks": True, "prefix": prefix is not None}
    problem = make_problem(batch=1, seq_q=LENGTHS_Q[index], seq_k=LENGTHS_K[index], **sizes, **given, **rules)
    tensors = heads_first(QUERY[rows]), heads_first(KEY[columns]), heads_first(VALUE[columns])
    optional = {"sinks": SINKS, "prefix": None if prefix is None else [prefix[index]]}
    optional.update(d_output=heads_first(D_OUTPUT[rows]), d_logsumexp=D_LOGSUMEXP[None, :, rows])
    exact, low = (side(problem, *tensors, **optional) for side in (reference.truth, reference.baseline))
    own = {name: heads_first(found[name][rows]) for name in ("output", "d_query")}
    own.update({name: heads_first(found[name][columns]) for name in ("d_key", "d_value")})
    errors = reference.compare(
        reference.Attention(logsumexp=found["logsumexp"][None, :, rows], **own, d_sinks=exact.d_sinks), exact, low
    )
    assert [str(error) for error in errors if not error.ok] == []
    return exact.d_sinks, errors[-1].allowed_max


@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
@pytest.mark.parametrize("prefix", [None, PREFIX], ids=["causal", "prefix"])
def test_every_sequence_is_right_by_itself(mode, backend, prefix):
    tensors = backend == "cpu"  # lengths in tensors, which math reads in PYNATIVE only
    lengths = (Tensor(ENDS_Q, ms.int32), Tensor(ENDS_K, ms.int64)) if tensors else (ENDS_Q, ENDS_K)
    given = Tensor(prefix, ms.int32) if prefix and tensors else prefix
    found = results(lengths, given, backend, causal=True)
    parts = [check_sequence(index, found, prefix, causal=True) for index in range(len(LENGTHS_Q))]
    d_sinks, allowed = (sum(part[place] for part in parts) for place in (0, 1))
    np.testing.assert_allclose(found["d_sinks"], d_sinks, rtol=1e-6, atol=allowed)


def test_sinks_and_prefixes_have_the_bits_of_the_call_on_a_sequence():
    found = results((ENDS_Q, ENDS_K), PREFIX, "cpu", causal=True, softcap=3.0, alibi=True)
    rows, columns = slice(*ENDS_Q[3:5]), slice(*ENDS_K[3:5])
    tensors = (Tensor(array[None]) for array in (QUERY[rows], KEY[columns], VALUE[columns]))
    rules = {"causal": True, "softcap": 3.0, "alibi": True, "input_layout": "BSND", "return_lse": True}
    output, logsumexp = flash_attention(*tensors, sinks=Tensor(SINKS), prefix=(77,), **rules)
    np.testing.assert_array_equal(found["output"][rows], output.asnumpy()[0])
    np.testing.assert_array_equal(found["logsumexp"][:, rows], logsumexp.asnumpy()[0])


def test_half_precision_sinks_are_taken_as_they_are(mode):
    tensors = [Tensor(array.astype(np.float16)) for array in (QUERY, KEY, VALUE)]
    outputs = [
        flash_attention_varlen(*tensors, ENDS_Q, ENDS_K, sinks=Tensor(SINKS.astype(dtype)), causal=True).asnumpy()
        for dtype in (np.float16, np.float32)
    ]
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"sinks": (3,)}, ValueError, r"sinks: got shape \(3,\), allowed is \(heads,\), here \(4,\)"),
        ({"prefix": (4,)}, ValueError, r"prefix: got shape \(4,\), allowed is \(sequences\), here \(5\)"),
        ({"prefix": (5,), "causal": False}, ValueError, "prefix: given without causal=True"),
        ({"prefix": (5,), "window_size": (3, -1)}, ValueError, "prefix, window_size: got a prefix together with"),
        ({"segment_ids": (1, 140)}, ValueError, "segment_ids, cu_seqlens_q, cu_seqlens_k: got segment ids beside"),
        ({"kv_segment_ids": (1, 749)}, ValueError, "segment_ids, cu_seqlens_q, cu_seqlens_k: got segment ids beside"),
    ],
    ids=["sinks", "prefix", "causal", "window", "segments", "kv_segments"],
)
@pytest.mark.parametrize("backend", ["cpu", "math"])
def test_what_is_not_allowed_is_named(given, error, message, backend):
    dtypes = {"sinks": np.float32, "prefix": np.int32, "segment_ids": np.int32, "kv_segment_ids": np.int32}
    rules = {name: Tensor(np.zeros(value, dtypes[name])) if name in dtypes else value for name, value in given.items()}
    tensors = map(Tensor, (QUERY, KEY, VALUE))
    with pytest.raises(error, match=message):
        flash_attention_varlen(*tensors, ENDS_Q, ENDS_K, **{"causal": True, **rules}, backend=backend)


def test_prefixes_are_checked():
    def call(lengths_q, lengths_k, prefix):
        tensors = map(Tensor, (QUERY, KEY, VALUE))
        lengths = Tensor(lengths_q, ms.int32), Tensor(lengths_k, ms.int32)
        return flash_attention_varlen(*tensors, *lengths, causal=True, prefix=prefix).asnumpy()

    # Without the leading 0 there are as many numbers as sequences: which of both it is shows in the tensor alone.
    np.testing.assert_array_equal(call(ENDS_Q, ENDS_K, PREFIX), call(ENDS_Q[1:], ENDS_K[1:], PREFIX))
    with pytest.raises(ValueError, match=r"prefix: got shape \(\d,\), but cu_seqlens_q has \d sequences"):
        call(ENDS_Q[1:], ENDS_K[1:], PREFIX[1:])
    with pytest.raises(ValueError, match=r"prefix: got 141, allowed are 0 to \d+"):
        call(ENDS_Q, ENDS_K, (2, 4, 0, 141, 590))
    with pytest.raises(ValueError, match="prefix: got -1"):
        call(ENDS_Q, ENDS_K, (2, 4, 0, -1, 590))


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
