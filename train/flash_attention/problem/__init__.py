"""One description of an attention call: the rules, the problem, and the checks of what the caller gave. No MindSpore.

problem.py      AttentionProblem: shapes, dtypes and rules of one call, frozen and validated
rules.py        AttentionRules: what a call computes, whatever its shapes
inputs.py       shapes and dtypes of query, key and value
layout.py       layouts of these as values
optional.py     the table of the other inputs
checks.py       checks of plain arguments
visibility.py   which keys a query sees, which key tiles a query tile visits
tiling.py       tiling strategies by name
torch_shapes.py the shapes of `scaled_dot_product_attention`
"""

from flash_attention.problem.inputs import DTYPES, TensorSpec
from flash_attention.problem.layout import LAYOUTS
from flash_attention.problem.problem import AttentionProblem, alibi_slopes
from flash_attention.problem.rules import AttentionRules
from flash_attention.problem.visibility import ALL_BLOCKS

__all__ = ["ALL_BLOCKS", "DTYPES", "LAYOUTS", "AttentionProblem", "AttentionRules", "TensorSpec", "alibi_slopes"]
