"""Test strict mode on programs with a fault: stopped, listed, left out by class."""

import warnings

import numpy as np
import pytest
import tikemu
from tikemu import Options, TikError, TikSyncError, TikUndefinedError
from tikemu.isa.micro_op import Access, MicroOp, Operand
from tikemu.isa.region import Memory, Region
from tikemu.machine.memories import poison
from tikemu.machine.strict import guarded

from emulator.tests.support import strict_programs
from emulator.tests.support.bench import Judgement
from emulator.tests.support.strict_programs import CASES, gm, ub

pytestmark = pytest.mark.usefixtures("soc", "quiet")
VARIANTS = [(name, variant) for name, case in CASES.items() for variant in case.faults]
FAULTS = [(name, variant) for name, variant in VARIANTS if CASES[name].kind and CASES[name].faults[variant]]


@pytest.mark.parametrize("name, variant", VARIANTS)
def test_strict_mode_stops_at_the_fault_and_default_mode_does_not(name, variant):
    case = CASES[name]
    kernel, feeds, more = case.build(variant)
    options = more.get("options", {})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = tikemu.run(kernel, feeds, options=Options(**options))
    assert case.kind != "race" or not said
    assert "holds" not in more or more["holds"](*result.outputs.values())
    strict = Options(strict=True, **options)
    if not case.faults[variant]:
        tikemu.run(kernel, feeds, options=strict)
        return
    with pytest.raises(TikError, match=case.message) as caught:
        tikemu.run(kernel, feeds, options=strict)
    assert isinstance(caught.value, case.error) and strict_programs.__file__ in str(caught.value)


@pytest.mark.parametrize("name, variant", FAULTS)
def test_findings_are_listed_and_left_out(name, variant):
    """In a run, and while the program is recorded."""
    case = CASES[name]
    kernel, feeds, more = case.build(variant)
    options = {"strict": True, **more.get("options", {})}
    with pytest.raises(TikError) as caught:
        tikemu.run(kernel, feeds, options=Options(**options))
    listing = Options(findings="all", **options)
    found = tikemu.run(kernel, feeds, options=listing).findings
    assert tikemu.run(kernel, feeds, options=listing).findings == found
    assert {finding.kind for finding in found} == {case.kind}
    first = found[0]
    assert first.error is type(caught.value) and first.message == caught.value.message
    assert first.location == caught.value.location and first.moment == caught.value.moment
    assert first.location.file == strict_programs.__file__
    for mode in ("first", "all"):
        left = Options(findings=mode, leave_out=(case.kind,), **options)
        assert tikemu.run(kernel, feeds, options=left).findings == ()
    with tikemu.use_options(listing):
        kernel, feeds, _ = case.build(variant)
    assert [finding.kind for finding in tikemu.run(kernel, feeds, options=listing).findings] == [case.kind] * len(found)
    with tikemu.use_options(Options(leave_out=(case.kind,), **options)):
        kernel, feeds, _ = case.build(variant)
        kernel.tikdb.start_debug(feeds, interactive=False)


def test_contents_that_nothing_has_written(kernel, capsys):
    """Default mode shows zeros at the start of a block, strict mode 0xDEAD."""
    out, a = gm(kernel, "out", 16, "uint16"), ub(kernel, "a", 16, "uint16")
    kernel.data_move(out, a, 0, 1, 1, 0, 0)
    kernel.tikdb.debug_print("hex(a[3])")
    kernel.BuildCCE("kernel", [], [out])
    assert not tikemu.run(kernel, {}).outputs["out"].any()
    with pytest.raises(TikUndefinedError):
        tikemu.run(kernel, {}, options=Options(strict=True))
    assert capsys.readouterr().out.split() == ["hex(a[3])", "=", "0x0", "hex(a[3])", "=", "0xdead"]


@pytest.mark.parametrize("copies", [1, 2])
def test_a_definition_clears_nothing_in_default_mode(kernel, copies):
    """A tensor keeps the contents of the iteration before, as on the chip; MindSpore's img2col relies on this."""
    out = gm(kernel, "out", 32, "float32")
    with kernel.for_range(0, 4, thread_num=copies) as i:
        a = ub(kernel, "a", 64, "float32")
        kernel.vec_adds(8, a, a, 1.0, 1, 8, 8)
        kernel.data_move(out[i * 8], a, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [], [out])
    np.testing.assert_array_equal(tikemu.run(kernel, {}).outputs["out"], np.repeat(np.arange(4) // copies + 1, 8))
    with pytest.raises(TikUndefinedError):
        tikemu.run(kernel, {}, options=Options(strict=True))


def test_races_are_found_without_numerics(kernel):
    source, target, a = gm(kernel, "source"), gm(kernel, "target"), ub(kernel, "a")
    with kernel.new_stmt_scope(disable_sync=True):
        kernel.data_move(a, source, 0, 1, 8, 0, 0)
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
    kernel.BuildCCE("kernel", [source], [target])
    with pytest.raises(TikSyncError):
        tikemu.run(kernel, {}, numerics=False, options=Options(strict=True))


# ------------------------------------------------------------------------------------------- marks of defined bytes
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
