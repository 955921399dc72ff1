"""Python's garbage collector while a program runs.

The first run makes millions of objects, and nearly all of them stay. By default the collector looks at new objects
after every 700, and now and then at all objects, MindSpore's too. This takes up to half of the time of such a run.
Recording runs the user's code. There the collector takes little time, so the user's setting stays as it is.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

#: New objects after which the collector looks at them.
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
