"""FlashAttention on the virtual card: card_attention.py WHAT MODE [LAYOUT [HEAD_DIM]]. Prints errors or losses.

gradients   of attention between four nn.Dense, twice with other data, against float64
gpt         losses of a GPT; on a CPU with DEVICE=CPU and backend `math`; another with BACKEND instead of LAYOUT
scale       a loss scale that overflows
"""

import os
import sys

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention, reference
from flash_attention.call import AttentionRules, Call
from mindspore import Tensor, nn, ops

sys.path.insert(0, os.environ["EXAMPLES"])
BATCH, SEQ, HEADS, HEAD_DIM = 2, int(os.environ.get("SEQ", 128)), 2, 64


class Between(nn.Cell):
    """Attention between the projections of a Transformer."""

    def __init__(self, layout, head_dim):
        super().__init__()
        self.width = HEADS * head_dim
        self.query, self.key, self.value, self.out = (
            nn.Dense(self.width, self.width, has_bias=False).to_float(ms.float16) for _ in range(4)
        )
        self.layout = layout
        self.heads = (BATCH, SEQ, HEADS, head_dim)
        batch = {"batch": BATCH} if layout == "TH" else {}
        self.attention = FlashAttention(head_dim, causal=True, input_layout=layout, **batch)

    def split(self, x):
        if self.layout in ("BNSD", "BSND"):
            x = ops.reshape(x, self.heads)
        return ops.transpose(x, (0, 2, 1, 3)) if self.layout == "BNSD" else x

    def construct(self, x):
        mixed = self.attention(self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x)))
        if self.layout == "BNSD":
            mixed = ops.transpose(mixed, (0, 2, 1, 3))
        return self.out(ops.reshape(mixed, x.shape))


class Gradients(nn.Cell):
    """Gradients of a network."""

    def __init__(self, network):
        super().__init__()
        self.network, self.weights = network, ms.ParameterTuple(network.trainable_params())
        self.gradients = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)

    def construct(self, x, sens):
        return self.gradients(self.network, self.weights)(x, sens)


def expected(x, sens, weights):
    """Return the gradients of x and the weights, in float64."""
    head_dim = x.shape[1] // HEADS

    def heads(t):
        return t.reshape(BATCH, SEQ, HEADS, head_dim).swapaxes(1, 2)

    def flat(t):
        return t.swapaxes(1, 2).reshape(BATCH * SEQ, -1)

    call = Call(BATCH, HEADS, SEQ, SEQ, head_dim, rules=AttentionRules(causal=True))
    exact = reference.truth(call, *(heads(x @ weight.T) for weight in weights[:3]), d_output=heads(sens @ weights[3]))
    mixed, *parts = map(flat, (exact.output, exact.d_query, exact.d_key, exact.d_value))
    d_x = sum(part @ weight for part, weight in zip(parts, weights))
    return [d_x, *(part.T @ x for part in parts), sens.T @ mixed]


def gradients(layout, head_dim=HEAD_DIM):
    """Print the errors of two calls with other data, each over the largest number."""
    generator = np.random.default_rng(0)
    network = Between(layout, int(head_dim))
    width = network.width
    weights = []
    for parameter in network.trainable_params():
        weight = (generator.standard_normal(parameter.shape) / np.sqrt(width)).astype(np.float16)
        parameter.set_data(Tensor(weight.astype(np.float32)))
        weights.append(weight.astype(np.float64))

    def given(array):
        """Return the tokens as the network takes them."""
        array = array.reshape((BATCH * SEQ, width) if layout == "TH" else (BATCH, SEQ, width))
        return Tensor(np.ascontiguousarray(array.swapaxes(0, 1)) if layout == "SBH" else array)

    differentiate = Gradients(network)
    names = "d_x", "d_query", "d_key", "d_value", "d_out"
    for call in range(2):
        x, sens = (generator.standard_normal((BATCH * SEQ, width)).astype(np.float16) for _ in range(2))
        (d_x,), d_weights = differentiate(given(x), given(sens))
        for name, got, right in zip(names, (d_x, *d_weights), expected(x.astype(float), sens, weights)):
            got = got.asnumpy().astype(float)
            got = got.swapaxes(0, 1) if layout == "SBH" and got.ndim == 3 else got
            error = np.abs(got.reshape(right.shape) - right).max() / np.abs(right).max()
            print(call, name, error)


def model(device, backend=None):
    """Return a GPT of one layer, the same on every device."""
    from small_gpt import GPT

    ms.set_seed(0)
    np.random.seed(0)
    backend = backend or ("math" if device == "CPU" else "tik")
    options = {"alibi": True, "causal": True, "backend": backend, "input_layout": "BSH"}
    return GPT(1, HEADS, HEAD_DIM, lambda: FlashAttention(HEAD_DIM, **options), dtype="float16")


def gpt(device, backend=None):
    """Print the losses of four steps with AdamW."""
    from small_gpt import batches, standard_library, train

    text, _ = standard_library()
    losses, _ = train(model(device, backend), batches(text, 1, SEQ, 0), 4, 2e-3, label="train")
    for loss in losses:
        print(loss)


def scale(device):
    """Start with a loss scale at which every float16 gradient overflows. It is halved until none does."""
    from small_gpt import Loss

    network = Loss(model(device))
    optimizer = nn.SGD(network.trainable_params(), learning_rate=0.1)
    update = nn.DynamicLossScaleUpdateCell(2.0**36, 2, 1000)
    step = nn.TrainOneStepWithLossScaleCell(network, optimizer, scale_sense=update).set_train()
    tokens = np.random.default_rng(0).integers(0, 256, (1, SEQ + 1)).astype(np.int32)
    for _ in range(20):
        loss, overflow, scaling = step(Tensor(tokens[:, :-1]), Tensor(tokens[:, 1:]))
        print(loss.asnumpy(), bool(overflow.asnumpy()), float(scaling.asnumpy()))


if __name__ == "__main__":
    what, mode, *rest = sys.argv[1:]
    target = os.environ.get("DEVICE", "Ascend")
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE, device_target=target)
    if what == "gradients":
        gradients(*rest)
    else:
        {"gpt": gpt, "scale": scale}[what](target, *rest)
