"""Composed attention operator by operator, forward and backward, as MindSpore runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from flash_attention.measuring.case import Case
from flash_attention.measuring.implementations import Composed, random_inputs


@dataclass(frozen=True)
class Step:
    """One operator. `result` is "tensor" (like query), "scores" (like the scores) or "rows" (one number a query)."""

    kind: str
    operator: str
    result: str

    def written(self, case: Case) -> int:
        """Bytes of the result."""
        scores = case.tensor_bytes // case.head_dim * case.seq
        return {"tensor": case.tensor_bytes, "scores": scores, "rows": scores // case.seq}[self.result]


#: In the order in which they run, by what they compute. The backward of Softmax is P * (dP - sum(P * dP)).
STEPS: dict[str, Step] = {
    "scaled": Step("forward", "Mul", "tensor"),
    "scores": Step("forward", "BatchMatMul", "scores"),
    "masked": Step("forward", "Add", "scores"),
    "probabilities": Step("forward", "Softmax", "scores"),
    "output": Step("forward", "BatchMatMul", "tensor"),
    "d_value": Step("backward", "BatchMatMul", "tensor"),
    "d_probabilities": Step("backward", "BatchMatMul", "scores"),
    "weighted": Step("backward", "Mul", "scores"),
    "row_sums": Step("backward", "ReduceSum", "rows"),
    "centred": Step("backward", "Sub", "scores"),
    "d_scores": Step("backward", "Mul", "scores"),
    "d_scaled": Step("backward", "BatchMatMul", "tensor"),
    "d_query": Step("backward", "Mul", "tensor"),
    "d_key": Step("backward", "BatchMatMul", "tensor"),
}


class ComposedSteps(Composed):
    """Composed attention in PYNATIVE, one call per step; each waits for its result.

    Attributes:
        tensors: inputs and results by name, after `prepare` and the calls.
    """

    tensors: dict[str, Any]

    def prepare(self, case: Case) -> dict[str, Callable[[], None]]:
        import mindspore
        from mindspore import Tensor, ops

        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        dtype = getattr(mindspore, case.dtype)
        arrays = dict(zip(("query", "key", "value", "d_output"), random_inputs(case, 4)))
        arrays["mask"] = np.triu(np.full((case.seq, case.seq), -np.inf if case.causal else 0.0, np.float32), 1)
        have = self.tensors = {name: Tensor(array, dtype) for name, array in arrays.items()}
        have["scale"] = Tensor(case.head_dim**-0.5, dtype)
        products = {
            (left, right): ops.BatchMatMul(transpose_a=left, transpose_b=right)
            for left in (False, True)
            for right in (False, True)
        }
        multiply, add, subtract = ops.Mul(), ops.Add(), ops.Sub()
        softmax, row_sum = ops.Softmax(-1), ops.ReduceSum(keep_dims=True)
        formulas: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
            "scaled": (multiply, ("query", "scale")),
            "scores": (products[False, True], ("scaled", "key")),
            "masked": (add, ("scores", "mask")),
            "probabilities": (softmax, ("masked",)),
            "output": (products[False, False], ("probabilities", "value")),
            "d_value": (products[True, False], ("probabilities", "d_output")),
            "d_probabilities": (products[False, True], ("d_output", "value")),
            "weighted": (multiply, ("probabilities", "d_probabilities")),
            "row_sums": (lambda weighted: row_sum(weighted, -1), ("weighted",)),
            "centred": (subtract, ("d_probabilities", "row_sums")),
            "d_scores": (multiply, ("probabilities", "centred")),
            "d_scaled": (products[False, False], ("d_scores", "key")),
            "d_query": (multiply, ("d_scaled", "scale")),
            "d_key": (products[True, False], ("d_scores", "scaled")),
        }

        def step(name: str) -> Callable[[], None]:
            operator, inputs = formulas[name]

            def call() -> None:
                have[name] = operator(*(have[given] for given in inputs))
                have[name].asnumpy()  # waits

            return call

        return {name: step(name) for name in STEPS}
