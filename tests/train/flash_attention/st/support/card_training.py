"""Training on the virtual card: card_training.py MODE CASE... Prints name, verdict and detail of each.

Networks with attention between projections make three steps, each with other data and weights. The truth is float64.
"""

import functools
import sys

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.st.support.card_program import on_the_card, report
from tests.train.flash_attention.support.arrays import draw
from tests.train.flash_attention.support.inference import check_inference
from tests.train.flash_attention.support.training_steps import TRAININGS
from tests.train.flash_attention.support.without_gradient import (
    BATCH,
    HEAD_DIM,
    HEADS,
    INPUTS,
    SEQ,
    Twice,
    masked,
    masked_in_bytes,
    with_ids,
    with_seed,
)


class Dropped(nn.Cell):
    """Two layers of one shape with dropout, on values that are a unit matrix."""

    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([FlashAttention(64, dropout_rate=0.3, backend="tik") for _ in range(2)])

    def construct(self, query, key, value):
        return self.layers[0](query, key, value), self.layers[1](query, key, value)


def dropout():
    """Check that layers and calls draw bits of their own; evaluation drops nothing."""
    random = np.random.default_rng(0)
    query, key = (Tensor(random.standard_normal((1, 2, 64, 64)).astype(np.float16)) for _ in range(2))
    value = Tensor(np.broadcast_to(np.eye(64, dtype=np.float16), (1, 2, 64, 64)))
    network = Dropped().set_train()
    kept = [output.asnumpy() != 0 for _ in range(2) for output in network(query, key, value)]
    for index, one in enumerate(kept):
        assert abs(one.mean() - 0.7) < 0.03, one.mean()
        assert all((one != other).mean() > 0.3 for other in kept[:index]), f"the bits of call {index} came before"
    first, second = (output.asnumpy() for output in network.set_train(False)(query, key, value))
    assert (first > 0).all() and (first == second).all()


def recomputed_dropout():
    """Check that both passes have the same dropout bits, though the layer runs twice."""
    random = np.random.default_rng(0)
    layer = FlashAttention(64, dropout_rate=0.3, backend="tik").set_train()
    layer.recompute()

    class Sum(nn.Cell):
        """A loss that has the unit matrix as gradient for the output."""

        def __init__(self):
            super().__init__()
            self.layer = layer

        def construct(self, query, key, value):
            output = self.layer(query, key, value)
            return (output * value).astype(ms.float32).sum(), output

    query, key = (Tensor(random.standard_normal((1, 2, 64, 64)).astype(np.float16)) for _ in range(2))
    value = Tensor(np.broadcast_to(np.eye(64, dtype=np.float16), (1, 2, 64, 64)))
    run = ms.jit(ops.value_and_grad(Sum(), grad_position=2, has_aux=True))
    (_, output), d_value = run(query, key, value)
    output, d_value = output.asnumpy().astype(float), d_value.asnumpy().astype(float)
    # d_value = probabilities^T @ d_output + output; d_output is the unit matrix, and output the probabilities.
    np.testing.assert_allclose(d_value, output.swapaxes(-1, -2) + output, atol=2e-3)


def inputs_without_gradient():
    """Check the gradients of two calls against calls that have the inputs as constants."""
    for function in (masked, masked_in_bytes, with_ids, with_seed):
        given = tuple(map(Tensor, INPUTS[function]))
        network = Twice(function, False)
        for seed in range(3):
            x = Tensor(draw(BATCH, HEADS, SEQ, HEAD_DIM, seed=seed).astype(np.float16))
            found, *_ = ops.GradOperation(get_all=True)(network)(x, *given)
            assert np.abs(found.asnumpy()).max() > 0.1
            if function is with_seed:  # a device draws other bits at each call
                continue
            right = ops.grad(lambda x, network=network, given=given: network(x, *given))(x)
            np.testing.assert_allclose(found.asnumpy(), right.asnumpy(), atol=1e-2, err_msg=function.__name__)


CASES = {
    **{name: functools.partial(check, backend="tik") for name, check in TRAININGS.items()},
    "dropout": dropout,
    "inference": functools.partial(check_inference, "tik"),
    "inputs without gradient": inputs_without_gradient,
    "recomputed dropout": recomputed_dropout,
}
# MindSpore 2.0 recomputes in graphs only.
OF_GRAPHS = "recompute", "recomputed dropout"


if __name__ == "__main__":
    on_the_card(sys.argv[1])
    all_of_them = [name for name in CASES if sys.argv[1] == "graph" or name not in OF_GRAPHS]
    report(sys.argv[2:] or all_of_them, lambda name: CASES[name]())
