"""What arguments of other attention functions are called here, for calls that give a name which is none of ours."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Arguments of torch, flash-attn and MindSpore, and which of ours says the same. Names close to ours need no line.
_CALLED = {
    "is_causal": "causal",
    "use_causal_mask": "causal",
    "attn_bias": "bias",
    "dropout": "dropout_rate",
    "dropout_p": "dropout_rate",
    "attention_dropout": "dropout_rate",
    "softmax_scale": "scale",
    "scale_value": "scale",
    "scalar_value": "scale",
    "logits_soft_cap": "softcap",
    "sliding_window": "window_size",
    "pre_tokens": "window_size",
    "next_tokens": "window_size",
    "return_attn_probs": "return_lse",
    "return_softmax_lse": "return_lse",
    "head_size": "head_dim",
    "layout": "input_layout",
}
_MASK = "a mask is attention_mask, in which 1 hides a key; in scaled_dot_product_attention True takes part, as in torch"
_HEADS = "the tensors say how many heads there are; flash_attention.install() is for code of layers that are told"
_KV_HEADS = "key and value may have fewer heads without being told"
_LENGTHS = "cu_seqlens_q and cu_seqlens_k say all lengths"
_INSTEAD = {
    "mask": _MASK,
    "attn_mask": _MASK,
    "keep_prob": "dropout_rate is 1 - keep_prob",
    "head_num": _HEADS,
    "num_heads": _HEADS,
    "enable_gqa": _KV_HEADS,
    "num_kv_heads": _KV_HEADS,
    "cu_seqlens": _LENGTHS,
    "max_seqlen_q": _LENGTHS,
    "max_seqlen_k": _LENGTHS,
    "deterministic": "the same inputs always give the same bits",
}


def refuse_unknown(function: str, names: Iterable[str], allowed: Iterable[str], made_with: Iterable[str] = ()) -> None:
    """Raises a TypeError for keywords that a function does not have, with what says the same.

    Args:
        function: what the message calls it.
        names: keywords given.
        allowed: the function's arguments.
        made_with: of a call of a layer, the arguments of its constructor.
    """
    own, others = ([name for name in of if name not in ("self", "unknown")] for of in (allowed, made_with))
    raise TypeError("; ".join(f"{name}: {function} has no such argument; {_hint(name, own, others)}" for name in names))


def _hint(name: str, allowed: list[str], made_with: list[str]) -> str:
    if name in _INSTEAD:
        return _INSTEAD[name]
    called = _CALLED.get(name, name)
    close = [called] if called in (*allowed, *made_with) else difflib.get_close_matches(name, (*allowed, *made_with), 1)
    if not close:
        return f"allowed are {', '.join(allowed)}"
    return f"did you mean {close[0]}" + ("?" if close[0] in allowed else ", with which the layer is made?")
