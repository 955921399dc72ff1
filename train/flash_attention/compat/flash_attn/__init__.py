"""The functions of flash_attn (Dao-AILab, release 2.8) on tensors of MindSpore: its names, signatures and meanings.

flash_attn_interface.py  attention between tensors, of padded batches or of packed sequences
kvcache.py               attention against a cache, which grows in the call
bert_padding.py          between padded batches and packed rows
layers/rotary.py         rotary embedding

`flash_attention.install(flash_attn=True)` makes `import flash_attn` find these modules. docs/migration.md explains
each argument.
"""

from flash_attention.compat.flash_attn.flash_attn_interface import flash_attn_func, flash_attn_varlen_func
from flash_attention.compat.flash_attn.kvcache import flash_attn_with_kvcache

__version__ = "2.8.3"  # the release with this interface; client code asks for it

__all__ = ["__version__", "flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
