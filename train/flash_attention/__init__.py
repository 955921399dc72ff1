"""FlashAttention for MindSpore: Ascend 910 through TIK operators, any CPU through a native kernel.

Importing this package imports neither MindSpore nor NumPy; the names below load on first use.
"""

import importlib

__version__ = "26.11.0"

_EXPORTS = {
    "FlashAttention": "flash_attention.nn.layer.flash_attention",
    "flash_attention": "flash_attention.functional",
    "flash_attention_varlen": "flash_attention.varlen",
    "paged_attention": "flash_attention.paged",
    "paged_caches": "flash_attention.paged",
    "reshape_and_cache": "flash_attention.paged",
    "KVCache": "flash_attention.nn.layer.kv_cache",
    "rotary_embedding": "flash_attention.rotary",
    "scaled_dot_product_attention": "flash_attention.functional",
    "BlockMask": "flash_attention.call.block_mask",
    "Call": "flash_attention.call",
    "attention_backend": "flash_attention.backends.registry",
    "available_backends": "flash_attention.backends.registry",
    "explain": "flash_attention.backends.registry",
    "install": "flash_attention.compat.ascend910",
    "patch_mindspore": "flash_attention.compat.mindspore_patch",
}

__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name):
    if name not in _EXPORTS:
        raise AttributeError(f"module 'flash_attention' has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(_EXPORTS))
