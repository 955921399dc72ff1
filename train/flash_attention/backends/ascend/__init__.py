"""Backend `tik`: the TIK operators on the first-generation Ascend 910."""

from __future__ import annotations

import functools

from flash_attention.backends.ascend import environment
from flash_attention.backends.ascend.limits import layout_on_910, refuse_on_910
from flash_attention.backends.base import Backend
from flash_attention.kernels.tik import host
from flash_attention.problem import AttentionProblem
from flash_attention.problem.packed import PackedProblem
from flash_attention.problem.paged import PagedProblem


class TikBackend(Backend):
    """The TIK operators as MindSpore primitives; compiled by CANN when a network is."""

    name = "tik"
    takes = ("mask", "bias", "keep_bits", "seed", "sinks", "prefix", "segment_ids", "kv_segment_ids", "alibi_slopes")
    shards = True

    def unavailable(self) -> str | None:
        import mindspore as ms

        return environment.missing(ms.__version__, ms.get_context("device_target"))

    def refuse(self, problem: AttentionProblem) -> str | None:
        return refuse_on_910(problem)

    def layout(self, problem: AttentionProblem, sharded: bool = False) -> str:
        return layout_on_910(problem, sharded)

    def build(self, problem: AttentionProblem, shard=None):
        import mindspore as ms

        from flash_attention.backends.ascend import registration
        from flash_attention.backends.ascend.cell import OperatorAttention
        from flash_attention.backends.ascend.explicit_mask import with_mask
        from flash_attention.backends.ascend.keep_bits import GeneratedKeepBits

        route, of_kernels = environment.route(ms.__version__), with_mask(shard, problem)
        make_primitive = functools.partial(registration.primitive, route, shard=of_kernels)
        draw = GeneratedKeepBits(host.describe(problem), shard)
        return OperatorAttention(problem, make_primitive, draw, environment.chip(), shard)

    def refuse_packed(self, problem: PackedProblem) -> str | None:
        from flash_attention.backends.ascend.packed import refuse_packed

        return refuse_packed(problem)

    def build_packed(self, problem: PackedProblem):
        from flash_attention.backends.ascend.keep_bits import GeneratedKeepBits
        from flash_attention.backends.ascend.packed import PackedOperators, runs_alone
        from flash_attention.backends.packed_loop import PackedLoop

        if runs_alone(problem):
            return PackedLoop(self, problem)
        draw = GeneratedKeepBits(host.describe_packed(problem))
        return PackedOperators(problem, _primitives(), draw, environment.chip())

    def refuse_paged(self, problem: PagedProblem) -> str | None:
        from flash_attention.backends.ascend.decode import refuse_paged

        return refuse_paged(problem)

    def build_paged(self, problem: PagedProblem):
        from flash_attention.backends.ascend.decode import PagedOperators

        return PagedOperators(problem, _primitives(), environment.chip())


def _primitives():
    """Makes the primitives of kernels that are not part of a sharded call."""
    import mindspore as ms

    from flash_attention.backends.ascend import registration

    return functools.partial(registration.primitive, environment.route(ms.__version__))


BACKEND = TikBackend()
