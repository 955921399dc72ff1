"""Turn the readme into a page of a package index. Such a page stands beside none of the files that it links to."""

from __future__ import annotations

import re


def page(text: str, address: str) -> str:
    """Return the Markdown with relative links that lead to the source's address. Without an address links become words,
    and the paragraphs of pictures go.
    """
    if not address:
        text = re.sub(r"^!\[[^\]]*\]\((?!https?://)(?:.+\n)+\n", "", text, flags=re.MULTILINE)

    def link(found: re.Match) -> str:
        picture, words, target = found.groups()
        if target.startswith(("https://", "http://")):
            return found[0]
        if not address:
            return words
        if target.startswith("#"):
            target = f"README.md{target}"
        return f"{picture}[{words}]({address}/{'raw' if picture else 'blob'}/HEAD/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, text).lstrip("\n")
