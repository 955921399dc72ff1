"""Strict mode, in pairs: the program with the fault is caught, the same without it passes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tikemu
from tikemu import (
    Options,
    TikBoundsError,
    TikParamError,
    TikSyncError,
    TikUndefinedError,
    TikWarning,
    tik,
)

STRICT = Options(strict=True)
DATA = np.arange(128, dtype=np.float16)
faulty = pytest.mark.parametrize("fault", [True, False], ids=["fault", "right"])


@pytest.fixture
def source(kernel: Any) -> Any:
    return kernel.Tensor("float16", (128,), tik.scope_gm, "source")


@pytest.fixture
def target(kernel: Any) -> Any:
    return kernel.Tensor("float16", (128,), tik.scope_gm, "target")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TikWarning)
        yield


def ub(kernel: Any, name: str, count: int = 128, dtype: str = "float16") -> Any:
    return kernel.Tensor(dtype, (count,), tik.scope_ubuf, name)


def check(
    kernel: Any, fault: bool, error: type, message: str, inputs: list, outputs: list, default: bool = True, **feeds: Any
) -> None:
    """Build; strict mode reports ``error`` at a line of this file if ``fault``, and default mode reports nothing."""
    kernel.BuildCCE("kernel", inputs, outputs)
    if default:
        tikemu.run(kernel, feeds)
    if not fault:
        tikemu.run(kernel, feeds, options=STRICT)
        return
    with pytest.raises(error, match=message) as caught:
        tikemu.run(kernel, feeds, options=STRICT)
    assert "test_strict.py" in str(caught.value)


# ------------------------------------------------------------------------------------------------ defined bytes
@faulty
def test_undefined_operand(kernel: Any, target: Any, fault: bool) -> None:
    a = ub(kernel, "a")
    kernel.vector_dup(128 if not fault else 100, a, 1.0, 1, 1, 8)
    kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
    kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(
        kernel,
        fault,
        TikUndefinedError,
        r"vec_adds reads 56 undefined bytes of tensor 'a' \(element 100 is the first\)(.|\n)*vec_adds",
        [],
        [target],
    )


@faulty
def test_undefined_lanes_that_are_masked_do_not_matter(kernel: Any, target: Any, fault: bool) -> None:
    a, b = ub(kernel, "a"), ub(kernel, "b")
    kernel.vector_dup(16, a, 1.0, 1, 1, 8)
    kernel.vector_dup(128, b, 0.0, 1, 1, 8)
    kernel.vec_add(17 if fault else 16, b, a, b, 1, 8, 8, 8)
    kernel.data_move(target, b, 0, 1, 8, 0, 0)
    check(kernel, fault, TikUndefinedError, "vec_add reads 2 undefined bytes of tensor 'a'", [], [target])


@faulty
def test_undefined_element_read_by_the_scalar_unit(kernel: Any, target: Any, fault: bool) -> None:
    a = ub(kernel, "a")
    kernel.vector_dup(16, a, 1.0, 1, 1, 8)
    value = kernel.Scalar("float16")
    value.set_as(a[16 if fault else 15])
    kernel.vector_dup(128, a, value, 1, 1, 8)
    kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikUndefinedError, "the scalar unit reads 2 undefined bytes of tensor 'a'", [], [target])


@faulty
def test_elements_written_by_the_scalar_unit_are_defined(kernel: Any, target: Any, fault: bool) -> None:
    a = ub(kernel, "a", 16)
    with kernel.for_range(0, 15 if fault else 16) as i:
        a[i].set_as(1.0)
    with kernel.for_range(0, 8) as i:
        kernel.data_move(target[i * 16], a, 0, 1, 1, 0, 0)
    check(
        kernel,
        fault,
        TikUndefinedError,
        r"output 'target' holds 16 undefined bytes at the end \(element 15",
        [],
        [target],
    )


@faulty
def test_undefined_bytes_may_be_moved_but_not_reach_an_output(kernel: Any, target: Any, fault: bool) -> None:
    a, b = ub(kernel, "a"), ub(kernel, "b")
    kernel.vector_dup(64, a, 1.0, 1, 1, 8)
    kernel.data_move(b, a, 0, 1, 8, 0, 0)  # half of it is undefined
    if not fault:
        kernel.vector_dup([2**64 - 1, 0], b, 2.0, 1, 1, 8)
    kernel.data_move(target, b, 0, 1, 8, 0, 0)
    check(kernel, fault, TikUndefinedError, r"output 'target' holds 128 undefined bytes.*element 64", [], [target])


@faulty
def test_output_that_is_not_written_completely(kernel: Any, target: Any, fault: bool) -> None:
    a = ub(kernel, "a")
    kernel.vector_dup(128, a, 1.0, 1, 1, 8)
    kernel.data_move(target, a, 0, 1, 7 if fault else 8, 0, 0)
    check(kernel, fault, TikUndefinedError, "never written", [], [target])


@faulty
def test_unfed_workspace(kernel: Any, target: Any, fault: bool) -> None:
    work = kernel.Tensor("float16", (128,), tik.scope_gm, "work", is_workspace=True)
    a = ub(kernel, "a")
    if not fault:
        kernel.vector_dup(128, a, 1.0, 1, 1, 8)
        kernel.data_move(work, a, 0, 1, 8, 0, 0)
    kernel.data_move(a, work, 0, 1, 8, 0, 0)
    kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
    kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikUndefinedError, "vec_adds reads 256 undefined bytes", [], [target])


@faulty
def test_memory_of_a_released_tensor_is_undefined_again(kernel: Any, target: Any, fault: bool) -> None:
    with kernel.new_stmt_scope():
        kernel.vector_dup(128, ub(kernel, "first"), 1.0, 1, 1, 8)
    second = ub(kernel, "second")
    if not fault:
        kernel.vector_dup(128, second, 1.0, 1, 1, 8)
    kernel.vec_adds(128, second, second, 1.0, 1, 8, 8)
    kernel.data_move(target, second, 0, 1, 8, 0, 0)
    check(kernel, fault, TikUndefinedError, "tensor 'second'", [], [target])


@faulty
def test_a_tensor_of_a_loop_body_is_fresh_in_every_iteration(kernel: Any, target: Any, fault: bool) -> None:
    with kernel.for_range(0, 4, thread_num=2) as i:
        a = ub(kernel, "a")
        with kernel.if_scope(i < (2 if fault else 4)):
            kernel.vector_dup(128, a, 1.0, 1, 1, 8)
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikUndefinedError, "tensor 'a'", [], [target])


@faulty
def test_scalar_that_nothing_has_assigned(kernel: Any, target: Any, fault: bool) -> None:
    a = ub(kernel, "a")
    kernel.vector_dup(128, a, 1.0, 1, 1, 8)
    n = kernel.Scalar("int32", "n")
    if not fault:
        n.set_as(8)
    kernel.data_move(target, a, 0, 1, n, 0, 0)
    check(kernel, fault, TikUndefinedError, "Scalar 'n' is used before", [], [target], default=False)


@pytest.mark.parametrize("use", ["arithmetic", "condition", "loop", "element", "conversion"])
def test_every_use_of_an_unassigned_scalar_is_reported(kernel: Any, target: Any, use: str) -> None:
    a = ub(kernel, "a")
    kernel.vector_dup(128, a, 1.0, 1, 1, 8)
    n = kernel.Scalar("int32", "n")
    other = kernel.Scalar("float32", init_value=0.0)
    if use == "arithmetic":
        n.set_as(n * 2 + 1)
    elif use == "condition":
        with kernel.if_scope(n > 0):
            other.set_as(1.0)
    elif use == "loop":
        with kernel.for_range(0, n):
            other.set_as(1.0)
    elif use == "element":
        a[n].set_as(1.0)
    else:
        other.set_as(n)
    kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(kernel, True, TikUndefinedError, "Scalar 'n' is used before", [], [target])


@faulty
def test_padding_of_a_matrix_product(kernel: Any, fault: bool) -> None:
    """Rows past m of the last fractals hold nothing; they may be moved, but not used (D26b)."""
    left = kernel.Tensor("float16", (32, 16), tik.scope_gm, "left")
    right = kernel.Tensor("float16", (16, 16), tik.scope_gm, "right")
    product = kernel.Tensor("float32", (20, 16), tik.scope_gm, "product")
    l1_left = kernel.Tensor("float16", (32, 16), tik.scope_cbuf, "l1_left")
    l1_right = kernel.Tensor("float16", (16, 16), tik.scope_cbuf, "l1_right")
    l0a = kernel.Tensor("float16", (32, 16), tik.scope_ca, "l0a")
    l0b = kernel.Tensor("float16", (16, 16), tik.scope_cb, "l0b")
    l0c = kernel.Tensor("float32", (32, 16), tik.scope_cc, "l0c")
    out = ub(kernel, "out", 512, "float32")
    kernel.data_move(l1_left, left, 0, 1, 32, 0, 0)
    kernel.data_move(l1_right, right, 0, 1, 16, 0, 0)
    kernel.load2dv1(l0a, l1_left, 0, 2, 1, 0)
    kernel.load2dv1(l0b, l1_right, 0, 1, 1, 0)
    kernel.mmad(l0c, l0a, l0b, 20, 16, 16, 0)
    kernel.data_move(out, l0c, 0, 1, 2, 0, 0)
    kernel.vec_adds(64, out, out, 1.0, 6 if fault else 5, 8, 8)
    kernel.data_move(product, out, 0, 1, 40, 0, 0)
    feeds = {"left": np.ones((32, 16), np.float16), "right": np.ones((16, 16), np.float16)}
    check(kernel, fault, TikUndefinedError, "vec_adds reads 256 undefined bytes", [left, right], [product], **feeds)


@faulty
def test_atomic_addition_onto_undefined_memory(kernel: Any, fault: bool) -> None:
    target = kernel.Tensor("float32", (64,), tik.scope_gm, "target", is_atomic_add=not fault)
    a = ub(kernel, "a", 64, "float32")
    kernel.vector_dup(64, a, 1.0, 1, 1, 8)
    kernel.set_atomic_add(1)
    kernel.data_move(target, a, 0, 1, 8, 0, 0)
    kernel.set_atomic_add(0)
    check(kernel, fault, TikUndefinedError, "undefined bytes of tensor 'target'", [], [target])


def test_contents_that_nothing_has_written(kernel: Any, capsys: pytest.CaptureFixture) -> None:
    """Default mode shows zeros at the start of a block, strict mode 0xDEAD."""
    out = kernel.Tensor("uint16", (16,), tik.scope_gm, "out")
    a = ub(kernel, "a", 16, "uint16")
    kernel.data_move(out, a, 0, 1, 1, 0, 0)
    kernel.tikdb.debug_print("hex(a[3])")
    kernel.BuildCCE("kernel", [], [out])
    assert not tikemu.run(kernel, {}).outputs["out"].any()
    with pytest.raises(TikUndefinedError):
        tikemu.run(kernel, {}, options=STRICT)
    assert capsys.readouterr().out.split() == ["hex(a[3])", "=", "0x0", "hex(a[3])", "=", "0xdead"]


@pytest.mark.parametrize("copies", [1, 2])
def test_a_definition_clears_nothing_in_default_mode(kernel: Any, copies: int) -> None:
    """What an earlier iteration left is there, as on the chip: img2col of MindSpore keeps results that way."""
    out = kernel.Tensor("float32", (4, 8), tik.scope_gm, "out")
    with kernel.for_range(0, 4, thread_num=copies) as i:
        a = ub(kernel, "a", 64, "float32")
        kernel.vec_adds(8, a, a, 1.0, 1, 8, 8)
        kernel.data_move(out[i * 8], a, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [], [out])
    expected = np.arange(4) // copies + 1
    np.testing.assert_array_equal(tikemu.run(kernel, {}).outputs["out"], np.repeat(expected[:, None], 8, axis=1))
    with pytest.raises(TikUndefinedError):
        tikemu.run(kernel, {}, options=STRICT)


# ------------------------------------------------------------------------------------------------ races between blocks
def per_block(kernel: Any, blocks: int = 2) -> Any:
    return kernel.for_range(0, blocks, block_num=blocks)


@pytest.mark.parametrize("what, fault", [("different", True), ("equal", False), ("disjoint", False)])
def test_blocks_writing_the_same_bytes(kernel: Any, what: str, fault: bool) -> None:
    target = kernel.Tensor("float32", (128,), tik.scope_gm, "target")
    with per_block(kernel) as block:
        a = ub(kernel, "a", 64, "float32")
        kernel.vector_dup(64, a, 1.0, 1, 1, 8)
        if what == "different":
            value = kernel.Scalar("int32", init_value=block)
            with kernel.if_scope(value == 1):
                kernel.vector_dup(64, a, 2.0, 1, 1, 8)
        # Address rollback: the second block repeats the last 32 bytes of the first.
        start = block * (64 if what == "disjoint" else 56)
        kernel.data_move(target[start], a, 0, 1, 8, 0, 0)
    check(
        kernel,
        fault,
        TikSyncError,
        r"data_move: block 1 writes bytes of GM tensor 'target' .* that block 0 wrote(.|\n)*data_move\(",
        [],
        [target],
        target=np.zeros(128, np.float32),
    )


@pytest.mark.parametrize("how, fault", [("plain", True), ("atomic", False), ("mixed", True)])
def test_blocks_adding_to_the_same_bytes(kernel: Any, how: str, fault: bool) -> None:
    target = kernel.Tensor("float32", (64,), tik.scope_gm, "target", is_atomic_add=True)
    with per_block(kernel, 3) as block:
        a = ub(kernel, "a", 64, "float32")
        kernel.vector_dup(64, a, 1.0, 1, 1, 8)
        value = kernel.Scalar("int32", init_value=block)
        if how == "plain":
            with kernel.if_scope(value > 0):
                kernel.vector_dup(64, a, 2.0, 1, 1, 8)
        elif how == "atomic":
            kernel.set_atomic_add(1)
        else:
            with kernel.if_scope(value > 0):
                kernel.set_atomic_add(1)
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
        kernel.set_atomic_add(0)
    check(kernel, fault, TikSyncError, "block 1 writes bytes of GM tensor 'target'", [], [target])


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize(
    "writer, message", [(0, "block 1 reads bytes .* block 0 wrote"), (1, "block 1 writes bytes .* block 0 read")]
)
def test_a_block_reading_what_another_writes(kernel: Any, barrier: bool, writer: int, message: str) -> None:
    board = kernel.Tensor("float16", (128,), tik.scope_gm, "board")
    target = kernel.Tensor("float16", (256,), tik.scope_gm, "target")
    with per_block(kernel) as block:
        a = ub(kernel, "a")
        kernel.vector_dup(128, a, 1.0, 1, 1, 8)
        me = kernel.Scalar("int32", init_value=block)
        for turn in range(2):
            if turn and barrier:
                kernel.block_barrier()
            with kernel.if_scope(me == turn):
                if turn == writer:
                    kernel.data_move(board, a, 0, 1, 8, 0, 0)
                else:
                    kernel.data_move(a, board, 0, 1, 8, 0, 0)
        kernel.data_move(target[block * 128], a, 0, 1, 8, 0, 0)
    check(kernel, not barrier, TikSyncError, message, [board], [target], board=np.zeros(128, np.float16))


@faulty
def test_a_block_reading_what_it_wrote_itself(kernel: Any, fault: bool) -> None:
    board = kernel.Tensor("float16", (256,), tik.scope_gm, "board", is_workspace=True)
    target = kernel.Tensor("float16", (256,), tik.scope_gm, "target")
    with per_block(kernel) as block:
        a = ub(kernel, "a")
        kernel.vector_dup(128, a, 1.0, 1, 1, 8)
        kernel.data_move(board[block * 128], a, 0, 1, 8, 0, 0)
        kernel.data_move(a, board[0 if fault else block * 128], 0, 1, 8, 0, 0)
        kernel.data_move(target[block * 128], a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikSyncError, "block 1 reads .* block 0 wrote", [], [target])


# ------------------------------------------------------------------------------------------------ unsynchronised scopes
@pytest.mark.parametrize(
    "order, fault",
    [
        ("none", True),
        ("flags", False),
        ("barrier", False),
        ("other barrier", True),
        ("synchronised", False),
        ("disjoint", False),
    ],
)
def test_race_between_pipes(kernel: Any, source: Any, target: Any, order: str, fault: bool) -> None:
    """The vector unit uses what a move brings in."""
    a, b = ub(kernel, "a"), ub(kernel, "b")
    kernel.vector_dup(128, b, 0.0, 1, 1, 8)
    with kernel.new_stmt_scope(disable_sync=order != "synchronised"):
        kernel.data_move(a, source, 0, 1, 8, 0, 0)
        if order == "flags":
            kernel.set_flag("PIPE_MTE2", "PIPE_V", 0)
            kernel.wait_flag("PIPE_MTE2", "PIPE_V", 0)
        elif order == "barrier":
            kernel.pipe_barrier("PIPE_ALL")
        elif order == "other barrier":
            kernel.pipe_barrier("PIPE_V")
        use = b if order == "disjoint" else a
        kernel.vec_adds(128, b, use, 1.0, 1, 8, 8)
    kernel.data_move(target, b, 0, 1, 8, 0, 0)
    check(
        kernel,
        fault,
        TikSyncError,
        r"vec_adds on PIPE_V reads bytes .* of UB that data_move on PIPE_MTE2 writes",
        [source],
        [target],
        source=DATA,
    )


@faulty
def test_accesses_of_one_pipe_are_in_order(kernel: Any, source: Any, target: Any, fault: bool) -> None:
    a = ub(kernel, "a")
    kernel.vector_dup(128, a, 0.0, 1, 1, 8)
    with kernel.new_stmt_scope(disable_sync=True):
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
        if fault:
            kernel.data_move(target, a, 0, 1, 8, 0, 0)
    if not fault:
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikSyncError, "data_move on PIPE_MTE3 reads .* vec_adds on PIPE_V writes", [], [target])


@faulty
def test_a_flag_for_another_event_orders_nothing(kernel: Any, source: Any, target: Any, fault: bool) -> None:
    a = ub(kernel, "a")
    with kernel.new_stmt_scope(disable_sync=True):
        kernel.set_flag("PIPE_MTE2", "PIPE_V", 1)
        kernel.data_move(a, source, 0, 1, 8, 0, 0)
        kernel.set_flag("PIPE_MTE2", "PIPE_V", 0)
        kernel.wait_flag("PIPE_MTE2", "PIPE_V", 1 if fault else 0)
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
        kernel.pipe_barrier("PIPE_ALL")
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikSyncError, "vec_adds on PIPE_V", [source], [target], source=DATA)


@faulty
def test_flag_that_nothing_sets(kernel: Any, source: Any, target: Any, fault: bool) -> None:
    a = ub(kernel, "a")
    kernel.data_move(a, source, 0, 1, 8, 0, 0)
    if not fault:
        kernel.set_flag("PIPE_MTE2", "PIPE_V", 0)
    kernel.wait_flag("PIPE_MTE2", "PIPE_V", 0)
    kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikParamError, "wait_flag.* has no set_flag before it", [source], [target], source=DATA)


@faulty
def test_more_blocks_at_a_barrier_than_cores(kernel: Any, target: Any, fault: bool) -> None:
    with per_block(kernel, 33 if fault else 32):
        a = ub(kernel, "a")
        kernel.vector_dup(128, a, 1.0, 1, 1, 8)
        kernel.block_barrier()
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
    kernel.BuildCCE("kernel", [], [target])
    if not fault:
        tikemu.run(kernel, {}, options=STRICT)
        return
    with pytest.raises(TikSyncError, match="33 blocks on 32 cores"):
        tikemu.run(kernel, {}, options=STRICT)


@faulty
def test_the_scalar_unit_races_too(kernel: Any, source: Any, target: Any, fault: bool) -> None:
    a = ub(kernel, "a")
    value = kernel.Scalar("float16")
    with kernel.new_stmt_scope(disable_sync=True):
        kernel.data_move(a, source, 0, 1, 8, 0, 0)
        if not fault:
            kernel.pipe_barrier("PIPE_ALL")
        value.set_as(a[0])
    kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(
        kernel, fault, TikSyncError, "the scalar access to tensor 'a' on PIPE_S reads", [source], [target], source=DATA
    )


def test_what_the_scalar_unit_has_done_is_done_when_it_issues(kernel: Any, target: Any) -> None:
    a = ub(kernel, "a")
    kernel.vector_dup(128, a, 0.0, 1, 1, 8)
    with kernel.new_stmt_scope(disable_sync=True):
        a[0].set_as(1.0)
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
    kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(kernel, False, TikSyncError, "", [], [target])


def test_races_are_found_without_numerics(kernel: Any, source: Any, target: Any) -> None:
    a = ub(kernel, "a")
    with kernel.new_stmt_scope(disable_sync=True):
        kernel.data_move(a, source, 0, 1, 8, 0, 0)
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
    kernel.BuildCCE("kernel", [source], [target])
    with pytest.raises(TikSyncError):
        tikemu.run(kernel, {}, numerics=False, options=STRICT)


# ------------------------------------------------------------------------------------------------ questionable use
@faulty
def test_overlap_inside_an_instruction(kernel: Any, source: Any, target: Any, fault: bool) -> None:
    a = ub(kernel, "a", 256)
    kernel.vector_dup(128, a, 1.0, 2, 1, 8)
    kernel.vec_adds(64, a[16 if fault else 0], a, 1.0, 1, 8, 8)
    kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikParamError, "overlap", [], [target])


@faulty
def test_overlap_inside_a_move(kernel: Any, source: Any, target: Any, fault: bool) -> None:
    a = ub(kernel, "a", 256)
    kernel.vector_dup(128, a, 1.0, 2, 1, 8)
    kernel.data_move(a[16 if fault else 128], a, 0, 1, 8, 0, 0)
    kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikParamError, "overlap", [], [target])


@faulty
def test_statements_outside_the_block_loop(kernel: Any, fault: bool) -> None:
    target = kernel.Tensor("float16", (256,), tik.scope_gm, "target")
    if fault:
        a = ub(kernel, "a")
    with per_block(kernel) as block:
        if not fault:
            a = ub(kernel, "a")
        kernel.vector_dup(128, a, 1.0, 1, 1, 8)
        kernel.data_move(target[block * 128], a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikParamError, "once per block", [], [target])


@faulty
def test_padding_of_a_global_tensor(kernel: Any, target: Any, fault: bool) -> None:
    """A tensor of 20 halves ends inside a 32-byte block."""
    source = kernel.Tensor("float16", (20 if fault else 32,), tik.scope_gm, "source")
    a = ub(kernel, "a")
    kernel.vector_dup(128, a, 0.0, 1, 1, 8)
    n = kernel.Scalar("int32", init_value=2)
    kernel.data_move(a, source, 0, 1, n, 0, 0)
    kernel.data_move(target, a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikBoundsError, "padding", [source], [target], source=np.ones(20 if fault else 32, np.float16))


@faulty
def test_undefined_bits_of_the_compare_mask(kernel: Any, fault: bool) -> None:
    """A comparison of float32 leaves half of the register undefined, which no selection of float32 uses."""
    target = kernel.Tensor("float32", (64,), tik.scope_gm, "target")
    data, bits = ub(kernel, "data", 64, "float32"), ub(kernel, "bits", 32, "uint8")
    kernel.vec_dup(64, data, 1.0, 1, 8)
    if not fault:
        kernel.vec_cmpv_gt(bits, data, data, 1, 8, 8)
    mask = kernel.mov_tensor_to_cmpmask(bits)
    kernel.vsel(64, 0, data, mask, data, data, 1, 1, 1, 1, 8, 8, 8)
    kernel.data_move(target, data, 0, 1, 8, 0, 0)
    check(kernel, fault, TikUndefinedError, "holds undefined bits among the first 64", [], [target])
