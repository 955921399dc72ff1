"""Stand-in for the packages of CANN that MindSpore 2.0's compile code imports: te_fusion, te.platform, tbe.common.

Only what `_extends/parallel_compile/tbe_compiler` calls, with the arguments that it passes. Operators are compiled in a
process of their own (worker.py), which the emulator makes believe that CANN's tik is there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path


class Compiler:
    """The compile process, and its finished tasks as MindSpore asks for them."""

    def __init__(self, emulator: Path):
        environment = {"PYTHONPATH": str(emulator), "OMP_NUM_THREADS": "1", "PATH": ""}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.finished = []

    def call(self, *command) -> str | None:
        """The traceback of a command that failed, or None."""
        print(json.dumps(command), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def must(self, *command) -> None:
        """Raises if a command fails."""
        error = self.call(*command)
        if error:
            raise RuntimeError(error)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)

    def task(self, source_id: int, job_id: int, module: str, function: str, arguments: tuple) -> None:
        """Compiles an operator, and notes the task as finished."""
        inputs, outputs, attributes, _ = arguments
        # Attributes come described, the kernel's name after them bare.
        values = [one["value"] if isinstance(one, dict) else one for one in attributes]
        error = self.call("compile", module, function, inputs, outputs, values)
        task = {"graph_id": source_id, "task_id": job_id, "status_code": 1 if error else 0, "info_msg": error or ""}
        self.finished.append({**task, "result": "failed" if error else "success", "op_res": "Opaque"})

    def prebuild(self, source_id, job_id, l1_size, module, full_name, kind, function, unknown, arguments, *_) -> None:
        self.task(source_id, job_id, module, function, arguments)

    def build(self, source_id, job_id, l1_size, module, name, kind, function, kernel, unknown, arguments, *_) -> None:
        self.task(source_id, job_id, module, function, arguments)

    def get_finished(self, source_id: int) -> list:
        finished, self.finished = self.finished, []
        return finished

    def set_version(self, version: str, *_) -> bool:
        self.must("soc", version)
        return True

    def install(self) -> None:
        """Makes the packages importable."""

        def nothing(*_, **__):
            return None

        def never(*_, **__):
            raise AssertionError("not on the way of a single operator")

        modules = {
            "te_fusion.compile_task_manager": {
                "dispatch_prebuild_task": self.prebuild,
                "dispatch_single_op_compile_task": self.build,
                "dispatch_fusion_op_compile_task": never,
                "dispatch_autotune_task": never,
                "sync_op_tune_params": never,
                "sync_syspath": lambda folder: self.must("path", folder),
            },
            "te_fusion.fusion_manager": {
                "call_op_func": never,
                "build_single_op_from_c": never,
                "check_op_impl_mode": lambda module, function: True,
                "clear_fusion_params": nothing,
                "save_op_params": nothing,
                "op_params_to_json": lambda name: "{}",
            },
            "te_fusion.fusion_util": {"dump_fusion_json": never},
            "te_fusion.parallel_compilation": {
                "init_multi_process_env": lambda *_: (1,),
                "start_ga_multi_process": never,
                "deinit_multi_process_env": nothing,
                "get_finished_compilation_task": self.get_finished,
            },
            "te.platform.cce_conf": {"te_set_version": self.set_version},
            "te.platform.cce_policy": {"set_L1_info": nothing},
            "tbe.common.rl_bank.bank_manager": {"set_current_op_name": nothing},
            "tbe.common.repository_manager.interface": {"cann_kb_init": lambda *_: 0, "cann_kb_finalize": lambda: 0},
        }
        for name, content in modules.items():
            parts = name.split(".")
            for count in range(1, len(parts) + 1):
                package = ".".join(parts[:count])
                sys.modules.setdefault(package, types.ModuleType(package)).__path__ = []
            vars(sys.modules[name]).update(content)
