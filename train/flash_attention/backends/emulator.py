"""Backend `emulator`: the TIK operators for Ascend 910, executed instruction by instruction by tikemu on a CPU.

Slow and exact: for developing and testing the operators inside MindSpore models where there is no NPU. The kernels run
in tikemu's strict mode; whatever the hardware would punish is an error.
"""

from __future__ import annotations

import functools
import inspect

import numpy as np

from flash_attention import philox
from flash_attention.backends.ascend.limits import refuse_on_910
from flash_attention.backends.base import Backend
from flash_attention.kernels.tik import backward_host, host
from flash_attention.problem import AttentionProblem

SOC = "Ascend910A"
LOWEST = np.finfo(np.float32).min  # stands for -inf, which the chip does not have


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
        return _cell(problem)


class EmulatedOperators:
    """Forward and backward kernel of one problem on NumPy arrays.

    Args:
        problem: what to run; see `refuse_on_910`.
        strict: tikemu's strict mode.
    """

    def __init__(self, problem: AttentionProblem, strict: bool = True):
        import tikemu

        self.problem = problem
        self.kernel_problem = host.describe(problem)
        self.bias_gradient = problem.alibi == "given" and problem.bias_grad
        self._options = tikemu.Options(strict=strict, progress=False)

    def forward(self, query, key, value, mask=None, bias=None, keep_bits=None, seed=None) -> tuple:
        """(output, logsumexp), with the meanings of Backend.build."""
        kernel = _forward_kernel(self.kernel_problem)
        keep_bits = self._keep(keep_bits, seed)
        arrays = host.forward_inputs(self.kernel_problem, query, key, value, mask, bias, keep_bits)
        stored = self._execute(kernel.tik, kernel.feed(**arrays))
        output, logsumexp = host.forward_outputs(self.kernel_problem, stored)
        return output, np.where(logsumexp == LOWEST, np.float32(-np.inf), logsumexp)

    def backward(self, query, key, value, output, logsumexp, d_output, d_logsumexp, mask=None, bias=None,
                 keep_bits=None, seed=None) -> tuple:
        """(d_query, d_key, d_value), and d_bias after them when the problem wants it."""
        arrays = backward_host.inputs(
            self.kernel_problem, query, key, value, output, np.maximum(logsumexp, LOWEST), d_output, d_logsumexp,
            mask=mask, bias=bias, keep_bits=self._keep(keep_bits, seed),
        )
        stored = _backward_kernels(self.kernel_problem, self.bias_gradient).run(self._execute, **arrays)
        gradients = backward_host.outputs(self.kernel_problem, stored)
        result = tuple(gradients[name] for name in ("d_query", "d_key", "d_value"))
        return (*result, gradients["d_bias"].astype(np.float16)) if self.bias_gradient else result

    def _keep(self, keep_bits, seed):
        if not self.problem.dropout_threshold or keep_bits is not None:
            return keep_bits
        return philox.keep_bits(self.problem, seed)

    def _execute(self, instance, feed: dict, names=None) -> dict:
        import tikemu

        return tikemu.run(instance, feed, timing=False, options=self._options).outputs


@functools.lru_cache(maxsize=32)
def _forward_kernel(problem):
    from flash_attention.kernels.tik.forward import build

    return build(problem, _tik())


@functools.lru_cache(maxsize=32)
def _backward_kernels(problem, bias_gradient: bool):
    from flash_attention.kernels.tik.backward import build

    return build(problem, _tik(), bias_gradient=bias_gradient, logsumexp_gradient=True)


def _tik():
    import tikemu

    tikemu.install(soc=SOC)
    from tbe import tik

    return tik


def _cell(problem: AttentionProblem):
    """The MindSpore Cell of `problem`."""
    from mindspore import Tensor, nn, ops
    from mindspore import dtype as mstype

    operators = EmulatedOperators(problem)
    optional = (problem.mask_shape is not None, problem.bias_shape is not None,
                problem.keep_bits and problem.dropout_threshold > 0,
                problem.dropout_threshold > 0 and not problem.keep_bits)

    def present(values):
        return [value if given else None for value, given in zip(values, optional)]

    def run_forward(query, key, value, *rest):
        return operators.forward(query, key, value, *present(rest))

    def run_backward(query, key, value, mask, bias, keep_bits, seed, output, logsumexp, d_output, d_logsumexp):
        rest = present((mask, bias, keep_bits, seed))
        return operators.backward(query, key, value, output, logsumexp, d_output, d_logsumexp, *rest)

    def bprop(query, key, value, mask, bias, keep_bits, seed, out, dout):
        gradients = backward(query, key, value, mask, bias, keep_bits, seed, out[0], out[1], dout[0], dout[1])
        d_bias = gradients[3] if operators.bias_gradient else ops.zeros_like(bias)
        return (gradients[0], gradients[1], gradients[2], ops.zeros_like(mask), d_bias, ops.zeros_like(keep_bits),
                ops.zeros_like(seed))

    half = mstype.float16
    shapes = [problem.shape_query(), problem.shape_key(), problem.shape_key()]
    if operators.bias_gradient:
        shapes.append(problem.bias_shape)
    backward = _primitive(ops, run_backward, 11, shapes, [half] * len(shapes), None)
    forward = _primitive(ops, run_forward, 7, [problem.shape_query(), problem.shape_lse()], [half, mstype.float32],
                         bprop)
    nothing = Tensor(np.zeros(1, np.uint8))  # pyfunc primitives take no None

    class EmulatedAttention(nn.Cell):
        """Attention on BNSD tensors, with the meanings of `Backend.build`."""

        def construct(self, query, key, value, mask, alibi, keep_bits, seed):
            mask = nothing if mask is None else mask
            alibi = nothing if alibi is None else alibi
            keep_bits = nothing if keep_bits is None else keep_bits
            seed = nothing if seed is None else seed
            return forward(query, key, value, mask, alibi, keep_bits, seed)

    return EmulatedAttention()


def _primitive(ops, function, count: int, shapes: list, dtypes: list, bprop):
    """A pyfunc primitive. MindSpore counts its inputs by the signature of the function."""
    names = [f"x{index}" for index in range(count)]
    function.__signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names])
    return ops.Custom(function, out_shape=tuple([int(size) for size in shape] for shape in shapes),
                      out_dtype=tuple(dtypes), func_type="pyfunc", bprop=bprop)


BACKEND = EmulatorBackend()
