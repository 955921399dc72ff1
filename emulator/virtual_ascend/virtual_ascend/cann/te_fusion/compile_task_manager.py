"""Compilation of operators, one after the other."""

from virtual_ascend.compiler.tasks import dispatch_prebuild_task, dispatch_single_op_compile_task


def dispatch_fusion_op_compile_task(*_):
    raise NotImplementedError("the virtual Ascend fuses no operators, and told MindSpore so")


def dispatch_autotune_task(*_):
    raise NotImplementedError("the virtual Ascend tunes no operators: leave auto_tune_mode as it is")


def sync_op_tune_params(*_):
    """Keep nothing, because nothing is tuned here."""


def sync_syspath(_folder):
    """Accept a folder without effect: MindSpore has just changed the path of this same process."""


__all__ = [
    "dispatch_autotune_task",
    "dispatch_fusion_op_compile_task",
    "dispatch_prebuild_task",
    "dispatch_single_op_compile_task",
    "sync_op_tune_params",
    "sync_syspath",
]
