"""Train with other data at each step, for every way to ask for gradients. The truth is float64.

A first call shows little: MindSpore keeps what it made for the call, and has used it wrongly in later calls.
"""

from functools import partial

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.training_net import (
    ARRANGEMENTS,
    BATCH,
    SEQ,
    WIDTH,
    Network,
    check,
    set_weights,
    truth,
)

STEPS = 3


def draw(random):
    """Return the tokens, or the gradient of the output."""
    return random.standard_normal((BATCH * SEQ, WIDTH)).astype(np.float32)


def of_parameters(network, gradients):
    """Return the gradients of weights by their names."""
    return {weight.name: one.asnumpy() for weight, one in zip(network.trainable_params(), gradients)}


def by_sens(network):
    """Differentiate a call that has the gradient of the output as an input."""
    gradient = ops.GradOperation(get_all=True, get_by_list=True, sens_param=True)
    differentiate = gradient(network, ms.ParameterTuple(network.trainable_params()))

    def step(tokens, d_output):
        (d_tokens,), gradients = differentiate(Tensor(tokens), Tensor(d_output))
        return {"tokens": d_tokens.asnumpy(), **of_parameters(network, gradients)}

    return step


def by_function(network):
    """Differentiate a function of its closure, the usual way of MindSpore 2 in PYNATIVE. Labels are in the closure."""

    def step(tokens, d_output):
        wanted = Tensor(d_output)

        def loss(tokens):
            return (network(tokens) * wanted).sum()

        differentiate = ms.value_and_grad(loss, 0, network.trainable_params())
        _, (d_tokens, gradients) = differentiate(Tensor(tokens))
        return {"tokens": d_tokens.asnumpy(), **of_parameters(network, gradients)}

    return step


def after_a_call(network):
    """Call the network for its output first, set_grad before."""
    network.set_grad()
    differentiate = by_sens(network)

    def step(tokens, d_output):
        output = network(Tensor(tokens)).asnumpy()
        return {"output": output, **differentiate(tokens, d_output)}

    return step


def check_steps(arrangement, backend, way, layout="BSH", compiled=False, change=lambda network: None):
    """Make STEPS steps with other tokens, gradients and weights each."""
    random = np.random.default_rng(0)
    network = Network(arrangement, backend, layout, compiled)
    change(network)
    step = way(network)
    for _ in range(STEPS):
        set_weights(network, random)
        tokens, d_output = draw(random), draw(random)
        check(network, truth(network, tokens, d_output), step(tokens, d_output))


def check_turns(backend):
    """Train two networks of one shape, a step of each in turn."""
    random = np.random.default_rng(0)
    networks = [Network("two alike", backend) for _ in range(2)]
    steps = [by_sens(network) for network in networks]
    for _ in range(STEPS):
        for network, step in zip(networks, steps):
            set_weights(network, random)
            tokens, d_output = draw(random), draw(random)
            check(network, truth(network, tokens, d_output), step(tokens, d_output))


def check_accumulated(backend):
    """Check that the summed gradients of two half batches move the weights."""
    random = np.random.default_rng(0)
    network = Network("two alike", backend)
    set_weights(network, random)
    step, optimizer = by_sens(network), nn.SGD(network.trainable_params(), 1e-3)
    for _ in range(STEPS):
        sums, wanted = {}, {}
        for _ in range(2):
            tokens, d_output = draw(random), draw(random)
            found, exact = step(tokens, d_output), truth(network, tokens, d_output)
            for name in (weight.name for weight in network.trainable_params()):
                sums[name] = sums.get(name, 0) + found[name]
                wanted[name] = wanted.get(name, 0) + exact[name]
        check(network, wanted, sums)
        before = {weight.name: weight.asnumpy().copy() for weight in network.trainable_params()}
        optimizer(tuple(Tensor(sums[weight.name].astype(np.float32)) for weight in network.trainable_params()))
        for weight in network.trainable_params():
            moved = before[weight.name] - 1e-3 * sums[weight.name]
            np.testing.assert_allclose(weight.asnumpy(), moved, rtol=1e-4, atol=1e-5)


def recompute(network):
    """Compute layers and projections again for the gradients."""
    for cell in (*network.layers, *network.outputs):
        cell.recompute()


TWO = "two alike"
#: By name, checks of a backend in the mode that is set.
TRAININGS = {
    **{name: partial(check_steps, name, way=by_sens) for name in ARRANGEMENTS},
    "BNSD": partial(check_steps, TWO, way=by_sens, layout="BNSD"),
    "by function": partial(check_steps, TWO, way=by_function),
    "after a call": partial(check_steps, TWO, way=after_a_call),
    "recompute": partial(check_steps, TWO, way=by_sens, change=recompute),
    "turns": check_turns,
    "accumulated": check_accumulated,
}
