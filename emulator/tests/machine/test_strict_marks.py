"""The marks of defined bytes in strict mode, with and without the compiled helper."""

import numpy as np
import pytest
from tikemu.errors import TikUndefinedError
from tikemu.isa.micro_op import Access, MicroOp, Operand
from tikemu.isa.region import Memory, Region
from tikemu.machine.memories import poison
from tikemu.machine.strict import guarded

from emulator.tests.support.bench import Judgement

SIZE = 4096
PIECES = [
    ((0, 1, 0, 1, 0, 1),),
    ((5, 1, 0, 1, 0, 300),),
    ((64, 7, 96, 1, 0, 32),),
    ((32, 4, 512, 8, 48, 32), (3000, 1, 0, 1, 0, 17)),
]


def _operation(memory, reads, writes):
    """Return an operation that does nothing but read and write."""
    operand = Operand(memory, 0, 0, SIZE, "uint8", (SIZE,), (1,), "tensor")
    return MicroOp("name", "V", 1.0, 0.0, (Access(operand, reads),), (Access(operand, writes),), None)


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("pieces", PIECES)
def test_every_byte_of_a_region_counts_and_no_other(pieces):
    memory = Memory("UB", "UB", SIZE, True)
    region = Region(memory, pieces)
    run = guarded(_operation(memory, region, Region.span(memory, 0, 1)), True, None, Judgement(True).report)
    inside = region.bitmap(0, SIZE)
    memory.defined[...] = inside
    run()
    edges = np.flatnonzero(np.diff(inside.astype(int), prepend=0, append=0))
    for byte in sorted({0, SIZE - 1, *edges.tolist(), *(edges - 1).tolist()} & set(range(SIZE))):
        memory.defined[...] = 1
        memory.defined[byte] = 0
        if inside[byte]:
            with pytest.raises(TikUndefinedError, match=rf"reads 1 undefined bytes.*element {byte} is the first"):
                run()
        else:
            run()


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("pieces", PIECES)
def test_what_is_written_becomes_defined_and_nothing_else(pieces):
    memory = Memory("UB", "UB", SIZE, True)
    region = Region(memory, pieces)
    memory.defined[0] = 1
    guarded(_operation(memory, Region.span(memory, 0, 1), region), True, None, Judgement(True).report)()
    expected = region.bitmap(0, SIZE).copy()
    expected[0] = True
    assert (memory.defined == expected).all()


@pytest.mark.parametrize("length", [1, 2, 33, 64])
def test_poison_fills_exactly_the_bytes_of_a_tensor(length):
    memory = Memory("UB", "UB", 128, True)
    memory.data[...], memory.defined[...] = 7, 1
    poison(memory, 32, 32 + length)
    pattern = np.tile(np.array([0xAD, 0xDE], np.uint8), 64)[:length]
    np.testing.assert_array_equal(memory.data[32 : 32 + length], pattern)
    assert not memory.defined[32 : 32 + length].any()
    assert (np.delete(memory.data, np.s_[32 : 32 + length]) == 7).all()
    assert (np.delete(memory.defined, np.s_[32 : 32 + length]) == 1).all()
