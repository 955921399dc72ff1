"""`flash_attn_with_kvcache`: attention against a cache of keys and values, which may grow in the call.

A cache with one row for each sequence is a paged cache whose pages are as long as a row. `paged_attention` does the
rest.
"""

from __future__ import annotations

import functools

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr

from flash_attention.backends.composed.positional import counted
from flash_attention.bridge.constants import tensor_of
from flash_attention.bridge.gradients import refuse_gradient
from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.precision import fix_dtypes
from flash_attention.bridge.tensors import as_int32, compiling, read_specs, recording, remembered, spec, tensor_spec
from flash_attention.bridge.views import writable
from flash_attention.cache_update import slots_of
from flash_attention.call.checks import INTEGERS, check_bool, check_dtype, check_int, check_range, check_window
from flash_attention.call.inputs import TensorSpec, fits
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.names import called
from flash_attention.call.optional import read_slopes
from flash_attention.call.paged import paged_call, product, true_widths
from flash_attention.call.rules import AttentionRules
from flash_attention.call_cells import NumberCheck
from flash_attention.compat.flash_attn.lengths import tensor_or_none
from flash_attention.paged import check_known, check_update, limited_attention, update_cache
from flash_attention.rotary import check_rotary, rotary_embedding

# flash_attn's names of the arguments of this package's functions.
_NAMES = (
    *(("query", "q"), ("key", "k"), ("value", "v"), ("key_cache", "k_cache"), ("value_cache", "v_cache")),
    *(("scale", "softmax_scale"), ("cos", "rotary_cos"), ("sin", "rotary_sin"), ("context_lens", "cache_seqlens")),
)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute attention against a cache. Causal masks are aligned BOTTOM RIGHT: the last query sees all keys of its
    sequence.

    It has no gradient.

    Args:
        q (Tensor): (batch, seqlen, nheads, headdim), float16, bfloat16 or float32.
        k_cache (Parameter): (batch_cache, seqlen_cache, nheads_k, headdim), or with a block_table (num_blocks,
            page_block_size, nheads_k, headdim), pages of any size. If `k` is given, the cache is written; see
            `reshape_and_cache` for what it may be.
        v_cache (Parameter): likewise; it may have a headdim of its own.
        k (Tensor): (batch, seqlen_new, nheads_k, headdim), keys that the cache takes behind those it has.
        v (Tensor): likewise; both or none.
        rotary_cos (Tensor): (seqlen_ro, rotary_dim / 2), only with `k`. New keys are turned by their positions. So are
            queries with causal or a window. Otherwise all queries take the position of the first new key.
        rotary_sin (Tensor): like rotary_cos.
        cache_seqlens (int or Tensor): keys that the cache has, padding included: ints (batch,), or one number
            for all. Default: None, as many as the cache can hold; needed with `k`.
        cache_batch_idx (Tensor): ints (batch,): the row of the cache for each sequence. Not with a block_table.
            Default: None, its own number.
        cache_leftpad (Tensor): ints (batch,): so many keys at the start are padding, which nothing sees. They take
            part in the positions all the same.
        block_table (Tensor): ints (batch, most pages of a sequence). Default: None, a row for each sequence.
        softmax_scale (float): factor on the scores. Default: None, 1 / sqrt(headdim).
        causal (bool): query i sees keys 0 to i + length - seqlen, with the length after the new keys. Default: False.
        window_size (tuple): (left, right) of keys that a query sees around that position; -1 = all.
        softcap (float): scores become softcap * tanh(score / softcap); 0 = off. Default: 0.0.
        rotary_interleaved (bool): neighbouring components make a pair; False: components half of rotary_dim apart.
        alibi_slopes (Tensor): (nheads,) or (batch, nheads): -slope * distance is added.
        num_splits (int): no effect: how the keys are split is decided inside.
        return_softmax_lse (bool): also return the logsumexp.

    Returns:
        Tensor like q, as wide as v_cache; with return_softmax_lse a pair of it and the logsumexp, float32
        (batch, nheads, seqlen).

    Raises:
        TypeError, ValueError: an input is not allowed; in PYNATIVE also lengths, rows, pages and padding that are not
            in the cache. A compiled graph does not see them: new keys past the end are left out.
    """
    tensors, new = (spec(q), spec(k_cache), spec(v_cache)), (spec(k), spec(v), spec(rotary_cos), spec(rotary_sin))
    where = spec(cache_seqlens), spec(cache_batch_idx), spec(cache_leftpad), spec(block_table)
    rules = softmax_scale, causal, window_size, softcap, rotary_interleaved, num_splits, return_softmax_lse
    run = _prepare(tensors, new, where, spec(alibi_slopes), rules)
    lengths = tensor_or_none(cache_seqlens)  # the Cell has a number
    new = k, v, rotary_cos, rotary_sin
    return run(q, k_cache, v_cache, *new, lengths, cache_batch_idx, cache_leftpad, block_table, alibi_slopes)


class _Cached(EntryCell):
    """One kind of call.

    Args:
        q, cache: of query and keys.
        width: most pages of a sequence.
        new: keys that the cache takes.
        length: the length of all sequences if it is a constant, else None.
        rules: arguments of `flash_attn_with_kvcache` from softmax_scale to return_softmax_lse, without alibi_slopes.
    """

    def __init__(self, q, cache, width: int, new: int, length: int | None, rules: tuple):
        super().__init__()
        self.scale, causal, (self.left, right), self.softcap, self.interleaved, _, self.return_lse = rules
        self.known = UNKNOWN not in (*q.shape[:2], new)
        self.right = 0 if causal else right
        self.batch, self.seq, self.heads = q.shape[:3]
        self.dtype, self.new = getattr(mstype, q.dtype), new
        self.block_size, self.capacity = cache.shape[1], width * cache.shape[1]
        self.causal = causal
        self.positional = self.right >= 0 or self.left >= 0 or self.seq == 1
        self.length = length
        if self.known:
            self.items, self.added = (tensor_of(np.arange(end, dtype=np.int32)) for end in (self.batch, max(1, new)))
            self.lengths = None if length is None else tensor_of(np.full(self.batch, length, np.int32))
        self.check_numbers = NumberCheck(functools.partial(_check_numbers, self.capacity, new, cache.shape[:2]))
        self.inference = _Inference()

    def construct(self, q, k_cache, v_cache, k, v, cos, sin, lengths, index, leftpad, table, slopes):
        items = self.items if self.known else counted(q.shape[0])
        if self.length is not None:
            lengths = self.lengths if self.known else items * 0 + self.length
        self.check_numbers(lengths, table, index, leftpad)
        lengths, index, leftpad, table = as_int32(lengths), as_int32(index), as_int32(leftpad), as_int32(table)
        if table is None:
            table = ops.reshape(items if index is None else index, (-1, 1))
        if self.new != 0:
            k_cache, v_cache = writable()("k_cache", k_cache), writable()("v_cache", v_cache)
            if cos is not None:
                k = rotary_embedding(k, cos, sin, interleaved=self.interleaved, offsets=lengths)
                q = self.turn_query(q, cos, sin, lengths)
            added = self.added if self.known else counted(k.shape[1])
            position = ops.reshape(lengths, (-1, 1)) + ops.reshape(added, (1, -1))
            slots = slots_of(table, position, position >= 0, self.block_size, self.capacity)
            done = update_cache(k, v, k_cache, v_cache, slots)
            if compiling():  # a graph orders what it does with Parameters alone
                k_cache, v_cache = ops.depend(k_cache, done), ops.depend(v_cache, done)
            lengths = lengths + k.shape[1]
        new = (k, v) if self.new != 0 else (q, q)
        paged = q, k_cache, v_cache, table, lengths, None, (None, None)
        rules = {"causal": self.causal, "window_size": (self.left, self.right), "alibi_slopes": slopes}
        more = {"left_padding": leftpad, "return_lse": self.return_lse}
        result = limited_attention(*paged, scale=self.scale, softcap=self.softcap, **rules, **more)
        if self.return_lse:
            return self.inference(result[0], *new), self.inference(result[1], *new)
        return self.inference(result, *new)

    def turn_query(self, q, cos, sin, first):
        if self.positional:
            return rotary_embedding(q, cos, sin, interleaved=self.interleaved, offsets=first)
        # All at one position: as many heads of one token.
        shape = q.shape
        q = ops.reshape(ops.cast(q, mstype.float32), (self.batch, 1, self.seq * self.heads, -1))
        q = rotary_embedding(q, cos, sin, interleaved=self.interleaved, offsets=first)
        return ops.cast(ops.reshape(q, shape), self.dtype)


class _Inference(nn.Cell):
    """Return a result without gradients. Its inputs get none, nor do the new keys and values."""

    def __call__(self, result, k, v):
        return super().__call__(result, k, v) if recording() else result

    def construct(self, result, k, v):
        # In PYNATIVE a Cell with a bprop must not return its input, and a graph reshapes no bfloat16.
        return result if compiling() else ops.reshape(result, result.shape)

    def bprop(self, result, k, v, out, dout):
        refuse_gradient("flash_attn_with_kvcache")
        return dout, k, v


def _check_numbers(capacity: int, new: int, blocks: tuple, lengths, table, index, leftpad) -> None:
    """Refuse lengths, entries of tables and padding that are not in the cache."""
    have = lengths.astype(np.int64)
    longest = int(have.max(initial=0)) + new
    if longest > capacity:
        _refuse_length(longest - new, new, capacity)
    check_range("cache_seqlens", have, capacity - new)
    if table is not None:
        used = np.arange(table.shape[1]) * blocks[1] < (have + new)[:, None]
        check_range("block_table", table[used], blocks[0] - 1)
    if index is not None:
        check_range("cache_batch_idx", index, blocks[0] - 1)
    if leftpad is not None:
        check_range("cache_leftpad", leftpad, have + new)


def _refuse_length(length: int, new: int, capacity: int):
    raise ValueError(f"cache_seqlens: got {length} and {new} new keys, but the cache can hold {capacity}")


@constexpr(reuse_result=False)
def _prepare(tensors, new, where, slopes, rules):
    tensors = tuple(map(tensor_spec, ("q", "k_cache", "v_cache"), tensors))
    new = read_specs(("k", "v", "rotary_cos", "rotary_sin"), new)
    lengths, *others = where
    if isinstance(lengths, tuple):
        lengths = tensor_spec("cache_seqlens", lengths)
    elif lengths is not None:
        check_int("cache_seqlens", lengths, 0, other=" or a Tensor of integers (batch,)")
    where = (lengths, *read_specs(("cache_batch_idx", "cache_leftpad", "block_table"), others))
    scale, causal, window, softcap, interleaved, splits, return_lse = rules
    for name, flag in (("causal", causal), ("rotary_interleaved", interleaved), ("return_softmax_lse", return_lse)):
        check_bool(name, flag)
    check_int("num_splits", splits, 0)
    rules = scale, causal, check_window(window), softcap, interleaved, splits, return_lse
    with called(_NAMES):
        return _prepared(*tensors, new, where, *read_specs(("alibi_slopes",), (slopes,)), rules)


def _check_calls(q, k_cache, v_cache, new, slopes, width: int, rules: tuple) -> None:
    """Raise as the calls of the Cell would, before a call has written."""
    (k, v, cos, sin), (scale, causal, window, softcap, interleaved, *_) = new, rules
    batch = q.shape[0]
    counts, table = TensorSpec((batch,), "int32"), TensorSpec((batch, width), "int32")
    limits = {"window_left": window[0], "window_right": window[1], "scale": scale, "softcap": softcap}
    attention = AttentionRules(causal=causal, causal_alignment="bottom_right", **limits)
    wide, _ = true_widths(q, k_cache, v_cache, None)
    with called((("key", "k_cache"), ("value", "v_cache"))):
        paged_call(wide, k_cache, v_cache, table, counts, None, slopes, rules=attention)
    if k is None:
        return
    for name, tensor in (("k", k), ("v", v)):
        check_dtype(name, tensor.dtype, (q.dtype,))
    if cos is not None:
        for name, tensor in (("k", k), ("q", q)):
            with called((("x", name),)):
                check_rotary(tensor, cos, sin, counts, interleaved)
    check_update(k, v, k_cache, v_cache, TensorSpec((product((batch, k.shape[1])),), "int32"))


@remembered
def _prepared(q, k_cache, v_cache, new, where, slopes, rules) -> nn.Cell:
    (k, v, cos, sin), (lengths, index, leftpad, table) = new, where
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        if len(tensor.shape) != 4:
            raise ValueError(f"{name}: got shape {tensor.shape}, allowed is rank 4")
    batch = q.shape[0]
    if slopes is not None:
        read_slopes("alibi_slopes", slopes, q.shape[2], "batch", {batch})
    if (k is None) != (v is None):
        raise ValueError(f"{'v' if v is None else 'k'}: got None beside the other, allowed are both or none")
    if (cos is None) != (sin is None):
        missing = "rotary_sin" if sin is None else "rotary_cos"
        raise ValueError(f"{missing}: got None beside the other, allowed are both or none")
    if k is None and cos is not None:
        raise ValueError("rotary_cos: got one without k, allowed only with new keys, which it turns too")
    if k is not None and lengths is None:
        raise ValueError("cache_seqlens: got None beside k, allowed are an int and a Tensor, the place of the new keys")
    for name, tensor in () if k is None else (("k", k), ("v", v)):
        if len(tensor.shape) != 4 or not all(map(fits, tensor.shape, (batch, k.shape[1], k_cache.shape[2]))):
            raise ValueError(
                f"{name}: got shape {tensor.shape}, allowed is (batch, seqlen_new, nheads_k, headdim) with batch "
                f"{batch} of q, {k_cache.shape[2]} heads as in k_cache, and the same seqlen_new for k and v"
            )
    if table is None:
        width = 1
        if index is None and k_cache.shape[0] < batch:
            raise ValueError(f"k_cache: got {k_cache.shape[0]} rows, allowed are at least the {batch} of q")
    else:
        check_dtype("block_table", table.dtype, INTEGERS)
        if len(table.shape) != 2 or not fits(table.shape[0], batch):
            raise ValueError(f"block_table: got shape {table.shape}, allowed is (batch, pages), batch {batch}")
        if index is not None:
            raise ValueError("cache_batch_idx: got one beside a block_table, allowed is one of them")
        width = table.shape[1]
    named = {"cache_seqlens": lengths, "cache_batch_idx": index, "cache_leftpad": leftpad}
    for name, tensor in named.items():
        if isinstance(tensor, TensorSpec):
            check_dtype(name, tensor.dtype, INTEGERS)
            if len(tensor.shape) != 1 or not fits(tensor.shape[0], batch):
                raise ValueError(f"{name}: got shape {tensor.shape}, allowed is (batch,) = ({batch},)")
    check_known(**{name: one for name, one in {"q": q, "k": k, **named}.items() if isinstance(one, TensorSpec)})
    for name, sizes in (("k_cache", k_cache.shape), ("v_cache", v_cache.shape), ("block_table", (width,))):
        if UNKNOWN in sizes:
            raise ValueError(f"{name}: got shape {sizes} in a graph for dynamic shapes, {UNKNOWN} is not known")
    capacity = width * k_cache.shape[1]
    constant = capacity if lengths is None else None if isinstance(lengths, TensorSpec) else int(lengths)
    added = 0 if k is None or batch == 0 else k.shape[1]
    if constant is not None and constant + max(0, added) > capacity:
        _refuse_length(constant, added, capacity)
    _check_calls(q, k_cache, v_cache, new, slopes, width, rules)
    return fix_dtypes(_Cached(q, k_cache, width, added, constant, rules))
