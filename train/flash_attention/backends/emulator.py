"""Backend `emulator`: the TIK operators for Ascend 910, executed instruction by instruction by tikemu on a CPU.

Slow and exact: for developing and testing the operators inside MindSpore models where there is no NPU. The kernels run
in tikemu's strict mode; whatever the hardware would punish is an error.
"""

from __future__ import annotations

import inspect

import numpy as np

from flash_attention import philox
from flash_attention.backends.ascend.limits import refuse_on_910
from flash_attention.backends.base import Backend
from flash_attention.problem import AttentionProblem

SOC = "Ascend910A"


class EmulatorBackend(Backend):
    """The TIK operators behind `ops.Custom(func_type="pyfunc")`."""

    name = "emulator"

    def unavailable(self) -> str | None:
        import mindspore as ms

        try:
            import tikemu  # noqa: F401
        except ImportError:
            return "needs tikemu: pip install tikemu (in this repository: pip install ./emulator)"
        target = ms.get_context("device_target")
        return None if target == "CPU" else f"runs on a CPU, and the device target is {target}"

    def refuse(self, problem: AttentionProblem) -> str | None:
        return refuse_on_910(problem)

    def build(self, problem: AttentionProblem):
        import tikemu

        from flash_attention.backends.ascend.cell import OperatorAttention

        tikemu.install(soc=SOC)
        from tbe import tik

        return OperatorAttention(problem, tik, _emulated, _philox_bits(problem))


def _emulated(operator, request, kernel, shapes: list):
    """The primitive of a kernel: stores its inputs in the kernel's formats, as a device does, and runs it."""
    import tikemu
    from mindspore import dtype as mstype

    from flash_attention.kernels.tik.layout import from_nz, to_nz

    options = tikemu.Options(strict=True, progress=False)

    def run(*tensors):
        feed = {}
        for wanted, tensor in zip(kernel.inputs, tensors):
            feed[wanted.name] = to_nz(tensor) if wanted.format == "FRACTAL_NZ" else np.ascontiguousarray(tensor)
        stored = tikemu.run(kernel.tik, feed, timing=False, options=options).outputs
        return tuple(
            from_nz(stored[given.name], *shape[-2:]) if given.format == "FRACTAL_NZ" else stored[given.name]
            for given, shape in zip(kernel.outputs, shapes)
        )

    dtypes = [getattr(mstype, tensor.dtype) for tensor in kernel.outputs]
    return _pyfunc(run, len(kernel.inputs), shapes, dtypes)


def _philox_bits(problem: AttentionProblem):
    """A primitive that draws the keep bits of a problem: those of every other backend for the same seed."""
    from mindspore import dtype as mstype

    return _pyfunc(lambda seed: (philox.keep_bits(problem, seed),), 1, [problem.shape_keep_bits()], [mstype.uint8])


def _pyfunc(function, count: int, shapes: list, dtypes: list):
    """A primitive that runs a Python function on NumPy arrays; the function returns a tuple."""
    from mindspore import ops

    single = len(shapes) == 1

    def call(*arrays):
        result = function(*arrays)
        return result[0] if single else result

    # MindSpore counts the inputs of a primitive by the signature of its function.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    call.__signature__ = inspect.Signature([inspect.Parameter(f"x{index}", kind) for index in range(count)])
    shapes = [[int(size) for size in shape] for shape in shapes]
    if single:
        return ops.Custom(call, out_shape=shapes[0], out_dtype=dtypes[0], func_type="pyfunc")
    return ops.Custom(call, out_shape=tuple(shapes), out_dtype=tuple(dtypes), func_type="pyfunc")


BACKEND = EmulatorBackend()
