"""Networks around a network."""

from mindspore import nn, ops


class Call(nn.Cell):
    """A function with these keyword arguments, as a network."""

    def __init__(self, function, **rules):
        super().__init__()
        self.function, self.rules = (function,), rules

    def construct(self, *tensors):
        return self.function[0](*tensors, **self.rules)


class Sloped(nn.Cell):
    """A function of tensors; the last tensors are the slopes."""

    def __init__(self, function, **rules):
        super().__init__()
        self.function, self.rules = (function,), rules

    def construct(self, *tensors):
        return self.function[0](*tensors[:-1], alibi_slopes=tensors[-1], **self.rules)


class Gradients(nn.Cell):
    """Return all gradients of a network for a given output gradient, as users do."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.gradients = ops.GradOperation(get_all=True, sens_param=True)

    def construct(self, *arguments):
        return self.gradients(self.network)(*arguments)


def with_gradients(network, *tensors) -> tuple:
    """Return a network's results for all tensors but the last, and its gradients for it."""
    return network(*tensors[:-1]), *Gradients(network)(*tensors)
