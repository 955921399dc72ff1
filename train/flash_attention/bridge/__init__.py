"""Work around the faults and differences of MindSpore's versions. No other module knows them, and each fault is in one
function.

gradients.py    a forward and a backward pass as one Cell that every version and mode differentiates rightly
custom.py       Custom primitives that several threads may call
parameters.py   Parameters and tuples of Tensors that Python programs hand to a compiled Cell
tensors.py      shapes, dtypes and numbers of the tensors of a call, in PYNATIVE and while a graph compiles
precision.py    mixed precision that MindSpore would apply to the Cells of this package
hiding.py       comparisons of constants, and hiding of scores
versions.py     which MindSpore runs
constants.py    tensors that shapes decide, empty ones too
"""
