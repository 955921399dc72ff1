"""Variants of the TIK operators: the strategies that fit a case, their time in the model, and which one to use."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from flash_attention.kernels.tik import tuning
from flash_attention.kernels.tik.backward import plan as backward_tiling
from flash_attention.kernels.tik.backward import work as backward_scheduler
from flash_attention.kernels.tik.forward import plan as forward_tiling
from flash_attention.kernels.tik.forward import work as forward_scheduler
from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.measuring import tik_kernels

GAIN = 0.01  # by which a variant must beat the usual choice


@dataclass(frozen=True)
class Case:
    """One core's work: `seq` tokens of one head, rules "full" or "causal"."""

    operator: str
    seq: int
    head_dim: int
    rules: str

    @property
    def problem(self) -> KernelProblem:
        return tik_kernels.problem_of(self.seq, self.head_dim, causal=self.rules == "causal")

    def entry(self, variant: Variant, low: int = 1, high: int = sys.maxsize) -> tuning.Entry:
        """What the table says where the variant is to be used for `low` to `high` keys."""
        return tuning.Entry(
            self.operator, padded(self.head_dim), self.rules, low, high, variant.strategy, variant.half_scores
        )

    def __str__(self) -> str:
        return f"{self.operator} S={self.seq} D={self.head_dim} {self.rules}"


@dataclass(frozen=True)
class Variant:
    """A tiling strategy, and whether scores may leave L0C as float16."""

    strategy: str
    half_scores: bool = True

    def __str__(self) -> str:
        return self.strategy + ("" if self.half_scores else " float32")


def emulated(case: Case, variant: Variant) -> float:
    """Cycles of one of 32 busy cores in tikemu's timing model."""
    with tuning.using((case.entry(variant),)):
        return tik_kernels.measure(case.problem, operator=case.operator).cycles


def plan_of(case: Case, table: tuning.Table):
    """The plan that is chosen for a case with this table."""
    with tuning.using(table):
        if case.operator == "forward":
            return forward_scheduler.choose(case.problem).plan
        return backward_scheduler.choose(case.problem, "split", False).plan


def variants(case: Case) -> list[Variant]:
    """The variants that fit and differ, the one first that is chosen without a table."""
    names = forward_tiling.STRATEGIES if case.operator == "forward" else backward_tiling.STRATEGIES
    plans: dict = {plan_of(case, ()): None}
    for name in names:
        for half_scores in (True, False) if case.operator == "forward" else (True,):
            variant = Variant(name, half_scores)
            plan = plan_of(case, (case.entry(variant),))
            if plan.strategy == name and plans.get(plan) is None:
                plans[plan] = variant
    return [variant for variant in plans.values() if variant is not None]


def best(times: dict[Variant, float]) -> tuple[Variant, float]:
    """The variant to use, and by which part it is faster than the usual one."""
    usual, fastest = next(iter(times)), min(times, key=lambda variant: times[variant])
    gain = times[usual] / times[fastest] - 1
    return (fastest, gain) if gain > GAIN else (usual, 0.0)
