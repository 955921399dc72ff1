"""for_range: bounds, multi-buffering, the multi-core loop, and what may stand inside."""

import contextlib
import warnings

import pytest
import tikemu
from tikemu import tik
from tikemu.errors import TikParamError

from emulator.tests.support.kernels import body, lines


def test_the_end_of_a_loop_must_not_change_inside_it(kernel):
    n, m = kernel.Scalar("int32", "n", 3), kernel.Scalar("int32", "m", 0)
    array = kernel.ScalarArray("int32", 2, "a", 1)
    with kernel.for_range(0, n + 1), kernel.for_range(m, array[0]):
        with warnings.catch_warnings():
            warnings.simplefilter("error", tikemu.TikWarning)
            m.set_as(n)
            array[1] = 3
        for modify in (lambda: n.set_as(m), lambda: array[m].set_as(1)):
            with pytest.warns(tikemu.TikWarning, match="takes part in endt"):
                modify()
    with warnings.catch_warnings():
        warnings.simplefilter("error", tikemu.TikWarning)
        n.set_as(5)


def test_multi_core_rules(kernel):
    with (
        kernel.for_range(0, 4, block_num=4),
        kernel.for_range(0, 2, thread_num=2),
        pytest.raises(TikParamError, match="only one"),
    ):
        kernel.for_range(0, 4, block_num=4)
    with pytest.raises(TikParamError, match="only one"):
        kernel.for_range(0, 4, block_num=4)


def test_one_block_is_no_multi_core_loop(kernel, no_warnings):
    for _ in range(2):
        with kernel.for_range(0, 5, block_num=1), kernel.for_range(1, 3, thread_num=2, block_num=1):
            pass


def test_block_num_may_be_a_scalar(kernel, no_warnings):
    blocks = kernel.InputScalar("int32", "blocks")
    with kernel.for_range(0, blocks, block_num=blocks):
        pass
    assert body(kernel)[0].block_num.name == "blocks"


def run_a_loop(kernel):
    """Record a statement: an empty loop."""
    with kernel.for_range(0, 2):
        pass


#: Statements, and whether they are harmless outside the multi-core loop.
OUTSIDE = {
    "tensor": (lambda kernel: kernel.Tensor("float16", (16,), tik.scope_ubuf), False),
    "scalar": (lambda kernel: kernel.Scalar("int32"), False),
    "loop": (run_a_loop, False),
    "gm tensor": (lambda kernel: kernel.Tensor("float16", (16,), tik.scope_gm), True),
}


@pytest.mark.parametrize("outside, harmless", OUTSIDE.values(), ids=OUTSIDE)
@pytest.mark.parametrize("nested", [False, True])
def test_what_stands_before_the_multi_core_loop(kernel, outside, harmless, nested):
    with contextlib.ExitStack() as blocks:
        if nested:
            blocks.enter_context(kernel.new_stmt_scope())
        outside(kernel)
        if harmless:
            blocks.enter_context(warnings.catch_warnings())
            warnings.simplefilter("error", tikemu.TikWarning)
        else:
            blocks.enter_context(pytest.warns(tikemu.TikWarning, match="once per block"))
        blocks.enter_context(kernel.for_range(0, 4, block_num=4))


def test_statements_after_the_multi_core_loop(kernel):
    gm = kernel.Tensor("float16", (16,), tik.scope_gm, "gm")
    with warnings.catch_warnings():
        warnings.simplefilter("error", tikemu.TikWarning)
        with kernel.for_range(0, 4, block_num=4):
            assert gm.size
    with pytest.warns(tikemu.TikWarning, match="once per block"):
        kernel.Scalar("int32")


def test_loop_jumps(kernel):
    with kernel.for_range(0, 4, thread_num=2) as i, kernel.if_scope(i > 2):
        kernel.tik_break()
    assert body(kernel)[0].thread_num == 1
    with kernel.for_range(0, 4), pytest.warns(tikemu.TikWarning, match="tik_continue"):
        kernel.tik_continue()
    kernel.tik_return()
    assert lines(kernel) == [
        "for i in range(0, 4):",
        "    if i > 2:",
        "        break",
        "for i in range(0, 4):",
        "    continue",
        "return",
    ]


def test_no_break_directly_in_the_multi_core_loop(kernel):
    with kernel.for_range(0, 4, block_num=4) as block:
        with kernel.if_scope(block > 1), pytest.raises(TikParamError, match="multi-core"):
            kernel.tik_break()
        with kernel.for_range(0, 2):
            kernel.tik_break()
