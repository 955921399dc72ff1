"""Operations bound for one call, by the values of its run-time arguments."""

from __future__ import annotations

from typing import Any, Callable

from ..timing.reuse import Reusable
from .runtime import Ops

#: Sets of arguments kept per call, and footprints kept per element access.
LIMIT = 4096


class BindingCache(Reusable):
    """What was bound for one call.

    Args:
        reuse: whether it may be looked up. Otherwise only the latest binding is kept, until it has been counted.
        retire: told the operations that are dropped.

    Attributes:
        entries: operations by key, for the compiled program. The key is the tuple of the run-time values, or the value
            itself if there is one, or () if there is none.
    """

    def __init__(self, reuse: bool, retire: Callable[[Ops], None]) -> None:
        self.reuse, self._retire = reuse, retire
        self.entries: dict[Any, Ops] = {}

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def full(self) -> bool:
        """Whether something has to go before another binding is stored."""
        return len(self.entries) >= (LIMIT if self.reuse else 1)

    def get(self, key: Any) -> Ops | None:
        """What may be used again for ``key``."""
        return self.entries.get(key) if self.reuse else None

    def store(self, key: Any, ops: Ops) -> None:
        """Keep ``ops``; what was bound for the key before is dropped."""
        before = self.entries.get(key)
        if before is not None and before is not ops:
            self._retire(before)
        self.entries[key] = ops

    def forget(self) -> None:
        for ops in {id(ops): ops for ops in self.entries.values()}.values():
            self._retire(ops)
        self.entries.clear()
