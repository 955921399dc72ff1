"""Compilation of operators, one after the other."""

from virtual_ascend.compiler.tasks import (
    dispatch_autotune_task,
    dispatch_fusion_op_compile_task,
    dispatch_prebuild_task,
    dispatch_single_op_compile_task,
    sync_op_tune_params,
    sync_syspath,
)

__all__ = [
    "dispatch_autotune_task",
    "dispatch_fusion_op_compile_task",
    "dispatch_prebuild_task",
    "dispatch_single_op_compile_task",
    "sync_op_tune_params",
    "sync_syspath",
]
