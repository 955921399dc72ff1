"""Hold one program for every class of findings of strict mode."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
from tikemu import tik

from emulator.tests.support.strict_programs import filled, per_block, ub

#: The inputs and outputs of a program, and more options.
Parts = tuple[list[Any], list[Any], dict[str, Any]]


def _target(kernel: Any, count: int = 128) -> Any:
    """Return the output."""
    return kernel.Tensor("float16", (count,), tik.scope_gm, "target")


def _to(kernel: Any, target: Any, data: Any) -> Parts:
    """End a program with a move to its output."""
    kernel.data_move(target, data, 0, 1, 8, 0, 0)
    return [], [target], {}


def undefined(kernel: Any) -> Parts:
    """Add to a tensor that nothing has written."""
    data = ub(kernel, "data")
    kernel.vec_adds(128, data, data, 1.0, 1, 8, 8)
    return _to(kernel, _target(kernel), data)


def race(kernel: Any) -> Parts:
    """Write different values from two blocks."""
    target = _target(kernel)
    with per_block(kernel) as block:
        data = ub(kernel, "data")
        value = kernel.Scalar("float16", init_value=1.0)
        with kernel.if_scope(block == 1):
            value.set_as(2.0)
        kernel.vec_dup(128, data, value, 1, 8)
        kernel.data_move(target, data, 0, 1, 8, 0, 0)
    return [], [target], {}


def overlap(kernel: Any) -> Parts:
    """Move a tensor into its own source."""
    data = filled(kernel, count=256)
    kernel.data_move(data[16], data, 0, 1, 8, 0, 0)
    return _to(kernel, _target(kernel), data)


def bounds(kernel: Any) -> Parts:
    """Fill a tensor beyond its end."""
    first = ub(kernel, "first")
    filled(kernel)
    kernel.vec_dup(128, first, 0.0, 2, 8)
    return (*_to(kernel, _target(kernel), first)[:2], {"bounds": "buffer"})


def padding(kernel: Any) -> Parts:
    """Move past the end of a GM tensor."""
    target = _target(kernel, 20)
    data = filled(kernel)
    kernel.data_move(target, data, 0, 1, kernel.Scalar("int32", init_value=2), 0, 0)
    return [], [target], {}


def memory(kernel: Any) -> Parts:
    """Take 32 bytes more than the planned part."""
    ub(kernel, "large", 253952 // 2 + 16)
    return [], [], {}


def work_tensor(kernel: Any) -> Parts:
    """Add nine sums, which need two blocks."""
    data, work = ub(kernel, "data", 64 * 9, "float32"), ub(kernel, "work", 8, "float32")
    result = ub(kernel, "result", 64, "float32")
    kernel.vec_dup(64, data, 1.0, 9, 8)
    kernel.vec_reduce_add(64, result, data, work, 9, 8)
    return [], [], {}


def undocumented(kernel: Any) -> Parts:
    """Make a call that has no documentation."""
    with kernel.for_range(0, 2):
        kernel.tik_continue()
    return [], [], {}


def unspecified(kernel: Any) -> Parts:
    """Take the logarithm of 0."""
    data = ub(kernel, "data")
    kernel.vec_dup(128, data, 0.0, 1, 8)
    kernel.vec_ln(128, data, data, 1, 8, 8)
    return _to(kernel, _target(kernel), data)


def value(kernel: Any) -> Parts:
    """Write a number beyond its type."""
    kernel.Scalar("int8", init_value=300)
    return [], [], {}


def argument(kernel: Any) -> Parts:
    """Set a mask without a lane."""
    data = filled(kernel)
    kernel.vec_dup([0, 0], data, 1.0, 1, 8)
    return [], [], {}


def compare_mask(kernel: Any) -> Parts:
    """Compare a second time before the first comparison is used."""
    data = filled(kernel)
    mask = kernel.vcmp_gt(128, data, data, 1, 1)
    kernel.vcmp_lt(128, data, data, 1, 1)
    kernel.vsel(128, 0, data, mask, data, data, 1, 1, 1, 1, 8, 8, 8)
    return [], [], {}


def block_loop(kernel: Any) -> Parts:
    """Define a tensor outside of the multi-core loop."""
    data = filled(kernel)
    with per_block(kernel):
        kernel.vec_adds(128, data, data, 1.0, 1, 8, 8)
    return [], [], {}


def loop(kernel: Any) -> Parts:
    """Set the end of a loop in its body."""
    end = kernel.Scalar("int32", init_value=2)
    with kernel.for_range(0, end):
        end.set_as(2)
    return [], [], {}


def synchronisation(kernel: Any) -> Parts:
    """Wait for a flag that nobody sets."""
    data = filled(kernel)
    kernel.wait_flag("PIPE_V", "PIPE_MTE3", 0)
    return _to(kernel, _target(kernel), data)


PROGRAMS: dict[str, Callable[[Any], Parts]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        *(undefined, race, overlap, bounds, padding, memory, work_tensor, undocumented, unspecified, value, argument),
        *(compare_mask, block_loop, loop, synchronisation),
    )
}


def mixed(kernel: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Build a program with three findings, the second one found while it is recorded."""
    source = kernel.Tensor("float16", (128,), tik.scope_gm, "source")
    target = _target(kernel)
    data, other = ub(kernel, "data", 256), ub(kernel, "other", 384)
    kernel.data_move(data, source, 0, 1, 8, 0, 0)
    count = kernel.Scalar("int32", init_value=3)
    with kernel.for_range(0, count, name="step") as step:
        with kernel.if_scope(step > 0):
            kernel.vec_adds(128, other, other[128 * step], 1.0, 1, 8, 8)
        kernel.Scalar("int8", init_value=300)
        kernel.vec_ln(128, data, data, 1, 8, 8)
    kernel.data_move(target, data, 0, 1, 8, 0, 0)
    kernel.BuildCCE("mixed", [source], [target])
    return kernel, {"source": np.full(128, 0.5, np.float16)}
