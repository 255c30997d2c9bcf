"""Replacement of the contract in an ONNX model's metadata, without a library; all other bytes are unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onrig.runtime.policy.contract import METADATA_KEY, PolicyContract, encode_contract
from onrig.runtime.policy.protobuf_wire import malformed

_METADATA: Final = 14
"""Number of ``metadata_props`` in a model; its entries have the key as field 1 and the value as field 2."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def stamped(model: bytes, contract: PolicyContract) -> bytes:
    """Return an ONNX model with this contract in its metadata, in place of an earlier one.

    Raises ModelRefused for bytes that are no protobuf message.
    """
    key = METADATA_KEY.encode()
    kept = [field for number, field, content in _fields(model) if not (number == _METADATA and _key(content) == key)]
    entry = _bytes(1, key) + _bytes(2, encode_contract(contract).encode())
    return b"".join(kept) + _bytes(_METADATA, entry)


def _key(entry: bytes) -> bytes:
    return next((content for number, _, content in _fields(entry) if number == 1), b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Number, all bytes and content of each field of a message."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _varint(message, at)
        wire = tag & 7
        if wire == _VARINT:
            _, at = _varint(message, at)
            begins = at
        elif wire == _LENGTH:
            size, begins = _varint(message, at)
            at = begins + size
        elif wire in (_FIXED64, _FIXED32):
            begins, at = at, at + (8 if wire == _FIXED64 else 4)
        else:
            raise malformed(f"a field of wire type {wire}")
        if at > len(message):
            raise malformed("it ends within a field")
        yield tag >> 3, message[start:at], message[begins:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise malformed("it ends within a number")


def _bytes(number: int, content: bytes) -> bytes:
    return _number(number << 3 | _LENGTH) + _number(len(content)) + content


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
