"""Recorded programs as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import ir
from .nodes import describe

_INDENT = "    "


def dump(program: Any) -> str:
    """Return the program of a ``Tik`` instance or :class:`tikemu.program.ir.Program` as text, one statement a line.

    A view is written ``name[offset]``, followed by its shape and, if they differ, dtype and strides:
    ``x[64]:(64,)``. Source lines are not shown; every statement has one in ``statement.location``.
    """
    if not isinstance(program, ir.Program):
        program = program._recorder.program
    inputs = ", ".join(_argument(node) for node in program.inputs)
    outputs = ", ".join(_argument(node) for node in program.outputs)
    head = f"kernel {program.name or '(not built)'}({inputs}) -> ({outputs}) on {program.soc.name}"
    return "\n".join([head, *_lines(program.body, _INDENT)])


def _argument(node: Any) -> str:
    return node.tensor.name if isinstance(node, ir.View) else node.name


def _lines(body: ir.Body, indent: str) -> Iterator[str]:
    for statement in body.statements:
        yield from (indent + line for line in _statement(statement))


def _statement(statement: Any) -> Iterator[str]:
    kind = type(statement)
    if kind is ir.Define:
        yield _definition(statement.tensor)
    elif kind is ir.DefineScalar:
        first = statement.variables[0]
        yield f"scalar {', '.join(variable.name for variable in statement.variables)}: {first.dtype}"
    elif kind is ir.Assign:
        yield f"{statement.target.name} = {_value(statement.value)}"
    elif kind is ir.AssignElement:
        array = statement.targets[0].name.partition("[")[0]
        yield f"{array}[{describe(statement.index)}] = {_value(statement.value)}"
    elif kind is ir.Store:
        yield f"{_value(statement.target)} = {_value(statement.value)}"
    elif kind is ir.Instruction:
        call = f"{statement.spec.name}({', '.join(f'{name}={_value(arg)}' for name, arg in statement.args.items())})"
        yield call if statement.result is None else f"cmpmask{statement.result.uid} = {call}"
    elif kind is ir.For:
        options = "".join(
            f", {label}={describe(value)}"
            for label, value in (("thread_num", statement.thread_num), ("block_num", statement.block_num))
            if not (ir.is_immediate(value) and value == 1)
        )
        bounds = f"{describe(statement.begin)}, {describe(statement.end)}"
        yield f"for {statement.variable.name} in range({bounds}){options}:"
        yield from _block(statement.body)
    elif kind is ir.If:
        word = "if"
        for condition, body in statement.branches:
            yield f"{word} {describe(condition)}:"
            yield from _block(body)
            word = "elif"
        if statement.otherwise is not None:
            yield "else:"
            yield from _block(statement.otherwise)
    elif kind is ir.Scope:
        yield "scope, disable_sync:" if statement.disable_sync else "scope:"
        yield from _block(statement.body)
    elif kind is ir.DebugPrint:
        yield f"debug_print({statement.expression!r})"
    else:
        yield kind.__name__.lower()


def _block(body: ir.Body) -> Iterator[str]:
    yield from _lines(body, _INDENT) if body.statements else [_INDENT + "pass"]


def _definition(info: ir.TensorInfo) -> str:
    notes = [label for label, value in (("workspace", info.is_workspace), ("atomic_add", info.is_atomic_add)) if value]
    if info.max_mem_size is not None:
        notes.append(f"max_mem_size={info.max_mem_size}")
    if info.start_addr is not None:
        notes.append(f"start_addr={info.start_addr}")
    return f"tensor {info.name}: {info.dtype}{_shape(info.shape)} in {info.memory}" + "".join(f", {n}" for n in notes)


def _shape(shape: tuple[Any, ...]) -> str:
    return f"({', '.join(describe(extent) for extent in shape)}{',' if len(shape) == 1 else ''})"


def _value(value: Any) -> str:
    if isinstance(value, ir.View):
        info = value.tensor
        dtype = "" if value.dtype == info.dtype else f" as {value.dtype}"
        if value.offset == 0 and not dtype and value.shape == info.shape:
            return info.name
        return f"{info.name}[{describe(value.offset)}]{dtype}:{_shape(value.shape)}"
    if isinstance(value, ir.CmpMask):
        return f"cmpmask{value.uid}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_value(item)}' for key, item in value.items())}}}"
    return describe(value)
