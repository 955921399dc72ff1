"""What mkdocs calls while it builds the site (mkdocs.yml)."""

from __future__ import annotations

import re

#: References as Sphinx writes them, in docstrings: ":func:`name`".
_ROLE = re.compile(r":(?:func|class|mod|meth|attr):(?=<code)")


def on_page_content(html: str, **_: object) -> str:
    """Leaves the name of a reference alone."""
    return _ROLE.sub("", html)
