"""Scalar functions, explicit synchronisation and refused names."""

import math

import numpy as np
import pytest
from tikemu.errors import TikBoundsError, TikUnsupportedError
from tikemu.isa import registry
from tikemu.program import ir

from emulator.tests.support.bench import Bench, check, refuses
from emulator.tests.support.naive_values import stored, to_integer, to_odd
from emulator.tests.support.vector_inputs import sample


def scalar(dtype, name="s"):
    """Return a run-time variable."""
    return ir.Variable(name, dtype, "scalar", 0)


def evaluate(name, dst, *sources, round_mode=None):
    """Return the number that a call assigns to a destination of dtype ``dst``."""
    spec = registry.specs()[name]
    args = ([round_mode] if round_mode is not None else []) + [scalar(dst), *sources]
    return spec.evaluate(spec.arguments(*args))


# ------------------------------------------------------------------------------------------------------- scalar_conv
@pytest.mark.parametrize(
    "mode,expected",
    [
        ("round", [0, 0, 2, 2, 0, 0, -2, -2, 1, -1]),
        ("to-zero", [0, 0, 1, 1, 0, 0, -1, -1, 0, 0]),
        ("floor", [0, 0, 1, 1, -1, -1, -2, -2, 0, -1]),
        ("ceil", [1, 1, 2, 2, 0, 0, -1, -1, 1, 0]),
        ("ceiling", [1, 1, 2, 2, 0, 0, -1, -1, 1, 0]),
        ("away-zero", [1, 1, 2, 2, -1, -1, -2, -2, 1, -1]),
    ],
)
def test_conv_to_integer(mode, expected):
    """'away-zero' moves any fraction outward, as printed for Ascend 910: 0.2 -> 1, -0.2 -> -1."""
    inputs = [0.2, 0.5, 1.5, 1.8, -0.2, -0.5, -1.5, -1.8, 0.8, -0.8]
    assert [evaluate("scalar_conv", "int32", x, round_mode=mode) for x in inputs] == expected


def test_conv_agrees_with_the_naive_interpreter():
    rng = np.random.default_rng(0)
    for x in sample(rng, "float32", 500).tolist():
        for mode in ("round", "to-zero", "floor", "ceil", "ceiling"):
            assert evaluate("scalar_conv", "int32", x, round_mode=mode) == to_integer(x, mode, "int32")
        outward = math.copysign(math.ceil(abs(x)), x) if math.isfinite(x) else x
        assert evaluate("scalar_conv", "int32", x, round_mode="away-zero") == to_integer(outward, "round", "int32")
        for mode in ("", "none"):
            assert evaluate("scalar_conv", "float16", x, round_mode=mode) == stored(x, "float16")
        if abs(x) < 65504:
            assert evaluate("scalar_conv", "float16", x, round_mode="odd") == to_odd(x)
    for dtype in ("int32", "float16"):
        for x in filter(math.isfinite, sample(rng, dtype, 200).tolist()):
            assert evaluate("scalar_conv", "float32", x, round_mode="") == stored(x, "float32")


# --------------------------------------------------------------------------------------------------------- functions
@pytest.mark.parametrize(
    "name,dst,sources,expected",
    [
        ("scalar_sqrt", "float32", (2.0,), float(np.sqrt(np.float32(2)))),
        ("scalar_sqrt", "int64", (99,), 9),
        ("scalar_sqrt", "int64", (2**62,), 2**31),
        ("scalar_abs", "float32", (-2.5,), 2.5),
        ("scalar_abs", "int64", (-7,), 7),
        ("scalar_abs", "int32", (-(2**31),), -(2**31)),
        ("scalar_max", "float32", (1.5, -2.0), 1.5),
        ("scalar_max", "int64", (3, 8), 8),
        ("scalar_min", "float32", (1.5, -2.0), -2.0),
        ("scalar_min", "int64", (3, 8), 3),
        ("scalar_min", "float32", (0.1, 1.0), float(np.float32(0.1))),
        ("scalar_countbit1", "uint64", (2**64 - 1,), 64),
        ("scalar_countbit1", "uint64", (0b1011,), 3),
        ("scalar_countbit1", "int64", (-1,), 64),
        ("scalar_countleading0", "uint64", (1,), 63),
        ("scalar_countleading0", "uint64", (0,), 64),
        ("scalar_countleading0", "int64", (-1,), 0),
    ],
)
def test_functions(name, dst, sources, expected):
    assert evaluate(name, dst, *sources) == expected


def test_square_root_of_a_negative_number():
    assert math.isnan(evaluate("scalar_sqrt", "float32", -1.0))
    with pytest.raises(TikBoundsError, match="got -4"):
        evaluate("scalar_sqrt", "int64", -4)


def test_undocumented_types_are_questionable():
    assert "int32" in check("scalar_min", scalar("int32"), scalar("int32"), scalar("int64"))[0]
    refuses(TikUnsupportedError, None, "scalar_min", scalar("int32"), scalar("int32"), 1, strict=True)


# --------------------------------------------------------------------------------------------------- synchronisation
@pytest.mark.parametrize("pipe", ["V", "M", "MTE1", "MTE2", "MTE3", "ALL"])
def test_pipe_barrier(pipe):
    for name in (pipe, f"PIPE_{pipe}"):
        (op,) = Bench().call("pipe_barrier", name)
        assert (op.pipe, op.barrier, op.reads, op.writes, op.run) == ("S", pipe, (), (), None)


def test_flags(bench):
    (op,) = bench.call("set_flag", "PIPE_MTE2", "PIPE_V", 3)
    assert op.flag == ("set", "MTE2", "V", 3)
    (op,) = bench.call("wait_flag", "MTE2", "V", 0)
    assert op.flag == ("wait", "MTE2", "V", 0)
    (op,) = bench.call("block_barrier", object())
    assert op.barrier == "BLOCKS"


# ----------------------------------------------------------------------------------------------------- refused names
REFUSED = [
    *("vadddeqrelu", "vaddrelu", "vsubrelu", "vmulconv", "vaddreluconv", "v4dtrans", "vcmpvs_lt", "vcmpvs_gt"),
    *("vcmpvs_ge", "vcmpvs_le", "vcmpvs_eq", "vcmpvs_ne", "vbi", "vbs16", "vms4", "vreduce", "vreducev2", "vgather"),
    *("vgatherb", "vscatter", "vcopy", "vec_gather", "vec_whole_reduce_add", "vec_whole_reduce_max"),
    *("vec_whole_reduce_min", "vec_cpadd", "load2dv2", "load3dv2", "data_move_pad", "rpn_cor", "rpn_cor_diag"),
    *("set_rpn_cor_ir", "vaadd", "viou", "vrpac", "call_module", "col2img", "vmins", "vmaxs", "vcbd", "vmrgsort"),
    *("vsort32", "set_rpn_offset", "new_scope", "mov_vmrgsort4_sr_to_scalar", "TensorAddrList", "vmrgch"),
    *("get_available_buffer_size", "get_overflow_status", "load_image", "set_overflow_status", "StartProfiling"),
    *("conv2d", "vmaddrelu", "scalar_countbit0", "printf", "h_rec", "h_sqrt", "h_broadcast", "h_trans", "h_relu"),
]


@pytest.mark.parametrize("name", REFUSED)
def test_names_are_refused_with_a_reason(name):
    from tikemu import tik

    assert registry.unsupported()[name]
    assert name not in registry.specs()
    with pytest.raises(TikUnsupportedError, match=f"{name} is not supported on Ascend910A: "):
        getattr(tik.Tik(tik.Dprofile("v100", "cloud")), name)(1, x=2)
