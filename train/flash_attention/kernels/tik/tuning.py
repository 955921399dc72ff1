"""The tuning table: which tiling strategy comes first where a search found a faster one than the usual first choice.

`flash-attention tune` writes it. The package has one of its own (tuning.json); FLASH_ATTENTION_TUNING names another
where operators are compiled. It holds for plain attention, full or causal: no mask, bias, window, dropout, cap or sink.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.problem.rules import PLAIN_RULES

PATH = Path(__file__).with_name("tuning.json")
OPERATORS = ("forward", "backward")
RULES = ("full", "causal")


@dataclass(frozen=True)
class Entry:
    """What is tried first for some problems.

    Attributes:
        operator: "forward" or "backward".
        head_dim: padded to 16.
        rules: "full" or "causal".
        low, high: keys, inclusive.
        strategy: name of a tiling strategy of the operator.
        half_scores: forward: scores may leave L0C as float16 where precision allows it.
    """

    operator: str
    head_dim: int
    rules: str
    low: int
    high: int
    strategy: str
    half_scores: bool = True

    def matches(self, operator: str, problem: KernelProblem) -> bool:
        """Whether the entry speaks of this operator and problem."""
        return (
            operator == self.operator
            and padded(problem.head_dim) == self.head_dim
            and self.low <= problem.seq_k <= self.high
            and rules_of(problem) == self.rules
        )


Table = tuple[Entry, ...]
_chosen: list[Table] = []


def rules_of(problem: KernelProblem) -> str:
    """The rules of a problem as entries name them, "other" for those that no entry speaks of."""
    rules = problem.rules
    plain = replace(rules, causal=False, causal_alignment=PLAIN_RULES.causal_alignment, scale=None, tile=128)
    shapes = problem.mask == problem.bias == "none" and not problem.sinks and problem.value_dim == problem.head_dim
    if plain != PLAIN_RULES or not shapes:
        return "other"
    return "causal" if rules.causal else "full"


def read(path: Path) -> Table:
    """The table in a file.

    Raises:
        OSError, ValueError: it cannot be read, or holds something else.
    """
    names = {field.name for field in fields(Entry)}
    try:
        entries = [
            Entry(**{name: value for name, value in entry.items() if name in names})
            for entry in json.loads(path.read_text(encoding="utf-8"))["entries"]
        ]
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"tuning table {path}: {error!r}") from None
    for entry in entries:
        if entry.operator not in OPERATORS or entry.rules not in RULES:
            raise ValueError(f"tuning table {path}: got {entry}, allowed are operators {OPERATORS} and rules {RULES}")
    return tuple(entries)


@functools.lru_cache(maxsize=4)
def _read_once(path: str) -> Table:
    return read(Path(path))


def current() -> Table:
    """The table that kernels are recorded with."""
    return _chosen[-1] if _chosen else _read_once(os.environ.get("FLASH_ATTENTION_TUNING") or str(PATH))


@contextmanager
def using(table: Table) -> Iterator[None]:
    """Kernels that are recorded inside use this table."""
    _chosen.append(table)
    try:
        yield
    finally:
        _chosen.pop()


def find(operator: str, problem: KernelProblem) -> Entry | None:
    """The first entry that speaks of a problem."""
    return next((entry for entry in current() if entry.matches(operator, problem)), None)


def order(operator: str, problem: KernelProblem, names: Sequence[str]) -> list[str]:
    """The strategies `names` in the order in which they are tried: that of the table first, if it is among them."""
    entry = find(operator, problem)
    return sorted(names, key=lambda name: entry is None or name != entry.strategy)


def half_scores(problem: KernelProblem) -> bool:
    """Whether the forward operator's scores may leave L0C as float16 as far as the table is concerned."""
    entry = find("forward", problem)
    return entry is None or entry.half_scores


def to_json(table: Sequence[tuple[Entry, dict]]) -> str:
    """Text of a file for :func:`read`: each entry with what is known of it beside."""
    entries = ",\n".join("    " + json.dumps({**asdict(entry), **beside}) for entry, beside in table)
    return '{\n  "entries": [' + (f"\n{entries}\n  " if entries else "") + "]\n}\n"
