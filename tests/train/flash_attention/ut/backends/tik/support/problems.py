"""Return kernel problems for every combination of features, and tensors for a signature."""

from __future__ import annotations

import itertools

from flash_attention.call import Varlen
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.signatures import Signature

from tests.train.flash_attention.support.calls import changed, make_kernel_problem

SIZES = {"batch": 1, "heads": 2, "seq_q": 33, "seq_k": 50, "head_dim": 24}
POSITIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_left": 9, "window_right": 3},
    # Without tiles that are partly visible:
    "even": {"seq_q": 32, "seq_k": 64},
    "decoding": {"seq_q": 1, "seq_k": 64, "causal": True, "causal_alignment": "bottom_right"},
}
MASKS = {"": {}, "mask": {"mask": "per_score"}, "key_mask": {"mask": "per_key"}}
BIASES = {
    "": {},
    "key_bias": {"bias": "per_key"},
    "bias": {"bias": "per_score", "bias_planes": (1, 2)},
    "alibi": {"alibi": True},
}
DROPOUTS = {"": {}, "dropout": {"dropout_rate": 0.1}}
HEADS = {"": {}, "gqa-sinks": {"kv_heads": 1, "sinks": True}}


def all_problems() -> dict[str, KernelProblem]:
    """Return every combination of features by name. Gradients of bias and logsumexp vary along with them."""
    result = {}
    for names in itertools.product(POSITIONS, MASKS, BIASES, DROPOUTS, HEADS):
        tables = (POSITIONS, MASKS, BIASES, DROPOUTS, HEADS)
        features = {key: value for table, name in zip(tables, names) for key, value in table[name].items()}
        problem = make_kernel_problem(**{**SIZES, **features})
        given = problem.call.bias_shape is not None
        name = "-".join(filter(None, names))
        dropout, sinks = (bool(names[index]) for index in (3, 4))
        gradients = [(False, sinks != dropout)] + [(True, dropout)] * given
        for bias_grad, return_lse in gradients:
            problem = changed(problem, bias_grad=bias_grad, return_lse=return_lse)
            result[name + "-d_bias" * bias_grad + "-d_lse" * return_lse] = problem
    return result


def packed_problems() -> dict[str, KernelProblem]:
    """Return every combination of features that packed sequences have, by name."""
    result = {}
    alibis = {"": {}, "alibi": {"alibi": True}, "causal-alibi": {"alibi": True, "causal": True}}
    for names in itertools.product(alibis, DROPOUTS, HEADS, ("", "d_lse"), ("", "one_core")):
        alibi, dropout, heads, logsumexp, cores = names
        problem = make_kernel_problem(
            **{**SIZES, "head_dim": 32, **alibis[alibi], **DROPOUTS[dropout], **HEADS[heads]},
            layout="BSH",
            storage=Varlen(count=3),
            keep_blocks=16 if dropout else 0,
            cores=1 if cores else 32,
            return_lse=bool(logsumexp),
        )
        result["-".join(filter(None, ("packed", *names)))] = problem
    return result


PROBLEMS = all_problems()
PACKED = packed_problems()


def described(signature: Signature) -> dict[str, dict]:
    """Return the tensors of a call as a compiler describes them."""
    tensors = (*signature.inputs, *signature.outputs)
    return {t.name: {"shape": list(t.shape), "dtype": t.dtype, "format": t.format} for t in tensors}
