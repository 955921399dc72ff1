"""A cache of keys and values for decoding."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.tensors import (
    as_int32,
    compile_time,
    compiling,
    int_tensor,
    refuse_trace,
    spec,
    tensor_spec,
)
from flash_attention.cache_update import check_room, one_block_each
from flash_attention.call.checks import INT32, INTEGERS, check_bool, check_dtype, check_int, check_name
from flash_attention.call.inputs import MAX_HEAD_DIM, MAX_VALUE_DIM, TensorSpec
from flash_attention.paged import append_tokens, check_attention, limited_attention, paged_caches, reorder_sequences


class KVCache(EntryCell):
    """Keep keys and values of sequences of different lengths, and compute attention against them.

    Args:
        batch (int): sequences.
        max_length (int): most tokens of a sequence.
        kv_heads (int): heads of key and value.
        head_dim (int): size of a head of the key.
        value_head_dim (int): size of a head of the value. Default: None, head_dim.
        dtype (mindspore.dtype or str): float16, bfloat16 or float32. Default: float16.
        paged (bool): store blocks of block_size tokens, handed out one by one as sequences grow, instead of a row of
            max_length tokens for each sequence. Default: False.
        block_size (int): tokens of a block. Default: 16.
        num_blocks (int): blocks of all sequences together, with `paged`; a sequence that finds no block left fails.
            Default: None, enough for max_length tokens of each.
        padding_side (str): side of the padding in a call that gives `tokens`: "right" (behind the tokens that count) or
            "left" (before them). Default: "right".

    Inputs:
        as of `attend`, after `update` with key and value:

        - **query** (Tensor) - (batch, seq, heads, head_dim).
        - **key**, **value** (Tensor) - (batch, seq, kv_heads, head_dim or value_head_dim).
        - **tokens** (Tensor) - ints (batch,): how many of the seq tokens of each sequence count, 0 included. Default:
          None, all.

    Outputs:
        Tensor (batch, seq, heads, value_head_dim).

    Raises:
        TypeError, ValueError: an argument or input is not allowed, or in PYNATIVE a sequence grows past max_length.
        RuntimeError: no block is left (on a CPU).

    A compiled graph cannot refuse tokens past max_length. They are not stored, `lengths` counts them, and the rows of
    their queries are NaN, here and at every later step. On a device the same goes for a sequence that finds no block
    left.

    Padding is not stored, and its rows of the output are 0. The first token of a sequence has position 0 on either
    side. ALiBi and windows go by these positions, and a rotary embedding has to. `lengths` before the update is the
    position of the first new token; `lengths + 0` keeps it if something behind the update needs it.

    The storage, the lengths and the block tables are Parameters. So `update`, `reorder` and `reset` work in GRAPH mode,
    PYNATIVE and @jit, and no change of them compiles a graph anew. A sequence gets a block when it needs one: the first
    block that no other sequence has.

    Examples:
        >>> import numpy as np
        >>> from mindspore import Tensor
        >>> from flash_attention import KVCache
        >>> cache = KVCache(batch=2, max_length=64, kv_heads=2, head_dim=32)
        >>> prompt = Tensor(np.random.randn(2, 10, 2, 32).astype(np.float16))
        >>> token = Tensor(np.random.randn(2, 1, 2, 32).astype(np.float16))
        >>> print(cache(prompt, prompt, prompt).shape, cache(token, token, token).shape, cache.lengths.asnumpy())
        (2, 10, 2, 32) (2, 1, 2, 32) [11 11]
    """

    def __init__(
        self,
        batch: int,
        max_length: int,
        kv_heads: int,
        head_dim: int,
        value_head_dim: int | None = None,
        dtype=mstype.float16,
        paged: bool = False,
        block_size: int = 16,
        num_blocks: int | None = None,
        padding_side: str = "right",
    ) -> None:
        super().__init__()
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        sizes = {"batch": batch, "max_length": max_length, "kv_heads": kv_heads, "head_dim": head_dim}
        widest = {"head_dim": MAX_HEAD_DIM, "value_head_dim": MAX_VALUE_DIM}
        for name, size in {**sizes, "value_head_dim": value_head_dim, "block_size": block_size}.items():
            check_int(name, size, 1, widest.get(name))
        paged = check_bool("paged", paged)
        batch, max_length, block_size = int(batch), int(max_length), int(block_size)  # which may be integers of NumPy
        self.batch, self.max_length, self.paged = batch, max_length, paged
        # A contiguous cache is one block for each sequence.
        self.block_size = block_size if paged else max_length
        width = -(-max_length // self.block_size)
        if num_blocks is None:
            num_blocks = batch * width
        elif not paged:
            raise ValueError(
                f"num_blocks: got {num_blocks} without paged=True, allowed is None: each sequence has one block"
            )
        check_int("num_blocks", num_blocks, 1)
        check_name("padding_side", padding_side, ("left", "right"))
        self.num_blocks, self.padding_side = num_blocks, padding_side
        self.widths = int(head_dim), int(value_head_dim)
        self.key_cache, self.value_cache = paged_caches(num_blocks, self.block_size, kv_heads, *self.widths, dtype)
        tables = np.full((batch, width), -1, np.int32)
        self.keeps_blocks = one_block_each(
            TensorSpec(self.key_cache.shape, str(self.key_cache.dtype)), batch, max_length
        )
        if self.keeps_blocks:
            tables[:] = np.arange(batch).reshape(-1, 1)
        self.block_tables = Parameter(Tensor(tables), name="block_tables", requires_grad=False)
        self.lengths = Parameter(Tensor(np.zeros(batch, np.int32)), name="lengths", requires_grad=False)
        self.rows = Tensor(np.arange(batch, dtype=np.int32).reshape(-1, 1))
        self.any = ops.ReduceMax()
        self.check_room = _RoomCheck(max_length)

    def construct(self, query, key, value, tokens=None):
        if not compiling():  # a refused call must not change the cache
            caches = self.key_cache, self.value_cache, self.block_tables, self.lengths
            check_attention(query, caches, self.max_length, self.widths, tokens, self.padding_side)
        self.update(key, value, tokens)
        return self.attend(query, tokens)

    def update(self, key: Tensor, value: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Append (batch, seq, kv_heads, head_dim) keys, and values likewise, to every sequence: `tokens` of them, ints
        (batch,), or all.

        Returns:
            Tensor int32 (batch,), the lengths from now on.
        """
        # It returns a Tensor, see the forms in flash_attention.bridge.
        strict = not compiling()
        refuse_trace("KVCache.update")
        if strict:
            self.check_room(self.lengths, key, tokens)
        return append_tokens(
            *(key, value, self.key_cache, self.value_cache, self.block_tables, self.lengths, tokens),
            *(self.max_length, self.widths, self.padding_side, strict),
        )

    def attend(self, query: Tensor, tokens: Tensor | None = None, **rules) -> Tensor:
        """Compute attention of (batch, seq, heads, head_dim) queries against the cache. The queries are the last tokens
        of their sequences.

        With `tokens`, as of `update`, the other queries are padding and give 0. `rules` are scale, softcap,
        window_size, alibi, alibi_slopes, sinks and backend of `paged_attention`.
        """
        caches = self.key_cache, self.value_cache, self.block_tables, self.lengths
        return limited_attention(query, *caches, self.max_length, self.widths, tokens, self.padding_side, **rules)

    def reorder(self, indices: Tensor | tuple | list) -> Tensor:
        """Let sequence b go on from sequence indices[b], as beam search wants it.

        An index may come several times: one prompt read once starts several beams. Sequences share the full blocks of a
        paged cache, and get a copy of the block that is not full. Without pages each gets a copy of the whole.

        Args:
            indices (Tensor, tuple or list): ints (batch,), 0 to batch - 1.

        Returns:
            Tensor int32 (batch,), the lengths from now on.

        Raises:
            TypeError, ValueError: not as above.
            RuntimeError: on a CPU, numbers in a Tensor are not as above, or no block is left for a copy. A graph on a
                device cannot say so: the queries of that sequence give NaN until it is reset.
        """
        refuse_trace("KVCache.reorder")
        if isinstance(indices, (tuple, list)):
            indices = int_tensor("indices", indices, 0, self.batch - 1)
        caches = self.key_cache, self.value_cache, self.block_tables, self.lengths
        return reorder_sequences(*caches, indices, self.max_length, not compiling())

    def reset(self, indices: Tensor | tuple | list | None = None) -> Tensor:
        """Forget the sequences with these numbers. Other sequences may then take their blocks.

        Args:
            indices (Tensor, tuple or list): ints (any,), 0 to batch - 1. A negative number stands for no sequence, so
                that a graph may take as many as it was compiled for. Default: None, all.

        Returns:
            Tensor int32 (batch,), the lengths from now on.

        Raises:
            TypeError, ValueError: not as above; numbers in a compiled graph's Tensor are not looked at.
        """
        if indices is None:
            kept = self.rows < 0
        else:
            if isinstance(indices, (tuple, list)):
                indices = int_tensor("indices", indices if len(indices) > 0 else (-1,), INT32[0], INT32[1])
            _check_indices(spec(indices))
            if not compiling():
                self.check_room.indices(indices, self.batch)
            named = ops.equal(self.rows, ops.reshape(as_int32(indices), (1, -1)))
            kept = ops.logical_not(self.any(ops.cast(named, mstype.float32), 1) > 0)
            kept = ops.reshape(kept, (-1, 1))
        lengths = ops.select(ops.reshape(kept, (-1,)), self.lengths + 0, ops.zeros_like(self.lengths))
        if not self.keeps_blocks:
            tables = self.block_tables + 0
            kept = ops.logical_and(kept, ops.equal(tables, tables))
            tables = ops.select(kept, tables, tables * 0 - 1)
            lengths = ops.depend(lengths, tables)
            ops.assign(self.block_tables, tables)
        ops.assign(self.lengths, lengths)
        return lengths

    def extend_repr(self):
        kv_heads, (head_dim, value_head_dim) = self.key_cache.shape[2], self.widths
        shown = {"batch": self.batch, "max_length": self.max_length, "kv_heads": kv_heads, "head_dim": head_dim}
        shown |= {"value_head_dim": value_head_dim, "dtype": str(self.key_cache.dtype), "paged": self.paged}
        if self.paged:
            shown |= {"block_size": self.block_size, "num_blocks": self.num_blocks}
        return ", ".join(f"{name}={value}" for name, value in shown.items())


class _RoomCheck(nn.Cell):
    """Refuse tokens past the end and sequences that are not there, in PYNATIVE only.

    Reading the lengths at every step would wait for every step. So it counts the tokens that it sees, and reads the
    lengths before it raises. It does not see a compiled graph's tokens; the update itself notices these, if later.
    """

    def __init__(self, max_length: int):
        super().__init__()
        self.max_length, self.seen = max_length, 0

    def __call__(self, lengths, key, tokens):
        if not isinstance(key, Tensor) or key.ndim != 4 or not isinstance(tokens, (Tensor, type(None))):
            return  # the update raises the error
        seq = key.shape[1]
        if self.seen + seq > self.max_length:
            have = lengths.asnumpy().astype(np.int64)
            self.seen = int(have.max())
            counts = np.full(have.shape, seq) if tokens is None else tokens.asnumpy()
            if counts.shape == have.shape:
                longest = int(np.argmax(np.where(counts > 0, have + counts, 0)))
                check_room(int(have[longest] + counts[longest]), int(counts[longest]), self.max_length)
        self.seen += seq

    @staticmethod
    def indices(indices, batch: int):
        largest = int(indices.asnumpy().max(initial=-1))
        if largest >= batch:
            raise ValueError(f"indices: got {largest}, allowed are 0 to {batch - 1}, and negative numbers for none")

    def construct(self, lengths, key, tokens):
        return lengths


@compile_time
def _check_indices(described):
    given = tensor_spec("indices", described)
    check_dtype("indices", given.dtype, INTEGERS)
    if len(given.shape) != 1:
        raise ValueError(f"indices: got shape {given.shape}, allowed is one axis")
