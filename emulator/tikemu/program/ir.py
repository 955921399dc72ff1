"""The recorded program: statements, values and tensor views.

The front end (``dsl``, ``tensor``, ``expr``) builds these nodes, ``machine`` and ``timing`` consume them. A node holds
no behaviour; what an instruction means is in ``isa``, and ``printer`` shows a program as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

from ..findings import Finding

if TYPE_CHECKING:
    from typing_extensions import TypeIs

MEMORY_OF_SCOPE = {
    "global": "GM",
    "local.UB": "UB",
    "local.L1": "L1",
    "local.L1OUT": "L0C",
    "local.L0A": "L0A",
    "local.L0B": "L0B",
    "local.L0C": "L0C",
}


@dataclass(frozen=True)
class Location:
    """The line of the user's program that recorded a statement."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f": {self.text}" if self.text else "")


# ---------------------------------------------------------------------------------------------------- values
@dataclass(frozen=True, eq=False)
class Variable:
    """A run-time variable: Scalar (or an element of a ScalarArray), InputScalar, loop variable; one object each."""

    name: str
    dtype: str
    kind: str  # "scalar" | "input" | "loop"
    uid: int


@dataclass(frozen=True)
class Operation:
    """An arithmetic, comparison or logical node over values; evaluated at run time in ``dtype``.

    Comparisons and logical nodes have dtype "bool". Integer ``/`` truncates (D5b); for floats it is the true quotient.
    ``index`` selects: ``args[0]`` is the position among ``args[1:]`` (an element of a ScalarArray).
    """

    op: str  # + - * / % & | << >>  < <= > >= == !=  all any not  index
    args: tuple[Any, ...]  # of Value
    dtype: str


Value = Union[int, float, bool, Variable, Operation]


def is_immediate(value: Any) -> TypeIs[int | float | bool]:
    """Return whether ``value`` is known when the program is recorded."""
    return not isinstance(value, (Variable, Operation))


@dataclass(eq=False)
class TensorInfo:
    """One allocation: what ``tik_instance.Tensor(...)`` declared."""

    name: str
    dtype: str
    shape: tuple[Value, ...]
    scope: str  # a key of MEMORY_OF_SCOPE
    uid: int
    location: Location
    is_workspace: bool = False
    is_atomic_add: bool = False
    max_mem_size: int | None = None
    init_value: Any = None
    start_addr: int | None = None

    @property
    def memory(self) -> str:
        return MEMORY_OF_SCOPE[self.scope]


@dataclass(frozen=True, eq=False)
class View:
    """A tensor operand: a strided window on an allocation, possibly reinterpreted.

    ``offset`` counts elements of ``dtype`` from the start of the allocation; ``strides`` count elements of ``dtype``.
    """

    tensor: TensorInfo
    dtype: str
    offset: Value
    shape: tuple[Value, ...]
    strides: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class CmpMask:
    """Handle of the compare-mask register as written by one ``vcmp_*`` or ``mov_tensor_to_cmpmask`` statement."""

    uid: int


# ---------------------------------------------------------------------------------------------------- statements
@dataclass(eq=False)
class Statement:
    location: Location


@dataclass(eq=False)
class Define(Statement):
    """Allocation of a tensor in the enclosing scope."""

    tensor: TensorInfo


@dataclass(eq=False)
class DefineScalar(Statement):
    """Define a Scalar, or the elements of a ScalarArray; undefined until the first Assign."""

    variables: tuple[Variable, ...]


@dataclass(eq=False)
class Assign(Statement):
    """``Scalar(init_value=...)`` and ``Scalar.set_as``; a View means its first element, read by the scalar unit."""

    target: Variable
    value: Value | View


@dataclass(eq=False)
class AssignElement(Statement):
    """``array[index].set_as(value)`` with a run-time index: assigns to ``targets[index]``."""

    targets: tuple[Variable, ...]
    index: Value
    value: Value | View


@dataclass(eq=False)
class Store(Statement):
    """``tensor[i] = value`` / ``tensor[i].set_as(value)``: the scalar unit writes the first element of ``target``."""

    target: View
    value: Value | View


@dataclass(eq=False)
class Instruction(Statement):
    """One call of an instruction of the table.

    ``args`` maps parameter names to values, Views, strings, CmpMask handles or None, or to lists and dicts of values
    and Views. ``result`` is set if the call returns a handle.
    """

    spec: Any  # isa.spec.InstructionSpec
    args: dict[str, Any]
    result: CmpMask | None = None


@dataclass(eq=False)
class Body:
    statements: list[Statement] = field(default_factory=list)


@dataclass(eq=False)
class For(Statement):
    """``for_range``. ``thread_num`` is as given: 0 forbids multi-buffering, 1 has none of its own, 2..4 copies.
    ``block_num`` other than 1 makes it the multi-core loop: an int, or an InputScalar or Scalar."""

    variable: Variable
    begin: Value
    end: Value
    body: Body
    thread_num: int = 1
    block_num: Value = 1


@dataclass(eq=False)
class If(Statement):
    """``branches`` in order (condition, body); ``otherwise`` may be None."""

    branches: list[tuple[Value, Body]]
    otherwise: Body | None = None


@dataclass(eq=False)
class Scope(Statement):
    """``new_stmt_scope``."""

    body: Body
    disable_sync: bool = False


@dataclass(eq=False)
class Break(Statement):
    pass


@dataclass(eq=False)
class Continue(Statement):
    pass


@dataclass(eq=False)
class Return(Statement):
    pass


@dataclass(eq=False)
class DebugPrint(Statement):
    """``tikdb.debug_print(expression)``."""

    expression: str
    scope: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Program:
    """A built kernel: GM tensors and scalars it takes, and its statements.

    Attributes:
        name: kernel name.
        inputs: views of whole GM tensors, and variables of kind "input", in the order of the kernel's arguments.
        outputs: views of whole GM tensors, in order; a tensor may also be among the inputs.
        body: the statements. Definitions of GM tensors are among them.
        workspaces: GM tensors with ``is_workspace``, and GM constants (``init_value``) that are no input or output.
        soc: soc.SocProfile.
        debug_enabled: ``disable_debug=False`` was given.
        config: of BuildCCE.
        findings: questionable use noticed while it was recorded.
    """

    name: str
    inputs: list[View | Variable]
    outputs: list[View]
    body: Body
    soc: Any
    debug_enabled: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    workspaces: list[TensorInfo] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


# ---------------------------------------------------------------------------------------------------- walking
def statements(body: Body) -> Iterator[Statement]:
    """Yield all statements of a body, nested ones included, in program order."""
    for statement in body.statements:
        yield statement
        for inner in bodies(statement):
            yield from statements(inner)


def bodies(statement: Statement) -> list[Body]:
    """Return the bodies of a For, If or Scope."""
    if isinstance(statement, (For, Scope)):
        return [statement.body]
    if isinstance(statement, If):
        return [body for _, body in statement.branches] + ([statement.otherwise] if statement.otherwise else [])
    return []


def leaves(node: Any) -> Iterator[Any]:
    """Yield the variables and TensorInfos of a value or a statement, without its bodies."""
    kind = type(node)
    if kind is View:
        yield node.tensor
        if type(node.offset) is not int:
            yield from leaves(node.offset)
        for extent in (*node.shape, *node.strides):
            if type(extent) is not int:
                yield from leaves(extent)
    elif kind in (Variable, TensorInfo):
        yield node
    elif kind is Operation:
        pending = [node]  # programs that unroll loops build sums of hundreds of terms
        while pending:
            value = pending.pop()
            if type(value) is Operation:
                pending += reversed(value.args)
            elif type(value) is Variable:
                yield value
    elif kind is Instruction:
        for arg in node.args.values():
            if type(arg) not in (int, float, str, bool):
                yield from leaves(arg)
    elif kind in (list, tuple):
        for item in node:
            yield from leaves(item)
    elif kind is dict:
        for item in node.values():
            yield from leaves(item)
    elif kind is Assign or kind is Store:
        yield from leaves(node.target)
        yield from leaves(node.value)
    elif kind is AssignElement:
        yield from leaves((node.targets, node.index, node.value))
    elif kind is Define:
        yield node.tensor
        yield from leaves(node.tensor.shape)
    elif kind is For:
        yield from leaves((node.begin, node.end, node.block_num))
    elif kind is If:
        yield from leaves([condition for condition, _ in node.branches])
