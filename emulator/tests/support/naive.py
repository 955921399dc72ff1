"""A slow, naive interpreter of recorded programs: one element at a time, in plain Python.

Written from the documents and kept apart from the emulator: every tensor is a bytearray of its own, every number a
Python int or float, rounded by ``struct``. It covers control flow, scalars, vector instructions and moves between
global memory, the Unified Buffer and L1; the fuzz tests compare the emulator with it. It checks nothing.

    outputs = naive.run(program, {"x": array})
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from tikemu.program import ir

from emulator.tests.support.naive_instructions import INSTRUCTIONS
from emulator.tests.support.naive_values import CODES, LARGEST, OPERATORS, Bytes, Pointer, size_of, stored, to_integer


class Interrupt(Exception):
    """tik_break, tik_continue, tik_return."""

    def __init__(self, kind: type) -> None:
        super().__init__(kind)
        self.kind = kind


class Interpreter:
    """One block of a program."""

    def __init__(self, program: ir.Program, gm: dict[int, Bytes], inputs: Mapping[str, Any], block: int) -> None:
        self.gm, self.block = gm, block
        self.tensors: dict[int, Bytes] = {}
        self.scalars: dict[int, Any] = {
            variable.uid: inputs[variable.name] for variable in program.inputs if isinstance(variable, ir.Variable)
        }
        self.register, self.atomic = 0, False

    # ---- values
    def value(self, node: Any) -> Any:
        if isinstance(node, ir.Variable):
            return self.scalars[node.uid]
        if isinstance(node, ir.Operation):
            return self.operation(node)
        return node

    def operation(self, node: ir.Operation) -> Any:
        if node.op == "index":
            return self.value(node.args[1 + self.value(node.args[0])])
        exact = OPERATORS[node.op](*map(self.value, node.args))
        if node.dtype in LARGEST:
            return struct.unpack(CODES[node.dtype], struct.pack(CODES[node.dtype], exact))[0]
        return int(exact) if node.dtype == "bool" else stored(exact, node.dtype)

    def pointer(self, view: ir.View) -> Pointer:
        data = self.gm[view.tensor.uid] if view.tensor.memory == "GM" else self.tensors[view.tensor.uid]
        return Pointer(data, self.value(view.offset) * size_of(view.dtype), view.dtype)

    def resolve(self, argument: Any) -> Any:
        if isinstance(argument, ir.View):
            return self.pointer(argument)
        if isinstance(argument, (list, tuple)):
            return [self.resolve(item) for item in argument]
        return self.value(argument)

    # ---- statements
    def body(self, statements: list) -> None:
        for statement in statements:
            getattr(self, f"do_{type(statement).__name__.lower()}")(statement)

    def do_define(self, statement: ir.Define) -> None:
        tensor = statement.tensor
        if tensor.memory != "GM":
            count = math.prod(self.value(extent) for extent in tensor.shape) * size_of(tensor.dtype)
            self.tensors[tensor.uid] = Bytes(max(count, tensor.max_mem_size or 0) + 31, tensor.memory)

    def do_definescalar(self, statement: ir.DefineScalar) -> None:
        pass

    def do_assign(self, statement: ir.Assign) -> None:
        value = statement.value
        value = self.pointer(value).get() if isinstance(value, ir.View) else self.value(value)
        target = statement.target
        if target.dtype not in LARGEST and isinstance(value, float):
            value = to_integer(value, "to-zero", "int32")
        self.scalars[target.uid] = stored(value, target.dtype)

    def do_assignelement(self, statement: ir.AssignElement) -> None:
        target = statement.targets[self.value(statement.index)]
        self.do_assign(ir.Assign(statement.location, target, statement.value))

    def do_store(self, statement: ir.Store) -> None:
        value = statement.value
        value = self.pointer(value).get() if isinstance(value, ir.View) else self.value(value)
        self.pointer(statement.target).put(value)

    def do_for(self, statement: ir.For) -> None:
        begin, end = self.value(statement.begin), self.value(statement.end)
        parallel = statement.block_num if isinstance(statement.block_num, int) else self.value(statement.block_num)
        for i in [self.block] if parallel > 1 else range(begin, end):
            self.scalars[statement.variable.uid] = i
            try:
                self.body(statement.body.statements)
            except Interrupt as interrupt:
                if interrupt.kind is ir.Break:
                    break
                if interrupt.kind is ir.Return:
                    raise

    def do_if(self, statement: ir.If) -> None:
        for condition, body in statement.branches:
            if self.value(condition):
                self.body(body.statements)
                return
        if statement.otherwise is not None:
            self.body(statement.otherwise.statements)

    def do_scope(self, statement: ir.Scope) -> None:
        self.body(statement.body.statements)

    def do_break(self, statement: ir.Break) -> None:
        raise Interrupt(ir.Break)

    def do_continue(self, statement: ir.Continue) -> None:
        raise Interrupt(ir.Continue)

    def do_return(self, statement: ir.Return) -> None:
        raise Interrupt(ir.Return)

    def do_instruction(self, statement: ir.Instruction) -> None:
        name, a = statement.spec.name, {key: self.resolve(value) for key, value in statement.args.items()}
        INSTRUCTIONS[name](self, a)


def block_count(program: ir.Program) -> int:
    """Return the number of blocks of the multi-core loop, 1 without such a loop."""
    loops = (entry.block_num for entry in ir.statements(program.body) if isinstance(entry, ir.For))
    return next((count for count in loops if isinstance(count, int) and count > 1), 1)


def run(program: ir.Program, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Execute a program block after block.

    Args:
        program: as recorded, with immediate shapes of its GM tensors.
        inputs: array (number for an InputScalar) by name.

    Returns:
        The output tensors by name.
    """
    defined = [entry.tensor for entry in ir.statements(program.body) if isinstance(entry, ir.Define)]
    given = [view.tensor for view in (*program.inputs, *program.outputs) if isinstance(view, ir.View)]
    gm = {
        tensor.uid: Bytes(math.prod(tensor.shape) * size_of(tensor.dtype), "GM")
        for tensor in (*given, *defined)
        if tensor.memory == "GM"
    }
    for view in program.inputs:
        if isinstance(view, ir.View):
            gm[view.tensor.uid][:] = np.ascontiguousarray(inputs[view.tensor.name]).tobytes()
    for block in range(block_count(program)):
        try:
            Interpreter(program, gm, inputs, block).body(program.body.statements)
        except Interrupt as interrupt:
            if interrupt.kind is not ir.Return:
                raise
    return {
        view.tensor.name: np.frombuffer(bytes(gm[view.tensor.uid]), view.tensor.dtype).reshape(view.tensor.shape)
        for view in program.outputs
    }
