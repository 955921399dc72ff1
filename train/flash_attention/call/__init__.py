"""Describe an attention call once: its sizes, rules and inputs, with checks of the arguments. It needs no
MindSpore, and its import no NumPy.

call.py         Call: sizes, dtypes, rules and inputs of one call, frozen and validated
storage.py      Varlen and Paged: packed sequences, and keys in a paged cache
varlen.py       calls of packed sequences
paged.py        calls against a paged cache
rules.py        AttentionRules: what a call computes, whatever its shapes
inputs.py       shapes and dtypes of query, key and value
layout.py       layouts of query, key and value, as Python values
optional.py     the table of the other inputs
checks.py       checks of plain arguments
visibility.py   which keys a query sees, which key tiles a query tile visits
block_mask.py   BlockMask: which tiles of queries see which tiles of keys
visits.py       how many tiles a call visits
tiling.py       tiling strategies by name
torch_shapes.py the shapes of `scaled_dot_product_attention`
"""

from flash_attention.call.call import Call, alibi_slopes
from flash_attention.call.inputs import DTYPES, TensorSpec
from flash_attention.call.layout import LAYOUTS
from flash_attention.call.rules import AttentionRules
from flash_attention.call.storage import Paged, Varlen
from flash_attention.call.visibility import ALL_BLOCKS

__all__ = ["ALL_BLOCKS", "DTYPES", "LAYOUTS", "AttentionRules", "Call", "Paged", "TensorSpec", "Varlen", "alibi_slopes"]
