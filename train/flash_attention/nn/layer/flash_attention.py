"""The FlashAttention layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mindspore import Tensor

from flash_attention.backends import registry
from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.precision import MixedPrecisionCast, keeps_its_code
from flash_attention.bridge.tensors import refuse
from flash_attention.call import ALL_BLOCKS, AttentionRules
from flash_attention.call.block_mask import BlockMask
from flash_attention.call.checks import check_bool, check_int, check_name
from flash_attention.call.inputs import MAX_HEAD_DIM, MAX_VALUE_DIM
from flash_attention.call.layout import CALL_LAYOUTS, check_batch
from flash_attention.call.literals import Alignment, BackendName, LayoutName
from flash_attention.call.tiling import DEFAULT_STRATEGY
from flash_attention.dropout.seed import DropoutSeed
from flash_attention.functional import attend
from flash_attention.sharding.shard import RequestedSharding, ShardRequest
from flash_attention.sharding.strategy import DeviceGrid

# The arguments that `print(layer)` shows, beside the seed of its dropout.
_SHOWN = (
    *("head_dim", "dropout_rate", "prev_block_num", "next_block_num", "tiling_stgy_name", "dp", "mp"),
    *("have_attention_mask_batch", "alibi", "backend", "scale", "softcap", "input_layout", "batch", "window_size"),
    *("causal", "causal_alignment", "value_head_dim", "alibi_grad"),
)
# `construct` reads these, so that a change of them acts.
_FREE = ("alibi_grad", "backend", "batch", "input_layout")
_KEPT = frozenset((*_SHOWN, "seed", "block_mask")) - frozenset(_FREE)


@keeps_its_code
class FlashAttention(EntryCell):
    """Softmax attention in O(seq) memory: softmax(query @ key^T / sqrt(head_dim)) @ value over the visible keys.

    Args:
        head_dim (int): size of a head, 1 to 576; on an Ascend 910 to 256.
        dropout_rate (float): share of the attention probabilities set to zero in training (`set_train`),
            0 <= rate < 1. Default: 0.0.
        prev_block_num (int): tiles of keys that a tile of queries sees before its own. Default: 65536, all.
        next_block_num (int): tiles of keys that it sees after its own. Default: 65536, all.
        tiling_stgy_name (str): tiling strategy, which sets the size T of a tile: "sparse" 128, "sparse_64" 64,
            "sparse_256" 256 tokens. Default: "sparse".
        dp (int): number of devices over which the batch is split under semi-automatic parallelism, without effect
            elsewhere. dp * mp must be the number of devices there. Default: 1.
        mp (int): number of devices over which the heads, also of key and value, are split there. Default: 1.
        have_attention_mask_batch (bool): whether the mask has a batch axis to split with the batch. Default: True.
        alibi (bool): attention with linear biases: `alibi_mask` when given, else -slope(head) * distance computed
            inside, with the slopes of Press et al. (2022) for any number of heads. Default: False.

    Keyword Args:
        backend (str): "tik", "fused", "cpu", "emulator" or "math". Default: None, see `attention_backend`.
        scale (float): factor on the scores. Default: None, 1 / sqrt(head_dim).
        softcap (float): scaled scores become softcap * tanh(score / softcap), before any bias. Default: 0.0, off.
        input_layout (str): of query, key, value and the output: "BNSD", "BSND", "BSH", "SBH", or "TH": matrices
            (batch * seq, heads * head_dim), the items of the batch one after the other. Default: "BNSD".
        batch (int): items of the batch, needed for "TH", and for it only. Default: None.
        window_size (tuple): (left, right), tokens that a query sees before and after its position; -1 = all.
            Default: (-1, -1).
        causal (bool): query i sees keys 0..i only, without any mask tensor. It is aligned TOP LEFT: one query against
            ten keys sees one key. flash_attn and cached decoding align bottom right, see causal_alignment. Default:
            False.
        causal_alignment (str): "top_left", or "bottom_right": query i stands at key i + seq_k - seq_q, for causal
            masks, windows and computed ALiBi alike. Default: "top_left".
        value_head_dim (int): size of a head of value and of the output, 1 to 512. Default: None, head_dim.
        alibi_grad (bool): False skips the gradient of `alibi_mask`, which is then zero. Default: True.
        seed (int): seed of dropout. Default: None, taken from `mindspore.set_seed`.
        block_mask (BlockMask): which tiles of queries see which tiles of keys, in every call. Default: None, all.

    Inputs:
        - **query** (Tensor) - (batch, heads, seq_q, head_dim), float16, bfloat16 or float32.
        - **key** (Tensor) - (batch, kv_heads, seq_k, head_dim), dtype of query; kv_heads divides heads.
        - **value** (Tensor) - (batch, kv_heads, seq_k, value_head_dim), dtype of query.
        - **attention_mask** (Tensor) - 0 = visible, anything else = hidden; bool, uint8 or floating;
          (seq_q, seq_k), (batch or 1, seq_q or 1, seq_k), (batch or 1, heads or 1, seq_q or 1, seq_k); or the compact
          causal mask (1, T, T) or (T, T), ones strictly above the diagonal, which means causal for any length.
          Default: None.
        - **alibi_mask** (Tensor) - (batch or 1, heads, 1, seq_k), added to the scores, dtype of query or float32.
          Default: None.
        - **sinks** (Tensor) - (heads,), float32 or the dtype of query: one more logit in the denominator of every
          row of a head. Default: None.
        - **prefix** (Tensor) - ints (batch,): every query of an item also sees the keys before this number; with
          `causal`, and without windows. Default: None.
        - **segment_ids** (Tensor) - ints (batch, seq_q): a query sees keys of its own id only; negative ids, of
          padding, see nothing and are seen by none. Default: None.
        - **kv_segment_ids** (Tensor) - ints (batch, seq_k). Default: None, segment_ids.
        - **alibi_slopes** (Tensor) - (heads,) or (batch, heads), float32, float16 or bfloat16: slopes instead of the
          standard ones, without alibi_mask; they get no gradient.
          Default: None.
        - **block_mask** (Tensor) - uint8 or bool (batch or 1, heads or 1, query tiles, key tiles), not 0 = visible:
          tiles of 64, 128 or 256 tokens, as the shape says, that may be others in each call. Default: None, the
          layer's own.

    Outputs:
        Tensor (batch, heads, seq_q, value_head_dim), dtype of query. A query that sees nothing gives 0.

    Raises:
        TypeError, ValueError: an argument or input is not allowed; the message names it.
        RuntimeError: the backend asked for cannot run this call; with the reason.
        AttributeError: an argument that a layer reads only when it is made is changed later.

    Examples:
        >>> import numpy as np
        >>> from mindspore import Tensor
        >>> from flash_attention import FlashAttention
        >>> attention = FlashAttention(head_dim=128)
        >>> query = Tensor(np.random.randn(2, 8, 1024, 128).astype(np.float16))
        >>> causal = Tensor(np.triu(np.ones((1, 128, 128), np.float16), 1))
        >>> print(attention(query, query, query, causal).shape)
        (2, 8, 1024, 128)
    """

    argument_names: tuple[tuple[str, str], ...] = (("bias", "alibi_mask"), ("bias_grad", "alibi_grad"))
    exists = False  # a subclass may set attributes of these names before

    def __init__(
        self,
        head_dim: int,
        dropout_rate: float = 0.0,
        prev_block_num: int = ALL_BLOCKS,
        next_block_num: int = ALL_BLOCKS,
        tiling_stgy_name: str = DEFAULT_STRATEGY,
        dp: int = 1,
        mp: int = 1,
        have_attention_mask_batch: bool = True,
        alibi: bool = False,
        *,
        backend: BackendName | None = None,
        scale: float | None = None,
        softcap: float = 0.0,
        input_layout: LayoutName = "BNSD",
        batch: int | None = None,
        window_size: tuple[int, int] = (-1, -1),
        causal: bool = False,
        causal_alignment: Alignment = "top_left",
        value_head_dim: int | None = None,
        alibi_grad: bool = True,
        seed: int | None = None,
        block_mask: BlockMask | None = None,
    ) -> None:
        super().__init__()
        if type(dropout_rate) is int and dropout_rate >= 1:
            raise ValueError(
                f"dropout_rate: got {dropout_rate}, allowed is 0 <= dropout_rate < 1; if it is the number of heads, "
                "as in earlier layers, use the layer of flash_attention.install()"
            )
        self.rules = AttentionRules.from_arguments(
            causal=causal,
            causal_alignment=causal_alignment,
            window_size=window_size,
            prev_block_num=prev_block_num,
            next_block_num=next_block_num,
            tiling_stgy_name=tiling_stgy_name,
            alibi=alibi,
            dropout_rate=dropout_rate,
            scale=scale,
            softcap=softcap,
        )
        # A graph passes on constants.
        self.rules_in_training = self.rules.constants()
        self.rules_without_dropout = replace(self.rules, dropout_rate=0.0).constants()
        check_int("head_dim", head_dim, 1, MAX_HEAD_DIM)
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        check_int("value_head_dim", value_head_dim, 1, MAX_VALUE_DIM)
        check_name("input_layout", input_layout, CALL_LAYOUTS)
        check_batch(batch, input_layout)
        check_int("dp", dp, 1)
        check_int("mp", mp, 1)
        if seed is not None:
            check_int("seed", seed, 0)
        if block_mask is not None and not isinstance(block_mask, BlockMask):
            raise TypeError(
                f"block_mask: got {type(block_mask).__name__}, allowed is a BlockMask; a Tensor is an input"
            )
        registry.forced_backend(backend)
        self.head_dim = head_dim
        self.dropout_rate = self.rules.dropout_rate
        self.prev_block_num = prev_block_num
        self.next_block_num = next_block_num
        self.tiling_stgy_name = tiling_stgy_name
        self.dp = dp
        self.mp = mp
        self.have_attention_mask_batch = check_bool("have_attention_mask_batch", have_attention_mask_batch)
        self.alibi = self.rules.alibi
        self.backend = backend
        self.scale = self.rules.scale_of(head_dim)
        self.softcap = self.rules.softcap
        self.input_layout = input_layout
        self.batch = batch
        self.window_size = (self.rules.window_left, self.rules.window_right)
        self.causal = self.rules.causal
        self.causal_alignment = causal_alignment
        self.value_head_dim = value_head_dim
        self.alibi_grad = check_bool("alibi_grad", alibi_grad)
        self.seed = seed
        self.block_mask = block_mask
        self.tiles: Tensor | None = None if block_mask is None else Tensor(block_mask.tiles)
        self.tile = 0 if block_mask is None else block_mask.tile
        self.block_mask_key = "" if block_mask is None else block_mask.key
        self.dropout_seed: Any = DropoutSeed(seed) if dropout_rate > 0 else None
        self.widths: tuple[int | None, int | None] = head_dim, value_head_dim  # of tensors; None is any
        self.cast = MixedPrecisionCast()
        self.shards = RequestedSharding(ShardRequest(dp, mp, have_attention_mask_batch))
        self.exists = True

    def __setattr__(self, name, value):
        if name in _KEPT and self.exists and value not in (vars(self).get(name, value),):
            raise AttributeError(f"{name}: got {value!r} for a layer that exists, allowed is an argument of a new one")
        super().__setattr__(name, value)

    def construct(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        alibi_mask: Tensor | None = None,
        sinks: Tensor | None = None,
        prefix: Tensor | None = None,
        segment_ids: Tensor | None = None,
        kv_segment_ids: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        block_mask: Tensor | None = None,
    ) -> Tensor:
        rules, seed = self.rules_without_dropout, None
        if self.training and self.dropout_rate > 0.0:
            rules, seed = self.rules_in_training, self.dropout_seed()
        if alibi_mask is not None and not self.alibi:
            refuse("alibi_mask: given to a layer with alibi=False, allowed only with alibi=True")
        if alibi_slopes is not None and not self.alibi:
            refuse("alibi_slopes: given to a layer with alibi=False, allowed only with alibi=True")
        tiles, tile, known = self.tiles, self.tile, self.block_mask_key
        if block_mask is not None:
            tiles, tile, known = block_mask, 0, ""
        output = attend(
            (self.cast(query), self.cast(key), self.cast(value)),
            rules,
            (self.alibi_grad, self.input_layout, self.widths[0], self.widths[1], self.batch, False, tile, known),
            self.backend,
            self.argument_names,
            self.shards(),
            mask=attention_mask,
            bias=self.cast(alibi_mask),
            seed=seed,
            sinks=sinks,
            prefix=prefix,
            segment_ids=segment_ids,
            kv_segment_ids=kv_segment_ids,
            alibi_slopes=alibi_slopes,
            block_mask=tiles,
        )
        return self.cast.back(output)

    def shard(self, in_strategy, out_strategy=None):
        """Split batch and heads over devices, as `dp` and `mp` do. The strategies have the form of MindSpore's
        primitives.

        Only graphs under `semi_auto_parallel` and `auto_parallel` are sharded. (This is not `mindspore.nn.Cell.shard`,
        which is for functions without strategies of their own.)

        Args:
            in_strategy (tuple): for query, key, value, and if the layer gets them attention_mask and alibi_mask, a
                tuple of integers: into how many parts each axis is split. Batch and heads of query, key and value are
                split alike, seq and head_dim not at all. An axis of size 1 of a mask is not split. () for a
                mask that the layer does not get, or splits by dp and mp.
            out_strategy (tuple): the same for the output, in a tuple of one. Default: None, like query.

        Returns:
            The layer itself.

        Raises:
            TypeError, ValueError: a strategy is not possible; the message says what is. Conditions on the number of
                devices and the shapes are checked when the graph is compiled.

        Examples:
            >>> from flash_attention import FlashAttention
            >>> layer = FlashAttention(head_dim=128).shard(((4, 2, 1, 1),) * 3 + ((4, 1, 1),))
            >>> print(layer.dp, layer.mp)
            4 2
        """
        grid = DeviceGrid.from_strategies(in_strategy, out_strategy, input_layout=self.input_layout)
        vars(self).update(dp=grid.dp, mp=grid.mp)
        masks = (*map(tuple, in_strategy[3:]), (), ())
        self.shards.request = ShardRequest(grid.dp, grid.mp, True, *masks[:2])
        return self

    def extend_repr(self):
        shown = {name: getattr(self, name) for name in _SHOWN}
        if self.dropout_rate > 0.0 and self.seed is not None:
            shown["seed"] = self.seed
        if self.block_mask is not None:
            shown["block_mask"] = self.block_mask
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())
