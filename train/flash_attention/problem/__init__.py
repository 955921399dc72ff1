"""One description of an attention call: the rules, the problem, and the checks of what the caller gave. No MindSpore.

problem.py      AttentionProblem: shapes, dtypes and rules of one call, frozen and validated
inputs.py       shapes and dtypes of the caller's tensors, in any layout
checks.py       checks of plain arguments
visibility.py   which keys a query sees, which key tiles a query tile visits
tiling.py       tiling strategies by name
torch_shapes.py the shapes of `scaled_dot_product_attention`
"""

from flash_attention.problem.inputs import DTYPES, LAYOUTS, TensorSpec
from flash_attention.problem.problem import ALL_BLOCKS, AttentionProblem, alibi_slopes

__all__ = ["ALL_BLOCKS", "DTYPES", "LAYOUTS", "AttentionProblem", "TensorSpec", "alibi_slopes"]
