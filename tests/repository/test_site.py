"""The documentation as a site: mkdocs builds it without a warning, and a browser shows it from its files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import flash_attention
import pytest

pytestmark = pytest.mark.builds
ROOT = Path(__file__).resolve().parents[2]
# The padding of code at the end of a line hangs over by up to 4 pixels.
WIDE = "all => all.filter(one => one.scrollWidth > one.clientWidth + 4).map(one => one.textContent.slice(0, 60))"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Return the folder of the site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_api_has_the_docstring_of_every_public_name(site: Path) -> None:
    page = (site / "reference.html").read_text(encoding="utf-8")
    names = [name for name in flash_attention.__all__ if name not in ("__version__", "Call")]
    assert [name for name in names if f'id="flash_attention.{name}"' not in page] == []


def test_nothing_comes_from_elsewhere_and_no_source_is_published(site: Path) -> None:
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]* rel="?(?:stylesheet|preconnect)[^>]*https?:'
    )
    assert [page for page in site.rglob("*.html") if loaded.search(page.read_text(encoding="utf-8"))] == []
    assert not [*site.rglob("*.py"), *site.rglob("*.pyc")]


@pytest.mark.parametrize(
    ("page", "language", "switch"),
    [
        ("usage", "en", {"en": "usage.html", "zh": "zh/usage.html"}),
        ("zh/usage", "zh", {"en": "../usage.html", "zh": "usage.html"}),
        ("tutorial", "en", {"en": "tutorial.html", "zh": "zh/index.html"}),
    ],
)
def test_a_page_has_its_language_and_leads_to_the_other(site: Path, page: str, language: str, switch: dict) -> None:
    text = (site / f"{page}.html").read_text(encoding="utf-8")
    assert f'<html lang="{language}"' in text
    assert {code: place for place, code in re.findall(r'href="([^"]*)" hreflang="(\w+)"', text)} == switch


@pytest.fixture(scope="module")
def browser():
    """Return Chromium, as Debian has it."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium (Debian: chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.mark.builds
@pytest.mark.parametrize("width", [390, 1280])
def test_no_text_is_wider_than_its_page(site: Path, browser, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    found = {}
    for file in sorted(site.rglob("*.html")):
        page.goto(file.as_uri())
        wide = page.locator(".md-content :is(p, h1, h2, h3, h4)").evaluate_all(WIDE)
        if wide or page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found[file.name] = wide
    assert found == {}


@pytest.mark.builds
@pytest.mark.parametrize(("word", "place"), [("causal", "/masks.html"), ("掩码", "/zh/masks.html")])
def test_search_finds_words_of_both_languages_from_a_file(site: Path, browser, word: str, place: str) -> None:
    page = browser.new_page()
    page.goto((site / "usage.html").as_uri())
    page.click(".md-search__input", force=True)
    page.fill(".md-search__input", word)
    page.press(".md-search__input", "End")
    page.wait_for_selector(".md-search-result__item", state="attached")
    places = [one.get_attribute("href") for one in page.locator(".md-search-result__item a").all()]
    assert any(place in one for one in places), places


@pytest.mark.builds
def test_the_switch_leads_to_the_same_page_in_chinese_and_back(site: Path, browser) -> None:
    page = browser.new_page()
    page.goto((site / "masks.html").as_uri())
    for code, place in (("zh", "/zh/masks.html"), ("en", "/masks.html")):
        page.hover(".md-select")
        page.click(f".md-select__link[hreflang={code}]")
        page.wait_for_url(f"**{place}")
        assert page.get_attribute("html", "lang") == code
