"""MindSpore's attention operators with the meaning that MindSpore 2.10 gives them, on our backends.

MindSpore's own run on Atlas A2 and later devices only. The contract is the documentation of
`mindspore.ops.flash_attention_score` and of the primitive. The two differ in one formula: the function adds real_shift
after the scale. Here the primitive's formula holds: scale_value * (query @ key^T + real_shift).

call.py         reads the arguments of a call in our terms
cells.py        attention, and the maximum and sum of each query
inference.py    reads a call as MindSpore's inference operators do
operators.py    the function and the primitive, `speed_fusion_attention`, and how primitives are made
signatures.py   the arguments of the operators below

Inference has no gradients:

cache.py        `ReshapeAndCache`, `KVCacheScatterUpdate`
paged.py        `PagedAttention`, `PagedAttentionMask`
rotary.py       `ApplyRotaryPosEmb`; `rotary_position_embedding`, which has gradients
infer_attention.py  `prompt_flash_attention`, `incre_flash_attention`, `fused_infer_attention_score`
sparse.py       `lightning_indexer`, `sparse_flash_attention`
partial.py      `ring_attention_update`
refused.py      operators that are refused by name
reshaped.py     reshapes and fills tensors of any dtype

`flash_attention.compat.mindspore_patch` puts them in MindSpore's place.
"""

from flash_attention.compat.mindspore_ops.cache import KVCacheScatterUpdate, ReshapeAndCache, kv_cache_scatter_update
from flash_attention.compat.mindspore_ops.infer_attention import (
    FusedInferAttentionScore,
    IncreFlashAttention,
    PromptFlashAttention,
    fused_infer_attention_score,
    incre_flash_attention,
    prompt_flash_attention,
)
from flash_attention.compat.mindspore_ops.operators import (
    FlashAttentionScore,
    SpeedFusionAttention,
    flash_attention_score,
    speed_fusion_attention,
)
from flash_attention.compat.mindspore_ops.paged import PagedAttention, PagedAttentionMask
from flash_attention.compat.mindspore_ops.partial import RingAttentionUpdate, ring_attention_update
from flash_attention.compat.mindspore_ops.rotary import (
    ApplyRotaryPosEmb,
    RotaryPositionEmbedding,
    apply_rotary_pos_emb_,
    rotary_position_embedding,
)
from flash_attention.compat.mindspore_ops.sparse import (
    LightningIndexer,
    SparseFlashAttention,
    lightning_indexer,
    sparse_flash_attention,
)

__all__: list[str] = [
    "ApplyRotaryPosEmb",
    "FlashAttentionScore",
    "FusedInferAttentionScore",
    "IncreFlashAttention",
    "KVCacheScatterUpdate",
    "LightningIndexer",
    "PagedAttention",
    "PagedAttentionMask",
    "PromptFlashAttention",
    "ReshapeAndCache",
    "RingAttentionUpdate",
    "RotaryPositionEmbedding",
    "SparseFlashAttention",
    "SpeedFusionAttention",
    "apply_rotary_pos_emb_",
    "flash_attention_score",
    "fused_infer_attention_score",
    "incre_flash_attention",
    "kv_cache_scatter_update",
    "lightning_indexer",
    "prompt_flash_attention",
    "ring_attention_update",
    "rotary_position_embedding",
    "sparse_flash_attention",
    "speed_fusion_attention",
]
