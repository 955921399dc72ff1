"""Compiled programs: control flow, scalars and elements, prepared calls (core.md 2, 3)."""

import contextlib

import numpy as np
import pytest
import tikemu
from tikemu import Options, TikBoundsError, TikParamError, TikUnsupportedError, TikWarning, tik

from emulator.tests.support.kernels import program, values

# ------------------------------------------------------------------------------------------------ control flow


def test_run_time_loop_bounds(kernel):
    n = kernel.InputScalar("int32", "n")
    with program(kernel, inputs=[n]) as out:
        count = kernel.Scalar("int32", init_value=0)
        with kernel.for_range(2, n):
            count.set_as(count + 1)
        out[0].set_as(count)
    assert values(kernel, {"n": 6})[0] == 4
    with pytest.warns(TikWarning, match="bounds of for_range"):
        assert values(kernel, {"n": 1})[0] == 0
    with pytest.raises(TikParamError, match="bounds of for_range"):
        values(kernel, {"n": 1}, strict=True)


def test_run_time_loop_from_a_negative_begin(kernel):
    n = kernel.InputScalar("int32", "n")
    with program(kernel, inputs=[n]) as out, kernel.for_range(n, 3):
        out[0].set_as(1)
    with pytest.raises(TikBoundsError, match="got begint -1 and endt 3"):
        values(kernel, {"n": -1})


def test_four_hundred_branches(kernel):
    n = kernel.InputScalar("int32", "n")
    with program(kernel, inputs=[n]) as out:
        with kernel.if_scope(n == 0):
            out[0].set_as(1000)
        for case in range(1, 400):
            with kernel.elif_scope(n == case):
                out[0].set_as(case)
    assert [values(kernel, {"n": n})[0] for n in (0, 1, 399)] == [1000, 1, 399]


def test_deeply_nested_scopes(kernel):
    with program(kernel) as out:
        n = kernel.Scalar("int32", init_value=1)

        def nest(level):
            if level == 0:
                out[0].set_as(7)
                return
            with kernel.if_scope(n == 1):
                nest(level - 1)

        nest(60)
    assert values(kernel)[0] == 7


def test_sums_of_many_terms(kernel):
    """A loop in Python adds a Scalar to an offset again and again."""
    source, target = (kernel.Tensor("int32", (2048,), tik.scope_gm, name) for name in ("source", "target"))
    one = kernel.InputScalar("int32", "one")
    held = kernel.Tensor("int32", (8,), tik.scope_ubuf, "held")
    offset = one
    for _ in range(1500):
        offset = offset + one
    kernel.data_move(held, source[offset : offset + 8], 0, 1, 1, 0, 0)
    kernel.data_move(target, held, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [source, one], [target])
    data = np.arange(2048, dtype=np.int32)
    assert tikemu.run(kernel, {"source": data, "one": 1}).outputs["target"][:2].tolist() == [1501, 1502]


@pytest.mark.parametrize("levels", [25, 120])
def test_loops_that_python_refuses(kernel, levels):
    """Python compiles 19 loops inside each other, and 99 levels. An error says so at a line of the program."""
    with contextlib.ExitStack() as loops:
        for _ in range(levels):
            loops.enter_context(kernel.for_range(0, 1))
    kernel.BuildCCE("kernel", [], [])
    with pytest.raises(TikUnsupportedError, match="nested too deeply") as caught:
        tikemu.run(kernel, {})
    assert caught.value.location.text == "loops.enter_context(kernel.for_range(0, 1))"


def test_long_unrolled_programs(kernel):
    """Python loops around instructions give thousands of statements."""
    one = kernel.Tensor("int32", (8,), tik.scope_ubuf, "one")
    kernel.vector_dup(8, one, 1, 1, 1, 8)
    with program(kernel) as out:
        kernel.vector_dup(8, out, 0, 1, 1, 8)
        for _ in range(5000):
            kernel.vec_add(8, out, out, one, 1, 8, 8, 8)
    assert values(kernel) == [5000] * 8


# ------------------------------------------------------------------------------------------------ scalars and elements


def test_scalar_array_index_out_of_range(kernel):
    with program(kernel):
        array = kernel.ScalarArray("int32", 4, "array", init_value=0)
        with kernel.for_range(3, 5) as i:
            array[i].set_as(1)
    with pytest.raises(TikBoundsError, match="index 4 is out of range for a ScalarArray of length 4"):
        values(kernel)


@pytest.mark.parametrize("read", [True, False])
def test_element_out_of_range_names_line_and_tensor(kernel, read):
    n = kernel.InputScalar("int32", "n")
    with program(kernel, inputs=[n]) as out:
        value = kernel.Scalar("int32", init_value=0)
        if read:
            value.set_as(out[n])
        else:
            out[n].set_as(value)
    values(kernel, {"n": 7})
    for index in (8, -1):
        with pytest.raises(TikBoundsError, match=f"element {index} of tensor 'out'.*8 elements(.|\n)*test_execute"):
            values(kernel, {"n": index})


def test_operand_outside_its_tensor(kernel):
    n = kernel.InputScalar("int32", "n")
    with program(kernel, 16, inputs=[n]) as out:
        kernel.vec_add(8, out[n], out, out, 1, 8, 8, 8)
    values(kernel, {"n": 8})
    with pytest.raises(TikBoundsError, match=r"'out' is accessed at element 24(.|\n)*vec_add"):
        values(kernel, {"n": 24})


def test_run_time_shape_beyond_its_reserve(kernel):
    n = kernel.InputScalar("int32", "n")
    with program(kernel, inputs=[n]) as out:
        held = kernel.Tensor("int32", (n, 8), tik.scope_ubuf, "held", max_mem_size=128)
        kernel.vector_dup(8, held, 3, 1, 1, 8)
        kernel.data_move(out, held, 0, 1, 1, 0, 0)
    assert values(kernel, {"n": 4}) == [3] * 8
    for numerics in (True, False):
        with pytest.raises(TikBoundsError, match="The space required exceeds max_mem_size: tensor 'held' needs 160"):
            tikemu.run(kernel, {"n": 5}, numerics=numerics)


def test_shape_that_grows_after_the_definition(kernel):
    with program(kernel):
        n = kernel.Scalar("int32", init_value=1)
        held = kernel.Tensor("int32", (n, 8), tik.scope_ubuf, "held", max_mem_size=64)
        with kernel.for_range(0, 3):
            kernel.vector_dup(8, held, 3, 1, 1, 8)
            n.set_as(n + 1)
    with pytest.raises(TikBoundsError, match="exceeds max_mem_size(.|\n)*vector_dup"):
        values(kernel)


def test_run_time_slice_beyond_the_tensor(kernel):
    n = kernel.InputScalar("int32", "n")
    with program(kernel, inputs=[n]) as out:
        kernel.vector_dup(8, out[0:n], 3, 1, 1, 8)
    assert values(kernel, {"n": 8}) == [3] * 8
    with pytest.raises(TikBoundsError, match="slice of tensor 'out' ends at element 9, but it has 8"):
        values(kernel, {"n": 9})


def test_an_instruction_with_repeat_0_touches_nothing(kernel):
    """A shipped operator ends its loop with such a call, one row behind its tensor."""
    n = kernel.InputScalar("int32", "n")
    data = kernel.Tensor("float32", (2, 64), tik.scope_ubuf, "data")
    with kernel.for_range(0, 2) as i:
        kernel.vec_dup(64, data[i + 1, 0], 0.0, (1 - i) + n, 8)
    kernel.BuildCCE("k", [n], [])
    tikemu.run(kernel, {"n": 0})
    with pytest.raises(TikBoundsError, match="'data'"):
        tikemu.run(kernel, {"n": 1})


# ------------------------------------------------------------------------------------------------ caches
def test_float_arguments_with_equal_keys_stay_apart(kernel):
    """0.0 and -0.0 are equal as dictionary keys, but 1/x differs."""
    source = kernel.Tensor("float32", (8,), tik.scope_gm, "source")
    with program(kernel, 32, "float32", [source]) as out:
        held = kernel.Tensor("float32", (8,), tik.scope_ubuf, "held")
        kernel.data_move(held, source, 0, 1, 1, 0, 0)
        value = kernel.Scalar("float32")
        with kernel.for_range(0, 4) as i:
            value.set_as(held[i])
            kernel.vector_dup(8, out[i * 8], value, 1, 1, 8)
    data = np.array([0.0, -0.0, np.nan, -0.0, 0, 0, 0, 0], np.float32)
    got = tikemu.run(kernel, {"source": data}).outputs["target"].reshape(4, 8)
    np.testing.assert_array_equal(got[:, 0].view(np.uint32), data[:4].view(np.uint32))


def test_more_distinct_arguments_than_the_cache_holds(kernel, monkeypatch):
    monkeypatch.setattr("tikemu.machine.calls.site.LIMIT", 3)
    source = kernel.Tensor("int32", (128,), tik.scope_gm, "source")
    with program(kernel, 128, inputs=[source]) as out, kernel.for_range(0, 2), kernel.for_range(0, 16) as i:
        kernel.data_move(out[i * 8], source[i * 8], 0, 1, 1, 0, 0)
    data = np.arange(128, dtype=np.int32)
    result = tikemu.run(kernel, {"source": data})
    np.testing.assert_array_equal(result.outputs["target"], data)
    assert result.instructions["data_move"].count == 33
    assert result.gm_read_bytes == 2 * 512
    assert tikemu.run(kernel, {}, numerics=False).cycles == result.cycles


def test_more_footprints_than_are_kept(kernel, monkeypatch):
    """Dropping old footprints changes no results, and of the time only flags that would not be waited for."""
    source = kernel.Tensor("int32", (512,), tik.scope_gm, "source")
    with program(kernel, 512, inputs=[source]) as out, kernel.for_range(0, 3), kernel.for_range(0, 64) as i:
        kernel.data_move(out[i * 8], source[i * 8], 0, 1, 1, 0, 0)
        kernel.vec_add(8, out[i * 8], out[i * 8], out[i * 8], 1, 8, 8, 8)
    data = np.arange(512, dtype=np.int32)
    options = Options(sync="optimistic")
    expected = tikemu.run(kernel, {"source": data}, options=options)
    monkeypatch.setattr("tikemu.timing.footprints.LIMIT", 40)
    got = tikemu.run(kernel, {"source": data}, options=options)
    np.testing.assert_array_equal(got.outputs["target"], 2 * data)
    assert got.cycles == pytest.approx(expected.cycles, rel=0.1)
    assert {name: use.count for name, use in got.instructions.items()} == {
        name: use.count for name, use in expected.instructions.items()
    }
