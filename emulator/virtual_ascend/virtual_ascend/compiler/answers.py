"""Answer for CANN about built-in operators, which no public source describes.

Each entry says on what it rests. ``--formats`` replaces entries, to see what another answer would do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

#: Formats that an operator takes besides ND if all its tensors have one shape of at least two axes, by the name of
#: its entry. Assumed: an operator that works element by element works on fractals as on rows. MindSpore registers
#: these operators for the formats of matrices and images alike (``formatAgnostic``, ``broadcast``).
ELEMENTWISE = (
    *(
        "abs",
        "add",
        "add_n",
        "addn",
        "cast",
        "equal",
        "exp",
        "gelu",
        "gelu_grad",
        "greater",
        "less",
        "log",
        "masked_fill",
    ),
    *("maximum", "minimum", "mul", "neg", "real_div", "relu", "relu_grad", "select", "sigmoid", "sigmoid_grad", "sqrt"),
    *("square", "sub", "tanh", "tanh_grad"),
)
#: dtypes that exist in fractals. Assumed: the dtypes of MindSpore's registrations of TransData.
IN_FRACTALS = ("float16", "float32", "float", "int32")
#: Of every kernel of an AI core.
MAGIC, CORE_TYPE = "RT_DEV_BINARY_MAGIC_ELF", "AiCore"
#: Pattern of every operator: MindSpore then fuses none of them in the Unified Buffer. For the user's operators this is
#: assumed. CANN's own operators are fused on a card, which changes the list of kernels.
PATTERN = "Opaque"


def replaced_formats() -> dict[str, tuple[str, ...]]:
    """Return the formats besides ND by entry, from ``--formats``."""
    chosen = {}
    for item in filter(None, os.environ.get("VIRTUAL_ASCEND_FORMATS", "").split(";")):
        name, _, formats = item.partition("=")
        chosen[name] = tuple(word for word in formats.split(",") if word and word != "ND")
    return chosen


def check_supported(_entry: str, _inputs: Sequence[Any], _outputs: Sequence[Any]) -> bool:
    """Return whether a built-in operator takes these tensors.

    Assumed: it does. The device process refuses tensors that it cannot take.
    """
    return True


def op_select_format(entry: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
    """Return the formats and dtypes of a built-in operator for these tensors, as CANN answers."""
    flat = [[one[0] if isinstance(one, (list, tuple)) else one for one in side] for side in (inputs, outputs)]
    present = [tensor for side in flat for tensor in side if tensor]
    shapes = {tuple(tensor["ori_shape"]) for tensor in present}
    same = len(shapes) == 1 and len(next(iter(shapes))) >= 2
    fractals = same and all(tensor["dtype"] in IN_FRACTALS for tensor in present)
    otherwise = ("FRACTAL_NZ",) if entry in ELEMENTWISE else ()
    formats = ("ND", *(replaced_formats().get(entry, otherwise) if fractals else ()))
    answer = {}
    for side, found in zip(("input", "output"), flat):
        for index, tensor in enumerate(found):
            dtype = tensor["dtype"] if tensor else "float16"
            answer[f"{side}{index}"] = {
                "name": f"{side}{index}",
                "dtype": ",".join([dtype] * len(formats)),
                "format": ",".join(formats),
            }
    return json.dumps(answer)
