"""Choose the number of processes for the blocks of a kernel in TIK.

Several processes run if they are quicker. The results are the same.
"""

from __future__ import annotations

#: Several processes are tried if a launch takes this many seconds. To hand blocks to them takes about a tenth.
LONG = 0.2
#: Several processes are tried at once if the tensors have this many bytes.
LARGE = 1 << 20


class Processes:
    """Choose between one process and several, by the times of a kernel's earlier launches.

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
