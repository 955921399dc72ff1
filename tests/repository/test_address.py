"""The address of the source and of reports: one constant, and whatever repeats it says the same."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from flash_attention import address

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts/address.py"))
ELSEWHERE = "https://example.org/owner/project"


def test_the_places_say_what_the_constant_says() -> None:
    for name, text in SCRIPT["changed"](address.ADDRESS).items():
        assert text == (ROOT / name).read_text(encoding="utf-8"), f"{name}: run scripts/address.py"


def test_every_place_has_a_mark_to_change() -> None:
    for name, text in SCRIPT["changed"](ELSEWHERE).items():
        assert ELSEWHERE in text, name


def test_no_place_is_forgotten() -> None:
    """What asks for reports says where they go by the words that the script knows."""
    said = address.destination()
    listed = set(SCRIPT["PLACES"])
    folders = [ROOT / name for name in ("benchmarks", "docs", "emulator", "examples", "scripts", "train")]
    files = [path for path in ROOT.iterdir() if path.is_file()] + [path for one in folders for path in one.rglob("*")]
    for path in files:
        if path.suffix in (".md", ".py", ".toml", ".cff", ".yml", ".sh") and str(path.relative_to(ROOT)) not in listed:
            assert said not in path.read_text(encoding="utf-8"), path


def test_set_and_taken_away_again() -> None:
    """On every file: another address comes in, and leaves the file as it was."""
    for name, change in SCRIPT["PLACES"].items():
        if change is not SCRIPT["in_page"]:
            text = (ROOT / name).read_text(encoding="utf-8")
            assert change(change(text, ELSEWHERE), address.ADDRESS) == text


def test_relative_links_of_the_package_page() -> None:
    """The readme on a package index stands beside no file: links lead to the address, or are words."""
    page = runpy.run_path(str(ROOT / "train/package_page.py"))["page"]
    text = "![a](b/c.png)\n\n[d](e.md#f) and [g](https://h) and [i](#j)"
    assert page(text, "") == "d and [g](https://h) and i"
    there = page(text, ELSEWHERE)
    assert f"![a]({ELSEWHERE}/raw/HEAD/b/c.png)" in there and f"[d]({ELSEWHERE}/blob/HEAD/e.md#f)" in there
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for where in ("", ELSEWHERE):
        targets = re.findall(r"\]\(([^)\s]+)\)", page(readme, where))
        assert targets and all(target.startswith("https://") for target in targets)
