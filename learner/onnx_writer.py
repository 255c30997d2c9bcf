"""ONNX models as bytes: the messages that exported policies need, in protobuf's wire format.

``onrig.runtime.policy.onnx_wire`` reads them; the tests use the onnx library as a reference.  A message consists of the
bytes of its fields, ordered by field number, so the same model always gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

OPSET: Final = 17
IR_VERSION: Final = 8
"""ONNX version old enough for onnxruntime 1.20, the oldest that the rig supports."""
_FLOAT, _INT64 = 1, 7
"""Element types of tensors."""
_ATTRIBUTE_INT, _ATTRIBUTE_INTS = 2, 7
"""Types of attributes with a single integer, and with several."""


def tensor(name: str, array: NDArray[np.generic]) -> bytes:
    """Encode a constant: floats as float32, integers as int64."""
    is_float = np.issubdtype(array.dtype, np.floating)
    data = array.astype("<f4" if is_float else "<i8").tobytes()
    sizes = b"".join(_number(1, size) for size in array.shape)
    return sizes + _number(2, _FLOAT if is_float else _INT64) + _bytes(8, name) + _bytes(9, data)


def node(
    op: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    name: str = "",
    attributes: Mapping[str, int | Sequence[int]] = MappingProxyType({}),
) -> bytes:
    """Encode one operation; ``name`` may be empty."""
    fields = [_bytes(1, value) for value in inputs] + [_bytes(2, value) for value in outputs]
    fields += [_bytes(3, name)] if name else []
    fields.append(_bytes(4, op))
    for attribute, value in attributes.items():
        if isinstance(value, int):
            content = _number(3, value) + _number(20, _ATTRIBUTE_INT)
        else:
            content = b"".join(_number(8, item) for item in value) + _number(20, _ATTRIBUTE_INTS)
        fields.append(_bytes(5, _bytes(1, attribute) + content))
    return b"".join(fields)


def port(name: str, width: int) -> bytes:
    """Encode a float32 input or output (1, width)."""
    dims = b"".join(_bytes(1, _number(1, size)) for size in (1, width))
    return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, _FLOAT) + _bytes(2, dims)))


def model(
    nodes: Iterable[bytes],
    constants: Iterable[bytes],
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    metadata: Mapping[str, str],
) -> bytes:
    """Encode a model with one graph; ``inputs`` and ``outputs`` give the width of each port by name."""
    graph = [_bytes(1, message) for message in nodes]
    graph.append(_bytes(2, "policy"))
    graph += [_bytes(5, message) for message in constants]
    graph += [_bytes(11, port(*message)) for message in inputs.items()]
    graph += [_bytes(12, port(*message)) for message in outputs.items()]
    fields = [_number(1, IR_VERSION), _bytes(2, "onrig"), _bytes(7, b"".join(graph))]
    fields.append(_bytes(8, _bytes(1, "") + _number(2, OPSET)))
    fields += [_bytes(14, _bytes(1, key) + _bytes(2, value)) for key, value in metadata.items()]
    return b"".join(fields)


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _bytes(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data
