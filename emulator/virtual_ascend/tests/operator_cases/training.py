"""Cases: losses, convolutions, optimizers."""

import numpy as np
from draws import RNG, a, b, gradients, integers, normal, p, positive, q, step, updated
from mindspore import Tensor, nn
from mindspore.ops import operations as P

shares, labels = (
    Tensor(np.clip(RNG.random((48, 32)), 0.05, 0.95).astype(np.float32)),
    Tensor(RNG.random((48, 32)).astype(np.float32)),
)
ROWS_AND_WEIGHTS = a, integers(48, high=32), positive(32)
LOSSES = [
    ("cross entropy", P.SoftmaxCrossEntropyWithLogits(), (a, Tensor(np.eye(48, 32, dtype=np.float32)))),
    (
        "sparse cross entropy",
        nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
        (a, integers(48, high=32)),
    ),
    *(
        (f"binary cross entropy, {how}", P.BinaryCrossEntropy(how), (shares, labels, p))
        for how in ("none", "mean", "sum")
    ),
    ("sigmoid cross entropy", P.SigmoidCrossEntropyWithLogits(), (a, labels)),
    ("BCEWithLogitsLoss", P.BCEWithLogitsLoss("mean"), (a, labels, p, q)),
    *((f"KLDivLoss, {how}", P.KLDivLoss(how), (a, labels)) for how in ("none", "sum", "batchmean")),
    *((f"SmoothL1Loss, {how}", P.SmoothL1Loss(0.5, how), (a, b)) for how in ("none", "mean", "sum")),
    *((f"NLLLoss, {how}", P.NLLLoss(how), (a, integers(48, high=32), positive(32))) for how in ("none", "mean", "sum")),
    (
        "gradient of binary cross entropy",
        lambda x: gradients(lambda y: P.BinaryCrossEntropy()(y, labels, p), x),
        (shares,),
    ),
    (
        "gradient of sigmoid cross entropy",
        lambda x: gradients(lambda y: P.SigmoidCrossEntropyWithLogits()(y, labels), x),
        (a,),
    ),
    *(
        (f"gradient of KLDivLoss, {how}", lambda x, how=how: gradients(lambda y: P.KLDivLoss(how)(y, labels), x), (a,))
        for how in ("none", "batchmean")
    ),
    *(
        (
            f"gradient of SmoothL1Loss, {how}",
            lambda x, how=how: gradients(lambda y: P.SmoothL1Loss(0.5, how)(y, b), x),
            (a,),
        )
        for how in ("none", "mean")
    ),
    *(
        (
            f"gradient of NLLLoss, {how}",
            lambda x, i, w, how=how: gradients(lambda y: P.NLLLoss(how)(y, i, w)[0], x),
            ROWS_AND_WEIGHTS,
        )
        for how in ("none", "mean")
    ),
]
pixels, small = normal(2, 5, 9, 8), normal(2, 16, 6, 6)


def convolution(filters, **options):
    """Convolve images with filters, and differentiate."""

    def run(x):
        primitive = P.Conv2D(filters.shape[0], filters.shape[2:], **options)
        return (primitive(x, filters), *gradients(primitive, x, filters))

    return run


IMAGES = [
    ("Conv2D", convolution(normal(7, 5, 3, 2)), (pixels,)),
    ("Conv2D same", convolution(normal(7, 5, 3, 3), pad_mode="same", stride=2), (pixels,)),
    ("Conv2D padded", convolution(normal(20, 5, 3, 3), pad_mode="pad", pad=(1, 2, 0, 3), dilation=2), (pixels,)),
    ("Conv2D of two groups", convolution(normal(8, 8, 3, 3), group=2), (small,)),
    ("Conv2D of each channel", convolution(normal(16, 1, 3, 3), group=16, pad_mode="same"), (small,)),
]
OPTIMIZERS = [
    ("Adam", lambda: step(nn.Adam, (20, 8), (5,), learning_rate=0.1, weight_decay=0.01), ()),
    ("AdamWeightDecay", lambda: step(nn.AdamWeightDecay, (20, 8), (5,), learning_rate=0.1, weight_decay=0.01), ()),
    ("SGD", lambda: step(nn.SGD, (20, 8), (5,), learning_rate=0.1, momentum=0.9, weight_decay=0.01), ()),
    ("SGD nesterov", lambda: step(nn.SGD, (20, 8), learning_rate=0.1, momentum=0.9, nesterov=True), ()),
    ("ApplyGradientDescent", lambda: updated(P.ApplyGradientDescent(), a, 0.1, b), ()),
    ("Adagrad", lambda: step(nn.Adagrad, (20, 8), (5,), learning_rate=0.1), ()),
    ("RMSProp", lambda: step(nn.RMSProp, (20, 8), (5,), learning_rate=0.1, momentum=0.9), ()),
    ("AMSGrad", lambda: step(nn.Adam, (20, 8), (5,), learning_rate=0.1, use_amsgrad=True), ()),
    ("Momentum", lambda: step(nn.Momentum, (20, 8), (5,), learning_rate=0.1, momentum=0.9), ()),
]
