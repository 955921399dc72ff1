"""Call: its derived values, and the error for each bad input, which names the input."""

import dataclasses
import math

import numpy as np
import pytest
from flash_attention.call import AttentionRules, Call, Paged, TensorSpec, Varlen, alibi_slopes
from flash_attention.call.inputs import UNKNOWN, blocks_of_8
from flash_attention.call.layout import CALL_LAYOUTS
from flash_attention.call.optional import NAMES, in_order
from flash_attention.call.tiling import tile_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.flash_attention.support.calls import make_call, read_call

HALF = "float16"
GOOD = {"batch": 2, "heads": 4, "seq_q": 5, "seq_k": 7, "head_dim": 16}


def spec(*shape, dtype="float16"):
    """Return the description of a float16 tensor."""
    return TensorSpec(shape, dtype)


def ids(*shape):
    """Return the description of an int32 tensor."""
    return TensorSpec(shape, "int32")


def describe(query=(2, 4, 5, 16), key=(2, 4, 7, 16), value=None, mask=None, bias=None, dtypes=(HALF,) * 3, **rules):
    """Call from_inputs with shapes for tensors; all arguments are right but the given ones."""
    specs = [TensorSpec(shape, dtype) for shape, dtype in zip((query, key, value or key), dtypes)]
    return read_call(*specs, mask, bias, **rules)


def test_shapes_are_read_from_every_layout():
    shapes = {
        "BNSD": ((2, 4, 5, 16), (2, 2, 7, 16)),
        "BSND": ((2, 5, 4, 16), (2, 7, 2, 16)),
        "BSH": ((2, 5, 64), (2, 7, 32)),
        "SBH": ((5, 2, 64), (7, 2, 32)),
        "TH": ((10, 64), (14, 32)),
    }
    assert set(shapes) == set(CALL_LAYOUTS)
    for layout, (query, key) in shapes.items():
        batch = {"batch": 2} if layout == "TH" else {}
        call = describe(query, key, input_layout=layout, head_dim=16, **batch)
        assert call.laid_out(call.shape_key()) == key
        assert call.shape_query() == (2, 4, 5, 16)
        assert call.shape_key() == (2, 2, 7, 16)
        assert call.group == 2


def test_defaults():
    call = make_call(**GOOD)
    assert call.scale == 1 / math.sqrt(16)
    assert call.kv_heads == 4
    assert call.dropout_threshold == 0
    assert call.band.unlimited()
    assert hash(call) == hash(dataclasses.replace(call))


@pytest.mark.parametrize(
    ("mask", "canonical", "causal"),
    [
        (spec(5, 7), (1, 1, 5, 7), False),
        (spec(1, 5, 7), (1, 1, 5, 7), False),
        (spec(2, 5, 7), (2, 1, 5, 7), False),
        (spec(2, 1, 5, 7), (2, 1, 5, 7), False),
        (spec(2, 4, 5, 7), (2, 4, 5, 7), False),
        (spec(2, 1, 1, 7), (2, 1, 1, 7), False),
        (spec(128, 128), None, True),
        (spec(1, 128, 128), None, True),
    ],
)
def test_mask_shapes(mask, canonical, causal):
    call = describe(mask=mask)
    assert (call.mask_shape, call.mask_dtype) == (canonical, None if canonical is None else HALF)
    assert call.rules.causal == causal


def test_a_mask_of_compact_shape_that_is_a_legal_full_mask_is_taken_as_it_is():
    call = describe((2, 4, 128, 16), (2, 4, 128, 16), mask=spec(1, 128, 128))
    assert call.mask_shape == (1, 1, 128, 128)
    assert not call.rules.causal


def test_compact_mask_follows_the_tiling_strategy():
    assert [tile_of(name) for name in ("sparse", "sparse_64", "sparse_256")] == [AttentionRules().tile, 64, 256]
    assert AttentionRules().tile == 128
    assert describe(mask=spec(64, 64), tiling_stgy_name="sparse_64").rules.causal
    with pytest.raises(ValueError, match="attention_mask"):
        describe(mask=spec(64, 64))


TH = {"query": (10, 64), "key": (14, 32), "input_layout": "TH", "head_dim": 16}
# test_argument_names.py has every argument with a wrong type or word.
WRONG_VALUES = (
    (TH, "batch: needed with input_layout TH"),
    ({**TH, "batch": 5}, r"key: got 14 rows in shape \(14, 32\), allowed is a multiple of batch 5"),
    ({**TH, "batch": 0}, "batch: got 0, allowed is an integer >= 1"),
    (
        {"query": (2, 5, 64), "key": (2, 7, 32), "input_layout": "BSH", "head_dim": 16, "batch": 2},
        "batch: got 2 with input_layout BSH, allowed only with TH",
    ),
    (
        {"query": (10, 64), "key": (14, 32), "input_layout": "TH", "batch": 2},
        "head_dim: needed to split the last axis of query for layout TH",
    ),
    ({"query": (2, 5, 16)}, "query: got rank 3"),
    ({"key": (2, 4, 7, 16, 1)}, "key: got rank 5"),
    ({"input_layout": "BSH", "head_dim": 16}, "query: got rank 4"),
    ({"query": (2, 4, 5, 0)}, r"query: got head_dim 0 in shape \(2, 4, 5, 0\), allowed is 1"),
    ({"key": (2, 0, 7, 16)}, r"key: got no heads in shape \(2, 0, 7, 16\), but query has 4"),
    ({"key": (3, 4, 7, 16)}, "key: got batch 3, but query has batch 2"),
    ({"key": (2, 4, 7, 32)}, "key: got head_dim 32, but query has head_dim 16"),
    ({"value": (2, 4, 8, 16)}, "value: got shape"),
    ({"head_dim": 64}, "query: got head_dim 16 .* layer's head_dim 64"),
    ({"query": (2, 4, 5, 577), "key": (2, 4, 7, 577)}, "head_dim 577 .* 1 to 576"),
    ({"value": (2, 4, 7, 513)}, "value: got head_dim 513 .* 1 to 512"),
    ({"value": (2, 4, 7, 8), "value_head_dim": 16}, "layer's value_head_dim 16"),
    (
        {
            "query": (2, 5, 64),
            "key": (2, 7, 64),
            "value": (2, 7, 36),
            "input_layout": "BSH",
            "head_dim": 16,
            "value_head_dim": 8,
        },
        "value: got last axis 36 .* multiple of value_head_dim 8",
    ),
    ({"value_head_dim": 0}, "value_head_dim: got 0, .* an integer from 1 to 512"),
    ({"query": (2, UNKNOWN, 5, 16)}, "query: got an unknown number of heads or head_dim"),
    ({"query": (2, 4, 5, UNKNOWN)}, "query: got an unknown number of heads or head_dim"),
    ({"query": (UNKNOWN, 4, 7, 8), "key": (UNKNOWN, 2, 8, 8), "value": (UNKNOWN, 2, 9, 8)}, "value: got shape"),
    (
        {"query": (UNKNOWN, 4, 7, 16), "key": (UNKNOWN, 2, UNKNOWN, 16), "mask": spec(5, 9)},
        r"attention_mask: got shape \(5, 9\), .* \(7, any\)",
    ),
    (
        {"query": (1, 4, UNKNOWN, 16), "key": (1, 4, 7, 16), "bias": spec(3, 3, 3, 3)},
        r"here \(1, 4 or 1, any or 1, 7\)",
    ),
    ({"head_dim": 0}, "head_dim: got 0"),
    ({"query": (2, 5, 64), "key": (2, 7, 64), "input_layout": "BSH"}, "head_dim: needed"),
    (
        {"query": (2, 5, 60), "key": (2, 7, 64), "input_layout": "BSH", "head_dim": 16},
        "query: got last axis 60 .* multiple of head_dim 16",
    ),
    ({"key": (2, 3, 7, 16)}, "key: got 3 heads, which do not divide the 4 heads of query"),
    ({"mask": spec(5, 8)}, r"attention_mask: got shape \(5, 8\), allowed are .* \(5, 7\)"),
    ({"mask": spec(3, 5, 7)}, "attention_mask: got shape"),
    ({"mask": spec(7)}, "attention_mask: got shape"),
    ({"bias": spec(2, 4, 7)}, r"bias: got shape \(2, 4, 7\)"),
    ({"bias": spec(1, 3, 1, 7)}, "bias: got shape"),
    ({"dropout_rate": 1.0}, "dropout_rate: got 1.0, allowed is 0 <= dropout_rate < 1"),
    ({"dropout_rate": -0.1}, "dropout_rate: got -0.1"),
    ({"dropout_rate": math.nan}, "dropout_rate: got nan"),
    ({"scale": math.nan}, "scale: got nan, allowed are -1.70e[+]38 to 1.70e[+]38, or None for 1 / sqrt"),
    ({"scale": 1e39}, "scale: got 1e[+]39, allowed are"),
    ({"scale": -1e300}, "scale: got -1e[+]300, allowed are"),
    ({"scale": math.inf}, "scale: got inf"),
    ({"softcap": -1.0}, "softcap: got -1.0, allowed are 1.18e-38 to 1.70e[+]38, or 0 for none"),
    ({"softcap": 1e-50}, "softcap: got 1e-50, allowed are"),
    ({"softcap": 1e39}, "softcap: got 1e[+]39, allowed are"),
    ({"softcap": math.inf}, "softcap: got inf"),
    ({"sinks": spec(3, dtype="float32")}, r"sinks: got shape \(3,\), allowed is \(heads,\), here \(4,\)"),
    ({"prefix": ids(3), "causal": True}, r"prefix: got shape \(3,\), .* \(batch\), here \(2\)"),
    ({"prefix": ids(2)}, "prefix: given without causal=True"),
    (
        {"prefix": ids(2), "causal": True, "window_size": (3, -1)},
        "prefix, window_size: got a prefix together with window_size",
    ),
    (
        {"prefix": ids(2), "causal": True, "next_block_num": 1},
        "prefix, prev_block_num, next_block_num: got a prefix together with a window of",
    ),
    ({"segment_ids": ids(2, 7)}, r"segment_ids: got shape \(2, 7\), .* here \(2, 5\)"),
    ({"segment_ids": ids(2, 5)}, "kv_segment_ids: needed beside segment_ids"),
    ({"kv_segment_ids": ids(2, 7)}, "kv_segment_ids: given without segment_ids"),
    ({"keep_bits": spec(2, 4, 5, 7, dtype="uint8"), "dropout_rate": 0.1}, r"keep_bits: got shape .* \(2, 4, 5, 1\)"),
    ({"keep_bits": spec(2, 4, 5, 1, dtype="uint8")}, "keep_bits: given with dropout_rate"),
)
WRONG_TYPES = (
    ({"dtypes": ("float64",) * 3}, "query: got dtype float64, allowed are float16, bfloat16"),
    ({"dtypes": (HALF, "float32", HALF)}, "key: got dtype float32, but query is float16"),
    ({"dtypes": (HALF, HALF, "bfloat16")}, "value: got dtype bfloat16"),
    ({"mask": spec(5, 7, dtype="int32")}, "attention_mask: got dtype int32, .* 1 hides a key"),
    ({"bias": spec(1, 4, 1, 7, dtype="bfloat16")}, "bias: got dtype bfloat16"),
    ({"window_size": (3, None)}, "window_size: got right NoneType"),
    ({"causal": np.int64(1)}, "causal: got int64 .*1.*, allowed is True or False"),
    ({"sinks": spec(4, dtype="bfloat16")}, "sinks: got dtype bfloat16, allowed are float16, float32"),
    ({"keep_bits": spec(2, 4, 5, 1, dtype="int8"), "dropout_rate": 0.1}, "keep_bits: got dtype int8, allowed is uint8"),
)


@pytest.mark.parametrize(("error", "rows"), [(ValueError, WRONG_VALUES), (TypeError, WRONG_TYPES)])
def test_bad_input_is_refused_by_name(error, rows):
    for arguments, message in rows:
        with pytest.raises(error, match=message):
            describe(**arguments)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"batch": -2}, ValueError, "batch: got -2, allowed is an integer >= 0"),
        ({"heads": True}, TypeError, "heads: got bool"),
        ({"kv_heads": 3}, ValueError, "do not divide"),
        ({"tile": 0}, ValueError, "tile: got 0"),
        ({"mask_shape": (1, 1, 5, 8), "mask_dtype": "uint8"}, ValueError, "mask_shape: got .* does not broadcast"),
        ({"mask_shape": (1, 1, 5, 7), "mask_dtype": "int64"}, TypeError, "mask_dtype: got dtype int64"),
        ({"bias_shape": (1, 3, 1, 7), "bias_dtype": "float16"}, ValueError, "bias_shape: got .* does not broadcast"),
        ({"batch_offset": -1}, ValueError, "batch_offset: got -1"),
        ({"head_offset": 1}, ValueError, "head_offset: 1 [+] 4 heads go past all_heads 4"),
        ({"training": None}, TypeError, "training: got NoneType"),
        ({"head_dim": 577, "value_dim": 16}, ValueError, "head_dim: got 577, allowed is an integer from 1 to 576"),
        ({"head_dim": 0, "value_dim": 16}, ValueError, "head_dim: got 0"),
        ({"head_dim": 513}, ValueError, r"value_dim \(here head_dim\): got 513"),
        ({"value_dim": 513}, ValueError, "value_dim: got 513, allowed is an integer from 0 to 512"),
        ({"kv_heads": -1}, ValueError, "kv_heads: got -1, allowed is an integer >= 0"),
        ({"dtype": "float64"}, TypeError, "dtype: got .*float64"),
        ({"bias_shape": (1, 1, 1, 7), "bias_dtype": "bfloat16"}, TypeError, "bias_dtype: got .*bfloat16"),
        ({"storage": "paged"}, TypeError, "storage: got str, allowed are Varlen, Paged and None"),
        ({"storage": Varlen(count=1)}, ValueError, "layout: got BNSD with varlen storage, allowed is BSND or BSH"),
        ({"storage": Varlen(count=1), "layout": "BSH"}, ValueError, "batch: got 2 with varlen storage, allowed is 1"),
        ({"storage": Paged(16, 4), "layout": "BSH"}, ValueError, "layout: got BSH with paged storage, allowed is BSND"),
    ],
)
def test_bad_field_is_refused_by_name(change, error, message):
    with pytest.raises(error, match=message):
        make_call(**{**GOOD, **change})


def test_largest_and_smallest_widths():
    largest = describe((1, 1, 3, 576), (1, 1, 3, 576), (1, 1, 3, 512))
    assert (largest.head_dim, largest.value_dim) == (576, 512)
    merged = {"input_layout": "BSH", "head_dim": 16, "value_head_dim": 1}
    assert describe((2, 5, 64), (2, 7, 64), (2, 7, 4), **merged).value_dim == 1


def test_unknown_sizes_are_those_of_mindspore():
    assert (UNKNOWN, blocks_of_8(UNKNOWN), blocks_of_8(8), blocks_of_8(9)) == (-1, -1, 1, 2)


def test_a_size_that_one_tensor_shows_is_known():
    call = describe((-1, 4, 5, 16), (-1, 4, -1, 16), (2, 4, 7, 16))
    assert (call.batch, call.seq_k) == (2, 7)
    assert describe((2, 4, 5, 16), (-1, 4, 7, 16), (-1, 4, -1, 16)).batch == 2
    assert describe((2, 4, 5, 16), (2, 4, 7, 16), (2, 4, -1, 16)).seq_k == 7
    assert not describe((-1, 4, 7, 16), (3, 2, -1, 16), (-1, 2, 9, 16)).dynamic


def test_position_of_queries_of_unknown_length():
    """The offset needs the lengths only for the alignment at the end; a band needs all sizes."""
    end = AttentionRules(causal=True, causal_alignment="bottom_right")
    assert Call(**GOOD, rules=end).offset == 2
    unknown = {**GOOD, "seq_k": UNKNOWN}
    assert Call(**unknown).offset == 0
    with pytest.raises(ValueError, match="offset: unknown before run time"):
        _ = Call(**unknown, rules=end).offset
    with pytest.raises(ValueError, match="band: unknown before run time"):
        _ = Call(**unknown).band


def test_what_is_given_is_told():
    bare = describe()
    assert (bare.sinks, bare.segments, bare.prefix, bare.keep_bits) == (False,) * 4
    segments = {"segment_ids": ids(2, 5), "kv_segment_ids": ids(2, 7)}
    full = describe(sinks=spec(4), **segments)
    assert full.sinks and full.segments
    with pytest.raises(ValueError, match=r"kv_segment_ids: got shape \(2, 5\), allowed is \(batch, seq_k\)"):
        describe(segment_ids=ids(2, 5), kv_segment_ids=ids(2, 5))


@pytest.mark.parametrize(
    ("shape", "alibi", "kind"),
    [((2, 4, 5, 7), True, "per_score"), ((1, 4, 1, 7), False, "per_key"), (None, True, "alibi"), (None, False, "none")],
)
def test_kinds_of_bias(shape, alibi, kind):
    call = make_call(**GOOD, alibi=alibi, bias_shape=shape, bias_dtype=None if shape is None else "float32")
    assert call.bias == kind


@settings(max_examples=200, deadline=None)
@given(st.floats(0, 1, exclude_max=True))
def test_dropout_stays_unbiased_for_its_16_bit_threshold(rate):
    call = make_call(**GOOD, dropout_rate=rate, training=True)
    if rate == 0.0:
        assert call.dropout_threshold == 0
    else:
        assert 1 <= call.dropout_threshold <= 65535
        assert abs(call.dropout_threshold - rate * 65536) <= 1
    # Mean of (kept ? scale : 0) over all 65536 equally likely values.
    assert (65536 - call.dropout_threshold) / 65536 * call.dropout_scale == pytest.approx(1.0)
    given = make_call(**GOOD, dropout_rate=rate, training=True, keep_bits=rate > 0)
    assert given.dropout_scale * (1.0 - rate) == pytest.approx(1.0)


def test_numbers_are_stored_as_floats():
    call = make_call(dropout_rate=0, scale=2, **GOOD)
    assert (type(call.rules.dropout_rate), type(call.scale)) == (float, float)


def test_a_window_wider_than_any_sequence_is_none():
    for wide in (2**31 - 1, 2**63, 10**30):
        call = make_call(prev_blocks=wide, next_blocks=wide, window_left=wide, window_right=wide, **GOOD)
        assert call == make_call(**GOOD)


def test_bias_is_of_the_dtype_of_query_or_float32():
    for dtype, bias_dtype in (("float16", "float16"), ("bfloat16", "float32"), ("float32", "float32")):
        bias = spec(1, 4, 1, 7, dtype=bias_dtype)
        assert describe(dtypes=(dtype,) * 3, bias=bias).bias_dtype == bias_dtype
    with pytest.raises(TypeError, match="bias: got dtype float16, allowed are float32$"):
        describe(dtypes=("float32",) * 3, bias=spec(1, 4, 1, 7))


def test_optional_inputs_travel_in_the_order_of_their_table():
    assert in_order(**{name: name for name in NAMES}) == NAMES


def test_dropout_is_inactive_outside_training():
    call = make_call(dropout_rate=0.5, **GOOD)
    assert call.dropout_threshold == 0
    assert call.dropout_scale == 1.0


def test_alibi_slopes_are_the_published_ones():
    def slopes(heads):
        return alibi_slopes(Call(batch=1, heads=heads, seq_q=1, seq_k=1, head_dim=1))

    assert slopes(8) == [2.0**-i for i in range(1, 9)]
    np.testing.assert_allclose(slopes(16), [2.0 ** -(i / 2) for i in range(1, 17)])
    # 12 heads: the 8 of the lower power of two, then every other one of 16.
    np.testing.assert_allclose(slopes(12), slopes(8) + [2.0**-0.5, 2.0**-1.5, 2.0**-2.5, 2.0**-3.5])
    assert slopes(1) == [2.0**-8]


@pytest.mark.parametrize("flag", (True, False))
def test_booleans_of_numpy_are_booleans(flag):
    rules = AttentionRules(causal=np.bool_(flag), alibi=np.bool_(flag))
    assert (rules.causal, rules.alibi) == (flag, flag)
    assert type(rules.causal) is type(rules.alibi) is bool
