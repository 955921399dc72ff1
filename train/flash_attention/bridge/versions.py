"""Know which MindSpore runs."""

import mindspore as ms
from mindspore import dtype as mstype

VERSION = tuple(map(int, ms.__version__.split(".")[:2]))
# Of 2.1 to 2.4 no release can be installed; the forms for 2.0 are right on every version.
OLD = VERSION < (2, 6)
# A CPU of MindSpore 2.0 has no bfloat16: None.
BFLOAT16 = getattr(mstype, "bfloat16", None)
# An operation of several outputs takes their shapes from the library in 2.7 and later, in 2.0 it does not.
SHAPES_FROM_LIBRARY = VERSION >= (2, 7)
