"""Call at its borders: largest, smallest and unknown sizes, messages, fields of the constructor."""

import pytest
from flash_attention.call import AttentionRules, Call, TensorSpec
from flash_attention.call.inputs import MAX_HEAD_DIM, MAX_VALUE_DIM, UNKNOWN, blocks_of_8

SIZES = {"batch": 2, "heads": 4, "seq_q": 5, "seq_k": 7, "head_dim": 16}


def spec(*shape, dtype="float16"):
    """Return the description of a tensor."""
    return TensorSpec(shape, dtype)


def read(query=(2, 4, 5, 16), key=(2, 4, 7, 16), value=None, mask=None, bias=None, **others):
    """Call from_inputs with float16 tensors."""
    return Call.from_inputs(spec(*query), spec(*key), spec(*(value or key)), mask, bias, **others)


def test_unknown_sizes_are_those_of_mindspore():
    assert UNKNOWN == -1
    assert blocks_of_8(UNKNOWN) == UNKNOWN
    assert (blocks_of_8(8), blocks_of_8(9)) == (1, 2)


def test_a_size_that_one_tensor_shows_is_known():
    problem = read((-1, 4, 5, 16), (-1, 4, -1, 16), (2, 4, 7, 16))
    assert (problem.batch, problem.seq_k) == (2, 7)
    assert read((2, 4, 5, 16), (-1, 4, 7, 16), (-1, 4, -1, 16)).batch == 2
    assert read((2, 4, 5, 16), (2, 4, 7, 16), (2, 4, -1, 16)).seq_k == 7


@pytest.mark.parametrize("shape", [(2, UNKNOWN, 5, 16), (2, 4, 5, UNKNOWN)])
def test_heads_and_width_have_to_be_known(shape):
    with pytest.raises(ValueError, match="query: got an unknown number of heads or head_dim"):
        read(shape)


def test_largest_widths():
    shapes = (1, 1, 3, MAX_HEAD_DIM), (1, 1, 3, MAX_HEAD_DIM), (1, 1, 3, MAX_VALUE_DIM)
    problem = read(*shapes)
    assert (problem.head_dim, problem.value_dim) == (576, 512)
    with pytest.raises(ValueError, match="query: got head_dim 577 .* allowed is 1 to 576"):
        read(*((1, 1, 3, 577),) * 2, shapes[2])
    with pytest.raises(ValueError, match="value: got head_dim 513 .* allowed is 1 to 512"):
        read(*shapes[:2], (1, 1, 3, 513))


def test_smallest_width_of_value():
    merged = {"input_layout": "BSH", "head_dim": 16, "value_head_dim": 1}
    assert read((2, 5, 64), (2, 7, 64), (2, 7, 4), **merged).value_dim == 1
    with pytest.raises(ValueError, match="value_head_dim: got 0, allowed is an integer from 1 to 512"):
        read((2, 5, 64), (2, 7, 64), (2, 7, 4), **{**merged, "value_head_dim": 0})


def test_batch_of_token_matrices():
    matrices = {"input_layout": "TH", "head_dim": 16}
    assert read((5, 64), (7, 64), batch=1, **matrices).batch == 1
    with pytest.raises(ValueError, match="batch: got 0, allowed is an integer >= 1"):
        read((5, 64), (7, 64), batch=0, **matrices)


def test_what_is_given_is_told():
    """Flags say which tensors there are."""
    bare = read()
    assert (bare.sinks, bare.segments, bare.prefix, bare.keep_bits) == (False,) * 4
    segments = {name: spec(2, size, dtype="int32") for name, size in (("segment_ids", 5), ("kv_segment_ids", 7))}
    full = read(sinks=spec(4), **segments)
    assert full.sinks and full.segments
    with pytest.raises(ValueError, match=r"kv_segment_ids: got shape \(2, 5\), allowed is \(batch, seq_k\)"):
        read(segment_ids=segments["segment_ids"], kv_segment_ids=segments["segment_ids"])


def test_a_compact_mask_leaves_nothing_but_the_rule():
    problem = read(mask=spec(128, 128, dtype="uint8"))
    assert (problem.mask_shape, problem.mask_dtype, problem.rules.causal) == (None, None, True)


@pytest.mark.parametrize(
    ("shape", "alibi", "kind"),
    [((2, 4, 5, 7), True, "per_score"), ((1, 4, 1, 7), False, "per_key"), (None, True, "alibi"), (None, False, "none")],
)
def test_kinds_of_bias(shape, alibi, kind):
    dtype = None if shape is None else "float32"
    problem = Call(**SIZES, rules=AttentionRules(alibi=alibi), bias_shape=shape, bias_dtype=dtype)
    assert problem.bias == kind


def test_messages_show_the_sizes():
    """1 where only 1 will do, `any` where a size is unknown."""
    with pytest.raises(ValueError) as error:
        read((1, 4, -1, 16), (1, 4, 7, 16), bias=spec(3, 3, 3, 3))
    assert "here (1, 4 or 1, any or 1, 7)" in str(error.value)


def test_position_of_queries_of_unknown_length():
    """Only the alignment at the end needs the lengths; a band needs all sizes."""
    end = AttentionRules(causal=True, causal_alignment="bottom_right")
    assert Call(**SIZES, rules=end).offset == 2
    unknown = {**SIZES, "seq_k": UNKNOWN}
    assert Call(**unknown).offset == 0
    with pytest.raises(ValueError, match="offset: unknown before run time"):
        _ = Call(**unknown, rules=end).offset
    with pytest.raises(ValueError, match="band: unknown before run time"):
        _ = Call(**unknown).band


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"head_dim": 577, "value_dim": 16}, ValueError, "head_dim: got 577, allowed is an integer from 1 to 576"),
        ({"head_dim": 0, "value_dim": 16}, ValueError, "head_dim: got 0"),
        ({"head_dim": 513}, ValueError, r"value_dim \(here head_dim\): got 513"),
        ({"value_dim": 513}, ValueError, "value_dim: got 513, allowed is an integer from 0 to 512"),
        ({"kv_heads": -1}, ValueError, "kv_heads: got -1, allowed is an integer >= 0"),
        ({"dtype": "float64"}, TypeError, "dtype: got .*float64"),
        ({"bias_shape": (1, 1, 1, 7), "bias_dtype": "bfloat16"}, TypeError, "bias_dtype: got .*bfloat16"),
        (
            {"prefix": True, "rules": AttentionRules(causal=True, window_left=0)},
            ValueError,
            r"prefix, window_size: got a prefix together with window_size \(0, -1\)",
        ),
    ],
)
def test_the_constructor_refuses(changes, error, message):
    with pytest.raises(error, match=message):
        Call(**{**SIZES, **changes})
