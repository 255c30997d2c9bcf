"""Minimal Protocol Buffers encoder for the log: descriptors and messages.

Wire format: https://protobuf.dev/programming-guides/encoding; descriptors: google/protobuf/descriptor.proto.  Decoding
is left to the public libraries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

FixedWidthType = Literal["double", "float", "fixed64", "fixed32", "sfixed64", "sfixed32"]
FieldType = FixedWidthType | Literal["int64", "int32", "bool", "enum", "string", "message"]

_DESCRIPTOR_TYPES: Final[dict[FieldType, int]] = {
    "double": 1,
    "float": 2,
    "int64": 3,
    "int32": 5,
    "fixed64": 6,
    "fixed32": 7,
    "bool": 8,
    "string": 9,
    "message": 11,
    "enum": 14,
    "sfixed32": 15,
    "sfixed64": 16,
}
VARINT: Final = 0
LENGTH_DELIMITED: Final = 2
_I64, _I32 = 1, 5
FIXED_WIDTH_TYPES: Final[dict[FieldType, tuple[int, str]]] = {
    "double": (_I64, "<d"),
    "float": (_I32, "<f"),
    "fixed64": (_I64, "<Q"),
    "fixed32": (_I32, "<I"),
    "sfixed64": (_I64, "<q"),
    "sfixed32": (_I32, "<i"),
}
"""Wire type and `struct` code of the fixed-width types."""
CONTINUATION_BIT: Final = 0x80
"""Bit set in every byte of a varint except the last."""


class Field(NamedTuple):
    """One field of a message."""

    name: str
    number: int
    type: FieldType
    type_name: str = ""
    """Full name of the enum or message, with a leading dot."""


class Message(NamedTuple):
    """A message type; ``nested`` are declared inside it."""

    name: str
    fields: tuple[Field, ...]
    nested: tuple[Message, ...] = ()


class Enum(NamedTuple):
    """An enum type; its first value must be 0."""

    name: str
    values: tuple[tuple[str, int], ...]


class File(NamedTuple):
    """One .proto file."""

    name: str
    package: str
    messages: tuple[Message, ...]
    enums: tuple[Enum, ...] = ()
    imports: tuple[str, ...] = ()


def varint(value: int) -> bytes:
    """Encode a non-negative integer with seven bits per byte, lowest bits first."""
    encoded = bytearray()
    while value >= CONTINUATION_BIT:
        encoded.append(value & 0x7F | CONTINUATION_BIT)
        value >>= 7
    return bytes([*encoded, value])


def tag(number: int, wire_type: int) -> bytes:
    """Encode the tag of a field."""
    return varint(number << 3 | wire_type)


def length_delimited(number: int, content: bytes) -> bytes:
    """Encode a field of text, bytes or a message."""
    return tag(number, LENGTH_DELIMITED) + varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return length_delimited(number, text.encode())


def _number(number: int, value: int) -> bytes:
    return tag(number, VARINT) + varint(value)


def encode(message: Message, values: Sequence[float | str | bytes]) -> bytes:
    """Encode one message; ``values`` are in the order of its fields: numbers, text, or the bytes of an inner
    message."""
    encoded = b""
    for field, value in zip(message.fields, values, strict=True):
        if field.type in ("string", "message"):
            content = value.encode() if isinstance(value, str) else value
            encoded += length_delimited(field.number, content if isinstance(content, bytes) else b"")
        elif field.type not in FIXED_WIDTH_TYPES:
            encoded += _number(field.number, int(value))
        else:
            wire_type, code = FIXED_WIDTH_TYPES[field.type]
            encoded += tag(field.number, wire_type) + struct.pack(code, value)
    return encoded


# -- descriptors -----------------------------------------------------------------------------------------------------


def descriptor_set(files: Iterable[File]) -> bytes:
    """Encode a FileDescriptorSet; each file follows its imports."""
    return b"".join(length_delimited(1, _file(f)) for f in files)


def _file(file: File) -> bytes:
    return b"".join(
        [
            _text(1, file.name),
            _text(2, file.package),
            *[_text(3, name) for name in file.imports],
            *[length_delimited(4, _message(m)) for m in file.messages],
            *[length_delimited(5, _enum(e)) for e in file.enums],
            _text(12, "proto3"),
        ]
    )


def _message(message: Message) -> bytes:
    return b"".join(
        [
            _text(1, message.name),
            *[length_delimited(2, _field(f)) for f in message.fields],
            *[length_delimited(3, _message(m)) for m in message.nested],
        ]
    )


def _field(field: Field) -> bytes:
    label_optional = 1
    return b"".join(
        [
            _text(1, field.name),
            _number(3, field.number),
            _number(4, label_optional),
            _number(5, _DESCRIPTOR_TYPES[field.type]),
            _text(6, field.type_name) if field.type_name else b"",
        ]
    )


def _enum(enum: Enum) -> bytes:
    values = [length_delimited(2, _text(1, name) + _number(2, value)) for name, value in enum.values]
    return _text(1, enum.name) + b"".join(values)
