"""Python's garbage collector while a program runs.

The first run makes objects by the million, nearly all of which stay. By default the collector looks at the new ones
after every 700, and at all objects, MindSpore's too: up to half of the time of such a run.
While a program is recorded, in the user's code, it takes too little to change what belongs to the user.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

#: New objects after which it looks at them.
_THRESHOLD = 50_000

_lock = threading.Lock()
_depth = 0
_before: tuple[int, int, int] = gc.get_threshold()


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Make the collector wait for more objects meanwhile. Several threads may ask for it."""
    global _depth, _before
    with _lock:
        _depth += 1
        if _depth == 1:
            _before = gc.get_threshold()
            if 0 < _before[0] < _THRESHOLD:  # 0: the user has switched it off
                gc.set_threshold(_THRESHOLD, *_before[1:])
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            # What the user has set meanwhile stays.
            if _depth == 0 and gc.get_threshold() == (_THRESHOLD, *_before[1:]):
                gc.set_threshold(*_before)
