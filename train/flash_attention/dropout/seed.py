"""Draw the seeds of dropout. Every training call gets a fresh seed, repeatable by `mindspore.set_seed`.

A seed is int64 (2,), see `flash_attention.backends.base.Backend.build`.
"""

from __future__ import annotations

import zlib

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import constexpr

from flash_attention.bridge.seeds import draw, draw_tensor, tracing


class DropoutSeed(nn.Cell):
    """Give the seed of one training call: a number fixed when the cell was made, and the count of calls.

    Both are held in a Parameter, which a checkpoint keeps, bit by bit as 0.0 and 1.0. So no cast of a network's
    Parameters changes them. An average with Parameters of the same network keeps the fixed number. GRAPH and PYNATIVE
    give the same seeds. `copy.deepcopy` gives a copy a number of its own, which follows from the original's number;
    `pickle` keeps number and count.

    Args:
        seed: the fixed number, of which the low 32 bits count; drawn by `draw` when None.
        count: number of calls before, modulo 2**32.
    """

    def __init__(self, seed: int | None = None, count: int = 0):
        super().__init__()
        first = _hash(draw()) if seed is None else seed
        self.bits = Parameter(Tensor(_bits_of(first, count)), name="bits", requires_grad=False)
        self.copies = 0
        self.check_dtype = constexpr(reuse_result=False)(lambda dtype, bits=self.bits: _check_dtype(bits, dtype))
        # Integers: mixed precision casts other constants of a graph. Halves of 16 bits: a device sums float32 only.
        places = np.arange(_BITS)
        self.powers, self.step = Tensor(1 << places, ms.int64), Tensor([0, 1], ms.int64)
        self.halves = tuple(Tensor(np.where(places // 16 == half, 1 << places % 16, 0), ms.int64) for half in (0, 1))
        self.read, self.cast = _whole(ops.Greater(), (2, 0)), _whole(ops.Cast(), (2,))
        self.multiply, self.add_up = _whole(ops.Mul(), (2, 1)), _whole(ops.ReduceSum(), (2,))
        self.shift, self.add = _whole(ops.Mul(), (1, 0)), _whole(ops.Add(), (1, 1))
        self.apart, self.of_place = _whole(ops.ExpandDims(), (1,)), _whole(ops.BitwiseAnd(), (2, 1))
        self.is_set, self.write = _whole(ops.NotEqual(), (2, 0)), _whole(ops.Assign(), (2, 2))

    def __call__(self):
        # PYNATIVE calls a cell and so comes here. A compiled graph contains `construct` instead. So must a traced
        # graph, or it would repeat the seed of the call that was traced.
        if tracing():
            return self.construct()
        return _count_up(self.bits)

    def construct(self):
        self.check_dtype(self.bits.dtype)
        bits = self.cast(self.read(self.cast(self.bits, ms.float32), 0.5), ms.float32)
        low, high = self.half(bits, self.halves[0]), self.half(bits, self.halves[1])
        seed = self.add(self.add(low, self.shift(high, 65536)), self.step)
        bits = self.is_set(self.of_place(self.apart(seed, -1), self.powers), 0)
        self.write(self.bits, self.cast(bits, self.bits.dtype))
        return seed

    def half(self, bits, powers):
        """Return the numbers, int64 (2,), that half of the bits stand for."""
        return self.cast(self.add_up(self.multiply(bits, self.cast(powers, ms.float32)), -1), ms.int64)

    def numbers(self) -> tuple[int, int]:
        """Return the fixed number and the count of calls."""
        return _numbers_of(self.bits)

    def __deepcopy__(self, memo):
        self.copies += 1
        duplicate = DropoutSeed(_hash((self.numbers()[0], self.copies)))
        duplicate.bits.name = self.bits.name
        return duplicate

    def __reduce__(self):
        return DropoutSeed, self.numbers()


def _check_dtype(bits: Parameter, dtype) -> None:
    """Refuse bfloat16 in a graph on a CPU, which cannot copy it (TensorMove)."""
    if "BFloat16" in str(dtype) and ms.get_context("device_target") == "CPU":
        raise TypeError(
            f"{bits.name}: got bfloat16 in a compiled graph on a CPU, allowed are float32 and float16; leave it out of "
            "casts to bfloat16, or use PYNATIVE"
        )


_BITS = 32


def _whole(primitive, ranks: tuple):
    """Return a primitive that no device recomputes or splits. `ranks` are the numbers of axes of its inputs.

    The backward pass must see the seed of the forward pass. The strategy is the attribute that `shard` sets, because
    MindSpore 2.0 warns of `shard` if nothing is parallel.
    """
    strategy = tuple((1,) * rank for rank in ranks)
    return primitive.add_prim_attr("recompute", False).add_prim_attr("in_strategy", strategy)


def _bits_of(first: int, count: int) -> np.ndarray:
    words = np.array([[first % (1 << _BITS)], [count % (1 << _BITS)]], np.int64)
    return (words >> np.arange(_BITS) & 1).astype(np.float32)


def _numbers_of(state: Parameter) -> tuple[int, int]:
    # `asnumpy` first: a cast reads what the Parameter held before the gradient of a traced function.
    words = (state.asnumpy().astype(np.float32) > 0.5) @ (1 << np.arange(_BITS))
    return int(words[0]), int(words[1])


def _hash(numbers: tuple) -> int:
    return zlib.crc32(repr(numbers).encode())


def _count_up(state: Parameter) -> Tensor:
    def next_seed():
        first, count = _numbers_of(state)
        state.set_data(Tensor(_bits_of(first, count + 1), state.dtype))
        return _numbers_of(state)

    return draw_tensor(next_seed, id(state))
