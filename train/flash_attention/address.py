"""The address of this software: the one place that names it."""

from __future__ import annotations

#: Where the source is and reports go, such as "https://example.org/owner/project"; empty until its owner sets it.
ADDRESS = ""
#: The words that texts use as long as the address is empty: "send it to ..."
UNKNOWN = "where you got this package from"


def destination() -> str:
    """Return the address for reports, as the end of a sentence."""
    return ADDRESS or UNKNOWN
