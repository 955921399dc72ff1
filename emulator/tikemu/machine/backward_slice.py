"""Find what a run without numerics must still compute: the course of the program.

Loop bounds, conditions, addresses and integer arguments are needed. A Scalar read from a tensor makes the tensor
needed. A needed tensor makes all instructions that write it needed, and all tensors that they read (a backward slice,
tensor by tensor).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..program import ir
from ..program.dtypes import is_float

#: Stands for the compare-mask register among the needed tensors.
_CMPMASK = "cmpmask"


class Needs:
    """The slice of a program.

    Args:
        program: the program.
        everything: numerics are computed, so all is needed.
    """

    def __init__(self, program: ir.Program, everything: bool) -> None:
        self.everything = everything
        self.variables: set[int] = set()
        self.tensors: set[Any] = set()
        self.instructions: set[int] = set()
        if not everything:
            every = list(ir.statements(program.body))
            for statement in every:
                self._seed(statement)
            before = None
            while before != (before := (len(self.variables), len(self.tensors), len(self.instructions))):
                for statement in every:
                    self._propagate(statement)

    def variable(self, variable: ir.Variable) -> bool:
        """Return whether the value of a variable is needed."""
        return self.everything or variable.uid in self.variables

    def tensor(self, tensor: ir.TensorInfo) -> bool:
        """Return whether the contents of a tensor are needed."""
        return self.everything or tensor.uid in self.tensors

    def instruction(self, statement: ir.Instruction) -> bool:
        """Return whether a call must be computed. The switch of atomic addition decides what later moves are."""
        return self.everything or id(statement) in self.instructions or statement.spec.name == "set_atomic_add"

    def _seed(self, statement: ir.Statement) -> None:
        if isinstance(statement, ir.Define):
            self._need_values(statement.tensor.shape)
        elif isinstance(statement, ir.For):
            self._need_values((statement.begin, statement.end, statement.block_num))
        elif isinstance(statement, ir.If):
            self._need_values(condition for condition, _ in statement.branches)
        elif isinstance(statement, ir.Store):
            self._need_values((statement.target.offset,))
        elif isinstance(statement, ir.Instruction):
            for leaf in _leaves(statement.args):
                if isinstance(leaf, ir.View):
                    self._need_values((leaf.offset, *leaf.shape, *leaf.strides))
                elif not is_float(leaf.dtype) and statement.spec.kind != "scalar":
                    self._need_values((leaf,))
        if isinstance(statement, (ir.Assign, ir.AssignElement, ir.Store)) and isinstance(statement.value, ir.View):
            self._need_values((statement.value.offset,))

    def _propagate(self, statement: ir.Statement) -> None:
        if isinstance(statement, ir.Assign):
            if statement.target.uid in self.variables:
                self._need_source(statement.value)
        elif isinstance(statement, ir.AssignElement):
            if any(target.uid in self.variables for target in statement.targets):
                self._need_values((statement.index,))
                self._need_source(statement.value)
        elif isinstance(statement, ir.Store):
            if statement.target.tensor.uid in self.tensors:
                self._need_source(statement.value)
        elif isinstance(statement, ir.Instruction):
            assigned = {statement.args[statement.spec.destination].uid} if statement.spec.kind == "scalar" else set()
            if self.tensors.isdisjoint(written(statement)) and self.variables.isdisjoint(assigned):
                return
            self.instructions.add(id(statement))
            for leaf in _leaves(statement.args):
                self._need_source(leaf)
            if any(isinstance(value, ir.CmpMask) for value in statement.args.values()):
                self.tensors.add(_CMPMASK)

    def _need_source(self, value: Any) -> None:
        if isinstance(value, ir.View):
            self.tensors.add(value.tensor.uid)
        else:
            self._need_values((value,))

    def _need_values(self, values: Iterable[Any]) -> None:
        for value in values:
            self.variables.update(variable.uid for variable in ir.leaves(value))


def written(statement: ir.Instruction) -> set[Any]:
    """Return the uids of the tensors that a call may write. By the table's convention they are ``dst...`` and
    ``work...``.
    """
    found: set[Any] = {
        leaf.tensor.uid
        for name, value in statement.args.items()
        if name.startswith(("dst", "work"))
        for leaf in _leaves(value)
        if isinstance(leaf, ir.View)
    }
    if statement.result is not None:
        found.add(_CMPMASK)
    return found


def _leaves(value: Any) -> Iterator[Any]:
    """Yield views and run-time values among (nested) arguments."""
    if isinstance(value, (ir.View, ir.Variable, ir.Operation)):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
