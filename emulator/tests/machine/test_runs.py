"""Runs of a built program: without numerics, again, with other inputs (core.md 5; D30)."""

import gc
import weakref
from typing import Union, get_type_hints

import numpy as np
import pytest
import tikemu
from tikemu import Options, TikBoundsError, TikParamError, TikWarning, tik
from tikemu.program import ir

from emulator.tests.support.kernels import program, values


# ------------------------------------------------------------------------------------------------ without numerics
def test_without_numerics_data_that_decide_the_course_are_computed(kernel):
    source = kernel.Tensor("int32", (8,), tik.scope_gm, "source")
    bulk = kernel.Tensor("float16", (1024,), tik.scope_gm, "bulk")
    target = kernel.Tensor("float16", (1024,), tik.scope_gm, "target")
    held = kernel.Tensor("int32", (8,), tik.scope_ubuf, "held")
    doubled = kernel.Tensor("int32", (8,), tik.scope_ubuf, "doubled")
    work = kernel.Tensor("float16", (1024,), tik.scope_ubuf, "work")
    kernel.data_move(held, source, 0, 1, 1, 0, 0)
    kernel.vec_add(8, doubled, held, held, 1, 8, 8, 8)
    count = kernel.Scalar("int32")
    count.set_as(doubled[0])
    factor = kernel.Scalar("float16", init_value=2.0)
    kernel.data_move(work, bulk, 0, 1, 64, 0, 0)
    with kernel.for_range(0, count) as i:
        kernel.vec_muls(128, work, work, factor, 8, 8, 8)
        factor.set_as(work[i])
    kernel.data_move(target, work, 0, 1, 64, 0, 0)
    kernel.BuildCCE("kernel", [source, bulk], [target])
    feeds = {"source": np.full(8, 3, np.int32), "bulk": np.ones(1024, np.float16)}
    full = tikemu.run(kernel, feeds)
    alone = tikemu.run(kernel, {"source": feeds["source"]}, numerics=False)
    assert alone.cycles == full.cycles
    assert alone.instructions["vec_muls"].count == 6
    assert not alone.outputs["target"].any()
    assert full.outputs["target"][0] == 65504


def test_without_numerics_offsets_share_prepared_calls_but_not_bounds(kernel):
    source = kernel.Tensor("float16", (4096,), tik.scope_gm, "source")
    n = kernel.InputScalar("int32", "n")
    with kernel.for_range(0, n) as i:
        held = kernel.Tensor("float16", (64,), tik.scope_ubuf, "held")
        kernel.data_move(held, source[i * 64], 0, 1, 4, 0, 0)
    kernel.BuildCCE("kernel", [source, n], [])
    data = np.zeros(4096, np.float16)
    assert tikemu.run(kernel, {"n": 64}, numerics=False).cycles == tikemu.run(kernel, {"n": 64, "source": data}).cycles
    for numerics in (False, True):
        with pytest.raises(TikBoundsError, match="'source'"):
            tikemu.run(kernel, {"n": 65, "source": data}, numerics=numerics)


# ------------------------------------------------------------------------------------------------ running again
def accumulate(instance):
    """Add ``n * source`` to ``target`` in two blocks; return the kernel and its truth."""
    source = instance.Tensor("float32", (128,), tik.scope_gm, "source")
    target = instance.Tensor("float32", (128,), tik.scope_gm, "target", is_atomic_add=True)
    n = instance.InputScalar("int32", "n")
    with instance.for_range(0, 2, block_num=2) as block:
        held = instance.Tensor("float32", (64,), tik.scope_ubuf, "held")
        instance.data_move(held, source[block * 64], 0, 1, 8, 0, 0)
        instance.set_atomic_add(1)
        with instance.for_range(0, n):
            instance.data_move(target[block * 64], held, 0, 1, 8, 0, 0)
        instance.set_atomic_add(0)
    instance.BuildCCE("kernel", [source, n], [target])
    return instance, lambda data, count: count * data


@pytest.mark.parametrize(
    "options", [Options(), Options(strict=True), Options(l2=True)], ids=["default", "strict", "l2"]
)
def test_a_second_run_starts_anew(kernel, options):
    """The prepared program is used again: contents, counts and time must not be."""
    _, expected = accumulate(kernel)
    fresh, _ = accumulate(tik.Tik())
    first = np.arange(128, dtype=np.float32)
    tikemu.run(kernel, {"source": first, "n": 3}, options=options)
    for data, n in ((first[::-1].copy(), 2), (first, 3), (first, 0)):
        again = tikemu.run(kernel, {"source": data, "n": n}, options=options)
        np.testing.assert_array_equal(again.outputs["target"], expected(data, n))
    once = tikemu.run(fresh, {"source": first, "n": 2}, options=options)
    again = tikemu.run(kernel, {"source": first, "n": 2}, options=options)
    for name in (
        *("cycles", "core_cycles", "instructions", "pipes", "waits", "events_in_flight", "sync_flags", "gm_read_bytes"),
        *("gm_written_bytes", "memory_floor", "constants", "code_bytes"),
    ):
        assert getattr(again, name) == getattr(once, name), name


def test_other_options_and_sizes_take_effect_in_a_second_run(kernel):
    source = kernel.Tensor("float16", (2**31 - 1,), tik.scope_gm, "source")
    held = kernel.Tensor("float16", (64,), tik.scope_ubuf, "held")
    with kernel.for_range(0, 4) as i:
        kernel.data_move(held, source[i * 64], 0, 1, 4, 0, 0)
    kernel.BuildCCE("kernel", [source], [])
    large, small = np.zeros(256, np.float16), np.zeros(192, np.float16)
    assert tikemu.run(kernel, {"source": large}).cycles > 0
    assert tikemu.run(kernel, {"source": large}, timing=False).cycles is None
    assert (
        tikemu.run(kernel, {"source": large}, options=Options(constants={"gm_read_latency": 1000})).cycles
        > tikemu.run(kernel, {"source": large}).cycles
    )
    for _ in range(2):
        with pytest.raises(TikBoundsError):
            tikemu.run(kernel, {"source": small})
        tikemu.run(kernel, {"source": large})


def test_warnings_come_in_every_run(kernel):
    n = kernel.InputScalar("int32", "n")
    with program(kernel, inputs=[n]) as out:
        out[0].set_as(0)
        with kernel.for_range(3, n):
            out[0].set_as(1)
    for _ in range(2):
        with pytest.warns(TikWarning, match="bounds of for_range"):
            values(kernel, {"n": 1})


def test_programs_are_released_with_their_prepared_run(kernel):
    instance, _ = accumulate(tik.Tik())
    tikemu.run(instance, {"source": np.zeros(128, np.float32), "n": 1})
    alive = weakref.ref(instance._recorder.program)
    instance, _ = accumulate(kernel)  # the kernel built last is remembered
    gc.collect()
    assert alive() is None


# ------------------------------------------------------------------------------------------------ inputs and outputs
def copy_kernel(instance, **fields):
    """Return a built kernel that copies half of a GM tensor to another."""
    source = instance.Tensor("float16", (4, 16), tik.scope_gm, "source")
    target = instance.Tensor("float16", (4, 16), tik.scope_gm, "target", **fields)
    held = instance.Tensor("float16", (64,), tik.scope_ubuf, "held")
    instance.data_move(held, source, 0, 1, 4, 0, 0)
    instance.data_move(target, held, 0, 1, 2, 0, 0)
    instance.BuildCCE("kernel", [source], [target])
    return instance


DATA = np.arange(64, dtype=np.float16).reshape(4, 16)


def test_outputs_have_the_declared_shape_and_unfed_parts_are_zero(kernel):
    out = tikemu.run(copy_kernel(kernel), {"source": DATA}).outputs["target"]
    np.testing.assert_array_equal(out, np.concatenate([DATA[:2], np.zeros((2, 16), np.float16)]))


def test_an_output_may_be_fed_with_its_initial_content(kernel):
    out = tikemu.run(copy_kernel(kernel), {"source": DATA, "target": DATA + 1}).outputs["target"]
    np.testing.assert_array_equal(out, np.concatenate([DATA[:2], DATA[2:] + 1]))


def test_another_shape_of_the_same_size_is_reshaped_with_a_warning(kernel):
    copy_kernel(kernel)
    with pytest.warns(TikWarning, match=r"shape \(4, 16\).*\(64,\) is reshaped"):
        out = tikemu.run(kernel, {"source": DATA.reshape(64)}).outputs["target"]
    np.testing.assert_array_equal(out[:2], DATA[:2])


@pytest.mark.parametrize(
    "feeds, message",
    [
        ({}, "input 'source' of kernel 'kernel' is missing.*got nothing"),
        ({"target": DATA}, "input 'source' of kernel 'kernel' is missing.*got 'target'"),
        ({"source": DATA, "sauce": DATA}, "no argument 'sauce'.*inputs source.*outputs target"),
        ({"source": DATA.astype(np.float32)}, "'source' is of float16, got an array of float32"),
        ({"source": DATA[:3]}, r"64 elements.*\(3, 16\)"),
    ],
)
def test_wrong_inputs_are_refused(kernel, feeds, message):
    with pytest.raises(TikParamError, match=message):
        tikemu.run(copy_kernel(kernel), feeds)


@pytest.mark.parametrize(
    "value, message",
    [
        (2.5, "got the float 2.5"),
        (1 << 40, r"must be in \[-2147483648, 2147483647\]"),
        ([1, 2], "takes one int32"),
        ("three", "takes one int32"),
    ],
)
def test_wrong_input_scalars_are_refused(kernel, value, message):
    n = kernel.InputScalar("int32", "n")
    with program(kernel, inputs=[n]) as out:
        out[0].set_as(n)
    with pytest.raises(TikParamError, match=message):
        tikemu.run(kernel, {"n": value})


def test_global_tensors_sized_by_an_input_scalar(kernel):
    n = kernel.InputScalar("int32", "n")
    source = kernel.Tensor("int32", (n, 8), tik.scope_gm, "source")
    target = kernel.Tensor("int32", (n * 8,), tik.scope_gm, "target")
    held = kernel.Tensor("int32", (8,), tik.scope_ubuf, "held")
    with kernel.for_range(0, n) as i:
        kernel.data_move(held, source[i * 8], 0, 1, 1, 0, 0)
        kernel.data_move(target[i * 8], held, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [source, n], [target])
    data = np.arange(24, dtype=np.int32).reshape(3, 8)
    out = tikemu.run(kernel, {"n": 3, "source": data}).outputs["target"]
    np.testing.assert_array_equal(out, data.reshape(24))


def test_unbounded_global_tensors_take_the_size_of_what_is_fed(kernel):
    source = kernel.Tensor("int32", (2**31 - 1,), tik.scope_gm, "source")
    target = kernel.Tensor("int32", (2**31 - 1,), tik.scope_gm, "target")
    held = kernel.Tensor("int32", (8,), tik.scope_ubuf, "held")
    kernel.data_move(held, source[8], 0, 1, 1, 0, 0)
    kernel.data_move(target, held, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [source], [target])
    data = np.arange(16, dtype=np.int32)
    out = tikemu.run(kernel, {"source": data, "target": np.zeros(8, np.int32)}).outputs["target"]
    np.testing.assert_array_equal(out, data[8:])
    with pytest.raises(TikParamError, match="must be given among the inputs"):
        tikemu.run(kernel, {"source": data})


def test_initial_values_of_global_constants(kernel):
    table = kernel.Tensor("int32", (8,), tik.scope_gm, "table", init_value=list(range(8)))
    with program(kernel) as out:
        kernel.data_move(out, table, 0, 1, 1, 0, 0)
    assert values(kernel) == list(range(8))


def test_debug_print_shows_tensors_and_scalars(kernel, capsys):
    with program(kernel) as out:
        total = kernel.Scalar("int32", "total", init_value=0)
        with kernel.for_range(0, 2, name="i") as i:
            total.set_as(total + i + 1)
            out[i].set_as(total)
            kernel.tikdb.debug_print("out[0] + total * i")
        kernel.tikdb.debug_print("out[:2]")
        kernel.tikdb.debug_print("nothing")
    kernel.tikdb.start_debug({}, interactive=False)
    assert capsys.readouterr().out.splitlines() == [
        "out[0] + total * i = 1",
        "out[0] + total * i = 4",
        "out[:2] = [1 3]",
        "nothing = NameError: name 'nothing' is not defined",
    ]


def test_progress_bar_appears_when_asked(kernel, capsys, monkeypatch):
    monkeypatch.setattr("tikemu.machine.progress._INTERVAL", 0.0)
    with program(kernel) as out:
        total = kernel.Scalar("int32", init_value=0)
        with kernel.for_range(0, 1000) as i:
            total.set_as(total + i)
        out[0].set_as(total)
    assert values(kernel, progress=True)[0] == 499500
    shown = capsys.readouterr().err
    assert "kernel [###" in shown and "50%" in shown and shown.endswith("\r\033[K")
    values(kernel, progress=False)
    assert capsys.readouterr().err == ""


def test_run_has_types():
    """Tell checkers what a run takes and gives."""
    hints = get_type_hints(tikemu.run)
    assert hints["return"] is tikemu.Result
    assert hints["tik_instance"] == Union[tik.Tik, ir.Program]
