"""Composed attention operator by operator, forward and backward, as MindSpore runs it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from flash_attention.measuring.case import Case
from flash_attention.measuring.implementations import Composed, random_inputs


@dataclass(frozen=True)
class Step:
    """One operator.

    Attributes:
        kind: "forward" or "backward".
        operator: as MindSpore calls it.
        result: "tensor" (like query), "scores" (like the scores) or "rows" (one number a query).
        inputs: names of what it takes, with " T" behind what a product takes transposed.
    """

    kind: str
    operator: str
    result: str
    inputs: tuple[str, ...]

    def written(self, case: Case) -> int:
        """Bytes of the result."""
        scores = case.tensor_bytes // case.head_dim * case.seq
        return {"tensor": case.tensor_bytes, "scores": scores, "rows": scores // case.seq}[self.result]

    def operation(self) -> Callable[..., Any]:
        """What computes it."""
        from mindspore import ops

        if self.operator == "BatchMatMul":
            transposed = (name.endswith(" T") for name in self.inputs)
            return ops.BatchMatMul(**dict(zip(("transpose_a", "transpose_b"), transposed)))
        if self.operator == "ReduceSum":
            total = ops.ReduceSum(keep_dims=True)
            return lambda tensor: total(tensor, -1)
        return getattr(ops, self.operator)()  # Softmax goes over the last axis


#: In the order in which they run, by what they compute. The backward of Softmax is P * (dP - sum(P * dP)).
STEPS: dict[str, Step] = {
    "scaled": Step("forward", "Mul", "tensor", ("query", "scale")),
    "scores": Step("forward", "BatchMatMul", "scores", ("scaled", "key T")),
    "masked": Step("forward", "Add", "scores", ("scores", "mask")),
    "probabilities": Step("forward", "Softmax", "scores", ("masked",)),
    "output": Step("forward", "BatchMatMul", "tensor", ("probabilities", "value")),
    "d_value": Step("backward", "BatchMatMul", "tensor", ("probabilities T", "d_output")),
    "d_probabilities": Step("backward", "BatchMatMul", "scores", ("d_output", "value T")),
    "weighted": Step("backward", "Mul", "scores", ("probabilities", "d_probabilities")),
    "row_sums": Step("backward", "ReduceSum", "rows", ("weighted",)),
    "centred": Step("backward", "Sub", "scores", ("d_probabilities", "row_sums")),
    "d_scores": Step("backward", "Mul", "scores", ("probabilities", "centred")),
    "d_scaled": Step("backward", "BatchMatMul", "tensor", ("d_scores", "key")),
    "d_query": Step("backward", "Mul", "tensor", ("d_scaled", "scale")),
    "d_key": Step("backward", "BatchMatMul", "tensor", ("d_scores T", "scaled")),
}


class ComposedSteps(Composed):
    """Composed attention in PYNATIVE, one call per step; each waits for its result.

    Attributes:
        tensors: inputs and results by name, after `prepare` and the calls.
    """

    tensors: dict[str, Any]

    def prepare(self, case: Case) -> dict[str, Callable[[], None]]:
        import mindspore
        from mindspore import Tensor

        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        dtype = getattr(mindspore, case.dtype)
        arrays = dict(zip(("query", "key", "value", "d_output"), random_inputs(case, 4)))
        arrays["mask"] = np.triu(np.full((case.seq, case.seq), -np.inf if case.causal else 0.0, np.float32), 1)
        have = self.tensors = {name: Tensor(array, dtype) for name, array in arrays.items()}
        have["scale"] = Tensor(case.head_dim**-0.5, dtype)

        def call(name: str, operation: Callable[..., Any]) -> None:
            have[name] = operation(*(have[given.replace(" T", "")] for given in STEPS[name].inputs))
            have[name].asnumpy()  # waits

        return {name: functools.partial(call, name, step.operation()) for name, step in STEPS.items()}
