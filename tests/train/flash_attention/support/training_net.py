"""A network with attention between projections, and its gradients in float64 NumPy."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention, reference
from flash_attention.call import AttentionRules, Call
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

BATCH, SEQ, HEADS, DIM = 2, 32, 2, 16
WIDTH = HEADS * DIM
#: Of each arrangement: how many blocks of weights, which block and which layer each step takes, scales of the layers.
ARRANGEMENTS = {
    "one": (1, ((0, 0),), (0.25,)),
    "two alike": (2, ((0, 0), (1, 1)), (0.25, 0.25)),
    "two different": (2, ((0, 0), (1, 1)), (0.25, 0.125)),
    "one layer shared": (2, ((0, 0), (1, 0)), (0.25,)),
    "one block twice": (1, ((0, 0), (0, 0)), (0.25,)),
}


class Network(nn.Cell):
    """Compute tokens + project(attention(tokens @ q, tokens @ k, tokens @ v)), repeatedly. Tokens are (batch * seq,
    width).
    """

    def __init__(self, arrangement: str, backend: str, layout: str = "BSH", compiled: bool = False):
        super().__init__()
        blocks, self.steps, scales = ARRANGEMENTS[arrangement]
        self.dtype = mstype.float16 if backend in ("emulator", "tik") else mstype.float32
        self.layout = layout
        self.inputs = nn.CellList([_dense() for _ in range(3 * blocks)])
        self.outputs = nn.CellList([_dense().to_float(self.dtype) for _ in range(blocks)])
        self.functions: tuple = ()  # the layers, compiled
        self.layers = nn.CellList(
            [FlashAttention(DIM, causal=True, scale=scale, input_layout=layout, backend=backend) for scale in scales]
        )
        if compiled:
            self.functions = tuple(map(_compiled, self.layers))

    def construct(self, tokens):
        for block, layer in self.steps:
            query = self.attended(self.inputs[3 * block](tokens))
            key = self.attended(self.inputs[3 * block + 1](tokens))
            value = self.attended(self.inputs[3 * block + 2](tokens))
            if len(self.functions) > 0:
                output = self.functions[layer](query, key, value)
            else:
                output = self.layers[layer](query, key, value)
            if self.layout == "BNSD":
                output = ops.transpose(output, (0, 2, 1, 3))
            output = ops.reshape(output, (BATCH * SEQ, WIDTH))
            tokens = tokens + ops.cast(self.outputs[block](output), mstype.float32)
        return tokens

    def attended(self, tensor):
        tensor = ops.cast(tensor, self.dtype)
        if self.layout == "BNSD":
            return ops.transpose(ops.reshape(tensor, (BATCH, SEQ, HEADS, DIM)), (0, 2, 1, 3))
        return ops.reshape(tensor, (BATCH, SEQ, WIDTH))


def _compiled(layer: nn.Cell):
    """Return a layer as a `@jit` function."""

    @ms.jit
    def attention(query, key, value):
        return layer(query, key, value)

    return attention


def _dense() -> nn.Cell:
    """Return a projection of the tokens."""
    return nn.Dense(WIDTH, WIDTH, has_bias=False)


def set_weights(network: Network, random: np.random.Generator) -> None:
    """Set new random weights by an operation: a graph's weights do not follow `set_data` (MindSpore 2.10)."""
    for weight in network.trainable_params():
        ops.assign(weight, Tensor((random.standard_normal(weight.shape) * 0.25).astype(np.float32)))


def truth(network: Network, tokens: np.ndarray, d_output: np.ndarray) -> dict[str, np.ndarray]:
    """Return the output, and the gradients of tokens and weights by name, in float64."""
    blocks = len(network.outputs)
    weights = [[network.inputs[3 * b + n].weight.asnumpy().astype(float) for n in range(3)] for b in range(blocks)]
    outputs = [dense.weight.asnumpy().astype(float) for dense in network.outputs]
    gradients = {weight.name: np.zeros(weight.shape) for weight in network.trainable_params()}
    tape, hidden = [], tokens.astype(float)
    for block, layer in network.steps:
        call = Call(BATCH, HEADS, SEQ, SEQ, DIM, rules=AttentionRules(causal=True, scale=network.layers[layer].scale))
        heads = [_heads(hidden @ weight.T) for weight in weights[block]]
        attended = _tokens(reference.truth(call, *heads).output)
        tape.append((block, call, hidden, heads, attended))
        hidden = hidden + attended @ outputs[block].T
    result, d_hidden = hidden, d_output.astype(float)
    for block, call, before, heads, attended in reversed(tape):
        gradients[network.outputs[block].weight.name] += _product(d_hidden, attended)
        exact = reference.truth(call, *heads, d_output=_heads(d_hidden @ outputs[block]))
        for index, gradient in enumerate(map(_tokens, (exact.d_query, exact.d_key, exact.d_value))):
            gradients[network.inputs[3 * block + index].weight.name] += _product(gradient, before)
            d_hidden = d_hidden + gradient @ weights[block][index]
    return {"output": result, "tokens": d_hidden, **gradients}


def _heads(tokens: np.ndarray) -> np.ndarray:
    """Split tokens into (batch, heads, seq, head_dim)."""
    return tokens.reshape(BATCH, SEQ, HEADS, DIM).transpose(0, 2, 1, 3)


def _tokens(heads: np.ndarray) -> np.ndarray:
    """Join (batch, heads, seq, head_dim) to tokens."""
    return heads.transpose(0, 2, 1, 3).reshape(BATCH * SEQ, WIDTH)


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Multiply left^T @ right, a sum over the tokens."""
    return left.T @ right


def check(network: Network, exact: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    """Check that tensors of `found` equal `exact` but for the dtype's rounding."""
    bound = 2e-2 if network.dtype == mstype.float16 else 1e-4
    for name, value in found.items():
        error = np.linalg.norm(value - exact[name]) / np.linalg.norm(exact[name])
        assert error <= bound, f"{name}: {error}"
