"""A cache of keys and values for decoding."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore import dtype as mstype
from mindspore.common.initializer import initializer

from flash_attention.backends.cache_update import check_room
from flash_attention.paged import append_tokens, limited_attention
from flash_attention.problem.checks import check_int
from flash_attention.problem.paged import check_cache_dtype
from flash_attention.tensors import compiling


class KVCache(nn.Cell):
    """Keys and values of a batch of sequences, which grow token by token, and attention against them.

    Args:
        batch (int): sequences.
        max_length (int): most tokens of a sequence.
        kv_heads (int): heads of key and value.
        head_dim (int): size of a head of the key.
        value_head_dim (int): that of the value. Default: None, head_dim.
        dtype (mindspore.dtype): float16, bfloat16 or float32. Default: float16.
        paged (bool): store blocks of block_size tokens, handed out one by one as sequences grow, instead of a row of
            max_length tokens for each sequence. Default: False.
        block_size (int): tokens of a block. Default: 16.
        num_blocks (int): blocks of all sequences together; a sequence that finds none left fails. Default: None, enough
            for max_length tokens of each.

    Inputs:
        as of `attend`, after `update` with key and value:

        - **query** (Tensor) - (batch, seq, heads, head_dim).
        - **key**, **value** (Tensor) - (batch, seq, kv_heads, head_dim or value_head_dim).

    Outputs:
        Tensor (batch, seq, heads, value_head_dim).

    Raises:
        TypeError, ValueError: an argument or input is not allowed, or in PYNATIVE a sequence grows past max_length.
        RuntimeError: no block is left (on a CPU).

    A compiled graph cannot refuse tokens past max_length. They are not stored, `lengths` counts them, and the rows of
    their queries are NaN, here and at every later step. On a device the same goes for a sequence that finds no block
    left.

    The storage, the lengths and the block tables are Parameters, so that `update` works in GRAPH mode, PYNATIVE and
    @jit. Which block a sequence gets is decided when it is needed in the order of the sequences.

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
    ) -> None:
        super().__init__()
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        sizes = {"batch": batch, "max_length": max_length, "kv_heads": kv_heads, "head_dim": head_dim}
        for name, size in {**sizes, "value_head_dim": value_head_dim, "block_size": block_size}.items():
            check_int(name, size, 1)
        check_cache_dtype("dtype", str(dtype).lower())
        self.batch, self.max_length, self.paged = batch, max_length, paged
        # A contiguous cache is one block for each sequence.
        self.block_size = block_size if paged else max_length
        width = -(-max_length // self.block_size)
        if num_blocks is None or not paged:
            num_blocks = batch * width
        check_int("num_blocks", num_blocks, 1)
        self.num_blocks = num_blocks
        self.key_cache = _storage((num_blocks, self.block_size, kv_heads, head_dim), dtype, "key_cache")
        self.value_cache = _storage((num_blocks, self.block_size, kv_heads, value_head_dim), dtype, "value_cache")
        tables = np.full((batch, width), -1, np.int32) if paged else np.arange(batch, dtype=np.int32).reshape(-1, 1)
        self.block_tables = Parameter(Tensor(tables), name="block_tables", requires_grad=False)
        self.lengths = Parameter(Tensor(np.zeros(batch, np.int32)), name="lengths", requires_grad=False)
        self.used_blocks = Parameter(Tensor(np.zeros(1, np.int32)), name="used_blocks", requires_grad=False)
        self.check_room = _RoomCheck(max_length)

    def construct(self, query, key, value):
        self.update(key, value)
        return self.attend(query)

    def update(self, key: Tensor, value: Tensor) -> Tensor:
        """Appends (batch, seq, kv_heads, head_dim) keys, and values likewise, to every sequence.

        Returns:
            Tensor int32 (batch,), the lengths from now on.
        """
        # It returns a Tensor: MindSpore 2.0 leaves out calls of functions that return None, whatever they write.
        strict = not compiling()
        if strict:
            self.check_room(self.lengths, key)
        return append_tokens(
            *(key, value, self.key_cache, self.value_cache, self.block_tables, self.lengths, self.used_blocks),
            *(self.max_length, strict),
        )

    def attend(self, query: Tensor, **rules) -> Tensor:
        """Attention of (batch, seq, heads, head_dim) queries, the last tokens of their sequences, against the cache.

        `rules` are scale, softcap, window_size, alibi, sinks and backend of `paged_attention`.
        """
        caches = self.key_cache, self.value_cache, self.block_tables, self.lengths
        return limited_attention(query, *caches, self.max_length, **rules)

    def extend_repr(self):
        _, _, kv_heads, head_dim = self.key_cache.shape
        shown = {"batch": self.batch, "max_length": self.max_length, "kv_heads": kv_heads, "head_dim": head_dim}
        shown |= {"value_head_dim": self.value_cache.shape[-1], "dtype": str(self.key_cache.dtype), "paged": self.paged}
        if self.paged:
            shown |= {"block_size": self.block_size, "num_blocks": self.num_blocks}
        return ", ".join(f"{name}={value}" for name, value in shown.items())

    def reset(self) -> None:
        """Forgets everything; for calls outside of compiled graphs."""
        self.lengths.set_data(Tensor(np.zeros(self.batch, np.int32)))
        self.used_blocks.set_data(Tensor(np.zeros(1, np.int32)))
        if self.paged:
            self.block_tables.set_data(Tensor(np.full(self.block_tables.shape, -1, np.int32)))


class _RoomCheck(nn.Cell):
    """Refuses tokens past the end, in PYNATIVE only.

    Reading the lengths at every step would wait for every step. It counts what it sees, and looks before it complains.
    What it has not seen, a compiled graph's tokens, the update itself notices, if later.
    """

    def __init__(self, max_length: int):
        super().__init__()
        self.max_length, self.seen = max_length, 0

    def __call__(self, lengths, key):
        if not isinstance(key, Tensor) or key.ndim != 4:
            return  # what updates says what is allowed
        tokens = key.shape[1]
        if self.seen + tokens > self.max_length:
            self.seen = int(lengths.asnumpy().max())
            check_room(self.seen + tokens, tokens, self.max_length)
        self.seen += tokens

    def construct(self, lengths, key):
        return lengths


def _storage(shape: tuple, dtype, name: str) -> Parameter:
    # A device of MindSpore 2.0 cannot run `ops.zeros` in PYNATIVE: an operator whose output shape is data.
    return Parameter(initializer("zeros", shape, dtype), name=name, requires_grad=False)
