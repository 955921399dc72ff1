"""Operator packages (OPP) as CANN finds them: their information libraries, and the entries of their operators."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple


class Information(NamedTuple):
    """Hold a package's folder and its section of the information library for one operator."""

    folder: Path
    fields: dict[str, dict[str, str]]

    def tensors(self, side: str) -> list[dict[str, str]]:
        count = sum(bool(re.fullmatch(rf"{side}\d+", name)) for name in self.fields)
        return [self.fields[f"{side}{index}"] for index in range(count)]

    @property
    def attributes(self) -> list[str]:
        return self.fields["attr"]["list"].split(",") if "attr" in self.fields else []

    @property
    def function(self) -> str:
        return self.fields["opInterface"]["value"]

    def entry(self) -> Any:
        """Return the function of the operator, from its file."""
        name = self.fields["opFile"]["value"]
        specification = importlib.util.spec_from_file_location(name, next(self.folder.glob(f"*_impl/{name}.py")))
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return getattr(module, self.function)


def installed(places: Iterable[str | Path]) -> dict[str, Information]:
    """Return the information of all operators in packages by their types, the first place first."""
    found: dict[str, Information] = {}
    for place in places:
        folder = Path(place) / "op_impl/ai_core/tbe"
        for file in folder.glob("config/ascend910/*.json"):
            for kind, fields in json.loads(file.read_text()).items():
                found.setdefault(kind, Information(folder, fields))
    return found
