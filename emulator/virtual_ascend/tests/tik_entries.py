"""Operators in TIK: some are right, and some are wrong."""

from tbe import tik


def twice(x, y, kernel_name="twice"):
    """Return the numbers, doubled."""
    return _build(kernel_name, 16)


def reads_outside(x, y, kernel_name="reads_outside"):
    """Load more than its input has."""
    return _build(kernel_name, 32)


def leaves_some(x, y, kernel_name="leaves_some"):
    """Write half of its output."""
    return _build(kernel_name, 16, stored=8)


def many_blocks(x, y, kernel_name="many_blocks"):
    """Double and halve each of 32 parts of the input repeatedly, then add 1."""
    program = tik.Tik()
    (size,) = x["shape"]
    part = size // 32
    x = program.Tensor("float16", (size,), tik.scope_gm, "x")
    y = program.Tensor("float16", (size,), tik.scope_gm, "y")
    with program.for_range(0, 32, block_num=32) as block:
        work = program.Tensor("float16", (part,), tik.scope_ubuf, "work")
        program.data_move(work, x[block * part], 0, 1, part // 16, 0, 0)
        with program.for_range(0, 400):
            program.vec_muls(128, work, work, 2.0, part // 128, 8, 8)
            program.vec_muls(128, work, work, 0.5, part // 128, 8, 8)
        program.vec_adds(128, work, work, 1.0, part // 128, 8, 8)
        program.data_move(y[block * part], work, 0, 1, part // 16, 0, 0)
    program.BuildCCE(kernel_name, [x], [y])
    return program


def endless(x, y, kernel_name="endless"):
    """Double a part of the input for longer than anybody waits."""
    program = tik.Tik()
    x = program.Tensor("float16", (256,), tik.scope_gm, "x")
    y = program.Tensor("float16", (256,), tik.scope_gm, "y")
    work = program.Tensor("float16", (256,), tik.scope_ubuf, "work")
    program.data_move(work, x, 0, 1, 16, 0, 0)
    with program.for_range(0, 1 << 30), program.for_range(0, 1 << 30):
        program.vec_muls(128, work, work, 2.0, 2, 8, 8)
    program.data_move(y, work, 0, 1, 16, 0, 0)
    program.BuildCCE(kernel_name, [x], [y])
    return program


def _build(kernel_name, loaded, stored=None):
    """Return the kernel that loads and stores so many blocks of 32 bytes."""
    program = tik.Tik()
    x = program.Tensor("float16", (256,), tik.scope_gm, "x")
    y = program.Tensor("float16", (256,), tik.scope_gm, "y")
    work = program.Tensor("float16", (512,), tik.scope_ubuf, "work")
    program.data_move(work, x, 0, 1, loaded, 0, 0)
    program.vec_muls(128, work, work, 2.0, 2, 8, 8)
    program.data_move(y, work, 0, 1, stored or 16, 0, 0)
    program.BuildCCE(kernel_name, [x], [y])
    return program
