"""The names of the package for type checkers; at run time they load on first use."""

from flash_attention.backends.registry import attention_backend as attention_backend
from flash_attention.backends.registry import available_backends as available_backends
from flash_attention.backends.registry import explain as explain
from flash_attention.call import Call as Call
from flash_attention.call.block_mask import BlockMask as BlockMask
from flash_attention.compat.ascend910 import install as install
from flash_attention.compat.mindspore_patch import patch_mindspore as patch_mindspore
from flash_attention.functional import flash_attention as flash_attention
from flash_attention.functional import scaled_dot_product_attention as scaled_dot_product_attention
from flash_attention.nn.layer.flash_attention import FlashAttention as FlashAttention
from flash_attention.nn.layer.kv_cache import KVCache as KVCache
from flash_attention.paged import paged_attention as paged_attention
from flash_attention.paged import paged_caches as paged_caches
from flash_attention.paged import reshape_and_cache as reshape_and_cache
from flash_attention.rotary import rotary_embedding as rotary_embedding
from flash_attention.varlen import flash_attention_varlen as flash_attention_varlen

__version__: str
