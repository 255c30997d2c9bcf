"""Replacement of the contract in an ONNX model's metadata, without a library; all other bytes are unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onrig.runtime.policy.contract import METADATA_KEY, PolicyContract, encode_contract
from onrig.runtime.policy.protobuf_wire import format_refusal

_METADATA: Final = 14
"""Field number of ``metadata_props`` in a model; each entry has its key as field 1 and its value as field 2."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def stamp_contract(model: bytes, contract: PolicyContract) -> bytes:
    """Return an ONNX model with this contract in its metadata, in place of any earlier one.

    Raises ModelRefused if the bytes are not a protobuf message.
    """
    key = METADATA_KEY.encode()
    other_fields = [
        field for number, field, content in _fields(model) if not (number == _METADATA and _entry_key(content) == key)
    ]
    entry = _encode_bytes(1, key) + _encode_bytes(2, encode_contract(contract).encode())
    return b"".join(other_fields) + _encode_bytes(_METADATA, entry)


def _entry_key(entry: bytes) -> bytes:
    return next((content for number, _, content in _fields(entry) if number == 1), b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield each field of a message as its number, all of its bytes, and its content."""
    offset = 0
    while offset < len(message):
        start = offset
        tag, offset = _decode_varint(message, offset)
        wire = tag & 7
        if wire == _VARINT:
            _, offset = _decode_varint(message, offset)
            content_start = offset
        elif wire == _LENGTH:
            size, content_start = _decode_varint(message, offset)
            offset = content_start + size
        elif wire in (_FIXED64, _FIXED32):
            content_start, offset = offset, offset + (8 if wire == _FIXED64 else 4)
        else:
            raise format_refusal(f"a field has the wire type {wire}")
        if offset > len(message):
            raise format_refusal("the bytes end within a field")
        yield tag >> 3, message[start:offset], message[content_start:offset]


def _decode_varint(message: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while offset < len(message) and shift < 64:
        byte = message[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7
    raise format_refusal("the bytes end within a number")


def _encode_bytes(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | _LENGTH) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
