"""Reports: JSON files that are written as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flash_attention.files import anonymous, write_whole


def write(path: Path, report: dict[str, Any]) -> None:
    """Write a report without names of people. If this fails, the old report stays."""
    try:
        write_whole(path, json.dumps(anonymous(report), indent=1) + "\n")
    except OSError as error:
        raise OSError(f"--report: {error}") from error
