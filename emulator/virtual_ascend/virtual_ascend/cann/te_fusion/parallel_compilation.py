"""Processes that compile; here the process that asks compiles itself."""

from virtual_ascend.compiler.tasks import take_finished as get_finished_compilation_task


def init_multi_process_env(*_settings):
    """Return the number of processes, and queues that only tuning uses."""
    return 1, None, None, None


def deinit_multi_process_env():
    """End no process, because there is none."""


def start_ga_multi_process(_mode):
    raise NotImplementedError("the virtual Ascend tunes no operators: leave auto_tune_mode as it is")


__all__ = [
    "deinit_multi_process_env",
    "get_finished_compilation_task",
    "init_multi_process_env",
    "start_ga_multi_process",
]
