"""``BuildCCE``: the program as a whole (core.md 5.1)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import TikBuildError, TikMemoryError
from ..machine import alloc
from ..program import ir
from ..program.location import fail
from .expr import InputScalar
from .recorder import Recorder
from .tensor import Tensor

MAX_ARGUMENTS = 64
_latest: ir.Program | None = None
_KERNEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def build(
    recorder: Recorder, kernel_name: Any, inputs: Any, outputs: Any, config: Any, flowtable: Any, evaluates: Any
) -> ir.Program:
    """Check the arguments and the program, and close it. For what is raised see ``Tik.BuildCCE``."""
    if recorder.built:
        fail("BuildCCE was already called", TikBuildError)
    if len(recorder.frames) > 1:
        fail("BuildCCE must stand outside all with blocks of the Tik instance", TikBuildError)
    if not isinstance(kernel_name, str) or not _KERNEL_NAME.match(kernel_name):
        fail(
            f"kernel_name must consist of letters, digits and underscores and not start with a digit, "
            f"got {kernel_name!r}"
        )
    if config is not None and not isinstance(config, Mapping):
        fail(f"config must be a dict, got {config!r}")
    program = recorder.program
    program.name, program.config = kernel_name, dict(config or {})
    program.inputs = _arguments(recorder, inputs, "inputs", (Tensor, InputScalar))
    program.outputs = _arguments(recorder, outputs, "outputs", (Tensor,))
    table = _arguments(recorder, [] if flowtable is None else flowtable, "flowtable", (Tensor, InputScalar))
    given = {_identity(node) for node in program.inputs}
    program.inputs += [node for node in table if _identity(node) not in given]
    if evaluates:
        recorder.questionable(
            "argument", "evaluates of BuildCCE has no effect: a Scalar has the value that the program assigns"
        )
    _check_used(recorder, program)
    plan = alloc.plan(program, recorder.options.raises("memory"))  # the on-chip tensors (D1, D3)
    if plan.peak["UB"] > program.soc.ub_planned:
        recorder.questionable(
            "memory",
            f"kernel {program.name!r} uses {plan.peak['UB']} bytes of the Unified Buffer; releases of CANN "
            f"that reserve a part of it leave {program.soc.ub_planned}",
            TikMemoryError,
        )
    recorder.built = True
    global _latest
    _latest = program
    return program


def latest() -> ir.Program | None:
    """Return the program that was built last."""
    return _latest


def _arguments(recorder: Recorder, values: Any, label: str, kinds: tuple[Any, ...]) -> list[Any]:
    if isinstance(values, kinds):
        values = [values]
    if not isinstance(values, (list, tuple)):
        fail(f"{label} must be a list or tuple, or one argument, got {type(values).__name__}")
    if len(values) > MAX_ARGUMENTS:
        fail(f"at most {MAX_ARGUMENTS} {label} are allowed, got {len(values)}")
    lowered: list[Any] = []
    names: set[str] = set()
    for value in values:
        if not isinstance(value, kinds):
            allowed = " or ".join("InputScalar" if kind is InputScalar else "GM Tensor" for kind in kinds)
            fail(f"{label} must hold {allowed}, got {type(value).__name__}")
        node = recorder.lower(value)
        if isinstance(value, Tensor):
            if node.tensor.memory != "GM":
                fail(f"{label} must hold tensors in scope_gm, tensor {value.name!r} is in {value.scope}")
            if node.tensor.is_workspace:
                fail(f"workspace tensor {value.name!r} must not appear in {label}")
            if not value._layout.whole:
                fail(f"{label} must hold whole tensors, got a view of tensor {value.name!r}")
        if value.name in names:
            fail(f"{value.name!r} appears twice in {label}")
        names.add(value.name)
        lowered.append(node)
    return lowered


def _identity(node: Any) -> int:
    """Return the number of an argument's tensor or InputScalar."""
    return node.tensor.uid if isinstance(node, ir.View) else node.uid


def _check_used(recorder: Recorder, program: ir.Program) -> None:
    """Check that every GM tensor and InputScalar in use is an argument, workspace or constant."""
    given = [node.tensor if isinstance(node, ir.View) else node for node in (*program.inputs, *program.outputs)]
    arguments = {_identity(node) for node in given}
    for value in recorder.candidates:
        if isinstance(value, Tensor) and value._info.uid not in arguments:
            info = value._info
            if info.is_workspace or info.init_value is not None:
                program.workspaces.append(info)
    arguments.update(info.uid for info in program.workspaces)
    owners: dict[str, int] = {}
    for node in (*given, *program.workspaces):
        if owners.setdefault(node.name, node.uid) != node.uid:
            fail(f"two GM tensors or InputScalars of the kernel are named {node.name!r}; names must be unique")
    for statement in ir.statements(program.body):
        for node in ir.leaves(statement):
            missing = None
            if isinstance(node, ir.TensorInfo) and node.memory == "GM" and not isinstance(statement, ir.Define):
                missing = f"GM tensor {node.name!r}", node.uid
            elif isinstance(node, ir.Variable) and node.kind == "input":
                missing = f"InputScalar {node.name!r}", node.uid
            if missing and missing[1] not in arguments:
                raise TikBuildError(
                    f"{missing[0]} is used but is neither in inputs nor outputs of BuildCCE", statement.location
                )
