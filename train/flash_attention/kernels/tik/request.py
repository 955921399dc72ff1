"""What an operator is compiled for, and how that is written in its one attribute."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.problem.rules import AttentionRules


@dataclass(frozen=True)
class Request:
    """What an operator is compiled for, the value of its attribute `request`.

    Attributes:
        problem: see KernelProblem.
        bias_gradient: the backward operators also give the gradient of a given bias.
        logsumexp_gradient: the backward operators take the gradient of the logsumexp.
        variant: of the backward operators, see backward.work.VARIANTS.
        pages: of a paged cache, (blocks, keys of a block); problem.seq_k is then as many keys as the table can name.
    """

    problem: KernelProblem
    bias_gradient: bool = False
    logsumexp_gradient: bool = False
    variant: str = "split"
    pages: tuple[int, int] | None = None

    def to_text(self) -> str:
        """The request as the operators' string attribute."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @staticmethod
    def from_text(text: str) -> Request:
        """Inverse of `to_text`.

        Raises:
            ValueError: the text is not what `to_text` writes.
        """
        try:
            fields = json.loads(text)
            fields = _with_tuples(fields)
            problem = _with_tuples(fields.pop("problem"))
            return Request(KernelProblem(**{**problem, "rules": AttentionRules(**problem["rules"])}), **fields)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"request: got {text!r}, allowed is what Request.to_text writes ({error})") from None


def _with_tuples(fields: dict) -> dict:
    return {name: tuple(x) if isinstance(x, list) else x for name, x in fields.items()}
