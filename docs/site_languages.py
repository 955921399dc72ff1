"""Give each page its language, and a switch to its twin in the other.

MkDocs calls the function (`hooks` in mkdocs.yml). A page in docs/zh has the name of its English page.
"""

from __future__ import annotations

LANGUAGES = {"en": "English", "zh": "简体中文"}
START = "README.md"


def on_page_context(context, page, config, nav):
    """Set the language and the switch of a page. A page without a twin leads to the start page."""
    source = page.file.src_uri
    language = "zh" if source.startswith("zh/") else "en"
    pages = {one.file.src_uri: one.url for one in nav.pages}
    name = source[len("zh/") :] if language == "zh" else source
    places = {"en": name, "zh": f"zh/{name}"}
    config.theme["language"] = language
    config.extra["alternate"] = [
        {"name": text, "lang": code, "link": pages.get(places[code]) or pages[f"zh/{START}" if code == "zh" else START]}
        for code, text in LANGUAGES.items()
    ]
    return context
