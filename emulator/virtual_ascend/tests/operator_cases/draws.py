"""Draw arrays, gradients, steps of optimizers and updated parameters for the cases."""

import numpy as np
from mindspore import Parameter, Tensor, ops

RNG = np.random.default_rng(0)


def restart():
    """Restart the generator, so that every device draws the same from now on."""
    global RNG
    RNG = np.random.default_rng(1)


def normal(*shape, dtype=np.float32):
    """Return a tensor of normal numbers."""
    return Tensor(RNG.standard_normal(shape).astype(dtype))


def positive(*shape, dtype=np.float32):
    """Return a tensor of numbers from 0.5 to 1.5."""
    return Tensor((RNG.random(shape) + 0.5).astype(dtype))


def integers(*shape, low=0, high=8):
    """Return a tensor of int32 numbers below `high`."""
    return Tensor(RNG.integers(low, high, shape).astype(np.int32))


def booleans(*shape):
    """Return a tensor of booleans."""
    return Tensor(RNG.random(shape) < 0.5)


def gradients(function, *inputs):
    """Return the gradients of all inputs, for an output gradient that is not constant."""
    output = function(*inputs)
    sens = Tensor(np.linspace(-1, 1, output.size).reshape(output.shape).astype(output.asnumpy().dtype))
    return ops.GradOperation(get_all=True, sens_param=True)(lambda *tensors: function(*tensors))(*inputs, sens)


def step(optimizer, *shapes, **options):
    """Return the Parameters after two steps."""
    parameters = [Parameter(normal(*shape), name=f"weight{index}") for index, shape in enumerate(shapes)]
    update = optimizer(parameters, **options)
    for _ in range(2):
        update(tuple(normal(*shape) for shape in shapes))
    return tuple(parameters)


def by_name(function, x):
    """Return the gradient of a graph that reaches most operators by their names. It multiplies a changing constant,
    x and a function of x that has no gradient.

    From the third constant on, MindSpore 2.0 takes all shapes for unknown.
    """
    for constant in (Tensor(np.float32(number)) for number in (2, 3, 4)):
        result = ops.GradOperation()(lambda y, constant=constant: y * constant * ops.stop_gradient(function(y)))(x)
    return result


def updated(primitive, target, *rest):
    """Return a parameter after an operator has updated it."""
    parameter = Parameter(target, name="target")
    primitive(parameter, *rest)
    return parameter


half = np.float16
a, b = normal(48, 32), normal(48, 32)
a16, b16 = normal(48, 32, dtype=half), normal(48, 32, dtype=half)
row = normal(32)
p, q = positive(48, 32), positive(48, 32)
mask = booleans(48, 32)
