"""Compile and run single operators of an operator package. tikemu compiles them, the device process runs them.

pyACL compiles none itself: programs call ``aclopCompile``, see ``libraries``.
"""

import json
import os
import traceback
from pathlib import Path

import numpy as np
from tikemu.frontend import platform_info
from tikemu.machine.inputs import block_count
from virtual_ascend.compiler.tasks import record
from virtual_ascend.operator_call import OperatorCall, shape_of
from virtual_ascend.operator_packages import installed

import acl
from acl import rt

_DTYPES = {0: "float32", 1: "float16", 3: "int32", 4: "uint8"}
_FORMATS = {2: "ND", 29: "FRACTAL_NZ"}
_compiled: dict[str, tuple] = {}  # number, blocks and bytes of workspaces by operator, tensors and attributes


def create_attr() -> int:
    """Stand in for aclopCreateAttr."""
    return acl.keep({})


def set_attr_string(attr: int, attr_name: str, attr_value: str) -> int:
    """Stand in for aclopSetAttrString."""
    acl.of(attr)[attr_name] = attr_value
    return acl.SUCCESS


def compile_it(op_type: str, input_desc: list, output_desc: list, attr: int) -> int:
    """Stand in for aclopCompile."""
    key = _key(op_type, input_desc, output_desc, attr)
    if key in _compiled:
        return acl.SUCCESS
    places = [one for one in os.environ.get("ASCEND_CUSTOM_OPP_PATH", "").split(":") if one]
    vendors = Path(os.environ.get("ASCEND_OPP_PATH", os.devnull)).glob("vendors/*")
    information = installed([*places, *vendors]).get(op_type)
    if information is None:
        return acl.fail(acl.OPERATOR_NOT_FOUND, f"no operator package that is installed has operator type {op_type}")
    if os.environ.get("IGNORE_INFER_ERROR") != "1" and not (information.folder.parents[2] / "op_proto").exists():
        return acl.fail(
            acl.COMPILE_FAILED, f"operator type {op_type} has no prototype, and IGNORE_INFER_ERROR is not 1"
        )
    given, wanted = (
        [
            {**desc, "dtype": _DTYPES[desc["dtype"]], "format": _FORMATS[desc["format"]], "ori_format": "ND"}
            for desc in map(acl.of, side)
        ]
        for side in (input_desc, output_desc)
    )
    name = f"{op_type}_{len(_compiled)}"
    try:
        values = {one: acl.of(attr)[one] for one in information.attributes}
        platform_info.select(acl.get_soc_name())
        program = record(information.entry(), [*given, *wanted, *values.values(), name])
    except Exception:
        return acl.fail(acl.COMPILE_FAILED, f"operator {op_type} was not compiled\n{traceback.format_exc()}")
    kernel = OperatorCall(name, op_type, information.function, given, wanted, values, program)
    sizes = [int(np.prod(shape_of(one))) * np.dtype(one.dtype).itemsize for one in program.workspaces]
    _compiled[key] = rt.card().register(kernel), block_count(program, {}) or 1, sizes
    return acl.SUCCESS


def execute_v2(op_type, input_desc, inputs, output_desc, outputs, attr, stream) -> int:
    """Stand in for aclopExecuteV2, of an operator that is compiled."""
    compiled = _compiled.get(_key(op_type, input_desc, output_desc, attr))
    if compiled is None:
        return acl.fail(acl.OPERATOR_NOT_FOUND, f"operator {op_type} is not compiled for these tensors")
    number, blocks, sizes = compiled
    spaces = [rt.malloc(size, 0)[0] for size in sizes]
    code, text = rt.card().launch(number, blocks, [*(acl.of(one)[0] for one in (*inputs, *outputs)), *spaces])
    for space in spaces:
        rt.free(space)
    return acl.fail(code, text) if code else acl.SUCCESS


def _key(op_type, input_desc, output_desc, attr) -> str:
    return json.dumps([op_type, [acl.of(one) for one in (*input_desc, *output_desc)], acl.of(attr)])


destroy_attr = acl.drop
