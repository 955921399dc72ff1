"""Name arguments in error messages as the caller of an adapter wrote them. This package has other names."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

# Pairs of a name here and the caller's name, in a tuple, because a compiled graph passes on constants.
Names = tuple

# The text before an argument's name in a message. "a key", "hides keys" and "compact causal" are plain English.
_BEFORE = r"(^|, |<= |\b(?:and|beside|but|for|is|of|than|when|with|without) )"


@contextlib.contextmanager
def called(names: Names) -> Iterator[None]:
    """Give errors of the block the names that the caller wrote."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        if names and error.args:
            error.args = (renamed(str(error.args[0]), names), *error.args[1:])
        raise


def renamed(message: str, names: Names) -> str:
    """Return a message in which arguments have the caller's names."""
    theirs = dict(names)
    pattern = rf"{_BEFORE}({'|'.join(map(re.escape, theirs))})(?![\w.(])"
    message = re.sub(pattern, lambda found: found[1] + theirs[found[2]], message)
    # Two arguments here may be one argument of the caller.
    return re.sub(rf"\b({'|'.join(map(re.escape, theirs.values()))})((?:,| and) \1)+\b", r"\1", message)
