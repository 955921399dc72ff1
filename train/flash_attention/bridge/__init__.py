"""Work around the faults and differences of MindSpore's versions. No other module knows them, and each fault is in one
function.

gradients.py    a forward and a backward pass as one Cell that every version and mode differentiates rightly
custom.py       Custom primitives that several threads may call, also of Python functions
parameters.py   Parameters and tuples of Tensors that Python programs hand to a compiled Cell
tensors.py      shapes, dtypes and numbers of tensors, in PYNATIVE and while a graph compiles
views.py        views that operators write
seeds.py        draws of seeds that recomputation repeats
parallel.py     place in a sharded graph
releases.py     routes of the TIK operators by release, for programs without MindSpore
precision.py    mixed precision that MindSpore would apply to the Cells of this package
hiding.py       comparisons of constants, and hiding of scores
versions.py     which MindSpore runs
constants.py    tensors that shapes decide, empty ones too

Forms that Cells elsewhere keep, because graphs of an older version want them (2.0 if none is named):

* A variable has a value in every branch. A condition does not see what another condition sets.
* A result is a tuple that is built up by `+`, and no starred tuple. No Cell is made in a graph.
* A function that writes returns a Tensor: calls of functions that return None are left out.
* Indices of results are not negative (2.6). Numbers are Python's, not NumPy's.
"""
