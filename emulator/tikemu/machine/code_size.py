"""Estimated size of the machine code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..program import ir
from .alloc import copies_of
from .calls.site import CallSite
from .expressions import Expressions


def code_bytes(program: ir.Program, sites: Mapping[int, CallSite], expressions: Expressions) -> int:
    """Estimate the bytes of machine code: every call counts as often as multi-buffered loops unroll it."""
    timing = program.soc.timing

    def of_value(value: Any) -> int:
        return expressions.text(value).cost if not isinstance(value, ir.View) else 1

    def of_body(body: ir.Body) -> float:
        total = 0.0
        for statement in body.statements:
            if isinstance(statement, ir.Instruction):
                site = sites.get(id(statement))
                size = None if site is None else site.code_bytes
                total += timing.instruction_bytes if size is None else size
            elif isinstance(statement, ir.For):
                total += 3 * timing.scalar_instruction_bytes + copies_of(statement) * of_body(statement.body)
            elif isinstance(statement, ir.If):
                for condition, inner in statement.branches:
                    total += (of_value(condition) + 2) * timing.scalar_instruction_bytes + of_body(inner)
                total += of_body(statement.otherwise) if statement.otherwise is not None else 0
            elif isinstance(statement, ir.Scope):
                total += of_body(statement.body)
            elif isinstance(statement, (ir.Assign, ir.AssignElement, ir.Store)):
                total += (of_value(statement.value) + 1) * timing.scalar_instruction_bytes
        return total

    return round(of_body(program.body))
