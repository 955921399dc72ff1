"""Report launches: a table in msprof's columns, and a trace for https://ui.perfetto.dev.

Times are estimates. For operators in TIK they come from tikemu's model. For built-in operators two times count: for
their bytes at the bandwidth of the memory, and for their products at the peak of the Cube. The longer time is taken.
One launch follows the other.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tikemu.soc import SocProfile, find

from ..operator_call import OperatorCall, tensors
from .formats import dtype_of

COLUMNS = (
    "Op Name",
    "OP Type",
    "Task Type",
    "Task Start Time(us)",
    "Task Duration(us)",
    "Block Dim",
    "Input Shapes",
    "Input Data Types",
    "Input Formats",
    "Output Shapes",
    "Output Data Types",
    "Output Formats",
    "Duration From",
)
CONVERSIONS = "TransData", "Transpose", "TransposeD", "ConfusionTransposeD"
AI_CORE, AI_CPU, COMMUNICATION = "AI_CORE", "AI_CPU", "COMMUNICATION"


class Report:
    """Write a line for each launch, at once: the process may end at any time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._table = open(folder / "op_summary.csv", "w", newline="", buffering=1)  # noqa: SIM115 - until the end
        self._trace = open(folder / "trace.json", "w", buffering=1)  # noqa: SIM115 - until the end
        self._trace.write("[\n")  # which nothing has to close
        self._units: list[str] = []  # by row of the trace
        self._rows = csv.writer(self._table, lineterminator="\n")
        self._rows.writerow(COLUMNS)
        soc = find(os.environ["VIRTUAL_ASCEND_SOC"])
        assert soc is not None
        self._soc: SocProfile = soc
        self._now = 0.0
        self._launches: Counter[tuple[str, str]] = Counter()  # by family and type
        self._times: dict[tuple[str, str], float] = defaultdict(float)  # microseconds

    def note(self, kernel: OperatorCall, unit: str, blocks: int, seconds: float | None = None) -> None:
        """Add one launch on AI cores or the AI CPU. tikemu may have estimated ``seconds``.

        Collectives have no estimate: the links between cards decide their time.
        """
        given, wanted = tensors(kernel.inputs), tensors(kernel.outputs)
        source = "tikemu"
        if unit == COMMUNICATION:
            source, seconds = "none", 0.0
        elif seconds is None:
            moved = sum(math.prod(one["shape"]) * dtype_of(one).itemsize for one in (*given, *wanted))
            computed = 2 * _products(kernel, given) / self._soc.peak_f16_flops
            source, seconds = "roofline", max(moved / self._soc.timing.hbm_bandwidth, computed)
        duration = 1e6 * seconds
        kind, in_tik = re.subn(r"^Custom_(.+)_[0-9a-f]+$", r"\1", kernel.type)  # MindSpore adds a number
        self._launches[_family(kind, unit, bool(in_tik)), kind] += 1
        self._times[_family(kind, unit, bool(in_tik)), kind] += duration
        columns = [*_columns(given), *_columns(wanted)]
        times = f"{self._now:.3f}", f"{duration:.3f}"
        self._rows.writerow([kernel.name, kind, unit, *times, blocks, *columns, source])
        if unit not in self._units:
            self._event({"name": "thread_name", "ph": "M", "tid": len(self._units), "args": {"name": unit}})
            self._units.append(unit)
        event = {"name": kind, "ph": "X", "tid": self._units.index(unit), "ts": self._now, "dur": duration}
        self._event({**event, "args": dict(zip(COLUMNS[6:], columns))})
        self._now += duration

    def summarize(self) -> None:
        """Print launches and microseconds by family, each with its longest types."""
        total = sum(self._times.values())
        print(f"virtual-ascend: {sum(self._launches.values())} launches, {total:.1f} us (estimated)", file=sys.stderr)
        families: dict[str, float] = defaultdict(float)
        for (family, _), time in self._times.items():
            families[family] += time
        for family, time in sorted(families.items(), key=lambda one: -one[1]):
            kinds = sorted((-one, kind) for (of, kind), one in self._times.items() if of == family)
            shown = ", ".join(f"{kind} {self._launches[family, kind]} times" for _, kind in kinds[:4])
            print(f"  {family:16} {time:10.1f} us {time / (total or 1):6.1%}  {shown}", file=sys.stderr)
        sys.stderr.flush()

    def _event(self, event: dict[str, Any]) -> None:
        self._trace.write(json.dumps({**event, "pid": 0}) + ",\n")


def _family(kind: str, unit: str, in_tik: bool) -> str:
    if unit == COMMUNICATION:
        return "collectives"
    if in_tik:
        return "operators in TIK"
    if kind in CONVERSIONS:
        return "conversions"
    return "products" if "MatMul" in kind else "the rest"


def _products(kernel: OperatorCall, given: Sequence[dict[str, Any]]) -> int:
    """Return how many multiplications a product of matrices has."""
    if "mat_mul" not in kernel.function and "matmul" not in kernel.function:
        return 0
    left = given[0]["ori_shape"]
    transposed = any(kernel.attributes.get(name) for name in ("transpose_x1", "adj_x1"))
    return math.prod(kernel.outputs[0]["ori_shape"]) * left[-2 if transposed else -1]


def _columns(side: Sequence[dict[str, Any]]) -> list[str]:
    """Return the shapes, dtypes and formats as msprof writes them."""
    shapes = (",".join(map(str, one["shape"])) for one in side)
    return [";".join(shapes), ";".join(one["dtype"].upper() for one in side), ";".join(one["format"] for one in side)]
