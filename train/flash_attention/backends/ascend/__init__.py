"""Backend `tik`: the TIK operators on the first-generation Ascend 910."""

from __future__ import annotations

import functools

from flash_attention.backends.ascend import environment
from flash_attention.backends.ascend.limits import refuse_on_910
from flash_attention.backends.base import Backend
from flash_attention.problem import AttentionProblem


class TikBackend(Backend):
    """The TIK operators as MindSpore primitives; compiled by CANN when a network is."""

    name = "tik"
    shards = True

    def unavailable(self) -> str | None:
        import mindspore as ms

        return environment.missing(ms.__version__, ms.get_context("device_target"))

    def refuse(self, problem: AttentionProblem) -> str | None:
        return refuse_on_910(problem)

    def build(self, problem: AttentionProblem, shard=None):
        import mindspore as ms

        from flash_attention.backends.ascend import registration
        from flash_attention.backends.ascend.cell import OperatorAttention
        from flash_attention.backends.ascend.keep_bits import GeneratedKeepBits

        make_primitive = functools.partial(registration.primitive, environment.route(ms.__version__), shard=shard)
        draw = GeneratedKeepBits(problem, shard)
        return OperatorAttention(problem, make_primitive, draw, environment.cores(), shard)


BACKEND = TikBackend()
