"""A progress bar on standard error for long runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Callable

_WIDTH = 30
_INTERVAL = 0.2
_PATIENCE = 2.0


class Progress:
    """Compute the share of the work that is done, from blocks and outer loops.

    Args:
        show: True, False, or None for "only on a terminal".
        title: stands before the bar.
    """

    #: Depth of loops that move the bar.
    LEVELS = 2

    def __init__(self, show: bool | None, title: str) -> None:
        self.enabled = sys.stderr.isatty() if show is None else show
        self._patience = 0.0 if show else _PATIENCE
        self._title = title
        self.restart()

    def restart(self) -> None:
        """Begin a new run."""
        self._begin = time.monotonic()
        self._next = self._begin + self._patience
        self._shown = False
        self._shares = [0.0] * (self.LEVELS + 1)
        self._counts = [1] * (self.LEVELS + 1)

    def block(self, index: int, count: int) -> None:
        """Block ``index`` of ``count`` begins."""
        self._shares[0], self._counts[0] = index / count, count
        self._shares[1:] = [0.0] * self.LEVELS
        self._draw()

    def loop(self, level: int) -> Callable[[range], Iterator[int]]:
        """Wrap the iterations of a loop at depth ``level``."""

        def iterate(values: range) -> Iterator[int]:
            count = max(1, len(values))
            self._counts[level] = count
            for number, value in enumerate(values):
                self._shares[level] = number / count
                self._draw()
                yield value
            self._shares[level] = 0.0

        return iterate

    @property
    def share(self) -> float:
        """Return the share that is done so far, 0 to 1."""
        done, width = 0.0, 1.0
        for share, count in zip(self._shares, self._counts):
            done += share * width
            width /= count
        return done

    def close(self) -> None:
        """Remove the bar."""
        if self._shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def _draw(self) -> None:
        if not self.enabled:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _INTERVAL
        self._shown = True
        share = self.share
        elapsed = now - self._begin
        left = f"{elapsed * (1 - share) / share:.0f} s left" if share > 0.01 else "..."
        filled = int(share * _WIDTH)
        bar = "#" * filled + "." * (_WIDTH - filled)
        sys.stderr.write(f"\r{self._title} [{bar}] {share:4.0%} {elapsed:.0f} s, {left}\033[K")
        sys.stderr.flush()
