"""What says that second derivatives are not supported, where MindSpore fails without a reason or gives zeros."""

from __future__ import annotations

from mindspore import Tensor, nn
from mindspore.ops import constexpr


@constexpr(reuse_result=False)
def refuse_second_derivative(backend: str):
    """Raises; for the `bprop` of what computes first derivatives."""
    Tensor(0).asnumpy()  # waits for operations under way, or the exception may crash PYNATIVE (MindSpore 2.10)
    raise NotImplementedError(
        f"second derivatives of attention: backend {backend!r} has none here; "
        "allowed is backend 'math' in a compiled graph (GRAPH mode or mindspore.jit)"
    )


@constexpr(reuse_result=False)
def refuse_gradient(function: str):
    """Raises; for the `bprop` of what has no gradient."""
    Tensor(0).asnumpy()  # as in refuse_second_derivative
    raise NotImplementedError(f"{function}: it has no gradient, it is for inference; allowed is flash_attention")


class FirstDerivativeOnly(nn.Cell):
    """Hands on query, key and value; what differentiates their gradients once more is refused."""

    def __init__(self, backend: str):
        super().__init__()
        self.gradients = _Gradients(backend)

    def construct(self, query, key, value):
        return query, key, value

    def bprop(self, query, key, value, out, dout):
        return self.gradients(dout[0], dout[1], dout[2], query, key, value)


class _Gradients(nn.Cell):
    """The gradients, as a function of the inputs too: MindSpore takes some for constants, see below."""

    def __init__(self, backend: str):
        super().__init__()
        self.backend = backend

    def construct(self, d_query, d_key, d_value, query, key, value):
        return d_query, d_key, d_value

    def bprop(self, d_query, d_key, d_value, query, key, value, out, dout):
        refuse_second_derivative(self.backend)
        return dout[0], dout[1], dout[2], query, key, value


class FirstDerivativeOnlyInPynative(nn.Cell):
    """The same for PYNATIVE alone, where the second derivatives of a product of matrices are zeros (MindSpore 2.10)."""

    def __init__(self, backend: str):
        super().__init__()
        self.guard = FirstDerivativeOnly(backend)

    def __call__(self, query, key, value):
        # PYNATIVE calls a cell and so lands here; a compiled graph contains `construct` instead.
        return self.guard(query, key, value)

    def construct(self, query, key, value):
        return query, key, value
