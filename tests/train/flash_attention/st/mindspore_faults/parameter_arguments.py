"""A compiled function that gets one Parameter, then another: both keep their numbers."""

import mindspore as ms
from mindspore import Parameter, Tensor

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


@ms.jit
def product(x, weight):
    """Stand for any function."""
    return x * weight


numbers, verdict = (2.0, 3.0), "right"
weights = [Parameter(Tensor([number], ms.float32), name=f"weight_{number:.0f}") for number in numbers]
for weight in weights:
    product(Tensor([1.0], ms.float32), weight)
for number, weight in zip(numbers, weights):
    if weight.asnumpy()[0] != number:
        verdict = f"wrong: the Parameter that was {number} is {weight.asnumpy()[0]}"
print(verdict)
