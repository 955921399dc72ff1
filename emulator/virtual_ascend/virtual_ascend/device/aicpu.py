"""Definitions of kernels for the AI CPU: the protocol buffers of MindSpore's node_def.proto."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Union

from ..operator_call import OperatorCall

#: mindspore::DataType by number.
DTYPES = {
    **{0: "float32", 1: "float16", 2: "int8", 3: "int32", 4: "uint8", 6: "int16", 7: "uint16", 8: "uint32"},
    **{9: "int64", 10: "uint64", 11: "float64", 12: "bool", 16: "complex64", 17: "complex128"},
}
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
Field = Union[int, bytes]


def fields(message: bytes) -> Iterator[tuple[int, Field]]:
    """Yield the numbers and values of a message's fields, in order."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(message):
        number, kind = divmod(varint(), 8)
        if kind == _VARINT:
            yield number, varint()
            continue
        if kind not in (_EIGHT_BYTES, _BYTES, _FOUR_BYTES):
            raise ValueError(f"field {number} of a node definition has the unknown kind {kind}")
        size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind) or varint()
        yield number, message[place : place + size]
        place += size


def parse(definition: bytes) -> OperatorCall:
    """Return the kernel that a node definition describes: 1 or 2: operator, 3: attributes, 4: inputs, 5: outputs."""
    kernel = OperatorCall("", "", "", [], [], {})
    for number, value in fields(definition):
        if number in (1, 2) and isinstance(value, bytes) and value:
            kernel.name = kernel.type = kernel.function = value.decode()
        elif number == 3:
            entry = dict(fields(_message(value)))  # of a map: key (1) and value (2)
            kernel.attributes[_message(entry[1]).decode()] = _attribute(_message(entry.get(2, b"")))
        elif number in (4, 5):
            (kernel.inputs if number == 4 else kernel.outputs).append(_tensor(value))
    return kernel


def _message(value: Field) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError(f"a node definition has the number {value} in the place of a message")
    return value


def _tensor(message: Field) -> dict[str, Any]:
    """Shape (1, of sizes 2, each with its size 1) and dtype (2)."""
    found = dict(fields(_message(message)))
    sizes = [
        dict(fields(_message(size))).get(1, 0) for number, size in fields(_message(found.get(1, b""))) if number == 2
    ]
    shape = [_signed(size) for size in sizes]
    return {"shape": shape, "ori_shape": shape, "format": "ND", "dtype": DTYPES[_signed(found.get(2, 0))]}


def _signed(value: Field) -> int:
    assert isinstance(value, int)
    return value - (1 << 64) if value >> 63 else value


def _attribute(message: bytes) -> Any:
    """Return an attribute: text (2), integer (3), float (4), boolean (5); others are None."""
    for number, value in fields(message):
        if number == 2:
            return _message(value).decode()
        if number == 3:
            return _signed(value)
        if number == 4:
            return struct.unpack("<f", _message(value))[0]
        if number == 5:
            return bool(value)
    return None
