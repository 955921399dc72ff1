"""para_check and shape_util check what their names say (core.md 6.1)."""

import pytest
from tikemu.shim import para_check as check
from tikemu.shim import shape_util

TENSOR = {"shape": (16, 16), "dtype": "float16", "format": "ND", "ori_shape": (16, 16), "ori_format": "ND"}


@check.check_op_params(
    check.REQUIRED_INPUT,
    check.OPTION_INPUT,
    check.DYNAMIC_INPUT,
    check.REQUIRED_OUTPUT,
    check.REQUIRED_ATTR_INT,
    check.OPTION_ATTR_LIST_FLOAT,
    check.KERNEL_NAME,
)
def operator(x, bias, parts, y, axis, scales=None, kernel_name="operator"):
    """Return what an entry function gets."""
    return x, axis, kernel_name


GOOD = {"x": TENSOR, "bias": None, "parts": [TENSOR, TENSOR], "y": TENSOR, "axis": 1}


def test_a_legal_call_passes():
    assert operator(**GOOD) == (TENSOR, 1, "operator")
    assert operator(*GOOD.values(), [1, 0.5], "named")[2] == "named"
    assert operator.__name__ == "operator" and operator.__doc__ == "Return what an entry function gets."


@pytest.mark.parametrize(
    "change, message",
    [
        ({"x": None}, "'x' is required"),
        ({"x": (16, 16)}, "must be a dict"),
        ({"y": None}, "'y' is required"),
        *(({"x": {key: value for key, value in TENSOR.items() if key != missing}}, missing) for missing in TENSOR),
        ({"x": {**TENSOR, "shape": 16}}, "shape"),
        ({"x": {**TENSOR, "shape": (1.5,)}}, "shape"),
        ({"x": {**TENSOR, "dtype": "half"}}, "dtype"),
        ({"x": {**TENSOR, "format": 3}}, "format"),
        ({"bias": {}}, "bias"),
        ({"parts": None}, "parts"),
        ({"parts": []}, "parts"),
        ({"parts": TENSOR}, "parts"),
        ({"parts": [TENSOR, None]}, r"parts\[1\]"),
        ({"axis": None}, "'axis' is required"),
        ({"axis": 1.0}, "axis"),
        ({"axis": True}, "axis"),
        ({"axis": "1"}, "axis"),
        ({"scales": [1, "x"]}, "scales"),
        ({"scales": 1.0}, "scales"),
        ({"kernel_name": None}, "kernel_name"),
        ({"kernel_name": "1x"}, "kernel_name"),
        ({"kernel_name": "x" * 201}, "kernel_name"),
        ({"extra": 1}, "extra"),
    ],
)
def test_violations_are_runtime_errors(change, message):
    with pytest.raises(RuntimeError, match=message) as caught:
        operator(**{**GOOD, **change})
    assert "test_para_check.py" in str(caught.value)


def test_a_missing_argument_and_a_wrong_number_of_constants():
    with pytest.raises(RuntimeError, match="axis"):
        operator(TENSOR, None, [TENSOR], TENSOR)
    with pytest.raises(RuntimeError, match="describes 1"):
        check.check_op_params(check.REQUIRED_INPUT)(lambda x, y: None)(TENSOR, TENSOR)


@pytest.mark.parametrize(
    "kind, good, bad",
    [
        ("INT", 3, 3.0),
        ("FLOAT", 1, "1"),
        ("FLOAT", 1.5, None),
        ("STR", "a", 1),
        ("BOOL", False, 0),
        ("TYPE", "float16", "half"),
        ("LIST_INT", [1, 2], [1.5]),
        ("LIST_FLOAT", (1, 2.5), [True]),
        ("LIST_BOOL", [True], [1]),
        ("LIST_LIST_INT", [[1], []], [1]),
        ("LIST_STR", ["a"], "a"),
    ],
)
def test_attribute_types(kind, good, bad):
    for requirement in ("REQUIRED", "OPTION"):
        function = check.check_op_params(getattr(check, f"{requirement}_ATTR_{kind}"))(lambda value: value)
        assert function(good) is good
        if bad is None and requirement == "OPTION":
            assert function(None) is None
            continue
        with pytest.raises(RuntimeError):
            function(bad)


@pytest.mark.parametrize(
    "checker, good, bad",
    [
        (check.check_shape, [((1, 2),), ((),), ((-1, 3),)], [(3,), ((1.0,),), ((1,) * 9,), ((-3,),)]),
        (check.check_shape_rule, [((1, 2),)], [((0,),), ((),), ("x",)]),
        (check.check_shape_size, [((4, 4), 16)], [((4, 5), 16)]),
        (check.check_tensor_shape_size, [((2**31,),)], [((2**31 + 1,),)]),
        (check.check_dtype, [("float16",), ("FLOAT16", ("float16",))], [("half",), (None,), ("int8", ("float16",))]),
        (check.check_format, [("ND",), ("nchw", ("NCHW",))], [("XX",), (None,), ("ND", ("NCHW",))]),
        (check.check_kernel_name, [("_a1",)], [("a b",), (1,)]),
    ],
)
def test_single_checks(checker, good, bad):
    for arguments in good:
        checker(*arguments)
    for arguments in bad:
        with pytest.raises(RuntimeError):
            checker(*arguments)


def test_check_shape_bounds():
    check.check_shape((8, 4), min_dim=4, max_dim=8, min_rank=2, max_rank=2, max_size=32)
    for bounds in (
        {"min_dim": 5},
        {"max_dim": 7},
        {"min_rank": 3},
        {"max_rank": 1},
        {"max_size": 31},
        {"min_size": 33},
    ):
        with pytest.raises(RuntimeError, match="weights"):
            check.check_shape((8, 4), param_name="weights", **bounds)


def test_check_input_type():
    @check.check_input_type(dict, (int, float), flag=bool)
    def function(x, scale, name="a", flag=False):
        return scale

    assert function({}, 1.5, flag=True) == 1.5
    for arguments, keywords in (((None, 1), {}), (({}, "1"), {}), (({}, 1), {"flag": 1})):
        with pytest.raises(RuntimeError, match="type"):
            function(*arguments, **keywords)


def test_ranges_of_unknown_shapes():
    check.check_elewise_shape_range([{"range": [(1, 8)]}, {"range": [(4, None)]}])
    with pytest.raises(RuntimeError):
        check.check_elewise_shape_range([{"range": [(2, 3)]}, {"range": [(4, 8)]}])
    check.check_elewise_shape_range([{"range": [(1, 1)]}, {"range": [(4, 8)]}], support_broadcast=True)


# ------------------------------------------------------------------------------------------------ shapes
def test_broadcasting():
    assert shape_util.broadcast_shapes((4, 1, 3), (5, 3)) == ([4, 1, 3], [1, 5, 3], [4, 5, 3])
    assert shape_util.broadcast_shapes((), (2,)) == ([1], [2], [2])
    with pytest.raises(RuntimeError, match="do not broadcast"):
        shape_util.broadcast_shapes((4, 2), (3, 2))


@pytest.mark.parametrize(
    "one, other, expected",
    [
        ((2, 3, 4), (2, 3, 4), ([24], [24])),
        ((2, 3, 4), (1, 1, 4), ([6, 4], [1, 4])),
        ((2, 3), (1,), ([6], [1])),
        ((1, 3, 4), (2, 1, 1), ([1, 12], [2, 1])),
        ((2, 1, 4), (2, 1, 4), ([8], [8])),
    ],
)
def test_refining_for_broadcast(one, other, expected):
    assert shape_util.refine_shapes_for_broadcast(one, other) == expected


@pytest.mark.parametrize(
    "shape, axes, expected",
    [
        ((2, 3, 4), (0, 1), ([6, 4], [0])),
        ((2, 3, 4), -1, ([6, 4], [1])),
        ((2, 3, 4, 5), (1, 2), ([2, 12, 5], [1])),
        ((2, 1, 4), (0,), ([2, 4], [0])),
        ((2, 3), (0, 1), ([6], [0])),
    ],
)
def test_refining_for_reduction(shape, axes, expected):
    assert shape_util.refine_shape_axes(shape, axes) == expected


def test_axes():
    assert shape_util.axis_check(4, [-1, 0, 3]) == [0, 3] and shape_util.axis_check(4, -2) == 2
    for axis in (4, -5, 1.0):
        with pytest.raises(RuntimeError):
            shape_util.axis_check(4, axis)


def test_small_helpers():
    assert shape_util.shape_to_list((1, 2)) == [1, 2] and shape_util.scalar2tensor_one(()) == (1,)
    assert shape_util.get_shape_size((2, 3)) == 6
    shape_util.compare_tensor_dict_key(TENSOR, {**TENSOR, "shape": [16, 16], "dtype": "FLOAT16"}, "shape")
    shape_util.compare_tensor_dict_key(TENSOR, {**TENSOR, "dtype": "FLOAT16"}, "dtype")
    for other, key in (({**TENSOR, "shape": (16,)}, "shape"), ({}, "shape"), (None, "dtype")):
        with pytest.raises(RuntimeError):
            shape_util.compare_tensor_dict_key(TENSOR, other, key)


@check.check_op_params(
    check.REQUIRED_INPUT,
    (check.REQUIRED_ATTR_INT, check.REQUIRED_ATTR_LIST_INT),
    (check.OPTION_INPUT, check.OPTION_ATTR_STR),
)
def flexible(x, axes, mode=None):
    """Return an entry function with alternatives for its parameters."""
    return axes


@pytest.mark.parametrize("axes", [1, [0, 1]])
@pytest.mark.parametrize("mode", [None, "fast", TENSOR])
def test_one_of_the_alternatives_is_enough(axes, mode):
    assert flexible(TENSOR, axes, mode) == axes


@pytest.mark.parametrize("axes, mode", [(None, None), ("0", None), ([0.5], None), (1, 3)])
def test_none_of_the_alternatives_is_a_violation(axes, mode):
    with pytest.raises(RuntimeError, match="none of the alternatives"):
        flexible(TENSOR, axes, mode)


def test_a_string_stands_for_a_list_of_one():
    check.check_format("nd", "ND")
    check.check_dtype("Float16", "float16")
    for function, value, allowed in ((check.check_format, "N", "ND"), (check.check_dtype, "float", "float16")):
        with pytest.raises(RuntimeError, match=f"must be one of {allowed}, got"):
            function(value, allowed)
