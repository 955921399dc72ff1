"""Know which MindSpore runs."""

import mindspore as ms
from mindspore import dtype as mstype

VERSION = tuple(map(int, ms.__version__.split(".")[:2]))
# No release from 2.1 to 2.4 can be installed. The forms for 2.0 are right on every version.
OLD = VERSION < (2, 6)
# A CPU of MindSpore 2.0 has no bfloat16: None.
BFLOAT16 = getattr(mstype, "bfloat16", None)
# An operation of several outputs takes their shapes from the library in 2.7 and later, but not in 2.0.
SHAPES_FROM_LIBRARY = VERSION >= (2, 7)
