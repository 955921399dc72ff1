"""Problems for tests that vary sizes and rules alike."""

import inspect
from dataclasses import fields

from flash_attention.problem import AttentionProblem, AttentionRules

_FIELDS = {field.name for field in fields(AttentionRules)}
_ARGUMENTS = (_FIELDS | set(inspect.signature(AttentionRules.from_arguments).parameters)) - {"others"}


def make_problem(*sizes, **given) -> AttentionProblem:
    """An AttentionProblem; fields of its AttentionRules stand among the others."""
    rules = {name: given.pop(name) for name in _FIELDS & set(given)}
    return AttentionProblem(*sizes, rules=AttentionRules(**rules), **given)


def read_problem(*specs, **given) -> AttentionProblem:
    """AttentionProblem.from_inputs; arguments of AttentionRules.from_arguments stand among the others."""
    rules = {name: given.pop(name) for name in _ARGUMENTS & set(given)}
    return AttentionProblem.from_inputs(*specs, rules=AttentionRules.from_arguments(**rules), **given)
