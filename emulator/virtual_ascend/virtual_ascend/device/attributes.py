"""Attributes of the nodes of GE's graphs: an attribute that an operator leaves unread is found out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

#: Attributes that change nothing here: what they say is in the description of the tensors, or the card decides it.
_WITHOUT_EFFECT = frozenset(
    ("N", "begin_params_axis", "dst_type", "dtype", "negative_index_support", "num", "num_split", "seed", "seed2")
    + ("use_locking", "validate_shape")
)
#: Types of operators whose result the description of the output shows.
_RESHAPE = frozenset(("ExpandDims", "Flatten", "Reshape", "Squeeze", "Unsqueeze"))
_NO_SCALING = (("base", -1), ("scale", 1), ("shift", 0))
#: By type and attribute, the value that is as if it were left out.
_LEFT_OUT: Mapping[tuple[str, str], Any] = MappingProxyType(
    {
        **{(kind, "data_format"): "NCHW" for kind in ("BiasAdd", "BiasAddGrad")},
        **{(kind, name): value for kind in ("Exp", "Log") for name, value in _NO_SCALING},
    }
)


class Attributes(dict[str, Any]):
    """Attributes of a node. They know which of them its operator has asked for."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, otherwise: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, otherwise)

    def ignored(self, kind: str) -> dict[str, Any]:
        """Return the attributes with an effect that the operator has not asked for."""
        if kind in _RESHAPE:
            return {}
        left = {name: value for name, value in self.items() if name not in self.read | _WITHOUT_EFFECT}
        told = {name: value for name, value in left.items() if not name.startswith("_")}
        return {name: value for name, value in told.items() if _LEFT_OUT.get((kind, name), ...) != value}
