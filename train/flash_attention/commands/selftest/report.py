"""Reports: JSON files that are written as a whole."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def write(path: Path, report: dict[str, Any]) -> None:
    """Write a report. If this fails, the old report stays.

    Raises:
        OSError: naming the option, the file and the reason.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise OSError(f"--report: {path} cannot be written: {error.strerror}") from error
