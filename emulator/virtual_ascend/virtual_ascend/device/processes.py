"""Choose the number of processes for the blocks of a kernel in TIK. Several run if that is quicker, with the same
results.
"""

from __future__ import annotations

#: Seconds of a launch from which on several processes are tried; to hand blocks to them takes about a tenth.
LONG = 0.2
#: Bytes of tensors from which on they are tried at once.
LARGE = 1 << 20


class Processes:
    """Chooses between one process and several, by what earlier launches of a kernel took.

    Args:
        count: processes that may execute blocks; 1: only the caller does.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._least: dict[tuple[str, int], float] = {}  # seconds, by kernel and number of processes

    def choose(self, kernel: str, blocks: int, size: int) -> int:
        """Return the number for the next launch of a kernel with these blocks and bytes."""
        if min(self.count, blocks) == 1:
            return 1
        alone, shared = self._least.get((kernel, 1)), self._least.get((kernel, self.count))
        if alone is not None:
            return self.count if alone >= LONG and (shared is None or shared < alone) else 1
        if shared is not None:
            return self.count if shared >= LONG else 1
        return self.count if size >= LARGE else 1

    def took(self, kernel: str, number: int, seconds: float) -> None:
        """Note how long a launch with this number of processes has taken."""
        self._least[kernel, number] = min(seconds, self._least.get((kernel, number), seconds))
