"""Definitions of tensors and Scalars: checked and recorded (core.md 2.1, 2.6)."""

from __future__ import annotations

import re
from typing import Any

from ..program import ir
from ..program.dtypes import BITS, INTEGERS, check_dtype, size_of
from ..program.location import fail, here
from .expr import Expr, InputScalar, Scalar, ScalarArray, as_int, assignable
from .extents import check_shape, lower_shape, product
from .recorder import Recorder
from .tensor import Tensor

_NAME = re.compile(r"[A-Za-z_][0-9A-Za-z_]*\Z")


class Definitions:
    """The part of ``Tik`` that defines tensors and Scalars in the open statement scope."""

    _recorder: Recorder

    def Tensor(
        self,
        dtype: str,
        shape: Any,
        scope: str,
        name: str | None = None,
        enable_buffer_reuse: bool = False,
        is_workspace: bool = False,
        is_atomic_add: bool = False,
        max_mem_size: int | None = None,
        init_value: Any = None,
        start_addr: int | None = None,
        no_reuse_list: Any = None,
        reuse_list: Any = None,
    ) -> Tensor:
        """Define a tensor in the open statement scope.

        Args:
            dtype: element type.
            shape: 1 to 8 extents: ints, and Scalars or Exprs of integer type.
            scope: ``tik.scope_gm``, ``scope_ubuf``, ``scope_cbuf``, ``scope_cbuf_out``, ``scope_ca``, ``scope_cb`` or
                ``scope_cc``.
            name: letters, digits and underscores. Two GM tensors that the kernel uses must not share a name.
            is_workspace: temporary GM memory that is neither input nor output.
            is_atomic_add: the framework clears this GM tensor before the kernel.
            max_mem_size: bytes to reserve when the shape of an on-chip tensor holds run-time values.
            init_value: initial contents of a GM tensor.
            start_addr: fixed byte address of an on-chip tensor.
            enable_buffer_reuse, no_reuse_list, reuse_list: reserved.

        Raises:
            TikParamError: an argument breaks the rules above.
        """
        recorder = self._recorder
        name = _tensor_name(recorder, name)
        check_dtype(dtype, f"dtype of tensor {name!r}")
        if not isinstance(scope, str) or scope not in ir.MEMORY_OF_SCOPE:
            fail(
                f"scope of tensor {name!r} must be one of the tik.scope_ constants "
                f"({', '.join(ir.MEMORY_OF_SCOPE)}), got {scope!r}"
            )
        extents, _ = check_shape(shape, f"tensor {name!r}", recorder.scope)
        in_gm = ir.MEMORY_OF_SCOPE[scope] == "GM"
        for flag, value in (("is_workspace", is_workspace), ("is_atomic_add", is_atomic_add)):
            if value and not in_gm:
                fail(f"{flag}=True needs scope_gm, tensor {name!r} is in {scope}")
        if in_gm:
            _check_gm(recorder, name, start_addr)
        elif init_value is not None:
            fail(f"init_value is for tensors in scope_gm, tensor {name!r} is in {scope}")
        runtime = any(isinstance(extent, Expr) for extent in extents)
        if max_mem_size is not None and (as_int(max_mem_size) is None or max_mem_size < 1):
            fail(f"max_mem_size of tensor {name!r} must be a positive number of bytes, got {max_mem_size!r}")
        if runtime and not in_gm and max_mem_size is None:
            fail(
                f"tensor {name!r}: the shape {tuple(shape)!r} holds run-time values, so max_mem_size "
                "must give the bytes to reserve"
            )
        if not runtime and max_mem_size is not None and product(extents) * size_of(dtype) > max_mem_size:
            fail(
                f"The space required exceeds max_mem_size: tensor {name!r} needs "
                f"{product(extents) * size_of(dtype)} bytes, max_mem_size is {max_mem_size}"
            )
        if start_addr is not None and (as_int(start_addr) is None or start_addr < 0):
            fail(f"start_addr of tensor {name!r} must be a byte address, got {start_addr!r}")
        info = ir.TensorInfo(
            name,
            dtype,
            lower_shape(extents),
            scope,
            recorder.uid(),
            here(),
            bool(is_workspace),
            bool(is_atomic_add),
            max_mem_size,
            init_value,
            start_addr,
        )
        recorder.record(ir.Define, tensor=info)
        tensor = Tensor.whole(info, recorder.scope, extents)
        recorder.frame.names[name] = tensor
        if in_gm:
            recorder.candidates.append(tensor)
        return tensor

    def Scalar(self, dtype: str = "int64", name: str = "reg_buf", init_value: Any = None) -> Scalar:
        """Define a run-time variable, optionally with a first value (as for ``Scalar.set_as``)."""
        recorder = self._recorder
        variable = _variable(recorder, dtype, _scalar_name(recorder, name, "reg_buf"), "scalar")
        scalar = Scalar(variable, recorder.scope, dtype == "float16")
        value = None
        if init_value is not None:
            value = assignable(recorder, init_value, dtype, f"Scalar {variable.name!r}")
        recorder.record(ir.DefineScalar, variables=(variable,))
        if init_value is not None:
            recorder.record(ir.Assign, target=variable, value=value)
        recorder.frame.names[variable.name] = scalar
        return scalar

    def ScalarArray(
        self, dtype: str = "int64", length: int = 1, name: str = "reg_buf_list", init_value: Any = None
    ) -> ScalarArray:
        """Define ``length`` run-time variables; ``init_value`` is one value for all or a list of ``length``."""
        recorder = self._recorder
        name = _scalar_name(recorder, name, "reg_buf_list")
        count = as_int(length)
        if count is None or count < 1:
            fail(f"length of ScalarArray {name!r} must be a positive integer, got {length!r}")
        values = list(init_value) if isinstance(init_value, (list, tuple)) else [init_value] * count
        if len(values) != count:
            fail(f"init_value of ScalarArray {name!r} has {len(values)} values, its length is {count}")
        check_dtype(dtype, f"dtype of ScalarArray {name!r}")
        variables = tuple(
            ir.Variable(f"{name}[{position}]", dtype, "scalar", recorder.uid()) for position in range(count)
        )
        lowered = [
            None if value is None else assignable(recorder, value, dtype, f"ScalarArray {name!r}") for value in values
        ]
        recorder.record(ir.DefineScalar, variables=variables)
        for variable, value in zip(variables, lowered):
            if value is not None:
                recorder.record(ir.Assign, target=variable, value=value)
        array = ScalarArray(name, variables, recorder.scope)
        recorder.frame.names[name] = array
        return array

    def InputScalar(self, dtype: str = "int64", name: str = "input_scalar") -> InputScalar:
        """Define a kernel argument that is passed at launch."""
        recorder = self._recorder
        if not isinstance(name, str) or not _NAME.match(name):
            fail(f"name of an InputScalar must be an identifier, got {name!r}")
        variable = _variable(recorder, dtype, name, "input")
        # It lives as long as the kernel, also if it is defined in an inner scope.
        scalar = InputScalar(variable, recorder.frames[0].scope, dtype == "float16")
        recorder.candidates.append(scalar)
        recorder.frames[0].names[name] = scalar
        return scalar


def _tensor_name(recorder: Recorder, name: Any) -> str:
    if name is None:
        return recorder.default_name("auto_tensor_")
    if not isinstance(name, str) or not _NAME.match(name):
        fail(
            f"name of a tensor must consist of letters, digits and underscores and not start with a digit, got {name!r}"
        )
    return name


def _scalar_name(recorder: Recorder, name: Any, default: str) -> str:
    if name is None or name == default:
        return recorder.default_name(default)
    if not isinstance(name, str):
        fail(f"name of a Scalar must be a str, got {name!r}")
    return name


def _check_gm(recorder: Recorder, name: str, start_addr: Any) -> None:
    if name == "__fake_tensor":
        fail("a GM tensor may not be named '__fake_tensor'")
    if recorder.enclosing_loop() is not None:
        fail(f"GM tensor {name!r} must be defined outside for_range")
    if start_addr is not None:
        fail(f"start_addr is for on-chip tensors, tensor {name!r} is in scope_gm")


def _variable(recorder: Recorder, dtype: str, name: str, kind: str) -> ir.Variable:
    check_dtype(dtype, f"dtype of {name!r}", (*INTEGERS, "float16", "float32") if kind == "input" else tuple(BITS))
    return ir.Variable(name, dtype, kind, recorder.uid())
