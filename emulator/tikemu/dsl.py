"""The container of a kernel: ``tik.Tik`` and ``tik.Dprofile`` (core.md 1.1, 1.2, 3, 5.1).

Methods for the instructions come from the instruction table: each has the documented parameters, converts its arguments
and records one statement.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any, Callable

from . import build, ir, platform_info
from .control import ElifScope, ElseScope, ForRange, IfScope, StatementScope
from .debugger import Tikdb
from .dtypes import BITS, INTEGERS, check_dtype, size_of
from .errors import TikParamError, TikUnknownApiError, TikUnsupportedError
from .expr import Expr, InputScalar, Scalar, ScalarArray, as_int, assignable
from .isa import registry
from .location import GENERATED, fail, here
from .recorder import Recorder
from .tensor import Tensor, check_shape, lower_shape, product

SCOPE_GM, SCOPE_UBUF, SCOPE_CBUF, SCOPE_CBUF_OUT = "global", "local.UB", "local.L1", "local.L1OUT"
#: What a program may ask of Ascend 310, the chip of ``Dprofile("v100", "mini")``; nothing runs on it here.
MINI_CORES, MINI_UB_SIZE, MINI_L1_SIZE = 2, 248 * 1024, 1024 * 1024
SCOPE_CA, SCOPE_CB, SCOPE_CC = "local.L0A", "local.L0B", "local.L0C"

_NAME = re.compile(r"[A-Za-z_][0-9A-Za-z_]*\Z")


class Dprofile:
    """Target description: ``Dprofile()`` is the selected SoC, ``Dprofile("v100", "cloud")`` the Ascend 910 family.

    ``Dprofile("v100", "mini")``, Ascend 310, answers questions of size; no kernel can be made for it.

    Raises:
        TikUnsupportedError: another pair of arguments.
    """

    def __init__(self, arch: str | None = None, product_name: str | None = None) -> None:
        if (arch, product_name) not in ((None, None), ("v100", "cloud"), ("v100", "mini")):
            fail(
                TikUnsupportedError,
                f'Dprofile takes no arguments, ("v100", "cloud") or ("v100", "mini"), got ({arch!r}, {product_name!r})',
            )
        self.arch, self.product_name = arch, product_name

    @property
    def _mini(self) -> bool:
        return self.product_name == "mini"

    def _soc(self) -> Any:
        if self._mini:
            fail(TikUnsupportedError, 'Dprofile("v100", "mini") is Ascend 310; tikemu emulates the Ascend 910 family')
        if self.product_name == "cloud" and not platform_info.is_selected():
            return platform_info.DEFAULT_SOC
        return platform_info.current_soc()

    def get_aicore_num(self) -> int:
        """Number of AI cores."""
        return MINI_CORES if self._mini else self._soc().core_count

    def get_unified_buffer_size(self) -> int:
        """Bytes of Unified Buffer, as ``get_soc_spec("UB_SIZE")`` gives them."""
        if self._mini:
            return MINI_UB_SIZE
        self._soc()
        return platform_info.reported_ub_size()

    def get_l1_buffer_size(self) -> int:
        """Bytes of L1."""
        return MINI_L1_SIZE if self._mini else self._soc().l1_size


class Tik:
    """One kernel. Statements are recorded in program order; nothing runs before ``tikemu.run`` or ``start_debug``.

    Args:
        profiling: a Dprofile, or None for the selected SoC.
        disable_debug: True makes ``tikdb`` unusable.
        err_msg_level: 0 or 1; accepted, errors always name the user's line.
        block_size: 32, no other value.

    Attributes:
        d_profiling: the Dprofile.
        tikdb: the functional debugger.
    """

    def __init__(
        self,
        profiling: Dprofile | None = None,
        disable_debug: bool = True,
        err_msg_level: int = 0,
        block_size: int = 32,
    ) -> None:
        if profiling is not None and not isinstance(profiling, Dprofile):
            fail(TikParamError, f"profiling must be a Dprofile or None, got {profiling!r}")
        if not isinstance(disable_debug, (bool, int)):
            fail(TikParamError, f"disable_debug must be a bool, got {disable_debug!r}")
        if err_msg_level not in (0, 1):
            fail(TikParamError, f"err_msg_level must be 0 or 1, got {err_msg_level!r}")
        if block_size != 32:
            fail(TikParamError, f"block_size must be 32, got {block_size!r}")
        soc = platform_info.current_soc() if profiling is None else profiling._soc()
        self._recorder = Recorder(soc, debug_enabled=not disable_debug)
        self._counts: dict[str, int] = {}
        self.d_profiling = Dprofile() if profiling is None else profiling
        self.tikdb = Tikdb(self._recorder)

    def __str__(self) -> str:
        from .printer import dump

        return dump(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        fail(TikUnknownApiError, f"Tik has no API {name!r} that is known for Ascend 910")

    # ------------------------------------------------------------------------------------------ data
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
        name = self._tensor_name(name)
        check_dtype(dtype, f"dtype of tensor {name!r}")
        if scope not in ir.MEMORY_OF_SCOPE:
            fail(
                TikParamError,
                f"scope of tensor {name!r} must be one of the tik.scope_ constants "
                f"({', '.join(ir.MEMORY_OF_SCOPE)}), got {scope!r}",
            )
        extents, _ = check_shape(shape, f"tensor {name!r}", recorder.scope)
        in_gm = scope == SCOPE_GM
        for flag, value in (("is_workspace", is_workspace), ("is_atomic_add", is_atomic_add)):
            if value and not in_gm:
                fail(TikParamError, f"{flag}=True needs scope_gm, tensor {name!r} is in {scope}")
        if in_gm:
            self._check_gm(name, start_addr)
        elif init_value is not None:
            fail(TikParamError, f"init_value is for tensors in scope_gm, tensor {name!r} is in {scope}")
        runtime = any(isinstance(extent, Expr) for extent in extents)
        if max_mem_size is not None and (as_int(max_mem_size) is None or max_mem_size < 1):
            fail(
                TikParamError,
                f"max_mem_size of tensor {name!r} must be a positive number of bytes, got {max_mem_size!r}",
            )
        if runtime and not in_gm and max_mem_size is None:
            fail(
                TikParamError,
                f"tensor {name!r}: the shape {tuple(shape)!r} holds run-time values, so max_mem_size "
                "must give the bytes to reserve",
            )
        if not runtime and max_mem_size is not None and product(extents) * size_of(dtype) > max_mem_size:
            fail(
                TikParamError,
                f"The space required exceeds max_mem_size: tensor {name!r} needs "
                f"{product(extents) * size_of(dtype)} bytes, max_mem_size is {max_mem_size}",
            )
        if start_addr is not None and (as_int(start_addr) is None or start_addr < 0):
            fail(TikParamError, f"start_addr of tensor {name!r} must be a byte address, got {start_addr!r}")
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

    def _tensor_name(self, name: Any) -> str:
        if name is None:
            return self._count("auto_tensor_")
        if not isinstance(name, str) or not _NAME.match(name):
            fail(
                TikParamError,
                "name of a tensor must consist of letters, digits and underscores and not start with a "
                f"digit, got {name!r}",
            )
        return name

    def _count(self, stem: str) -> str:
        """The next of the default names ``stem0``, ``stem1``, ..."""
        number = self._counts.get(stem, 0)
        self._counts[stem] = number + 1
        return f"{stem}{number}"

    def _check_gm(self, name: str, start_addr: Any) -> None:
        recorder = self._recorder
        if name == "__fake_tensor":
            fail(TikParamError, "a GM tensor may not be named '__fake_tensor'")
        if recorder.enclosing_loop() is not None:
            fail(TikParamError, f"GM tensor {name!r} must be defined outside for_range")
        if start_addr is not None:
            fail(TikParamError, f"start_addr is for on-chip tensors, tensor {name!r} is in scope_gm")

    def Scalar(self, dtype: str = "int64", name: str = "reg_buf", init_value: Any = None) -> Scalar:
        """Define a run-time variable, optionally with a first value (as for ``Scalar.set_as``)."""
        recorder = self._recorder
        variable = self._variable(dtype, self._scalar_name(name, "reg_buf"), "scalar")
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
        name = self._scalar_name(name, "reg_buf_list")
        count = as_int(length)
        if count is None or count < 1:
            fail(TikParamError, f"length of ScalarArray {name!r} must be a positive integer, got {length!r}")
        values = list(init_value) if isinstance(init_value, (list, tuple)) else [init_value] * count
        if len(values) != count:
            fail(TikParamError, f"init_value of ScalarArray {name!r} has {len(values)} values, its length is {count}")
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
            fail(TikParamError, f"name of an InputScalar must be an identifier, got {name!r}")
        variable = self._variable(dtype, name, "input")
        # Its life time is the kernel, wherever it is defined.
        scalar = InputScalar(variable, recorder.frames[0].scope, dtype == "float16")
        recorder.candidates.append(scalar)
        recorder.frames[0].names[name] = scalar
        return scalar

    def _scalar_name(self, name: Any, default: str) -> str:
        if name is None or name == default:
            return self._count(default)
        if not isinstance(name, str):
            fail(TikParamError, f"name of a Scalar must be a str, got {name!r}")
        return name

    def _variable(self, dtype: str, name: str, kind: str) -> ir.Variable:
        check_dtype(dtype, f"dtype of {name!r}", (*INTEGERS, "float16", "float32") if kind == "input" else tuple(BITS))
        return ir.Variable(name, dtype, kind, self._recorder.uid())

    # ------------------------------------------------------------------------------------------ control
    def for_range(
        self,
        begint: Any,
        endt: Any,
        name: str = "i",
        thread_num: int = 1,
        thread_type: str = "whole",
        block_num: Any = 1,
        dtype: str = "int32",
        for_type: str = "serial",
        **later: Any,
    ) -> ForRange:
        """``with tik_instance.for_range(begin, end) as i``: the body for begin <= i < end (core.md 3.1).

        Args:
            begint, endt: integers, Scalars or integer Exprs with 0 <= begint <= endt <= 2147483647.
            name: name of the loop variable.
            thread_num: 0 to 4; n >= 2 gives tensors of the body n copies, so that iterations can overlap.
            block_num: 1 to 65535; more than 1 makes this the multi-core loop (begint 0, endt equal to block_num).
            thread_type, dtype, for_type: reserved; ``later``: keywords of later releases, without effect on 910.

        Raises:
            TikParamError: a bound or a combination that core.md 3.1 forbids.
        """
        return ForRange(self._recorder, begint, endt, name, thread_num, thread_type, block_num, dtype, for_type, later)

    def if_scope(self, cond: Any) -> IfScope:
        """``with tik_instance.if_scope(cond)``: the body where ``cond`` is true (core.md 3.2)."""
        return IfScope(self._recorder, cond)

    def elif_scope(self, cond: Any) -> ElifScope:
        """Continues the if_scope or elif_scope directly before."""
        return ElifScope(self._recorder, cond)

    def else_scope(self) -> ElseScope:
        """Ends the if_scope or elif_scope directly before."""
        return ElseScope(self._recorder)

    def new_stmt_scope(self, disable_sync: bool = False) -> StatementScope:
        """A block of its own; ``disable_sync=True``: nothing is synchronised inside (core.md 3.4)."""
        return StatementScope(self._recorder, disable_sync)

    def tik_break(self) -> None:
        """End the innermost for_range."""
        recorder = self._recorder
        loop = recorder.enclosing_loop()
        if loop is None:
            fail(TikParamError, "tik_break is allowed only inside for_range")
        if not (ir.is_immediate(loop.block_num) and loop.block_num == 1):
            fail(TikParamError, "tik_break is not allowed directly in the multi-core loop")
        loop.thread_num = 1
        recorder.record(ir.Break)

    def tik_continue(self) -> None:
        """Go on with the next iteration of the innermost for_range."""
        recorder = self._recorder
        if recorder.enclosing_loop() is None:
            fail(TikParamError, "tik_continue is allowed only inside for_range")
        recorder.warn("tik_continue has no documentation; taken as the next iteration of the innermost loop")
        recorder.record(ir.Continue)

    def tik_return(self) -> None:
        """Leave the kernel (this block of it)."""
        self._recorder.record(ir.Return)

    # ------------------------------------------------------------------------------------------ build
    def BuildCCE(
        self,
        kernel_name: str,
        inputs: Any,
        outputs: Any,
        output_files_path: str | None = None,
        enable_l2: bool = False,
        config: Mapping[str, Any] | None = None,
        flowtable: Any = None,
        evaluates: Any = None,
        extend_params: Any = None,
    ) -> None:
        """Close the program and check it as a whole (core.md 5.1). No files are written.

        Args:
            kernel_name: name of the kernel, an identifier.
            inputs: GM Tensors and InputScalars, at most 64, in the order of the kernel's arguments.
            outputs: GM Tensors, at most 64.
            flowtable: InputScalars of the tiling table; they are inputs too.
            output_files_path, enable_l2, config, evaluates, extend_params: accepted, no effect.

        Raises:
            TikParamError: a bad name, argument list or argument.
            TikBuildError: a scope is open, the program is built already, or it uses a GM tensor that is no argument.
            TikMemoryError: the tensors that live at one time do not fit their memory.
        """
        build.build(self._recorder, kernel_name, inputs, outputs, config, flowtable)


def _method(spec: Any) -> Callable[..., Any]:
    """A method with the signature of an instruction."""
    defaults, parameters, entries = {}, ["self"], []
    for name, parameter in spec.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            parameters.append(f"*{name}")
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            parameters.append(f"**{name}")
        elif parameter.default is inspect.Parameter.empty:
            parameters.append(name)
        else:
            defaults[f"_{name}"] = parameter.default
            parameters.append(f"{name}=_{name}")
        entries.append(f"{name!r}: {name}")
    source = (
        f"def {spec.name}({', '.join(parameters)}):\n"
        f"    return self._recorder.instruction(_spec, {{{', '.join(entries)}}})\n"
    )
    namespace = {"_spec": spec, **defaults}
    exec(compile(source, f"{GENERATED}{spec.name}>", "exec"), namespace)
    method = namespace[spec.name]
    if spec.aliases:
        method = _with_aliases(method, spec.aliases)
    method.__doc__, method.__qualname__ = spec.doc, f"Tik.{spec.name}"
    return method


def _with_aliases(method: Callable[..., Any], aliases: Mapping[str, str]) -> Callable[..., Any]:
    """The method, also taking the other keywords that programs use for its parameters."""

    @functools.wraps(method)
    def renaming(self: Tik, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = {aliases.get(name, name): value for name, value in kwargs.items()}
        return method(self, *args, **kwargs)

    return renaming


def _refusal(name: str, reason: str) -> Callable[..., Any]:
    def method(self: Tik, *args: Any, **kwargs: Any) -> None:
        fail(TikUnsupportedError, f"{name} is not supported on {self._recorder.soc.name}: {reason}")

    method.__name__, method.__qualname__, method.__doc__ = name, f"Tik.{name}", f"Refused: {reason}"
    return method


def add_instructions(specs: Mapping[str, Any], unsupported: Mapping[str, str]) -> None:
    """Give ``Tik`` a method for every instruction, and a refusing one for every unsupported name."""
    for name, spec in specs.items():
        setattr(Tik, name, _method(spec))
    for name, reason in unsupported.items():
        setattr(Tik, name, _refusal(name, reason))


add_instructions(registry.specs(), registry.unsupported())
