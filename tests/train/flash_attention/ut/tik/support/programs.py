"""The kernels of the operators, recorded and built."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.kernels.tik import operators

from tests.train.flash_attention.support.calls import changed


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
