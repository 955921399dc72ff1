"""The Cells between a caller's tensors and the Cell of a backend: layouts, optional inputs, and checks of numbers."""

from __future__ import annotations

import operator
from typing import Callable

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.bridge.hiding import Hides
from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.tensors import address, as_ids, as_int32, constant, constant_lengths, read_integers
from flash_attention.bridge.versions import BFLOAT16
from flash_attention.call import Call
from flash_attention.call.checks import INT32, check_range
from flash_attention.call.layout import CALL_LAYOUTS, Layout
from flash_attention.call.names import Names, called
from flash_attention.call.optional import KV_SEGMENT_IDS, MASK, OPTIONAL, PREFIX, SEGMENT_IDS
from flash_attention.sharding.shard import TENSOR, Shard


class DenseCall(EntryCell):
    """Run one kind of call: a backend's cell, and steps that turn the caller's tensors into the backend's tensors."""

    def __init__(
        self,
        call: Call,
        run: nn.Cell,
        backend: str,
        layout: str,
        mask_rank: int,
        names: Names,
        wide_ids: bool,
        shard: Shard | None = None,
    ):
        super().__init__()
        self.run, self.backend = run, backend
        self.mask_rank = mask_rank
        compact = mask_rank and call.mask_shape is None
        self.check_triangle = TriangleCheck(call.rules.tile, names) if compact else None
        self.present = SelectInputs(call)
        looks = call.device == "CPU" and not call.dynamic
        self.check_prefix = self.check_ids = None
        if looks and call.prefix:
            self.check_prefix = NumberCheck(lambda prefix: check_range("prefix", prefix, call.seq_k), names)
        if looks and wide_ids:
            self.check_ids = NumberCheck(_check_ids, names)
        # The caller's layout becomes the layout that the backend takes.
        given, taken = CALL_LAYOUTS[call.layout], CALL_LAYOUTS[layout]
        widens = call.device == "CPU" and call.dtype == "bfloat16"
        of_query = call.heads, call.head_dim
        of_key, of_value = (call.kv_heads, call.head_dim), (call.kv_heads, call.value_dim)
        self.turns = nn.CellList(
            [ChangeLayout(given, taken, *sizes, call.batch, widens) for sizes in (of_query, of_key, of_value)]
        )
        self.turn_back = ChangeLayout(taken, given, call.heads, call.value_dim, call.batch, widens)
        self.hides, self.expand = Hides(), (ops.ExpandDims(), ops.ExpandDims())
        self.sharded = shard is not None
        if shard is not None:
            self._give_strategies(shard, given)

    def _give_strategies(self, shard: Shard, given: Layout):
        """Give strategies to operations. MindSpore gathers the tensors of an operation without a strategy.

        Casts and reshapes take the strategies around them.
        """
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
        if self.check_prefix is not None:
            self.check_prefix(inputs[PREFIX])
        if self.check_ids is not None:
            self.check_ids(inputs[SEGMENT_IDS], inputs[KV_SEGMENT_IDS])
        present = self.present(inputs)
        if self.check_triangle is not None:
            self.check_triangle(inputs[MASK])
        elif self.mask_rank > 0:
            present = (self.rank_4(present[0]),) + present[1:]
        output, logsumexp = self.run(query, key, value, present)
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


def _check_ids(*ids) -> None:
    """Raise an error unless int32, the backends' dtype for ids, holds them all."""
    for name, numbers in zip(("segment_ids", "kv_segment_ids"), ids):
        check_range(name, numbers, INT32[1], INT32[0])


class TriangleCheck(nn.Cell):
    """Refuse a compact mask that is not the strict upper triangle. Only PYNATIVE can: a graph sees no contents.

    Reading a tensor waits for all operations under way. So on a CPU, a mask that passed is compared in place, and read
    again only when it has moved. A write by an operation under way shows at the next call.
    """

    def __init__(self, tile: int, names: Names):
        super().__init__()
        self.tile, self.names = tile, names
        # The mask that passed, its address, its memory and a copy of that. They change together: another thread may
        # check another mask meanwhile.
        self.passed: list[tuple] = [(None, 0, None, b"")]

    def __call__(self, mask):
        place = address(mask)
        passed, address_before, memory, copy = self.passed[0]
        if mask is passed and place == address_before and (memory is None or memory.tobytes() == copy):
            return
        contents = mask.astype(mstype.float32).asnumpy().reshape(self.tile, self.tile)
        if not np.array_equal(contents != 0, np.triu(np.ones_like(contents), 1) != 0):
            with called(self.names):
                raise ValueError(
                    f"attention_mask: shape {mask.shape} stands for the compact causal mask, which is 1 strictly above "
                    "the diagonal and 0 elsewhere, but the contents are different; give the full (seq_q, seq_k) mask "
                    "instead"
                )
        if place is None:
            return
        # NumPy has no bfloat16, so `asnumpy` gives a copy of such a mask.
        in_place = ms.get_context("device_target") == "CPU" and mask.dtype != BFLOAT16
        memory = mask.asnumpy() if in_place else None
        self.passed[0] = mask, place, memory, b"" if memory is None else memory.tobytes()

    def construct(self, mask):
        return mask


class Widened(EntryCell):
    """Run a paged call whose caches are wider than query and values."""

    def __init__(self, run: nn.Cell, head_dim: int, width: int, value_head_dim: int | None, return_lse: bool):
        super().__init__()
        self.run, self.pad, self.value_head_dim = run, Padding(head_dim, width), value_head_dim
        self.return_lse = return_lse

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, inputs):
        result = self.run(self.pad(query), key_cache, value_cache, block_tables, context_lens, inputs)
        output = result[0] if self.return_lse else result
        if self.value_head_dim is not None:
            dtype = output.dtype
            output = ops.cast(ops.cast(output, mstype.float32)[..., : self.value_head_dim], dtype)
        return (output, result[1]) if self.return_lse else output


class Padding(EntryCell):
    """Append zeros to the last axis, through float32: a compiled graph on a CPU joins no bfloat16."""

    def __init__(self, size: int, width: int):
        super().__init__()
        self.missing = width - size
        self.zeros = Tensor(np.zeros(self.missing, np.float32))

    def construct(self, tensor):
        if self.missing == 0:
            return tensor
        wide = ops.cast(tensor, mstype.float32)
        zeros = ops.zeros_like(wide[..., :1]) + self.zeros
        return ops.cast(ops.concat((wide, zeros), -1), tensor.dtype)


class SelectInputs(nn.Cell):
    """Select the optional inputs that a call has, in the dtypes of backends. Inputs may be None.

    Inputs without a gradient are constants from here on, see `constant`.
    """

    def __init__(self, call: Call):
        super().__init__()
        #: For each input its place among all, whether it has a gradient, and the dtype in which a backend gets it;
        #: None: as it is. No graph compares None with a dtype.
        self.places = tuple(
            (
                *(place, one.gradient(call), one.cast and getattr(mstype, one.cast)),
                *(one.cast == "int32", one.name.endswith("segment_ids")),
            )
            for place, one in enumerate(OPTIONAL)
            if one.has(call)
        )

    def construct(self, inputs):
        present = ()
        for place, differentiated, dtype, integers, ids in self.places:
            tensor = inputs[place] if differentiated else constant(inputs[place])
            if ids:
                tensor = as_ids(tensor)
            elif integers:
                tensor = as_int32(tensor)
            elif dtype is not None and tensor.dtype != dtype:
                tensor = ops.cast(tensor, dtype)
            present = present + (tensor,)
        return present


class WithSelectedInputs(EntryCell):
    """Call a backend's cell with five tensors and the call's optional inputs. The caller gives all optional inputs of a
    call.

    Args:
        run: the cell.
        call: what it runs.
        check: check of the numbers in the last two tensors and the prefix, or None.
    """

    def __init__(self, run: nn.Cell, call: Call, check: NumberCheck | None = None):
        super().__init__()
        self.run, self.present, self.check = run, SelectInputs(call), check
        # Behind the check of the numbers that came. Those in a tuple are int32.
        self.narrows = call.kind == "paged" and call.paged.padding is None and not call.paged.left_padding

    def construct(self, query, key, value, first, second, inputs):
        if self.check is not None:
            self.check(first, second, inputs[PREFIX])
        first, second = constant_lengths(first), constant_lengths(second)
        if self.narrows:
            first, second = as_int32(first), as_int32(second)
        return self.run(query, key, value, first, second, self.present(inputs))


class ChangeLayout(nn.Cell):
    """Bring a tensor of one layout into another one.

    Args:
        heads, head_dim: of the tensor; heads -1: whatever it has.
        batch: needed if a layout does not show it.
        widens: goes through float32 for bfloat16, for which compiled graphs on a CPU have none of the operations.
    """

    def __init__(self, given: Layout, wanted: Layout, heads: int, head_dim: int, batch: int = -1, widens: bool = False):
        super().__init__()
        self.apart, self.width = (heads, head_dim), heads * head_dim if heads > 0 else -1
        self.batch, self.widens = batch, widens
        self.same = given == wanted
        self.order = given.order(wanted)
        self.given_rank, self.rank = len(given.axes), len(wanted.axes)
        self.transpose = ops.Transpose()

    def construct(self, tensor):
        if self.same:
            return tensor
        dtype = tensor.dtype
        if self.widens:
            tensor = ops.cast(tensor, mstype.float32)
        rank = self.given_rank
        if self.order is not None:
            if rank < 4:
                tensor = self.of_rank(tensor, 4, rank)
            tensor, rank = self.transpose(tensor, self.order), 4
        if rank != self.rank:
            tensor = self.of_rank(tensor, self.rank, rank)
        return ops.cast(tensor, dtype) if self.widens else tensor

    def of_rank(self, tensor, rank, given_rank):
        """Split or merge heads and head_dim, the last axes of a tensor."""
        if rank == 2:
            return ops.reshape(tensor, (-1, self.width))
        first = (self.batch, -1) if given_rank == 2 else tensor.shape[:2]
        return ops.reshape(tensor, first + (self.apart if rank == 4 else (self.width,)))


class NumberCheck(nn.Cell):
    """Look at the numbers in small tensors of integers when a call is made. A graph does not.

    MindSpore runs operators later, and hands their errors to the code that waits next. Reading a tensor that an
    operator made, or has read, waits for all operators under way. So the same tensors are not read again once they
    passed. A tensor that Python has just made is read without waiting.

    Args:
        check: a function of the arrays, None among them, that raises; or None.
        names: the caller's names of the arguments, for errors.
    """

    def __init__(self, check: Callable | None, names: Names = ()):
        super().__init__()
        self.check = (check,)  # wrapped: an attribute of a Cell that is a function counts as its method
        self.names = names
        # The layers of a network share them, and several batches may alternate. A tuple in a place: another thread may
        # read the earlier one meanwhile.
        self.passed: list[tuple] = [()]

    def __call__(self, *tensors):
        if self.check[0] is None:
            return
        if any(all(map(operator.is_, tensors, earlier)) for earlier in self.passed[0]):
            return
        with called(self.names):
            self.check[0](*map(read_integers, tensors))
        self.passed[0] = (*self.passed[0][-15:], tensors)

    def construct(self, *tensors):
        return tensors
