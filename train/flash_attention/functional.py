"""Attention as functions. The problem is described and the backend chosen once per combination of shapes and rules.

In GRAPH mode and @jit that happens while the graph compiles: shapes and rules are constants there, and `_plan`, a
compile-time function, puts the chosen backend's cell into the graph.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.nn.cell import _pynative_executor

from flash_attention.backends import registry
from flash_attention.bridge.comparison import Hides
from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.precision import fix_dtypes
from flash_attention.bridge.tensors import (
    ChangeLayout,
    NumberCheck,
    SelectInputs,
    compile_time,
    compiling,
    fresh_seed,
    int_tensor,
    read_rules,
    read_specs,
    remembered,
    spec,
    tensor_spec,
)
from flash_attention.paged import paged_attention as paged_attention
from flash_attention.paged import reshape_and_cache as reshape_and_cache
from flash_attention.problem import ALL_BLOCKS, AttentionProblem
from flash_attention.problem.checks import check_bool, check_range
from flash_attention.problem.inputs import TensorSpec, read_tensors
from flash_attention.problem.layout import CALL_LAYOUTS, UNKNOWN, Layout
from flash_attention.problem.names import Names, called
from flash_attention.problem.optional import NAMES, in_order
from flash_attention.problem.tiling import DEFAULT_STRATEGY
from flash_attention.problem.torch_shapes import mask_plan, tensor_shapes
from flash_attention.sharding.shard import TENSOR, Shard, sharding
from flash_attention.varlen import flash_attention_varlen as flash_attention_varlen

# What `scaled_dot_product_attention` calls the arguments of `flash_attention`.
_TORCH_NAMES = (
    *(("attention_mask", "attn_mask"), ("bias", "attn_mask"), ("dropout_rate", "dropout_p"), ("causal", "is_causal")),
)
# Arguments of `flash_attention` that are fields of the problem.
_OTHERS = ("bias_grad", "input_layout", "head_dim", "value_head_dim", "batch", "return_lse")


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    dropout_rate: float = 0.0,
    seed: Tensor | None = None,
    keep_bits: Tensor | None = None,
    sinks: Tensor | None = None,
    prefix: Tensor | tuple | None = None,
    segment_ids: Tensor | None = None,
    kv_segment_ids: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    causal: bool = False,
    causal_alignment: str = "top_left",
    window_size: tuple[int, int] = (-1, -1),
    prev_block_num: int = ALL_BLOCKS,
    next_block_num: int = ALL_BLOCKS,
    tiling_stgy_name: str = DEFAULT_STRATEGY,
    alibi: bool = False,
    bias_grad: bool = True,
    input_layout: str = "BNSD",
    head_dim: int | None = None,
    value_head_dim: int | None = None,
    batch: int | None = None,
    return_lse: bool = False,
    backend: str | None = None,
    argument_names: tuple[tuple[str, str], ...] = (),
    shards: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention: softmax(scale * query @ key^T + bias) @ value over the visible keys.

    Shapes are (batch, heads, seq, head_dim), or as `input_layout` says. B is the batch. H and Hkv are the heads of
    query and key, Sq and Sk the lengths of both, D and Dv the sizes of a head of key and value. Hkv may be smaller than
    H (grouped-query attention). The lengths are free.

    Args:
        query (Tensor): (B, H, Sq, D), float16, bfloat16 or float32.
        key (Tensor): (B, Hkv, Sk, D), dtype of query; Hkv divides H.
        value (Tensor): (B, Hkv, Sk, Dv), dtype of query.
        attention_mask (Tensor): 0 = visible, anything else = hidden; bool, uint8 or floating. (Sq, Sk),
            (1, Sq, Sk), (B, Sq, Sk), (B, 1, Sk), or rank 4 with B or 1, H or 1, Sq or 1, Sk. (T, T) or (1, T, T), T the
            tile of the tiling strategy, strictly upper triangular, stands for a causal mask of any length.
            Default: None.
        bias (Tensor): added to the scaled scores; rank 4 with B or 1, H or 1, Sq or 1, Sk; dtype of query, or float32.
            -inf in it hides a key. Default: None.
        dropout_rate (float): share of the probabilities set to zero, 0 <= rate < 1. Default: 0.0.
        seed (Tensor): int64 (2,) that decides which are dropped; the same seed drops the same on every backend.
            Default: None, a fresh one for each call in PYNATIVE (see `mindspore.set_seed`). A compiled graph needs it.
        keep_bits (Tensor): the decisions themselves instead of a seed: uint8 (B, H, Sq, ceil(Sk / 8)), bit k % 8 of
            byte k // 8 set = key k is kept. Default: None.
        sinks (Tensor): (H,), float32 or the dtype of query: one more logit in the denominator of every row of a head
            and in the logsumexp. Default: None.
        prefix (Tensor or tuple): ints (B,): every query of an item also sees the keys before its number, 0 to Sk. With
            causal, and without windows. Default: None.
        segment_ids (Tensor): ints (B, Sq): a query sees keys of its own id only. Negative ids, of padding, see nothing
            and are seen by none. Default: None.
        kv_segment_ids (Tensor): ints (B, Sk), the ids of the keys. Default: None, segment_ids.
        alibi_slopes (Tensor): (H,) or (B, H), float32, float16 or bfloat16: add -slope * distance inside, whether
            alibi is set or not; without a bias. They get no gradient.
            Default: None.
        scale (float): factor on the scores. Default: None, 1 / sqrt(head_dim).
        softcap (float): scaled scores become softcap * tanh(score / softcap), before any bias. Default: 0.0, off.
        causal (bool): query i sees keys 0..i only: aligned TOP LEFT, so that one query against ten keys sees one.
            flash_attn and cached decoding align bottom right, see causal_alignment. Default: False.
        causal_alignment (str): "top_left", or "bottom_right": query i stands at key i + Sk - Sq, for causal, windows
            and computed ALiBi. Default: "top_left".
        window_size (tuple): (left, right), keys that a query sees before and after its position; -1 = all.
            Default: (-1, -1).
        prev_block_num (int): tiles of keys that a tile of queries sees before its own. Default: 65536, all.
        next_block_num (int): tiles of keys that it sees after its own. Default: 65536, all.
        tiling_stgy_name (str): see `flash_attention.problem.tiling`. Default: "sparse", tiles of 128.
        alibi (bool): without a bias, add -slope(head) * distance inside. Default: False.
        bias_grad (bool): False saves the gradient of `bias`, which is then zero. Default: True.
        input_layout (str): "BNSD", "BSND", "BSH", "SBH", or "TH": matrices (batch * seq, heads * head_dim), the items
            of the batch one after the other. Default: "BNSD".
        head_dim (int): size of a head of query and key, up to 576; needed for "BSH", "SBH" and "TH".
        value_head_dim (int): size of a head of value and output, up to 512. Default: None, head_dim for "BSH", "SBH"
            and "TH".
        batch (int): items of the batch, for "TH" only, where it is needed. Default: None.
        return_lse (bool): also return the logsumexp. Default: False.
        backend (str): name of the backend to use. Default: None, see `attention_backend`.
        argument_names (tuple): pairs of an argument's name here and its name in error messages. For functions that
            call this one with arguments of their own. Default: (), the names here.
        shards (tuple): how semi-automatic parallelism splits the call, a
            `flash_attention.sharding.request.ShardRequest`; the FlashAttention layer sets it. Default: None.

    Returns:
        Tensor like query, as wide as value; with return_lse a pair of it and the logsumexp, float32 (B, H, Sq),
        -inf for a query that sees nothing. Both are differentiable. A query that sees nothing gives 0.

    Raises:
        TypeError, ValueError: an input is not allowed; before anything runs.
        RuntimeError: the backend asked for cannot run this problem; with the reason. MindSpore cannot differentiate
            this call, see docs/usage.md about bfloat16.
    """

    def drawn_seed():  # an inner function: mindspore.rewrite (amp level O1) leaves a function that has one alone
        return fresh_seed(argument_names)

    rules = read_rules(
        argument_names,
        *(causal, causal_alignment, window_size, prev_block_num, next_block_num, tiling_stgy_name),
        *(alibi, dropout_rate, scale, softcap),
    )
    if dropout_rate != 0.0 and seed is None and keep_bits is None:
        seed = drawn_seed()
    return attend(
        (query, key, value),
        in_order(attention_mask, bias, keep_bits, seed, sinks, prefix, segment_ids, kv_segment_ids, alibi_slopes),
        rules,
        # In the order of _OTHERS: a graph passes constants in tuples.
        (bias_grad, input_layout, head_dim, value_head_dim, batch, return_lse),
        backend,
        argument_names,
        shards,
    )


def attend(tensors, inputs, rules, others, backend, argument_names, shards):
    """Run `flash_attention` with optional inputs and the arguments in _OTHERS in tuples. Its rules are validated."""

    def filled(inputs, of_tensors, others):  # an inner function as in `flash_attention`
        mask, bias, keep_bits, seed, sinks, prefix, segment_ids, kv_segment_ids, alibi_slopes = inputs
        if isinstance(prefix, (tuple, list)):
            prefix = int_tensor("prefix", prefix, 0, _seq_k(of_tensors, others))
        if segment_ids is not None and kv_segment_ids is None:
            kv_segment_ids = segment_ids
        # Not in a loop that adds to a tuple: a graph compiles each step of it, and takes a third longer.
        first = spec(mask), spec(bias), spec(keep_bits), spec(seed), spec(sinks)
        specs = first + (spec(prefix), spec(segment_ids), spec(kv_segment_ids), spec(alibi_slopes))
        return (mask, bias, keep_bits, seed, sinks, prefix, segment_ids, kv_segment_ids, alibi_slopes), specs

    query, key, value = tensors
    of_tensors = spec(query), spec(key), spec(value)
    inputs, specs = filled(inputs, of_tensors, others)
    specs, return_lse = of_tensors + (specs,), others[5]
    run = _plan(specs, argument_names, rules, others, backend, shards, return_lse and compiling())
    output, logsumexp = run(query, key, value, inputs)
    if return_lse:
        return output, logsumexp
    return output


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    seed: Tensor | None = None,
) -> Tensor:
    """Attention with the meaning of `torch.nn.functional.scaled_dot_product_attention`.

    Args:
        query (Tensor): (..., L, E), any leading dimensions, the last of which is the heads.
        key (Tensor): (..., S, E).
        value (Tensor): (..., S, Ev).
        attn_mask (Tensor): broadcasts to (..., L, S). Boolean: True = takes part. Floating (dtype of query, or
            float32): added to the scores. Default: None.
        dropout_p (float): applied whenever it is not 0, as in torch. Default: 0.0.
        is_causal (bool): query i sees keys 0..i; an error together with attn_mask. Default: False.
        scale (float): factor on the scores. Default: None, 1 / sqrt(E).
        enable_gqa (bool): allow fewer heads in key and value, dividing the heads of query. Default: False.

    Keyword Args:
        seed (Tensor): int64 (2,) that decides what dropout drops, not known to torch. Default: None, a fresh one for
            each call in PYNATIVE (see `mindspore.set_seed`); a compiled graph needs it given.

    Returns:
        Tensor (..., L, Ev). Unlike torch, a query that takes part in nothing gives 0, never NaN.

    Raises:
        TypeError, ValueError: an input is not allowed.
    """
    shapes = _torch_shapes(spec(query), spec(key), spec(value), enable_gqa)
    shape, value_shape = query.shape, value.shape
    mask, bias = None, None
    if attn_mask is not None:
        new_axes, broadcast, reshape = _torch_mask(spec(attn_mask), spec(query), spec(key), is_causal)
        if new_axes or broadcast is not None or reshape is not None:
            attn_mask = _reshapable(attn_mask)
        for _ in range(new_axes):
            attn_mask = ops.expand_dims(attn_mask, 0)
        if broadcast is not None:
            attn_mask = ops.broadcast_to(attn_mask, broadcast)
        if reshape is not None:
            attn_mask = ops.reshape(attn_mask, reshape)
        if attn_mask.dtype == mstype.bool_:
            mask = ops.logical_not(attn_mask)
        else:
            bias = attn_mask
    if shapes is not None:
        query, key, value = _reshape(query, shapes[0]), _reshape(key, shapes[1]), _reshape(value, shapes[2])
    output = flash_attention(
        query,
        key,
        value,
        mask,
        bias,
        dropout_rate=dropout_p,
        seed=seed,
        scale=scale,
        causal=is_causal,
        argument_names=_TORCH_NAMES,
    )
    return output if shapes is None else _reshape(output, shape[:-1] + value_shape[-1:])


def _reshape(tensor, shape):
    return ops.cast(ops.reshape(_reshapable(tensor), shape), tensor.dtype)


def _reshapable(tensor):
    """Return the tensor in a dtype that compiled graphs can reshape and broadcast. This holds forward and backward."""
    return ops.cast(tensor, mstype.float32) if _needs_float32(spec(tensor)) else tensor


class _Call(EntryCell):
    """One kind of call: a backend's cell, and around it what turns the caller's tensors into the backend's."""

    def __init__(
        self,
        problem: AttentionProblem,
        run: nn.Cell,
        backend: str,
        layout: str,
        mask_rank: int,
        names: Names,
        shard: Shard | None = None,
    ):
        super().__init__()
        self.run, self.backend = run, backend
        self.mask_rank = mask_rank
        compact = mask_rank and problem.mask_shape is None
        self.check_triangle = _TriangleCheck(problem.rules.tile, names) if compact else None
        self.present = SelectInputs(problem)
        looks = problem.prefix and problem.device == "CPU" and not problem.dynamic
        self.check_prefix = None
        if looks:
            self.check_prefix = NumberCheck(lambda prefix: check_range("prefix", prefix, problem.seq_k), names)
        # A layout that the backend does not take becomes the one that it does.
        given, taken = CALL_LAYOUTS[problem.layout], CALL_LAYOUTS[layout]
        widens = problem.device == "CPU" and problem.dtype == "bfloat16"
        of_query = problem.heads, problem.head_dim
        of_key, of_value = (problem.kv_heads, problem.head_dim), (problem.kv_heads, problem.value_dim)
        self.turns = nn.CellList(
            [ChangeLayout(given, taken, *sizes, problem.batch, widens) for sizes in (of_query, of_key, of_value)]
        )
        self.turn_back = ChangeLayout(taken, given, problem.heads, problem.value_dim, problem.batch, widens)
        self.hides, self.expand = Hides(), (ops.ExpandDims(), ops.ExpandDims())
        self.sharded = shard is not None
        if shard is not None:
            self._give_strategies(shard, given)

    def _give_strategies(self, shard: Shard, given: Layout):
        """MindSpore gathers the tensors of an operation that has no strategy. Casts and reshapes take those around."""
        for turn in self.turns:
            turn.transpose = shard.glue(ops.Transpose(), given.split_sharding)
        self.turn_back.transpose = shard.glue(ops.Transpose(), TENSOR)
        if shard.mask_axes is not None:
            axes = {2: shard.mask_axes[2:], 3: (shard.mask_axes[0], *shard.mask_axes[2:]), 4: shard.mask_axes}
            self.hides.shard(shard, axes[self.mask_rank])
            last = axes[3] if self.mask_rank == 3 else (None, *shard.mask_axes[2:])
            shard.glue(self.expand[0], axes[2])
            shard.glue(self.expand[1], last)

    def construct(self, query, key, value, inputs):
        query, key, value = self.turns[0](query), self.turns[1](key), self.turns[2](value)
        if self.check_triangle is not None:
            self.check_triangle(inputs[0])
        elif self.mask_rank > 0:
            inputs = (self.rank_4(inputs[0]),) + inputs[1:]
        if self.check_prefix is not None:
            self.check_prefix(inputs[5])
        output, logsumexp = self.run(query, key, value, self.present(inputs))
        return self.turn_back(output), logsumexp

    def rank_4(self, mask):
        """Return a mask as backends take it."""
        if self.sharded and (mask.dtype == mstype.bool_ or mask.dtype == mstype.uint8):
            mask = ops.cast(mask, mstype.float16)  # cards gather neither of the two
        mask = self.hides(mask)
        if self.mask_rank == 2:
            mask = self.expand[0](mask, 0)
        if self.mask_rank < 4:
            mask = self.expand[1](mask, 1)
        return mask


class _TriangleCheck(nn.Cell):
    """Refuses a compact mask that is not the strict upper triangle. Only PYNATIVE can: a graph sees no contents.

    To read a tensor is to wait for all operations under way. So a mask that passed is looked at again where it lies,
    on a CPU, and read again when it has moved. What an operation under way writes into it shows at the next call.
    """

    def __init__(self, tile: int, names: Names):
        super().__init__()
        self.tile, self.names = tile, names
        self.passed, self.address = None, 0
        self.memory, self.contents = None, b""  # of the mask that passed, and a copy

    def __call__(self, mask):
        address = mask.data_ptr() if hasattr(mask, "data_ptr") else None
        same_place = mask is self.passed and address == self.address
        if same_place and (self.memory is None or self.memory.tobytes() == self.contents):
            return
        contents = mask.astype(mstype.float32).asnumpy().reshape(self.tile, self.tile)
        if not np.array_equal(contents != 0, np.triu(np.ones_like(contents), 1) != 0):
            with called(self.names):
                raise ValueError(
                    f"attention_mask: shape {mask.shape} stands for the compact causal mask, which is 1 strictly above "
                    "the diagonal and 0 elsewhere, but the contents are different; give the full (seq_q, seq_k) mask "
                    "instead"
                )
        if address is None:
            return  # MindSpore 2.0 does not say where a tensor lies
        self.passed, self.address, self.memory = mask, address, None
        # NumPy has no bfloat16: of such a mask, `asnumpy` gives a copy.
        if ms.get_context("device_target") == "CPU" and mask.dtype != getattr(mstype, "bfloat16", None):
            self.memory = mask.asnumpy()
            self.contents = self.memory.tobytes()

    def construct(self, mask):
        return mask


@compile_time
def _plan(specs, names, rules, others, backend, shards, compiled_lse):
    with called(names):
        tensors = tuple(map(tensor_spec, ("query", "key", "value"), specs[:3]))
        inputs = read_specs(("attention_mask", *NAMES[1:]), specs[3])
        forced, device = registry.forced_backend(backend), ms.get_context("device_target")
        call = _planned(tensors, inputs, names, rules, others, forced, device, sharding(shards))
    # Both results of the kernel are parts of a pair, and MindSpore then adds the gradients of its parts, even zeros.
    if compiled_lse and call.backend == "cpu" and _lacks_operations(tensors[0]) and _pynative_executor.grad_flag():
        raise RuntimeError(
            "return_lse: got bfloat16 in a @jit function that PYNATIVE differentiates; its gradient needs an AddN, and "
            "MindSpore has none for bfloat16 on a CPU; allowed are float32 and float16, GRAPH mode, the gradient taken "
            "inside the @jit function, or no @jit"
        )
    return call


def _lacks_operations(tensor: TensorSpec) -> bool:
    """Return True if compiled graphs lack Reshape, ExpandDims, Transpose and AddN for a tensor."""
    return tensor.dtype == "bfloat16" and ms.get_context("device_target") == "CPU"


@remembered
def _planned(tensors, inputs, names, rules, others, backend, device, shards) -> _Call:
    problem = AttentionProblem.from_inputs(
        *tensors,
        rules=rules,
        training=rules.dropout_rate > 0,
        device=device,
        **dict(zip((*NAMES, *_OTHERS), (*inputs, *others))),
    )
    mask = inputs[0]
    shard = shards and shards.shard(problem, mask and mask.shape)
    local = problem if shard is None else shard.plan.local(problem, shard.rank)
    chosen = registry.choose(local, backend, shard is not None)
    layout = problem.layout if problem.empty else chosen.layout(local, shard is not None)
    run = registry.build(replace(local, layout=layout), chosen, shard)
    mask_rank = 0 if mask is None or problem.empty else len(mask.shape)
    return fix_dtypes(_Call(problem, run, chosen.name, layout, mask_rank, names, shard))


@compile_time
def _seq_k(specs, others):
    """Return the number of keys of a call's batch item, None if unknown."""
    tensors = map(tensor_spec, ("query", "key", "value"), specs)
    seq_k = read_tensors(*tensors, *others[1:5]).seq_k
    return None if seq_k == UNKNOWN else seq_k


@compile_time
def _needs_float32(described):
    return _lacks_operations(tensor_spec("tensor", described))


@compile_time
def _torch_shapes(query, key, value, enable_gqa):
    check_bool("enable_gqa", enable_gqa)
    return tensor_shapes(*map(tensor_spec, ("query", "key", "value"), (query, key, value)), enable_gqa)


@compile_time
def _torch_mask(mask, query, key, is_causal):
    return tuple(mask_plan(*map(tensor_spec, ("attn_mask", "query", "key"), (mask, query, key)), is_causal))
