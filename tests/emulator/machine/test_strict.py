"""Strict mode: questionable use is an error."""

from __future__ import annotations

from typing import Any

import pytest
from tikemu import TikParamError, TikUndefinedError, tik

from tests.emulator.support.strict_programs import check, faulty, filled, per_block, ub

pytestmark = pytest.mark.usefixtures("quiet")


@faulty
@pytest.mark.parametrize("move", [False, True], ids=["instruction", "move"])
def test_overlap_of_what_is_read_and_written(kernel: Any, move: bool, fault: bool) -> None:
    a = filled(kernel, "a", 256)
    if move:
        kernel.data_move(a[16 if fault else 128], a, 0, 1, 8, 0, 0)
    else:
        kernel.vec_adds(64, a[16 if fault else 0], a, 1.0, 1, 8, 8)
    check(kernel, fault, TikParamError, "overlap", result=a)


@faulty
def test_statements_outside_the_block_loop(kernel: Any, fault: bool) -> None:
    target = kernel.Tensor("float16", (256,), tik.scope_gm, "target")
    if fault:
        a = ub(kernel, "a")
    with per_block(kernel) as block:
        if not fault:
            a = filled(kernel, "a")
        kernel.data_move(target[block * 128], a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikParamError, "once per block", [], [target])


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
    check(kernel, fault, TikUndefinedError, "holds undefined bits among the first 64", outputs=[target])
