"""The module that programs know as ``tbe.tik`` and ``te.tik``."""

from __future__ import annotations

from .frontend.dprofile import Dprofile
from .frontend.dsl import SCOPE_CA as scope_ca
from .frontend.dsl import SCOPE_CB as scope_cb
from .frontend.dsl import SCOPE_CBUF as scope_cbuf
from .frontend.dsl import SCOPE_CBUF_OUT as scope_cbuf_out
from .frontend.dsl import SCOPE_CC as scope_cc
from .frontend.dsl import SCOPE_GM as scope_gm
from .frontend.dsl import SCOPE_UBUF as scope_ubuf
from .frontend.dsl import Tik
from .frontend.expr import Expr, InputScalar, Scalar, ScalarArray, negate
from .frontend.expr import all_of as all
from .frontend.expr import any_of as any
from .frontend.tensor import Tensor

__all__ = [
    "Dprofile",
    "Expr",
    "InputScalar",
    "Scalar",
    "ScalarArray",
    "Tensor",
    "Tik",
    "all",
    "any",
    "negate",
    "scope_ca",
    "scope_cb",
    "scope_cbuf",
    "scope_cbuf_out",
    "scope_cc",
    "scope_gm",
    "scope_ubuf",
]
