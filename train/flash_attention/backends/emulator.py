"""Backend `emulator`: the TIK operators for Ascend 910, executed instruction by instruction by tikemu on a CPU.

It is slow and exact, for developing and testing the operators inside MindSpore models without an NPU. The kernels run
in tikemu's strict mode: whatever would go wrong on the hardware is an error.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from mindspore import dtype as mstype
from mindspore import nn

from flash_attention.backends.tik.operator_backend import OperatorBackend
from flash_attention.bridge.custom import PythonResults, python_function
from flash_attention.bridge.gradients import NotDifferentiated
from flash_attention.call import Call
from flash_attention.call.varlen import check_counts, check_lengths
from flash_attention.dropout import philox
from flash_attention.kernels.tik.problem import Chip

if TYPE_CHECKING:
    from flash_attention.sharding.shard import Shard

SOC = "Ascend910A"


class EmulatorBackend(OperatorBackend):
    """The TIK operators behind `ops.Custom(func_type="pyfunc")`."""

    name = "emulator"

    def unavailable(self) -> str | None:
        import mindspore as ms

        try:
            import tikemu  # noqa: F401
        except ImportError:
            return "needs tikemu: pip install ./emulator in the repository, or its wheel"
        target = ms.get_context("device_target")
        return None if target == "CPU" else f"runs on a CPU, and the device target is {target}"

    def chip(self) -> Chip:
        """Return the emulated chip, which is there from then on."""
        import tikemu

        tikemu.install(soc=SOC)
        from tbe.common.platform import get_soc_spec

        return Chip(int(get_soc_spec("CORE_NUM")))

    def make_primitive(self, shard: Shard | None = None):
        return _emulated

    def draw(self, call: Call, shard: Shard | None = None):
        return _bits_of_sequences(call) if call.kind == "varlen" else _philox_bits(call)

    def check_lengths(self, call: Call):
        return _CheckedLengths(call)


# Each of a training step's four kernels takes several megabytes. A process that meets many shapes cannot keep all.
@functools.lru_cache(maxsize=64)
def _recorded(stage: str, problem, name: str):
    """Return the recorded kernel of a stage."""
    import tikemu

    tikemu.install(soc=SOC)  # other code may have removed it since the last kernel
    from tbe import tik

    from flash_attention.kernels.tik import operators

    return operators.build(stage, problem, tik, name, True)


def _emulated(operator, signature, problem, shapes):
    """Return the primitive of a kernel. It stores its inputs in the kernel's formats, as a device does, and runs it."""
    import tikemu

    from flash_attention.kernels.tik.layout import from_nz, to_nz

    stage, name = operator.stage, operator.name
    _recorded(stage, problem, name)  # a refusal shows before anything runs
    options = tikemu.Options(strict=True, progress=False)
    count, dtypes = len(signature.inputs), [getattr(mstype, tensor.dtype) for tensor in signature.outputs]
    seen = [tuple(map(int, shapes.get(tensor.name, tensor.shape))) for tensor in signature.outputs]

    def run(*tensors):  # MindSpore keeps this function for good: it must not hold a kernel
        kernel, feed = _recorded(stage, problem, name), {}
        for wanted, tensor in zip(kernel.inputs, tensors):
            array = to_nz(tensor) if wanted.format == "FRACTAL_NZ" else np.ascontiguousarray(tensor)
            feed[wanted.name] = array.reshape(wanted.shape)
        stored = tikemu.run(kernel.tik, feed, timing=False, options=options).outputs
        return [
            from_nz(stored[given.name], *shape[-2:]) if given.format == "FRACTAL_NZ" else stored[given.name]
            for given, shape in zip(kernel.outputs, seen)
        ]

    if len(seen) > 1:
        return PythonResults(run, count, seen, dtypes)
    return python_function(lambda *tensors: run(*tensors)[0], count, seen[0], dtypes[0])


def _philox_bits(call: Call):
    """Return a primitive that draws a call's keep bits for the kernels. Every other backend draws the same bits for
    a seed.
    """
    from flash_attention.kernels.tik import describe, layout

    if call.dropout_threshold == 0:
        return None
    kernel_problem = describe.kernel_problem(call)

    def draw(seed):
        return layout.store_keep_bits(philox.keep_bits(call, seed), kernel_problem)

    return NotDifferentiated(python_function(draw, 1, layout.keep_shape(kernel_problem), mstype.uint8))


def _bits_of_sequences(call: Call):
    """Return a primitive that draws the keep bits of packed sequences. Each sequence gets the bits of a call of its
    own, see `Call`.
    """
    from flash_attention.kernels.tik import describe, layout

    if call.dropout_threshold == 0:
        return None
    kernel_problem = describe.kernel_problem(call)

    def draw(seed, ends_q, ends_k):
        parts, before, before_k = [], 0, 0
        for index, (end, end_k) in enumerate(zip(ends_q.tolist(), ends_k.tolist())):
            if end > before and end_k > before_k:
                offset = call.batch_offset + index
                one = replace(call, seq_q=end - before, seq_k=end_k - before_k, batch_offset=offset, storage=None)
                parts.append(philox.keep_bits(one, seed)[0])
            before, before_k = end, end_k
        return layout.store_keep_bits_of_sequences(parts, kernel_problem)

    return NotDifferentiated(python_function(draw, 3, layout.keep_shape(kernel_problem), mstype.uint8))


class _CheckedLengths(nn.Cell):
    """Check cumulative lengths in tensors, and give them the leading 0."""

    def __init__(self, call: Call):
        super().__init__()
        count = call.varlen.count + 1

        def check(lengths_q, lengths_k):
            given = ("cu_seqlens_q", lengths_q, call.seq_q), ("cu_seqlens_k", lengths_k, call.seq_k)
            try:
                ends = [check_lengths(name, lengths.tolist(), total) for name, lengths, total in given]
                check_counts(*ends)
            except ValueError as error:
                raise RuntimeError(str(error)) from None
            # If only the values tell that there is a leading 0, a sequence is missing: an empty one at the end.
            return np.array([side + side[-1:] * (count - len(side)) for side in ends], np.int32)

        self.checked = NotDifferentiated(python_function(check, 2, (2, count), mstype.int32))

    def construct(self, lengths_q, lengths_k):
        checked = self.checked(lengths_q, lengths_k)
        return checked[0], checked[1]


BACKEND = EmulatorBackend()
