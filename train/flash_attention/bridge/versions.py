"""Know which MindSpore runs."""

import mindspore as ms
from mindspore import dtype as mstype
from mindspore import ops

VERSION = tuple(map(int, ms.__version__.split(".")[:2]))
# No release from 2.1 to 2.4 can be installed. The forms for 2.0 are right on every version.
OLD = VERSION < (2, 6)
# A CPU of MindSpore 2.0 has no bfloat16: None.
BFLOAT16 = getattr(mstype, "bfloat16", None)
# An operation of several outputs takes their shapes from the library in 2.7 and later, but not in 2.0.
SHAPES_FROM_LIBRARY = VERSION >= (2, 7)
# Primitives of sharded graphs have a layout per tensor, and may be replaced by operators: 2.6 and later.
LAYOUTS = hasattr(ms, "Layout")
MORPH = hasattr(ops, "Morph")
# The attention of later chips, None in 2.0.
flash_attention_score = getattr(ops, "flash_attention_score", None)


def ascend_generation() -> str:
    """Return the name of the Ascend chip generation, as MindSpore calls it."""
    from mindspore._c_expression import MSContext

    return MSContext.get_instance().get_ascend_soc_version()


def infers() -> bool:
    """Return True if the global jit config is for inference. A MindSpore without such a config says no."""
    settings: dict = getattr(ms.context, "get_jit_config", dict)() or {}
    return settings.get("infer_boost") == "on"
