"""Recorded calls that the checks of instructions refuse, and the legal ones at the borders."""

import pytest
from tikemu.errors import TikParamError, TikUnsupportedArgumentError, TikUnsupportedError
from tikemu.program import ir

from emulator.tests.isa.test_load3d import window
from emulator.tests.support.bench import check, recorded, refuses

PARAM, UNSUPPORTED, ARGUMENT = TikParamError, TikUnsupportedError, TikUnsupportedArgumentError
WINDOW = window()


def made(value):
    """Return an argument: "float16 UB" is a tensor, "float16 UB 8 32" one of this shape, "scalar int32" a Scalar."""
    words = value.split() if isinstance(value, str) else []
    if words[:1] == ["scalar"]:
        return ir.Variable("s", words[1], "scalar", 0)
    if len(words) < 2:
        return value
    return recorded(words[0], words[1], shape=tuple(map(int, words[2:])) or (4096,))


def arguments(given, more):
    """Return the positional and the named arguments of a call."""
    extend = {name: made(value) for name, value in (more.get("extend_params") or {}).items()} if more else {}
    return [made(value) for value in given], {**more, **({"extend_params": extend} if extend else {})}


SINGLE, HALF = ("float32 GM", "float32 L0C"), ("float16 GM", "float32 L0C")
MATMUL, MMAD = ("float32 L0C", "float16 L1", "float16 L1"), ("float32 L0C", "float16 L0A", "float16 L0B")
LOAD, FROM_L0C, UP = ("float16 L0A", "float16 L1"), ("float16 UB", "float32 L0C"), ("float32 L0C", "float32 UB")
MOVE = ("float16 UB", "float16 GM")
SELECTED, HALVES = ("float16 UB", "uint8 UB", "float16 UB", "float16 UB"), [recorded("float16", "UB")] * 16


def extended(**parameters):
    """Return extend_params of fixpipe."""
    return {"extend_params": parameters}


#: Name, positional and named arguments, error, a part of its message.
REFUSED = [
    ("fixpipe", (*SINGLE, 0, 2, 0, 0), {}, PARAM, "cburst_num"),
    ("fixpipe", (*SINGLE, 1, 3, 0, 0), {}, PARAM, "even"),
    ("fixpipe", (*SINGLE, 1, 2, 65536, 0), {}, PARAM, "dst_stride"),
    ("fixpipe", (*SINGLE, 1, 2, 0, 1), {}, PARAM, "src_stride"),
    ("fixpipe", (*HALF, 1, 2, 0, 0), {}, PARAM, "needs quantize_params"),
    ("fixpipe", (*HALF, 1, 2, 0, 0), extended(quantize_params={"mode": "int322fp16"}), PARAM, "takes src int32"),
    *(
        ("fixpipe", ("float16 GM", f"{dtype} L0C", 1, 2, 0, 0), extended(quantize_params={"mode": mode}), PARAM, said)
        for dtype, mode, said in (("int32", "int322fp16", "mode_param"), ("float32", "fp322int8", "mode"))
    ),
    ("fixpipe", (*SINGLE, 1, 2, 0, 0), extended(relux=True), PARAM, "relux"),
    ("fixpipe", (*SINGLE, 1, 2, 0, 0), extended(bias="float32 UB"), PARAM, "in L1"),
    ("fixpipe", (*SINGLE, 1, 2, 0, 0), extended(bias="int32 L1"), PARAM, "dtype of src"),
    ("fixpipe", (*SINGLE, 1, 2, 0, 0, 3), {}, PARAM, "dict"),
    ("fixpipe", ("float32 L1", "float32 L0C", 1, 2, 0, 0), {}, PARAM, "dst must be in"),
    ("fixpipe", ("float32 GM", "float32 UB", 1, 2, 0, 0), {}, PARAM, "src must be in"),
    # ---- vector instructions
    *(
        (name, (16, *[f"{dtype} UB"] * len(strides), 1, *strides), {}, ARGUMENT, "Ascend 910 takes")
        for name, dtype, strides in (
            *(("vec_add", "int16", (8, 8, 8)), ("vec_and", "float16", (8, 8, 8)), ("vec_exp", "int32", (8, 8))),
            *(("vec_not", "int32", (8, 8)), ("vec_rec", "int32", (8, 8))),
        )
    ),
    ("vdiv", (16, *["int32 UB"] * 3, 1, 1, 1, 1, 8, 8, 8), {}, ARGUMENT, "Ascend 910 takes"),
    *((f"vec_reduce_{n}", (64, *["float32 UB"] * 3, 1, 8), {}, ARGUMENT, "takes float16") for n in ("max", "min")),
    *(
        (name, (64, "float32 UB", "float32 UB", 1, 1, 1, 8), {}, ARGUMENT, "Ascend 910 takes float16")
        for name in ("vcmax", "vcmin", "vcgmax", "vcgmin", "vcgadd", "vcpadd")
    ),
    ("vec_cmpv_lt", ("uint8 UB", "int32 UB", "int32 UB", 1, 8, 8), {}, ARGUMENT, "Ascend 910 takes"),
    ("vec_abs", (128, "float16 UB", "float16 L1", 1, 8, 8), {}, PARAM, "src must be in the Unified Buffer .* is in L1"),
    ("vec_abs", (128, 5, "float16 UB", 1, 8, 8), {}, PARAM, "dst must be a Tensor, got int 5"),
    (
        *("vec_add", (64, "float16 UB", "float16 UB", "float32 UB", 1, 8, 8, 8), {}, PARAM),
        "dst and src0 and src1 must have the same dtype, got dst float16, src0 float16, src1 float32",
    ),
    ("vec_axpy", (64, "float16 UB", "float32 UB", 1.0, 1, 8, 8), {}, ARGUMENT, r"\(float32, float16\)"),
    ("vshr", (128, "int16 UB", "int16 UB", 1, 1, 1, 1, 8, 8, True), {}, ARGUMENT, "round_en must be False"),
    ("vec_adds", (128, "float16 UB", "float16 UB", 1.0, 1, 8, 8, "other"), {}, PARAM, "mask_mode must be"),
    ("vadds", (128, "float16 UB", "float16 UB", 1.0, 1, 1, 1, 8, 8, 1), {}, ARGUMENT, "stride_unit must be 0"),
    *(
        ("vec_conv", (16, mode, f"{dst} UB", f"{src} UB", 1, 8, 8), {}, ARGUMENT, "round_mode")
        for dst, src, mode in (
            *(("float16", "float32", "round"), ("float32", "float16", "floor"), ("int32", "float32", "")),
            *(("int8", "float16", "odd"), ("float16", "int8", "odd")),
        )
    ),
    *(
        ("vec_conv", (16, "", f"{dst} UB", f"{src} UB", 1, 8, 8), {}, ARGUMENT, f"dst {dst}, src {src}")
        for dst, src in (
            *(("float32", "float32"), ("int16", "float16"), ("float16", "int16"), ("int16", "float32")),
            *(("int64", "int32"), ("int8", "int32")),
        )
    ),
    ("vec_conv", (64, "", "float16 UB", "int32 UB", 1, 4, 8), {}, PARAM, "deqscale must be given for int32 to float16"),
    ("vec_conv", (64, "", "float16 UB", "float32 UB", 1, 4, 8, 1.0), {}, PARAM, "int32 to float16, and only there"),
    ("vec_conv", (128, "", "int8 UB", "float16 UB", 1, 4, 8, None, True), {}, ARGUMENT, "ldst_high_half must be False"),
    ("vec_conv", (65, "", "float16 UB", "float32 UB", 1, 4, 8), {}, PARAM, r"mask must be in \[1, 64\], got 65"),
    *(("vec_sel", (128, mode, *SELECTED, 1), {}, ARGUMENT, f"mode {mode} does not exist") for mode in (1, 2)),
    ("vec_sel", (128, 3, *SELECTED, 1), {}, PARAM, "mode must be one of"),
    ("vsel", (128, 0, *SELECTED[:1], 5, *SELECTED[2:], 1, 1, 1, 1, 8, 8, 8), {}, PARAM, "sel must be what vcmp_"),
    ("vsel", (128, 0, *["float16 UB"] * 4, 1, 1, 1, 1, 8, 8, 8), {}, ARGUMENT, "sel must be of uint8"),
    ("mov_cmpmask_to_tensor", ("uint16 UB", "float16 UB"), {}, PARAM, "src must be what vcmp_"),
    ("vnchwconv", (False, False, HALVES[:15], HALVES, 1, 0, 0), {}, PARAM, "dst_list must hold exactly 16 .*, got 15"),
    ("vnchwconv", (False, False, *[[recorded("float32", "UB")] * 16] * 2, 1, 0, 0), {}, ARGUMENT, "float32"),
    ("vnchwconv", (False, False, HALVES, [recorded("int16", "UB")] * 16, 1, 0, 0), {}, PARAM, "mixes dtypes"),
    ("vconcat", ("float16 UB", "float16 UB", 1, 6), {}, PARAM, r"mode_number must be in \[0, 5\], got 6"),
    ("vmrgsort4", ("float16 UB", HALVES[:4], 16, False, "0101", 1), {}, PARAM, "valid_bit"),
    ("vmrgsort4", ("float16 UB", HALVES[:4], [16] * 3, False, 15, 1), {}, PARAM, "one number or a list of 4, got 3"),
    ("vmrgsort4", ("float16 UB", HALVES[:2], 16, False, 3, 1), {}, PARAM, "src_list must hold exactly 4"),
    *(("vmrgsort4", ("float16 UB", HALVES[:4], 16, False, 15, r), {}, PARAM, "repeat_times") for r in (-1, 256)),
    # ---- whole tensors
    ("h_div", ["int32 UB"] * 3, {}, PARAM, None),
    ("h_add", ["int16 UB"] * 3, {}, PARAM, None),
    ("h_exp", ["int32 UB"] * 2, {}, PARAM, None),
    ("h_add", ["float16 L1"] * 3, {}, PARAM, None),
    ("h_abs", ["int8 UB"] * 2, {}, PARAM, None),
    ("h_cast", ("float32 UB", "float16 UB", "floor"), {}, UNSUPPORTED, "round_mode"),
    ("h_cast", ("int16 UB", "float16 UB", "none"), {}, UNSUPPORTED, None),
    ("h_cmpv", ("uint16 UB", "float16 UB", "float16 UB", "gt"), {}, PARAM, "cmp_mode"),
    ("h_cmpv", ("float16 UB", "float16 UB", "float16 UB", "GT"), {}, PARAM, "mask_tensor"),
    ("h_data_move", ("float16 UB 32", "float16 GM 48"), {}, PARAM, "number of elements"),
    ("h_data_move", ("float32 UB", "float16 GM"), {}, PARAM, "dtype"),
    ("h_data_move", ("float16 GM", "float16 GM"), {}, UNSUPPORTED, None),
    ("h_reduce_max", ("float16 UB 32", "float16 UB 8 32", 1), {}, PARAM, "without axis 1"),
    ("h_reduce_max", ("float16 UB 8", "float16 UB 8 32", 2), {}, PARAM, "axis must be one int"),
    ("h_reduce_argmax", ("int32 UB 8", "float32 UB 8 32", 1), {}, UNSUPPORTED, None),
    # ---- the Cube
    *(
        ("load2dv1", (*LOAD, *args), {}, PARAM, "must be in")
        for args in ((0, 0, 0, 0), (0, 256, 0, 0), (0, 1, 65536, 0), (-1, 1, 0, 0), (65536, 1, 0, 0))
    ),
    ("load2dv1", ("int8 L0B", "int8 L1", 0, 1, 1, 0, True), {}, UNSUPPORTED, "16-bit"),
    ("load2dv1", ("float16 L0A", "float16 GM", 0, 1, 1, 0, True), {}, UNSUPPORTED, "if_transpose"),
    ("load2dv1", ("float32 L0A", "float32 L1", 0, 1, 1, 0), {}, UNSUPPORTED, None),
    ("load2dv1", ("float16 L0A", "float16 UB", 0, 1, 1, 0), {}, PARAM, "src must be in"),
    ("load2dv1", ("float16 L1", "float16 L1", 0, 1, 1, 0), {}, UNSUPPORTED, "L1 to L1"),
    *(("load3dv1", LOAD, {**WINDOW, "padding": padding}, PARAM, "padding") for padding in ([0] * 3, [0, 0, 0, 256])),
    ("load3dv1", LOAD, {**WINDOW, "padding": [-1, 0, 0, 0]}, PARAM, "padding"),
    *(
        ("matmul", (*MATMUL, *sizes), {}, PARAM, f"{name} must be in")
        for name, sizes in (("m", (0, 1, 1)), ("m", (4097, 1, 1)), ("k", (1, 16385, 1)), ("n", (1, 1, 4097)))
    ),
    ("matmul", ("int32 L0C", "int8 L1", "int8 L1", 1, 32769, 1), {}, PARAM, "k must be in"),
    ("matmul", ("float16 L0C", "float16 L1", "float16 L1", 16, 16, 16), {}, UNSUPPORTED, None),
    ("matmul", ("int32 L0C", "uint8 L1", "int8 L1", 16, 16, 16), {}, UNSUPPORTED, None),
    ("matmul", ("float32 L0C", "float16 UB", "float16 L1", 16, 16, 16), {}, PARAM, "a must be in L1"),
    *(
        ("mmad", (f"{dst} L0C", f"{left} L0A", f"{right} L0B", 16, 16, 16, 0), {}, UNSUPPORTED, None)
        for dst, left, right in (
            *(("float32", "float32", "float32"), ("int32", "int8", "uint8"), ("float32", "int8", "int8")),
            *(("int32", "float16", "float16"), ("int32", "int16", "int16")),
        )
    ),
    *(("mmad", (*MMAD, *sizes, 0), {}, PARAM, "must be in") for sizes in ((4096, 1, 1), (1, -1, 1), (1, 1, 4096))),
    ("mmad", (*MMAD, 1, 1, 1, 2), {}, PARAM, "is_bias"),
    ("mmad", ("float32 L0C", "float16 L0B", "float16 L0B", 1, 1, 1, 0), {}, PARAM, "src_fm must be in L0A"),
    *(
        ("mmad", (*MMAD, 1, 1, 1, 0), {name: value}, ARGUMENT, name)
        for name, value in (("fm_offset", 1), ("en_weight_offset", True), ("smask", 3), ("unit_flag", 1))
    ),
    # ---- moves
    ("data_move", ("float32 UB", "float16 GM", 0, 1, 1, 0, 0), {}, PARAM, "same dtype, got src float16, dst float32"),
    *(
        (name, (f"float32 {target}", f"float32 {source}", *rest), {}, UNSUPPORTED, reason)
        for name, rest in (("data_move", (0, 1, 1, 0, 0)), ("tensor_mov", ("m", 1, 1, 0, 0)))
        for target, source, reason in (
            *(("GM", "L0C", "through the Unified Buffer"), ("L1", "L0C", "through the Unified Buffer")),
            *(("UB", "L0A", "no move from L0A to UB: Ascend 910 has no such"), ("GM", "GM", "no such data path")),
            *(("L0A", "UB", "no such data path"), ("L0C", "GM", "no such data path")),
        )
    ),
    ("tensor_mov", (*UP, "m", 1, 1, 0, 0), {}, UNSUPPORTED, "broadcast_ub_to_l0c"),
    ("tensor_mov", ("float16 UB", "int32 L0C", "m", 1, 1, 0, 0), {}, PARAM, "needs deqscale"),
    ("tensor_mov", (*FROM_L0C, "m", 1, 1, 0, 0), {"deqscale": 1.0}, PARAM, "deqscale converts"),
    ("tensor_mov", ("int8 UB", "int32 L0C", "m", 1, 1, 0, 0), {}, PARAM, "does not convert int32 to int8"),
    ("tensor_mov", (*FROM_L0C, "sc", 1, 1, 0, 0), {}, PARAM, "block_mode"),
    ("tensor_mov", ("float16 UB", "float16 L0C", "", 1, 1, 0, 0), {}, PARAM, "use 'm'"),
    ("tensor_mov", (*MOVE, "m", 1, 1, 0, 0), {}, PARAM, "moves from L0C to UB"),
    ("tensor_mov", ("float16 UB", "int32 L0C", "m", 1, 1, 0, 0), {"deqscale": [1.0] * 16}, PARAM, "deqscale"),
    ("tensor_mov", ("float16 UB", "int32 L0C", "m", 1, 1, 0, 0), {"deqscale": 1.0, "relu": True}, PARAM, "relu"),
    ("tensor_mov", (*FROM_L0C, "m", 1, 1, 0, 0), {"sid_store_mode": 1}, PARAM, "sid_store_mode"),
    ("tensor_mov", (*FROM_L0C, "m", 1, 1, 0, 0), {"onthefly": 1}, PARAM, "onthefly"),
    ("tensor_mov", (*MOVE, "", 1, 1, 0, 0), {"relu": True}, PARAM, "from L0C only"),
    ("tensor_mov", ("float32 UB", "float32 L0C", "m", 1, 65536, 0, 0), {}, PARAM, "burst"),
    ("tensor_mov", ("float32 UB", "float32 L0C", "v", 1, 2, 0, 0), {}, PARAM, "burst 1 only"),
    *(
        ("data_move", ("float16 UB", "float16 L0C", 0, 1, 1, 0, 0, *extra), {}, ARGUMENT, reason)
        for extra, reason in (((2,), "8th"), ((1, 1), "8th"), ((1,), "the 8th argument 1 converts"))
    ),
    ("data_move", ("float16 UB", "float16 L0C", 0, 1, 1, 0, 0), {"deqscale": 1.0}, ARGUMENT, "'deqscale'"),
    ("data_move", (*FROM_L0C, 0, 1, 1, 0, 0), {}, PARAM, "same dtype"),
    ("broadcast_ub_to_l0c", (*UP, 256, 1, 0, 0), {}, PARAM, "nburst"),
    ("broadcast_ub_to_l0c", ("float32 L0C", "float16 UB", 1, 1, 0, 0), {}, PARAM, "same dtype"),
    *(("set_atomic_add", (value,), {}, UNSUPPORTED, None) for value in (2, "float16", "int32", 3, True)),
    # ---- the scalar unit
    *(
        ("scalar_conv", (mode, f"scalar {dst}", f"scalar {src}"), {}, PARAM, None)
        for mode, dst, src in (
            *(("floor", "float32", "int32"), ("", "int32", "float32"), ("odd", "int32", "float32")),
            *(("odd", "float32", "float16"), ("half", "int32", "float32"), ("round", "int32", "float16")),
            *(("", "int64", "float32"), ("", "float16", "int32")),
        )
    ),
    ("scalar_conv", ("round", "scalar int32", 2.5), {}, PARAM, "src must be a Scalar"),
    ("scalar_conv", ("round", 3, "scalar float32"), {}, PARAM, "dst must be a Scalar"),
    ("scalar_max", ("scalar int64", "scalar float32", 1), {}, PARAM, None),
    ("scalar_max", ("scalar float32", "scalar int64", 1), {}, PARAM, None),
    *(("scalar_max", (dst, src, 1), {}, PARAM, None) for dst, src in (("scalar int64", 1.5), ("scalar int64", "x"))),
    ("scalar_max", ("scalar float32", True, 1), {}, PARAM, None),
    ("scalar_countbit1", ("scalar float32", "scalar uint64"), {}, PARAM, "dst"),
    *(("pipe_barrier", (pipe,), {}, PARAM, None) for pipe in ("S", "PIPE_FIX", 3)),
    ("set_flag", ("V", "V", 0), {}, PARAM, None),
    ("set_flag", ("V", "MTE3", 4), {}, PARAM, None),
    ("wait_flag", ("V", "MTE3", -1), {}, PARAM, None),
    ("set_flag", ("FIX", "V", 0), {}, PARAM, None),
]


@pytest.mark.parametrize("name, given, more, error, said", REFUSED)
def test_refused(name, given, more, error, said):
    args, kwargs = arguments(given, more)
    refuses(error, said, name, *args, **kwargs)


@pytest.mark.parametrize(
    "name, given, more",
    [
        ("fixpipe", (*SINGLE, 4095, 65534, 65535, 0), {}),
        ("vshr", (128, "int16 UB", "int16 UB", 1, 1, 1, 1, 8, 8, False), {}),
        ("vec_adds", (128, "float16 UB", "float16 UB", 1.0, 1, 8, 8), {"mask_mode": "normal"}),
        ("vadds", (128, "float16 UB", "float16 UB", 1.0, 1, 1, 1, 8, 8, 0), {}),
        ("vec_conv", (128, "", "int8 UB", "float16 UB", 1, 4, 8), {"ldst_high_half": False}),
        ("vec_sel", (128, 0, *SELECTED, 1), {}),
        ("h_cast", (), {"dst": recorded("float16", "UB"), "src": recorded("int32", "UB"), "round_mode": "none"}),
        ("load2dv1", (*LOAD, 0, 255, 65535, 0, False, "inc"), {}),
        ("load3dv1", LOAD, {**WINDOW, "padding": [255] * 4}),
        ("matmul", (*MATMUL, 4096, 16384, 1), {}),
        ("matmul", ("int32 L0C", "int8 L1", "int8 L1", 1, 32768, 1), {}),
        ("mmad", (*MMAD, 4095, 0, 1, True, 0, False, None), {}),
        ("scalar_conv", ("round", "scalar int32", "scalar float32"), {}),
        ("scalar_conv", ("odd", "scalar float16", ir.Operation("+", (made("scalar float32"), 1.0), "float32")), {}),
        ("scalar_max", ("scalar int64", "scalar int64", 5), {}),
        ("scalar_max", ("scalar float32", 1.5, "scalar float32"), {}),
        ("set_flag", ("S", "V", 3), {}),
    ],
)
def test_legal(name, given, more):
    args, kwargs = arguments(given, more)
    assert check(name, *args, **kwargs) == []


@pytest.mark.parametrize(
    "name, given, more, parameters, low, high",
    [
        ("load3dv1", LOAD, WINDOW, ("l1_h", "l1_w"), 1, 32767),
        ("load3dv1", LOAD, WINDOW, ("c1_index",), 0, 4095),
        ("load3dv1", LOAD, WINDOW, ("fetch_filter_h", "fetch_filter_w"), 0, 254),
        ("load3dv1", LOAD, WINDOW, ("left_top_h", "left_top_w"), -255, 32767),
        ("load3dv1", LOAD, WINDOW, ("stride_h", "stride_w"), 1, 63),
        ("load3dv1", LOAD, WINDOW, ("filter_h", "filter_w", "dilation_filter_h", "dilation_filter_w"), 1, 255),
        ("load3dv1", LOAD, WINDOW, ("jump_stride",), 1, 127),
        ("load3dv1", LOAD, WINDOW, ("repeat_mode",), 0, 1),
        ("load3dv1", LOAD, WINDOW, ("repeat_time",), 1, 255),
        ("load3dv1", LOAD, WINDOW, ("csize",), 0, 0),
        *(
            ("data_move", MOVE, dict.fromkeys(("sid", "src_stride", "dst_stride"), 0) | {"nburst": 1, "burst": 1}, *row)
            for row in (
                *((("nburst",), 1, 4095), (("burst",), 1, 65535), (("src_stride", "dst_stride"), 0, 65535)),
                (("sid",), 0, 15),
            )
        ),
    ],
)
def test_ranges(name, given, more, parameters, low, high):
    args, _ = arguments(given, {})
    for parameter in parameters:
        for allowed in (low, high):
            check(name, *args, **{**more, parameter: allowed})
        for wrong in (low - 1, high + 1, low + 0.5):
            refuses(PARAM, parameter, name, *args, **{**more, parameter: wrong})
