"""Backend `tik`: the TIK operators on the first-generation Ascend 910."""

from __future__ import annotations

import functools

from flash_attention.backends.tik import environment
from flash_attention.backends.tik.operator_backend import OperatorBackend
from flash_attention.bridge.releases import needs_package, refuse_mode
from flash_attention.call import Call
from flash_attention.kernels.tik import describe


class TikBackend(OperatorBackend):
    """The TIK operators as MindSpore primitives; compiled by CANN when a network is."""

    name = "tik"

    def refuse_sharded(self) -> str | None:
        import mindspore as ms

        from flash_attention.bridge.versions import MORPH

        if MORPH or not needs_package(ms.__version__):
            return None
        strategies = f"has no shard strategies that MindSpore {ms.__version__} hands on to GE"
        return f"{strategies}: use data_parallel, or MindSpore 2.6"

    def unavailable(self) -> str | None:
        import mindspore as ms

        version = ms.__version__
        missing = environment.missing(version, ms.get_context("device_target"))
        if missing is not None or not needs_package(version):
            return missing
        graph = ms.get_context("mode") == ms.GRAPH_MODE
        level = ms.context.get_jit_config().get("jit_level") or ms.get_context("jit_level")
        return refuse_mode(version, graph, level)

    def chip(self):
        return environment.chip()

    def make_primitive(self, shard=None):
        from flash_attention.backends.tik import registration

        return functools.partial(registration.primitive, shard=shard)

    def draw(self, call: Call, shard=None):
        from flash_attention.backends.tik.keep_bits import GeneratedKeepBits

        return GeneratedKeepBits(describe.kernel_problem(call), shard)


BACKEND = TikBackend()
