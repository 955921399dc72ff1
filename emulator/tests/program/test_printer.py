"""Recorded programs as text."""

import tikemu
from tikemu import tik


def test_every_statement_has_a_line(kernel):
    n = kernel.InputScalar("int32", "n")
    x = kernel.Tensor("float16", (4, 128), tik.scope_gm, "x")
    work = kernel.Tensor("float32", (16,), tik.scope_gm, "work", is_workspace=True, is_atomic_add=True)
    with kernel.for_range(0, 4, block_num=4) as b:
        data = kernel.Tensor("float16", (n, 16), tik.scope_ubuf, "data", max_mem_size=4096)
        fixed = kernel.Tensor("int32", (8,), tik.scope_ubuf, "fixed", start_addr=64)
        s = kernel.Scalar("int32", "s", 3)
        array = kernel.ScalarArray("int32", 2, "a")
        array[s] = s + b * 2
        array[1] = fixed[1]
        with kernel.for_range(0, n - 1, name="j", thread_num=2) as j:
            with kernel.if_scope(tik.all(j > 1, tik.negate(j == 3))):
                kernel.tik_break()
            with kernel.elif_scope(tik.any(j < (s & 1), s)):
                kernel.data_move(data[j, 0], x[b, 0:64], 0, 1, 4, 0, 0)
            with kernel.else_scope():
                pass
        with kernel.new_stmt_scope(disable_sync=True):
            mask = kernel.vcmp_lt(128, data[0:], data, 1, 1)
            kernel.vec_dup(64, data.reinterpret_cast_to("int16")[16:32], 1, 1, 8)
        kernel.tikdb.debug_print("s + 1")
        fixed[s] = s
        kernel.tik_return()
    assert mask.uid and work.size
    kernel.BuildCCE("show", [x, n], [])
    text = tikemu.dump(kernel)
    assert str(kernel) == tikemu.dump(kernel._recorder.program) == text
    assert (
        text
        == f"""\
kernel show(x, n) -> () on Ascend910A
    tensor x: float16(4, 128) in GM
    tensor work: float32(16,) in GM, workspace, atomic_add
    for i in range(0, 4), block_num=4:
        tensor data: float16(n, 16) in UB, max_mem_size=4096
        tensor fixed: int32(8,) in UB, start_addr=64
        scalar s: int32
        s = 3
        scalar a[0], a[1]: int32
        a[s] = s + i * 2
        a[1] = fixed[1]:(1,)
        for j in range(0, n - 1):
            if all(j > 1, not(j == 3)):
                break
            elif any(j < (s & 1), s != 0):
                data_move(dst=data[j * 16]:(1, 1), src=x[i * 128]:(1, 64), sid=0, nburst=1, burst=4, src_stride=0, \
dst_stride=0, args=[], argv={{}})
            else:
                pass
        scope, disable_sync:
            cmpmask{mask.uid} = vcmp_lt(mask=128, src0=data[0]:(n * 16,), src1=data, src0_blk_stride=1, \
src1_blk_stride=1)
            vec_dup(mask=64, dst=data[16] as int16:(16,), scalar=1, repeat_times=1, dst_rep_stride=8)
        debug_print('s + 1')
        fixed[s]:(1,) = s
        return"""
    )


def test_a_kernel_can_be_printed_before_it_is_built(kernel):
    assert str(kernel) == "kernel (not built)() -> () on Ascend910A"


def test_brackets_follow_precedence(kernel):
    a, b = kernel.Scalar("int32", "a"), kernel.Scalar("int32", "b")
    for value, text in (
        ((a + b) * 2, "(a + b) * 2"),
        (a + b * 2, "a + b * 2"),
        (a - (b - a), "a - (b - a)"),
        ((a << 1) + b, "(a << 1) + b"),
        ((a & b) == 3, "(a & b) == 3"),
        (a / b % 3, "a / b % 3"),
        (a * (b / 3), "a * (b / 3)"),
    ):
        assert text in repr(value)
