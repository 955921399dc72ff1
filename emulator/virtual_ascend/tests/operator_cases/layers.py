"""Cases: what single functions of layers compute."""

from draws import a, b, fraction, gradients, integers, normal, positive, row
from mindspore import ops
from mindspore.ops import operations as P
from moving import both

FUNCTIONS = [
    ("PReLU", lambda x, w: (P.PReLU()(x, w), *gradients(P.PReLU(), x, w)), (normal(2, 5, 4, 3), positive(5))),
    ("PReLU of one weight", lambda x, w: (P.PReLU()(x, w), *gradients(P.PReLU(), x, w)), (a, positive(1))),
    ("LRN", both(P.LRN(depth_radius=2, bias=1.5, alpha=0.3, beta=0.7)), (normal(2, 7, 4, 3),)),
    ("ReduceStd", P.ReduceStd(axis=1), (a,)),
    ("ReduceStd of all", P.ReduceStd(unbiased=False, keep_dims=True), (a,)),
    ("erfinv", both(ops.erfinv), (fraction,)),
    ("ger", ops.ger, (row, normal(7))),
    ("cummin", lambda x: ops.cummin(x, 0), (a,)),
    ("InTopK", P.InTopK(5), (a, integers(48, high=32))),
    *((name, getattr(P, name)(), (integers(20), integers(20, high=4))) for name in ("LeftShift", "RightShift")),
]


ON_CARD = [
    (
        "soft margin",
        lambda: (
            a,
            b,
            *(part for how in ("none", "mean", "sum") for part in both(P.SoftMarginLoss(how), ops.sign(b))(a)),
        ),
        (),
    ),
]
