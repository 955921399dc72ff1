"""Compile operators for CANN's package ``te_fusion``, with the signatures of MindSpore 2.0.0's calls."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

from tikemu.frontend.build import latest
from tikemu.program import ir

from ..operator_call import OperatorCall
from . import answers, modules
from .kernel_files import write

#: CANN's own operators are modules of this package.
BUILT_IN = "impl"

_finished: list[dict[str, Any]] = []


# ------------------------------------------------------------------------------------------- questions before compiling
def call_op_func(arguments: Sequence[Any], module: str, question: str, *_: Any) -> Any:
    """Return the answer of an operator's ``check_supported`` or ``op_select_format``."""
    inputs, outputs, _attributes = arguments
    if _is_built_in(module):
        return getattr(answers, question)(module.rsplit(".", 1)[-1], inputs, outputs)
    function = getattr(importlib.import_module(module), question)
    return function(*inputs, *outputs, *(_value(item) for item in arguments[2]))


# ---------------------------------------------------------------------------------------------------------- compilation
def dispatch_prebuild_task(source_id: int, job_id: int, *_: Any) -> None:
    """Finish a task that looks for operators to fuse; nothing is fused."""
    _finish(source_id, job_id, lambda: None)


def dispatch_single_op_compile_task(
    source_id: int,
    job_id: int,
    _l1_size: int,
    module: str,
    _name: str,
    kind: str,
    function: str,
    _kernel: str,
    unknown_shape: bool,
    arguments: Sequence[Any],
    *_: Any,
) -> None:
    """Compile an operator: writes kernel_meta/NAME.o and NAME.json."""

    def compile_it() -> None:
        inputs, outputs, attributes, options = arguments
        if unknown_shape:
            raise NotImplementedError(f"operator {kind}: the virtual Ascend compiles no operators for changing shapes")
        values = [_value(item) for item in attributes]
        named = {item["name"]: item.get("value") for item in attributes if isinstance(item, dict)}
        kernel = OperatorCall(values[-1], kind, function, list(inputs), list(outputs), named)
        if not _is_built_in(module):
            entry = getattr(importlib.import_module(module), function)
            kernel.program = record(entry, [*inputs, *outputs, *values])
        write(kernel, Path(options["op_debug_dir"]) / "kernel_meta")

    _finish(source_id, job_id, compile_it)


def take_finished(_source_id: int) -> list[dict[str, Any]]:
    """Return what was compiled since the last call."""
    taken = list(_finished)
    _finished.clear()
    return taken


def _finish(source_id: int, job_id: int, work: Callable[[], None]) -> None:
    """Do a task; MindSpore asks for its outcome later."""
    error = ""
    try:
        work()
    except Exception:
        error = traceback.format_exc()
        print(f"virtual-ascend: an operator could not be compiled\n{error}", file=sys.stderr, flush=True)
    _finished.append(
        {
            "graph_id": source_id,
            "task_id": job_id,
            "status_code": int(bool(error)),
            "result": "failed" if error else "success",
            "info_msg": error,
            "except_msg": error,
            "op_res": json.dumps({"pattern": answers.PATTERN}),
        }
    )


def _is_built_in(module: str) -> bool:
    return module.split(".")[0] == BUILT_IN


def _value(attribute: Any) -> Any:
    return attribute["value"] if isinstance(attribute, dict) else attribute


def record(entry: Callable[..., Any], arguments: list[Any], **named: Any) -> ir.Program:
    """Return the program that an operator in TIK builds."""
    before = latest()
    files = modules.writes_files
    modules.writes_files = False
    if "impl_mode" in inspect.signature(entry).parameters:
        named["impl_mode"] = "high_performance"
    try:
        entry(*arguments, **named)
    finally:
        modules.writes_files = files
    program = latest()
    if program is None or program is before:
        raise RuntimeError(f"{entry.__module__}.{entry.__name__} built no kernel: it has to call BuildCCE")
    return program


def _refuse(*_: Any) -> None:
    raise NotImplementedError(
        "the virtual Ascend fuses and tunes no operators, and told MindSpore so: leave auto_tune_mode as it is"
    )


def _nothing(*_: Any) -> None:
    """Keep nothing, because nothing is tuned, and the process that asks compiles itself."""


#: The package that MindSpore's build process asks for, by module.
TE_FUSION: dict[str, dict[str, Any]] = {
    "te_fusion": {},
    "te_fusion.compile_task_manager": {
        "dispatch_prebuild_task": dispatch_prebuild_task,
        "dispatch_single_op_compile_task": dispatch_single_op_compile_task,
        **dict.fromkeys(("dispatch_autotune_task", "dispatch_fusion_op_compile_task"), _refuse),
        **dict.fromkeys(("sync_op_tune_params", "sync_syspath"), _nothing),
    },
    "te_fusion.fusion_manager": {
        "build_single_op_from_c": _refuse,
        "call_op_func": call_op_func,
        "check_op_impl_mode": lambda *_: False,  # no built-in operator here has modes of precision
        "op_params_to_json": lambda *_: "{}",
        **dict.fromkeys(("clear_fusion_params", "save_op_params"), _nothing),
    },
    "te_fusion.fusion_util": {"dump_fusion_json": _nothing},
    "te_fusion.parallel_compilation": {
        "deinit_multi_process_env": _nothing,
        "get_finished_compilation_task": take_finished,
        "init_multi_process_env": lambda *_: (1, None, None, None),  # one process, and no queues for tuning
        "start_ga_multi_process": _refuse,
    },
}
