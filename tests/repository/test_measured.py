"""The page of measured tables is what docs/measured.py writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import measured

ROOT = Path(__file__).resolve().parents[2]
PAGE = measured.PAGE.read_text(encoding="utf-8")


def test_the_page_is_written_by_the_program() -> None:
    """And nobody edits anything but results, of which every section has one."""
    held = measured.results(PAGE)
    assert list(held) == [section.name for section in measured.SECTIONS]
    assert measured.render(held) == PAGE


@pytest.mark.parametrize("section", measured.SECTIONS, ids=lambda section: section.name)
def test_a_section_has_a_program_and_a_result(section: measured.Section) -> None:
    program = section.command.split()
    if program[:2] == ["python", "-m"]:
        assert (ROOT / f"{program[2].replace('.', '/')}.py").exists()
    else:
        assert program[0] == "flash-attention" or (ROOT / program[1]).exists()
    assert len(measured.results(PAGE)[section.name].splitlines()) > 3


def test_what_a_program_prints_is_put_in() -> None:
    """A table in Markdown stays as it is."""
    (ring,) = (section for section in measured.SECTIONS if section.name == "ring")
    assert measured.measured(ring) == measured.results(PAGE)["ring"]
