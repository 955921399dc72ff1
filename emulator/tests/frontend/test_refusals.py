"""Calls that the front end refuses: each error has its class and names the program's line."""

import operator
from pathlib import Path

import numpy as np
import pytest
import tikemu
from tikemu import tik
from tikemu.errors import (
    TikAlignError,
    TikBuildError,
    TikIndexError,
    TikParamError,
    TikUnsupportedArgumentError,
    TikUnsupportedError,
)

OWN = str(Path(tikemu.__file__).parent)
PARAM, UNSUPPORTED, INDEX = TikParamError, TikUnsupportedArgumentError, TikIndexError


def ub(kernel, shape=(16,), dtype="float16", name="t", scope=tik.scope_ubuf):
    """Return a tensor in the Unified Buffer."""
    return kernel.Tensor(dtype, shape, scope, name)


def gm(kernel, name="x", **more):
    """Return a tensor in global memory."""
    return kernel.Tensor("float16", (16,), tik.scope_gm, name, **more)


def half(kernel):
    """Return a Scalar of float16."""
    return kernel.Scalar("float16")


def single(kernel):
    """Return a Scalar of float32."""
    return kernel.Scalar("float32")


def integer(kernel):
    """Return a Scalar of int32."""
    return kernel.Scalar("int32", "s")


def array(kernel):
    """Return three Scalars."""
    return kernel.ScalarArray("int32", 3, "a", [1, 2, 3])


def assign(target, value):
    """Assign to the first element of a tensor."""
    target[0] = value


def inside(block, call):
    """Make a call in a block."""
    with block:
        call()


#: Error, a part of its message, and the call.
SCALARS = [
    *((PARAM, "dtype", lambda k, d=d: k.Scalar(d)) for d in ("float64", "bool", "bfloat16", None, 3)),
    *((PARAM, None, lambda k, v=v: integer(k).set_as(v)) for v in ("3", None, object(), [1], float("inf"))),
    (PARAM, "two different Tik instances", lambda k: integer(k) + integer(tik.Tik())),
    (PARAM, "another Tik instance", lambda k: integer(k).set_as(integer(tik.Tik()))),
    (PARAM, "another Tik instance", lambda k: k.vec_dup(16, ub(tik.Tik()), 1.0, 1, 8)),
    (UNSUPPORTED, "float16", lambda k: k.if_scope(half(k))),
    (UNSUPPORTED, "float16", lambda k: k.if_scope(half(k) > 1)),
    (UNSUPPORTED, "float16", lambda k: k.if_scope(tik.negate(half(k) > 1))),
    (UNSUPPORTED, "float16", lambda k: k.if_scope(half(k) + half(k))),
    (UNSUPPORTED, "float16", lambda k: k.if_scope(ub(k)[0] > 3)),
    (UNSUPPORTED, "Expr", lambda k: half(k).set_as(single(k) + 1)),
    (UNSUPPORTED, "Expr", lambda k: k.Scalar("float16", init_value=half(k) + half(k))),
    (UNSUPPORTED, "Unified Buffer", lambda k: half(k).set_as(gm(k)[0])),
    (UNSUPPORTED, "Unified Buffer", lambda k: k.Tensor("int32", (8,), tik.scope_gm, "x")[0] + 1),
    (INDEX, None, lambda k: array(k)[3]),
    (INDEX, None, lambda k: array(k)[-4]),
    (PARAM, None, lambda k: array(k)[single(k)]),
    (PARAM, None, lambda k: array(k)[1.0]),
    (PARAM, None, lambda k: k.ScalarArray(length=0)),
    (PARAM, None, lambda k: k.ScalarArray(length=2.0)),
    (PARAM, None, lambda k: k.ScalarArray(length=2, init_value=[1])),
    (PARAM, None, lambda k: k.ScalarArray(dtype="float64")),
    (PARAM, None, lambda k: k.InputScalar("int32", "1x")),
]
NO_CONDITIONS = ("x", None, [1], object())
#: A call on an int32 Scalar that Python cannot decide, or that no type allows.
EXPRESSIONS = [
    *(
        (PARAM, "run time|run-time", lambda k, use=use: use(integer(k)))
        for use in (
            *(bool, int, float, range, lambda s: 1 < s < 4, lambda s: not s, lambda s: s > 1 and s < 3),
            *(lambda s: max(s, 3), lambda s: s in (1, 2), lambda s: [1, 2, 3][s]),
        )
    ),
    (PARAM, "run time", lambda k: bool(ub(k, (8,), "int32")[0] == 3)),
    (PARAM, "zero", lambda k: integer(k) // 0),
    (PARAM, "zero", lambda k: integer(k) % 0),
    (PARAM, "zero", lambda k: integer(k) / 0),
    (PARAM, "integers", lambda k: half(k) << 1),
    *((PARAM, "shift", lambda k, count=count: integer(k) << count) for count in (-1, 32)),
    *((PARAM, None, lambda k, use=use, v=v: use(v)) for use in (tik.all, tik.any, tik.negate) for v in NO_CONDITIONS),
    *((PARAM, None, lambda k, v=v: k.if_scope(v)) for v in NO_CONDITIONS),
    (PARAM, "at least one", lambda k: tik.all()),
    (PARAM, "at least one", lambda k: tik.any()),
    *(
        (PARAM, "set_as", lambda k, use=use: use(ub(k, dtype="int32")))
        for use in (
            *(lambda t: t == 3, lambda t: t != 3, lambda t: t < 3, lambda t: t <= 3, lambda t: t + 1, lambda t: 1 - t),
            *(lambda t: -t, lambda t: t * t, lambda t: operator.iadd(t, 1)),
        )
    ),
    (PARAM, "set_as", lambda k: integer(k) + ub(k, dtype="int32")),
    (PARAM, "one element", lambda k: ub(k, dtype="int32") > 3),
    (PARAM, "one element", lambda k: ub(k, dtype="int32")[0:2] + 1),
    (PARAM, "one element", lambda k: k.if_scope(ub(k, dtype="int32"))),
]
NO_SCOPES = ({}, [], None, 3, "local.L9", b"global")
#: No index of a tensor of shape (2, 4).
BEYOND = [
    *(8, -9, slice(8, None), slice(0, 9), slice(3, 3), slice(5, 2), slice(-9, None)),
    *((2, 0), (0, 4), (-3, 0), (0, slice(4, 5)), (slice(1, 1), 0), (0,), (0, 0, 0)),
]
NO_INDICES = (1.0, "1", None, Ellipsis, slice(0, 4, 2), slice(4, 0, -1), slice(1.0, None), True, (0, 1.5))
TENSORS = [
    *((INDEX, "'t'", lambda k, i=i: ub(k, (2, 4))[i]) for i in BEYOND),
    *((PARAM, None, lambda k, i=i: ub(k, (2, 4))[i]) for i in NO_INDICES),
    (INDEX, None, lambda k: ub(k, (2, 4))[0][1]),
    (INDEX, "2 entries", lambda k: ub(k, (2, 4))[[1]]),
    (PARAM, "integer", lambda k: ub(k)[single(k)]),
    (PARAM, "integer", lambda k: ub(k)[integer(k) > 2]),
    *((PARAM, None, lambda k, s=s: ub(k, (4, 32)).reshape(s)) for s in ((4, 31), (129,), 128, (-1, 32), (4, 32.5))),
    *(
        (PARAM, "partial view", lambda k, i=i: ub(k, (4, 32))[i].reshape(ub(k, (4, 32))[i].shape))
        for i in (slice(0, 64), slice(1, None), 3, (0, slice(None)), (slice(0, 4), slice(0, 16)))
    ),
    (PARAM, "Error: Last dimension can't be divided.", lambda k: ub(k, (16, 3)).reinterpret_cast_to("float32")),
    (PARAM, "Last dimension", lambda k: ub(k)[0].reinterpret_cast_to("float32")),
    (TikAlignError, "inside an element", lambda k: ub(k)[1:3].reinterpret_cast_to("float32")),
    (PARAM, "dtype", lambda k: ub(k).reinterpret_cast_to("bfloat16")),
    (TikUnsupportedError, "flatten", lambda k: ub(k).flatten()),
    *(
        (UNSUPPORTED, "Unified Buffer", lambda k, scope=scope: ub(k, scope=scope)[0].set_as(1))
        for scope in (tik.scope_gm, tik.scope_cbuf, tik.scope_cc)
    ),
    (UNSUPPORTED, "Unified Buffer", lambda k: ub(k)[0].set_as(gm(k)[0])),
    (PARAM, "must be the same", lambda k: assign(ub(k), single(k))),
    (PARAM, "must be the same", lambda k: assign(ub(k, dtype="float32"), integer(k))),
    (PARAM, "must be the same", lambda k: assign(ub(k, dtype="int32"), single(k))),
    (PARAM, "must be the same", lambda k: assign(ub(k, dtype="int32"), k.Scalar("int64"))),
    (PARAM, "must be the same", lambda k: assign(ub(k, dtype="int32"), ub(k, name="half")[0])),
    (PARAM, None, lambda k: assign(ub(k, dtype="float32"), integer(k) + 1)),
    (PARAM, None, lambda k: assign(ub(k, dtype="int32"), single(k) + single(k))),
    (PARAM, None, lambda k: assign(ub(k, dtype="int32"), "x")),
    (PARAM, None, lambda k: assign(ub(k, dtype="int32"), None)),
    (UNSUPPORTED, "Expr", lambda k: assign(ub(k), integer(k) + 1)),
    *((PARAM, "scope of tensor 't' must be one of", lambda k, s=s: ub(k, scope=s)) for s in NO_SCOPES),
    *((PARAM, "dtype of tensor 't' must be one of", lambda k, d=d: ub(k, dtype=d)) for d in NO_SCOPES),
    *((PARAM, None, lambda k, v=v: k.vec_adds(16, ub(k), ub(k), v, 1, 8, 8)) for v in (object(), {1, 2}, b"x")),
]
TENSOR = {"dtype": "float16", "shape": (16,), "scope": tik.scope_ubuf, "name": "t"}
LOOP = {"begint": 0, "endt": 4}
BUILD = {"kernel_name": "k", "inputs": [], "outputs": []}
#: By kind of statement: what is changed in a legal one, and a part of the message.
CHANGES = {
    lambda k, change: k.Tensor(**{**TENSOR, **change}): [
        *(({"dtype": "float64"}, "dtype"), ({"dtype": np.float16}, "dtype"), ({"shape": 16}, "list or tuple")),
        *(({"shape": ()}, "1 to 8"), ({"shape": (1,) * 9}, "1 to 8"), ({"shape": (0,)}, "positive")),
        *(({"shape": (4, -1)}, "positive"), ({"shape": (2.5,)}, "positive"), ({"shape": ("4",)}, "positive")),
        *(({"scope": "local.XX"}, "scope"), ({"scope": None}, "scope"), ({"name": "1abc"}, "name")),
        *(({"name": "a-b"}, "name"), ({"name": ""}, "name"), ({"name": 7}, "name")),
        ({"name": "__fake_tensor", "scope": tik.scope_gm}, "__fake_tensor"),
        *(({"is_workspace": True}, "is_workspace"), ({"is_atomic_add": True}, "is_atomic_add")),
        *(({"start_addr": 64, "scope": tik.scope_gm}, "start_addr"), ({"start_addr": -32}, "start_addr")),
        *(({"init_value": [1.0] * 16}, "init_value"), ({"max_mem_size": 0}, "max_mem_size of")),
        ({"max_mem_size": 31}, "needs 32 bytes, max_mem_size is 31"),
    ],
    lambda k, change: k.for_range(**{**LOOP, **change}): [
        *(({"begint": -1}, "begint"), ({"endt": 2147483648}, "endt"), ({"begint": 5}, "begint <= endt")),
        *(({"endt": 4.0}, "integer"), ({"endt": "4"}, "integer"), ({"thread_num": 5}, "thread_num")),
        *(({"thread_num": -1}, "thread_num"), ({"thread_num": 2.0}, "thread_num"), ({"block_num": 0}, "block_num")),
        *(({"block_num": 65536}, "block_num"), ({"block_num": 1.5}, "block_num"), ({"sleep": 1}, "sleep")),
        *(({"dtype": "int64"}, "dtype"), ({"for_type": "parallel"}, "for_type"), ({"name": 3}, "name")),
        *(({"begint": 1, "block_num": 4}, "begin at 0"), ({"endt": 5, "block_num": 4}, "equal")),
        *(({"thread_num": 2, "block_num": 4}, "thread_num"), ({"thread_type": "half"}, "thread_type")),
    ],
    lambda k, change: k.BuildCCE(**{**BUILD, **change}): [
        *(({"kernel_name": name}, "kernel_name") for name in ("1k", "a-b", None)),
        *(({"inputs": inputs}, "inputs must") for inputs in (None, ["x"], "x", 3, {"x": None})),
        *(({"outputs": "x"}, "outputs"), ({"config": 3}, "config"), ({"flowtable": ["x"]}, "flowtable")),
    ],
    lambda k, change: tik.Tik(**change): [
        *((change, None) for change in ({"profiling": "v100"}, {"disable_debug": None})),
        *((change, None) for change in ({"err_msg_level": 2}, {"block_size": 64})),
    ],
}
STATEMENTS = [
    *(
        (PARAM, said, lambda k, make=make, change=change: make(k, change))
        for make, changes in CHANGES.items()
        for change, said in changes
    ),
    (PARAM, "max_mem_size", lambda k: ub(k, (k.InputScalar("int32", "n"), 16))),
    (PARAM, "integer", lambda k: ub(k, (single(k),), scope=tik.scope_gm)),
    (PARAM, "outside for_range", lambda k: inside(k.for_range(0, 2), lambda: gm(k))),
    (PARAM, "float32", lambda k: k.for_range(0, single(k))),
    (PARAM, "bool", lambda k: k.for_range(0, integer(k) > 1)),
    (PARAM, "equal", lambda k: k.for_range(0, 4, block_num=k.InputScalar("int32", "blocks"))),
    (PARAM, "only inside for_range", lambda k: k.tik_break()),
    (PARAM, "only inside for_range", lambda k: k.tik_continue()),
    (PARAM, "disable_sync", lambda k: k.new_stmt_scope("yes")),
    (PARAM, "scope_gm", lambda k: k.BuildCCE("k", [ub(k)], [])),
    (PARAM, "workspace", lambda k: k.BuildCCE("k", [gm(k, is_workspace=True)], [])),
    (PARAM, "whole", lambda k: k.BuildCCE("k", [gm(k)[0:8]], [])),
    (PARAM, "twice", lambda k: k.BuildCCE("k", [gm(k)] * 2, [])),
    (PARAM, "outputs", lambda k: k.BuildCCE("k", [], [k.InputScalar("int32", "n")])),
    (PARAM, "inputs", lambda k: k.BuildCCE("k", [k.Scalar()], [])),
    (PARAM, "64", lambda k: k.BuildCCE("k", [gm(k, f"t{number}") for number in range(65)], [])),
    (PARAM, "64", lambda k: k.BuildCCE("k", [], [gm(k, f"t{number}") for number in range(65)])),
    *(
        (PARAM, said, lambda k, table=table: k.BuildCCE("k", [], [], flowtable=table(k)))
        for said, table in (
            ("flowtable must hold tensors in scope_gm", lambda k: [ub(k)]),
            ("must not appear in flowtable", lambda k: [gm(k, is_workspace=True)]),
            ("flowtable must hold whole tensors", lambda k: [gm(k)[0:8]]),
            ("twice in flowtable", lambda k: [gm(k)] * 2),
            ("flowtable must hold GM Tensor or InputScalar", lambda k: [k.Scalar()]),
        )
    ),
    (TikBuildError, "outside all with blocks", lambda k: inside(k.new_stmt_scope(), lambda: k.BuildCCE("k", [], []))),
    *((PARAM, "debug_print", lambda k, bad=bad: k.tikdb.debug_print(bad)) for bad in ("data[", "x = 1", 3)),
]


@pytest.mark.parametrize("error, message, call", [*SCALARS, *EXPRESSIONS, *TENSORS, *STATEMENTS])
def test_refused(kernel, error, message, call):
    with pytest.raises(error, match=message) as caught:
        call(kernel)
    assert caught.value.location.file == __file__
    own = [entry.path for entry in caught.traceback if str(entry.path).startswith(OWN)]
    assert len(own) == 1


def test_the_legal_forms_beside_them(kernel, no_warnings):
    assert kernel.Tensor(**TENSOR).size == 16 and kernel.ScalarArray("float32", 2, init_value=1.5).length == 2
    for change in ({"begint": 4}, {"endt": 2147483647}, {"thread_num": 0}, {"thread_num": 4}, {"enable_subblk": False}):
        with kernel.for_range(**{**LOOP, **change}):
            pass
    with kernel.if_scope(single(kernel) > 1):
        pass
    half(kernel).set_as(single(kernel))
    half(kernel).set_as(2)
    held = ub(kernel, dtype="int32", name="held")
    assign(held, kernel.Scalar("int64") + 1)
    assign(ub(kernel, dtype="float32"), single(kernel) + single(kernel))
    assign(ub(kernel), 1.5)
    assign(ub(kernel), half(kernel))
    assert ub(kernel, (2, 4))[0:4:1].shape == (4,)
    assert ub(kernel, (16, 4)).reinterpret_cast_to("float32").shape == (16, 2)
    assert held == held and (held != held) is False and (held == None) is False and held in [None, held]  # noqa: E711
    with pytest.raises(TypeError):
        iter(held)
    number = integer(kernel)
    assert (number // 2).dtype == (number << 31).dtype == "int32"
    assert (number == "x") is False and (number != None) is True  # noqa: E711
    for misuse in (lambda: number + "1", lambda: number**2):
        with pytest.raises(TypeError):
            misuse()
    kernel.tikdb.debug_print("1 + 1")
    inputs = [gm(kernel, f"t{index}") for index in range(64)]
    kernel.BuildCCE("k", inputs, inputs)
