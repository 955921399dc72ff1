"""Give each page of the site its language, and a switch to the page in the other language.

MkDocs calls the function (`hooks` in mkdocs.yml). A page in docs/zh has the name of its English page.
"""

from __future__ import annotations

LANGUAGES = {"en": "English", "zh": "简体中文"}
START = "README.md"


def on_page_context(context, page, config, nav):
    """Set the theme's language and the switch of one page; a page without a twin has the start page there."""
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
