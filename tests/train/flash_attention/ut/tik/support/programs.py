"""Small TIK programs around one helper of the kernels."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from flash_attention.kernels.tik import operators
from flash_attention.kernels.tik.forward import schedule
from flash_attention.kernels.tik.forward.tiling import buffers, candidates
from flash_attention.kernels.tik.recorder import Core

from tests.train.flash_attention.support.calls import changed
from tests.train.flash_attention.ut.tik.support import stored_arrays


class Program:
    """A program on one core with the buffers of a forward kernel.

    Use `with program.body() as core:` to record, then `program.run(...)`.
    """

    def __init__(self, tik, execute, problem, inputs: dict, outputs: dict):
        self.tik, self.execute = tik, execute
        self.instance = tik.Tik(disable_debug=False)
        self.problem, self.plan = problem, candidates(problem)[0]
        self.inputs = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        self.outputs = outputs
        specs = {name: (str(array.dtype), array.shape) for name, array in self.inputs.items()} | outputs
        self.gm = {
            name: self.instance.Tensor(dtype, shape, tik.scope_gm, name) for name, (dtype, shape) in specs.items()
        }
        self.core = Core(tik, self.instance, problem, self.plan, self.gm)

    @contextmanager
    def body(self):
        """Open the scope in which the kernel's buffers are allocated."""
        with self.instance.new_stmt_scope():
            self.core.allocate(buffers(self.problem, self.plan, schedule.split(self.problem, self.plan)))
            yield self.core

    def run(self) -> dict:
        """Return the arrays of the outputs by name."""
        self.instance.BuildCCE(
            kernel_name="program",
            inputs=[self.gm[name] for name in self.inputs],
            outputs=[self.gm[name] for name in self.outputs],
        )
        return self.execute(self.instance, self.inputs, list(self.outputs))


@dataclass(frozen=True)
class Backward:
    """Hold the kernels of the backward operator, which run one after another. Outputs of one are inputs of a later
    one.
    """

    kernels: tuple[operators.BuiltKernel, ...]

    @property
    def main(self) -> operators.BuiltKernel:
        return self.kernels[1]

    def run(self, execute, **arrays) -> dict:
        """Run the chain on stored arrays and return the stored final outputs."""
        for kernel in self.kernels:
            feed = kernel.feed(**{name: arrays[name] for name in kernel.given if name in arrays})
            arrays.update(execute(kernel.tik, feed, [tensor.name for tensor in kernel.outputs]))
        results = [tensor for kernel in self.kernels for tensor in kernel.outputs]
        return {t.name: arrays[t.name] for t in results if t.name not in ("row_lanes", "d_query_sums")}


def build_forward(problem, tik) -> operators.BuiltKernel:
    """Record and build the forward kernel."""
    return operators.build("forward", problem, tik, "flash_attention_forward", True)


def build_backward(problem, tik, **asked) -> Backward:
    """Record and build the backward kernels; `asked` are the other fields of a KernelProblem."""
    problem = changed(problem, **asked)
    _, *chain = operators.stages(problem)
    return Backward(tuple(operators.build(stage, problem, tik, f"flash_attention_{stage}", True) for stage in chain))


def copy_in(core: Core, target, name: str, blocks: int) -> None:
    """Move GM tensor `name` to a buffer of the Unified Buffer or L1, contiguously."""
    core.tik.data_move(target, core.gm[name], 0, 1, blocks, 0, 0)


def copy_out(core: Core, name: str, source, blocks: int) -> None:
    """Move Unified Buffer to GM, contiguously."""
    core.tik.data_move(core.gm[name], source, 0, 1, blocks, 0, 0)


def forward(tik, execute, problem, query, key, value, **inputs):
    """Return (output, logsumexp) of the forward kernel on BNSD arrays."""
    kernel = build_forward(problem, tik)
    feed = kernel.feed(**stored_arrays.forward_inputs(problem, query, key, value, **inputs))
    return stored_arrays.forward_outputs(problem, execute(kernel.tik, feed, [tensor.name for tensor in kernel.outputs]))
