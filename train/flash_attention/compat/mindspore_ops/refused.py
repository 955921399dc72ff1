"""Operators that are refused by name: no public code calls them, or automatic differentiation does their work."""

from __future__ import annotations

from typing import Any

from flash_attention.bridge.tensors import compile_time

_CONTRADICTORY = "no public code calls it, and its sources contradict each other"
_QUANTISED = "no public code calls it, and it is made for int8"
_GRADIENT = "differentiate our forward operator instead, if it has gradients"
#: Reasons by the names of primitives, and by the names of functions.
_PRIMITIVES = {
    **dict.fromkeys(("NsaCompress", "NsaCompressAttention", "NsaSelectAttention"), _CONTRADICTORY),
    **dict.fromkeys(("KvScaleCache", "Mla", "MlaPreprocess"), _QUANTISED),
    **dict.fromkeys(("FlashAttentionScoreGrad", "LightningIndexerGrad", "NsaCompressGrad"), _GRADIENT),
    **dict.fromkeys(("NsaSelectAttentionGrad", "RotaryPositionEmbeddingGrad", "SparseFlashAttentionGrad"), _GRADIENT),
    "SpeedFusionAttentionGrad": _GRADIENT,
}
_FUNCTIONS = {
    **dict.fromkeys(("nsa_compress", "nsa_compress_attention", "nsa_select_attention"), _CONTRADICTORY),
    **dict.fromkeys(("kv_scale_cache", "mla", "mla_preprocess"), _QUANTISED),
}


class _Refused:
    """Refuse a primitive when it is made."""

    def __init__(self, *given, **named):
        _refuse(type(self).__name__, _PRIMITIVES[type(self).__name__])


def _function(name: str, reason: str) -> Any:
    def refused(*given, **named):
        return _refuse(name, reason)

    return refused


@compile_time
def _refuse(name, reason):
    raise NotImplementedError(f"{name}: flash_attention has none; {reason}")


REFUSED: dict[str, Any] = {
    **{name: type(name, (_Refused,), {}) for name in _PRIMITIVES},
    **{name: _function(name, reason) for name, reason in _FUNCTIONS.items()},
}
