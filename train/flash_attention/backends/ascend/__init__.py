"""Backend `tik`: the TIK operators on the first-generation Ascend 910."""

from __future__ import annotations

import functools

from flash_attention.backends.ascend import environment
from flash_attention.backends.ascend.operator_backend import OperatorBackend
from flash_attention.kernels.tik import describe
from flash_attention.problem import AttentionProblem
from flash_attention.problem.packed import PackedProblem


class TikBackend(OperatorBackend):
    """The TIK operators as MindSpore primitives; compiled by CANN when a network is."""

    name = "tik"
    shards = True

    def unavailable(self) -> str | None:
        import mindspore as ms

        return environment.missing(ms.__version__, ms.get_context("device_target"))

    def chip(self):
        return environment.chip()

    def make_primitive(self, shard=None):
        import mindspore as ms

        from flash_attention.backends.ascend import registration

        return functools.partial(registration.primitive, environment.route(ms.__version__), shard=shard)

    def draw(self, problem: AttentionProblem | PackedProblem, shard=None):
        from flash_attention.backends.ascend.keep_bits import GeneratedKeepBits

        if isinstance(problem, PackedProblem):
            return GeneratedKeepBits(describe.varlen_problem(problem), shard)
        return GeneratedKeepBits(describe.kernel_problem(problem), shard)


BACKEND = TikBackend()
