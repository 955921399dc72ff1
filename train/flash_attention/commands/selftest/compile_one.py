"""Compile one kernel by CANN: ``python -m flash_attention.commands.selftest.compile_one SOC NAME [LEVEL]``.

LEVEL is TIK's debug level. The kernel's files appear in the working folder. The last line on stdout is the result in
JSON.
"""

from __future__ import annotations

import json
import re
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from flash_attention.commands.selftest import elf

KERNEL = "selftest_kernel"
_LINES = 4  # of an error's beginning and of its end
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(([^()]*)")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NO_INSTRUCTIONS = {"for", "if", "while", "switch", "return", "sizeof", "defined"}
_WITH_PIPES = {"pipe_barrier": 1, "set_flag": 2, "wait_flag": 2}  # and how many arguments name pipes


def ends(text: str) -> list[str]:
    """Return a text's first and last lines, at most 300 characters of each."""
    lines = [line[:300] for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= 2 * _LINES else [*lines[:_LINES], "...", *lines[-_LINES:]]


def counts(text: str) -> dict[str, int]:
    """Count each instruction of a generated program; barriers and flags by their pipes."""
    found: Counter[str] = Counter()
    for name, arguments in _CALL.findall(_COMMENT.sub("", text)):
        if name in _NO_INSTRUCTIONS or name.startswith("__") or name.endswith("_t") or KERNEL in name:
            continue
        pipes = [one.strip() for one in arguments.split(",")][: _WITH_PIPES.get(name, 0)]
        found[" ".join([name, *pipes])] += 1
    return dict(sorted(found.items()))


def compile_it(soc: str, name: str, level: str = "0") -> dict[str, Any]:
    """Compile, and return the outcome. Errors of the compiler are raised."""
    from tbe.common import platform

    from flash_attention.commands.selftest.kernels import kernel_of
    from flash_attention.kernels.tik import operators, signatures

    platform.set_current_compile_soc_info(soc)
    cores = int(platform.get_soc_spec("CORE_NUM"))
    stage, problem = kernel_of(name, cores)
    operator, signature = signatures.arguments(stage, problem)
    tensors = operator.fill(signature).as_entries_get()
    start = time.perf_counter()
    config = {"save_temp_cce_file": True, **({"tbe_debug_level": int(level)} if level != "0" else {})}
    kernel = operators.compile_entry(operator.name, tensors, problem.to_text(), KERNEL, config)
    objects = sorted(Path().rglob("*.o"))
    result: dict[str, Any] = {
        "operator": operator.type,
        "seconds": round(time.perf_counter() - start, 3),
        "cores": cores,
        "blocks": kernel.cores,
        "object_bytes": sum(path.stat().st_size for path in objects) or None,
        "chip": None,
    }
    for path in objects:
        try:
            result["chip"] = elf.read(path.read_bytes()).chip
        except ValueError as error:  # a format that nobody has seen is an answer, and no failure
            result["chip"] = f"unknown: {error}"
        if result["chip"] in elf.OTHERS:
            raise ValueError(f"{path} was compiled for {result['chip']}, {soc} is {elf.CHIPS[elf.FIRST_GENERATION]}")
    for path in Path().rglob("*.json"):
        described = json.loads(path.read_text(encoding="utf-8"))
        if "blockDim" in described:
            result.update(blocks=described["blockDim"], workspace=described.get("workspace"))
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(Path().rglob("*.cce"))]
    result["instructions"] = counts("\n".join(texts)) if texts else None
    return result


def main() -> None:
    try:
        result = compile_it(*sys.argv[1:])
    except Exception as error:
        # The frames without their source, which may be CANN's.
        frames = [
            f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
        ]
        result = {"error": ends(f"{type(error).__name__}: {error}"), "frames": frames[-_LINES:]}
    print(f"\n{json.dumps(result)}", flush=True)


if __name__ == "__main__":
    main()
