"""Problems for tests that vary sizes and rules alike."""

import inspect
from dataclasses import fields, replace

from flash_attention.call import AttentionRules, Call, Paged
from flash_attention.kernels.tik import KernelProblem

_FIELDS = {field.name for field in fields(AttentionRules)}
_OWN = {field.name for field in fields(KernelProblem)}
_ARGUMENTS = (_FIELDS | set(inspect.signature(AttentionRules.from_arguments).parameters)) - {"others"}

#: Kernels with key tiles before, around and after the queries, for ALiBi on both sides.
ALIBI_FIELDS = (
    {"seq_q": 300, "seq_k": 300},
    {"seq_q": 300, "seq_k": 700, "causal_alignment": "bottom_right"},
    {"seq_q": 300, "seq_k": 302, "causal_alignment": "bottom_right"},
    {"seq_q": 300, "seq_k": 426, "causal_alignment": "bottom_right"},
    {"seq_q": 700, "seq_k": 130},
    {"seq_q": 600, "seq_k": 600, "window_left": 300, "window_right": 200},
    {"seq_q": 400, "seq_k": 1500, "causal_alignment": "bottom_right", "window_left": 0, "window_right": 10},
)


def make_call(*sizes, **given) -> Call:
    """Return a Call; fields of its AttentionRules stand among the others."""
    rules = {name: given.pop(name) for name in _FIELDS & set(given)}
    return Call(*sizes, rules=AttentionRules(**rules), **given)


def read_call(*specs, **given) -> Call:
    """Read a Call by Call.from_inputs; arguments of AttentionRules.from_arguments may stand among the others."""
    rules = {name: given.pop(name) for name in _ARGUMENTS & set(given)}
    return Call.from_inputs(*specs, rules=AttentionRules.from_arguments(**rules), **given)


def make_kernel_problem(
    batch, heads, seq_q, seq_k, head_dim, *, mask="none", bias="none", bias_planes=(1, 1), **given
) -> KernelProblem:
    """Return a KernelProblem.

    Mask and bias are given by kind. Fields of its Call and its AttentionRules stand among the others.
    """
    rules = AttentionRules(**{name: given.pop(name) for name in _FIELDS & set(given)})
    own = {name: given.pop(name) for name in _OWN & set(given)}
    given = _with_pages(**given)
    own.setdefault("slopes", tuple(2.0**-head for head in range(1, heads + 1)) if rules.alibi else ())
    rows = {"none": None, "per_key": 1, "per_score": seq_q}
    call = {
        "mask_shape": rows[mask] and (1, 1, rows[mask], seq_k),
        "bias_shape": rows[bias] and (*bias_planes, rows[bias], seq_k),
        "bias_grad": False,
        "keep_bits": rules.dropout_rate > 0,
        "training": True,
        **given,
    }
    dtypes = {name + "_dtype": call[name + "_shape"] and "float16" for name in ("mask", "bias")}
    return KernelProblem(Call(batch, heads, seq_q, seq_k, head_dim, rules=rules, **dtypes, **call), **own)


def changed(problem: KernelProblem, **given) -> KernelProblem:
    """Return a problem with other fields; fields of its Call may stand among them."""
    own = {name: given.pop(name) for name in _OWN & set(given)}
    return replace(problem, call=replace(problem.call, **_with_pages(**given)), **own)


def _with_pages(pages=None, **given) -> dict:
    """Return fields of a Call. `pages` is (blocks, keys of a block) of a paged cache."""
    return given if pages is None else {**given, "layout": "BSND", "storage": Paged(pages[1], pages[0])}
