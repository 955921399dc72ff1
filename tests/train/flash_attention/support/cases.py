"""Define an attention case: its inputs, its truth, and when a result is right. The list of cases is case_list.py.

    @pytest.mark.parametrize("case", case_list.params())
    def test_backend(case):
        inputs = case.inputs()                    # NumPy arrays, exactly representable in case.dtype
        exact, low = case.expected()              # float64 truth and low-precision baseline, with all gradients
        actual = reference.Attention(...)         # what the backend computed
        cases.check(case, actual)

This module needs NumPy and flash_attention.{call,reference,dropout.philox}, and no MindSpore.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass, replace

import numpy as np
from flash_attention import reference
from flash_attention.call import ALL_BLOCKS, AttentionRules, Call, TensorSpec
from flash_attention.call.tiling import tile_of, tiles_of

from tests.train.flash_attention.support.arrays import bias_of_slopes

SEED = (20240607, 3)  # of dropout, as in Backend.build

MASKS = {
    "none": "no mask",
    "causal": "causal=True",
    "compact": "(1, T, T) strict upper triangle",
    "compact2d": "(T, T) strict upper triangle",
    "2d": "(Sq, Sk), a third hidden",
    "3d1": "(1, Sq, Sk), a third hidden",
    "3d": "(B, Sq, Sk), a third hidden",
    "4d": "(B, 1, Sq, Sk), a third hidden",
    "heads": "(B, H, Sq, Sk), a third hidden",
    "padding": "(B, 1, 1, Sk), a tail of keys hidden",
    "rows": "(B, Sq, Sk), every third row wholly hidden",
    "all": "(B, Sq, Sk), everything hidden",
}
SEGMENTS = {
    "none": "no segment ids",
    "documents": "runs of rows with ids in ascending order, padding behind them",
    "shuffled": "ids and padding anywhere",
    "padding": "nothing but padding in the last item",
}
BLOCK_MASKS = {
    "none": "no block mask",
    "shared": "(1, 1, tiles, tiles)",
    "heads": "(1, H, tiles, tiles)",
    "items": "(B, 1, tiles, tiles)",
    "all": "(B, H, tiles, tiles)",
}
ALIBIS = {
    "none": "no bias",
    "computed": "alibi=True",
    "slopes": "the caller's slopes (H,), one of them below zero",
    "slopes_all": "the caller's slopes (B, H)",
    "given": "a bias (B, H, 1, Sk)",
    "shared": "a bias (1, H, 1, Sk)",
    "hiding": "the same, -inf for some keys, for one head also for the first",
    "bias": "a bias (1, H, Sq, Sk)",
    "bias_all": "a bias (B, H, Sq, Sk)",
    "bias_hiding": "a bias (1, H, Sq, Sk), -inf for the keys of `hiding`",
}
VALUES = {
    "normal": "standard normal",
    "large": "query and key of sigma 4: logits of sigma 16",
    "huge": "query and key of sigma 12: one-hot probabilities",
    "outlier": "standard normal, two channels thirty times larger",
    "constant": "ones",
    "zero": "zeros",
}


@dataclass(frozen=True)
class Inputs:
    """Hold NumPy inputs of a case, as a caller of the layer gives them. The mask has its user shape; absent inputs
    are None.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: np.ndarray | None
    bias: np.ndarray | None
    d_output: np.ndarray
    d_logsumexp: np.ndarray
    sinks: np.ndarray | None = None
    prefix: np.ndarray | None = None
    segment_ids: np.ndarray | None = None
    kv_segment_ids: np.ndarray | None = None
    alibi_slopes: np.ndarray | None = None
    block_mask: np.ndarray | None = None

    def optional(self) -> dict:
        """Return the optional inputs that newer models have, by their keyword names."""
        names = "sinks", "prefix", "segment_ids", "kv_segment_ids", "block_mask"
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Case:
    """One attention call with its data. Frozen and hashable; its id is its content."""

    batch: int = 1
    heads: int = 2
    kv_heads: int = 2
    seq_q: int = 113
    seq_k: int = 113
    head_dim: int = 32
    value_dim: int = 0  # 0 = head_dim
    dtype: str = "float16"
    mask: str = "none"
    mask_dtype: str = "uint8"
    blocks: tuple = (ALL_BLOCKS, ALL_BLOCKS)  # prev_block_num, next_block_num
    window: tuple = (-1, -1)
    alignment: str = "top_left"
    tiling: str = "sparse"
    alibi: str = "none"  # see ALIBIS
    dropout: float = 0.0
    scale: float | None = None
    softcap: float = 0.0
    sinks: bool = False
    prefix: bool = False
    segments: str = "none"  # see SEGMENTS
    block_mask: str = "none"  # see BLOCK_MASKS
    tile: int = 64  # of the block mask
    density: float = 0.5  # likewise
    values: str = "normal"
    draw: int = 0  # other data of the same kind
    slow: bool = False

    def __str__(self) -> str:
        def joined(counts: tuple) -> str:
            return "_".join("all" if count in (-1, ALL_BLOCKS) else str(count) for count in counts)

        length = f"S{self.seq_q}" if self.seq_q == self.seq_k else f"Sq{self.seq_q}-Sk{self.seq_k}"
        mask = self.mask if self.mask_dtype == "uint8" else f"{self.mask}.{self.mask_dtype}"
        #: What is shown, and of other fields than the plain case's: the field that says so.
        parts = (
            *(("", f"B{self.batch}"), ("", f"H{self.heads}"), ("", length)),
            *(("", f"D{self.head_dim}" + f"v{self.value_dim}" * (self.value_dim > 0)), ("", self.dtype)),
            *(("mask", mask), ("blocks", f"blocks{joined(self.blocks)}"), ("window", f"window{joined(self.window)}")),
            *(("alignment", self.alignment), ("tiling", self.tiling), ("alibi", f"alibi.{self.alibi}")),
            *(("dropout", f"drop{self.dropout}"), ("scale", f"scale{self.scale}"), ("softcap", f"cap{self.softcap}")),
            *(("sinks", "sinks"), ("prefix", "prefix"), ("segments", self.segments)),
            ("block_mask", f"tiles{self.tile}.{self.block_mask}{self.density}"),
            *(("values", self.values), ("draw", f"draw{self.draw}")),
        )
        found = [text for name, text in parts if not name or getattr(self, name) != getattr(Case, name)]
        if self.kv_heads != self.heads:
            found.insert(2, f"KV{self.kv_heads}")
        return "-".join(found)

    @functools.cached_property
    def call(self) -> Call:
        """Return the layer's call of this case, with the logsumexp asked for and training on."""
        return _call(self)

    def rules(self) -> AttentionRules:
        """Return the rules of the case."""
        return AttentionRules.from_arguments(alibi=self.alibi != "none", **self.options())

    def options(self) -> dict:
        """Return the rules of the case by their keyword names, as `flash_attention` takes them."""
        return {
            "tiling_stgy_name": self.tiling,
            "prev_block_num": self.blocks[0],
            "next_block_num": self.blocks[1],
            "window_size": self.window,
            "causal": self.mask == "causal",
            "causal_alignment": self.alignment,
            "dropout_rate": self.dropout,
            "scale": self.scale,
            "softcap": self.softcap,
        }

    def inputs(self) -> Inputs:
        """Return the data, the same for every run and process."""
        return _inputs(self)

    def backend_mask(self) -> np.ndarray | None:
        """Return the explicit mask as backends receive it: bool of call.mask_shape."""
        shape = self.call.mask_shape
        return None if shape is None else (self.inputs().mask != 0).reshape(shape)

    def keep(self) -> np.ndarray | None:
        """Return dropout's keep decisions for SEED, bool (B, H, Sq, Sk)."""
        return reference.keep_mask(self.call, SEED) if self.dropout else None

    def expected(self) -> tuple[reference.Attention, reference.Attention]:
        """Return (truth, baseline), gradients included."""
        return _expected(self)


#: Of arithmetic in float32 on tensors in the dtype, for normal inputs and 128 keys or more, all of which a row sees, or
#: those before it: multiples of the baseline's errors, and no floor.
NORMAL = {
    "float16": reference.Limits(1.2, 0.5, 0.0, 0.0),
    "bfloat16": reference.Limits(1.2, 0.5, 0.0, 0.0),
    "float32": reference.Limits(1.8, 1.3, 0.0, 0.0),
}


def check(case: Case, actual: reference.Attention, limits: reference.Limits = reference.LIMITS) -> None:
    """Assert that every result in `actual` is right: error measure, and exact zeros for rows that see nothing."""
    exact, low = case.expected()
    wrong = [str(error) for error in reference.compare(actual, exact, low, limits) if not error.ok]
    assert not wrong, "\n".join(wrong)
    check_zeros(case, actual)


def check_call(call: Call, tensors, actual: reference.Attention, **given) -> int:
    """Check the results of a call that is no case, and return their number."""
    exact, low = (run(call, *tensors, **given) for run in (reference.truth, reference.baseline))
    errors = reference.compare(actual, exact, low)
    wrong = [str(error) for error in errors if not error.ok]
    assert not wrong, "\n".join(wrong)
    return len(errors)


def check_random(case: Case, actual: reference.Attention) -> None:
    """Check one of many random cases for wrong results rather than for rounding.

    In a few random cases the baseline's largest error is small by chance, so three times as much is allowed. Its order
    of sums may be lucky too: errors beyond that are measured again against sums in ascending order, as in the kernels.
    """
    exact, low = case.expected()
    limits = reference.Limits(floor=np.inf, few=np.inf)
    if _beyond(case, reference.compare(actual, exact, low, limits)):
        low = reference.baseline(*_arguments(case), in_order=True, **_options(case))
        wrong = _beyond(case, reference.compare(actual, exact, low, limits))
        assert not wrong, "\n".join(wrong)
    check_zeros(case, actual)


def _beyond(case: Case, errors: list[reference.Error], factor: float = 3.0) -> list[str]:
    """Return the errors above `factor` times what is allowed; an infinite error always is."""
    # csrc/exp2.h states that a probability below the smallest normal float32 number is zero. The exponential of the
    # bfloat16 arithmetic errs by up to 3e-6.
    least = {"logsumexp": 3e-6} if case.dtype == "bfloat16" else {}

    def within(error):
        floor = least.get(error.name, 1e-36)
        return error.max <= factor * error.allowed_max + floor and error.mean <= factor * error.allowed_mean + floor

    return [str(error) for error in errors if not within(error)]


def assert_same(actual: reference.Attention, expected: reference.Attention, where: str = "") -> None:
    """Assert that results are equal bit by bit."""
    for name, value in expected.named().items():
        np.testing.assert_array_equal(getattr(actual, name), value, err_msg=f"{name} {where}")


def check_zeros(case: Case, actual: reference.Attention) -> None:
    """Assert exact zeros in rows that see nothing and keys that no row sees."""
    exact, _ = case.expected()
    masked = np.broadcast_to(_hidden(case), case.call.shape_lse() + (case.seq_k,)).all(axis=-1)
    masked = masked | np.isneginf(exact.logsumexp)
    for name in ("output", "d_query"):
        result = getattr(actual, name)
        if result is not None:
            assert not np.any(np.asarray(result, dtype=np.float32)[masked]), (
                f"{name}: not zero where nothing is visible"
            )
    unseen = _unseen_keys(case)
    for name in ("d_key", "d_value"):
        result = getattr(actual, name)
        if result is not None:
            assert not np.any(np.asarray(result, dtype=np.float32)[unseen]), f"{name}: not zero for a key nobody sees"


def _hidden(case: Case) -> np.ndarray:
    """Return the hidden scores of a case by `reference.hidden`."""
    optional = case.inputs().optional()
    optional.pop("sinks")
    return reference.hidden(case.call, case.backend_mask(), **optional)


def _unseen_keys(case: Case) -> np.ndarray:
    """Return the keys that no query of the group's heads sees, boolean (B, Hkv, Sk)."""
    call = case.call
    hidden = np.broadcast_to(_hidden(case), (call.batch, call.heads, call.seq_q, call.seq_k))
    return hidden.reshape(call.batch, call.kv_heads, -1, call.seq_k).all(axis=2)


@functools.cache  # several test files choose among all cases by their calls
def _call(case: Case) -> Call:
    """Return the call of a case, from the shapes and dtypes of its data."""
    inputs = case.inputs()
    shapes = [TensorSpec(array.shape, case.dtype) for array in (inputs.query, inputs.key, inputs.value)]
    mask = None if inputs.mask is None else TensorSpec(inputs.mask.shape, case.mask_dtype)
    bias = None if inputs.bias is None else TensorSpec(inputs.bias.shape, case.dtype)
    optional = {
        name: None if array is None else TensorSpec(array.shape, str(array.dtype))
        for name, array in {**inputs.optional(), "alibi_slopes": inputs.alibi_slopes}.items()
    }
    return Call.from_inputs(*shapes, mask, bias, rules=case.rules(), training=True, return_lse=True, **optional)


@functools.lru_cache(maxsize=16)
def _inputs(case: Case) -> Inputs:
    """Return the tensors of a case, the same in every run."""
    random = np.random.default_rng(zlib.crc32(str(case).encode()))

    def draw(*shape, sigma=1.0):
        if case.values == "constant":
            return np.ones(shape, np.float32)
        if case.values == "zero":
            return np.zeros(shape, np.float32)
        array = random.standard_normal(shape).astype(np.float32) * sigma
        if case.values == "outlier":
            array[..., : min(2, shape[-1])] *= 30.0
        return reference.round_to(array, case.dtype)

    sigma = {"large": 4.0, "huge": 12.0}.get(case.values, 1.0)
    query = draw(case.batch, case.heads, case.seq_q, case.head_dim, sigma=sigma)
    key = draw(case.batch, case.kv_heads, case.seq_k, case.head_dim, sigma=sigma)
    value = draw(case.batch, case.kv_heads, case.seq_k, case.value_dim or case.head_dim)
    d_output = random.standard_normal((*query.shape[:3], value.shape[3]))
    d_output = reference.round_to(d_output, case.dtype)
    d_logsumexp = random.standard_normal(query.shape[:3]).astype(np.float32)
    mask, bias = _mask(case, random), _bias(case, random)
    sinks = 2.0 * random.standard_normal(case.heads).astype(np.float32) if case.sinks else None
    prefix = random.integers(0, case.seq_k + 1, size=case.batch).astype(np.int32) if case.prefix else None
    given = mask, bias, d_output, d_logsumexp, sinks, prefix
    return Inputs(query, key, value, *given, *_segments(case, random), _slopes(case), _block_mask(case))


def _segments(case: Case, random) -> tuple:
    """Return the ids of the queries and of the keys: five segments, and padding."""
    if case.segments == "none":
        return None, None

    def ids(length):
        found = random.integers(-1, 5, size=(case.batch, length))
        if case.segments == "documents":
            found = np.sort(found % 6)  # 5 is the padding
            found[found == 5] = -1
        elif case.segments == "padding":
            found[-1] = -1
        return found.astype(np.int32)

    own = ids(case.seq_q)
    return own, own if case.seq_q == case.seq_k else ids(case.seq_k)


def _mask(case: Case, random) -> np.ndarray | None:
    """Return the mask of a case, None if rules alone hide."""
    if case.mask in ("none", "causal"):
        return None
    tile = tile_of(case.tiling)
    if case.mask in ("compact", "compact2d"):
        mask = np.triu(np.ones((tile, tile)), 1)
        mask = mask if case.mask == "compact2d" else mask[None]
    elif case.mask == "padding":
        mask = np.zeros((case.batch, 1, 1, case.seq_k))
        for row, length in enumerate(random.integers(1, case.seq_k + 1, size=case.batch)):
            mask[row, ..., length:] = 1
    elif case.mask == "rows":
        mask = np.zeros((case.batch, case.seq_q, case.seq_k))
        mask[:, ::3] = 1
    elif case.mask == "all":
        mask = np.ones((case.batch, case.seq_q, case.seq_k))
    else:
        shape = {"2d": (), "3d1": (1,), "3d": (case.batch,), "4d": (case.batch, 1), "heads": (case.batch, case.heads)}
        mask = random.random((*shape[case.mask], case.seq_q, case.seq_k)) < 1 / 3
    # bfloat16, like the tensors, travels as float32.
    return mask.astype({"bool": np.bool_, "bfloat16": np.float32}.get(case.mask_dtype, case.mask_dtype))


def _bias(case: Case, random) -> np.ndarray | None:
    """Return the bias of a case, None if there is none or it is computed."""
    if case.alibi in ("none", "computed", "slopes", "slopes_all"):
        return None
    if case.alibi.startswith("bias"):
        batch = case.batch if case.alibi == "bias_all" else 1
        bias = random.standard_normal((batch, case.heads, case.seq_q, case.seq_k))
    else:
        batch = case.batch if case.alibi == "given" else 1
        slope = 2.0 ** -(1 + np.arange(case.heads, dtype=np.float64))
        bias = slope[None, :, None, None] * np.arange(1 - case.seq_k, 1) * np.arange(1, batch + 1)[:, None, None, None]
    if case.alibi.endswith("hiding"):
        bias[:, 0, :, 20:30] = bias[:, -1, :, 0] = -np.inf
    return reference.round_to(bias, case.dtype)


def _slopes(case: Case) -> np.ndarray | None:
    """Return the caller's slopes of a case, unlike the standard slopes."""
    if not case.alibi.startswith("slopes"):
        return None
    slopes = np.random.default_rng(5 + case.draw).uniform(0.01, 0.6, (case.batch, case.heads)).astype(np.float32)
    slopes[0, 1] = -0.03
    return slopes if case.alibi == "slopes_all" else slopes[0]


def _block_mask(case: Case) -> np.ndarray | None:
    """Return random tiles. The first tile of queries sees nothing, the last one all tiles of keys but the last."""
    if case.block_mask == "none":
        return None
    tiles = tiles_of(case.seq_q, case.tile), tiles_of(case.seq_k, case.tile)
    batch = case.batch if case.block_mask in ("items", "all") else 1
    heads = case.heads if case.block_mask in ("heads", "all") else 1
    shown = np.random.default_rng(9 + case.draw).random((batch, heads, *tiles)) < case.density
    if min(tiles) > 1:
        shown[..., 0, :], shown[..., -1, :], shown[..., -1] = False, True, False
    return shown.astype(np.uint8)


@functools.lru_cache(maxsize=64)
def _expected(case: Case) -> tuple[reference.Attention, reference.Attention]:
    """Return the truth and the baseline of a case."""
    return tuple(run(*_arguments(case), **_options(case)) for run in (reference.truth, reference.baseline))


def _arguments(case: Case) -> tuple:
    """Return the call, query, key and value, for the functions of `reference`. Slopes are a bias for every score."""
    inputs, call = case.inputs(), case.call
    if inputs.alibi_slopes is not None:
        shape = call.batch, call.heads, call.seq_q, call.seq_k
        call = replace(call, slopes_shape=None, bias_shape=shape, bias_dtype="float32")
    return call, inputs.query, inputs.key, inputs.value


def _options(case: Case) -> dict:
    """Return the optional arguments of a case for the functions of `reference`."""
    inputs, bias = case.inputs(), case.inputs().bias
    if inputs.alibi_slopes is not None:
        slopes = np.broadcast_to(inputs.alibi_slopes, (case.batch, case.heads))
        bias = bias_of_slopes(slopes, case.seq_q, case.seq_k, case.call.offset)
    return {
        "mask": case.backend_mask(),
        "bias": bias,
        **inputs.optional(),
        "keep": case.keep(),
        "d_output": inputs.d_output,
        "d_logsumexp": inputs.d_logsumexp,
    }
