"""The table of instructions: complete, consistent, with the cost of its entries."""

import numpy as np
import pytest
from tikemu.isa import registry

from emulator.tests.support.bench import Bench


def test_composite_instructions():
    composite = {name for name, spec in registry.specs().items() if name.startswith("v") and spec.composite}
    assert composite == {
        "vec_expm1_high_preci",
        "vec_ln_high_preci",
        "vec_rec_high_preci",
        "vec_rsqrt_high_preci",
        "vec_reduce_add",
        "vec_reduce_max",
        "vec_reduce_min",
    }


def test_signatures_are_positional_as_documented():
    specs = registry.specs()
    assert str(specs["vec_conv"].signature) == (
        "(mask, round_mode, dst, src, repeat_times, dst_rep_stride, src_rep_stride, deqscale=None, "
        "ldst_high_half=False)"
    )
    assert str(specs["vec_sel"].signature) == (
        "(mask, mode, dst, sel, src0, src1, repeat_times, dst_rep_stride=0, src0_rep_stride=0, src1_rep_stride=0)"
    )
    assert str(specs["vec_reduce_max"].signature) == (
        "(mask, dst, src, work_tensor, repeat_times, src_rep_stride, cal_index=False)"
    )
    assert str(specs["vadd"].signature) == (
        "(mask, dst, src0, src1, repeat_times, dst_blk_stride, src0_blk_stride, src1_blk_stride, dst_rep_stride, "
        "src0_rep_stride, src1_rep_stride, stride_unit=0, mask_mode='normal')"
    )
    with pytest.raises(TypeError, match="vec_abs.. missing a required argument: 'src_rep_stride'"):
        specs["vec_abs"].arguments(1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("api", "dtype", "cycles"),
    [("vec_muls", "float16", 1), ("vec_exp", "float16", 4), ("vec_exp", "float32", 2), ("vec_rec", "float32", 1)],
)
def test_cost_per_repeat(api, dtype, cycles):
    """No bank conflict adds to the cost: the destination lies one block behind the source."""
    b = Bench()
    x = b.ub(np.ones(40 * 256 // np.dtype(dtype).itemsize, dtype))
    b.ub(np.zeros(32, np.uint8))
    y = b.ub(np.ones(x.shape[0], dtype))
    scalar = (2.0,) if api == "vec_muls" else ()
    for mask in (1, 256 // np.dtype(dtype).itemsize):  # masked lanes do not shorten a repeat
        (operation,) = b.bind(api, mask, y, x, *scalar, 40, 8, 8)
        assert operation.cycles == 40 * cycles and operation.pipe == "V"
        assert operation.mask == ((1 << mask) - 1 >> 64, (1 << mask) - 1 & 2**64 - 1)
