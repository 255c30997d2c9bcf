"""Strict protobuf parser, which rejects bytes that two parsers could interpret differently.

This is a small parser for untrusted bytes (wire format: https://protobuf.dev/programming-guides/encoding).  protobuf
itself skips unknown fields, merges a singular message that occurs twice, and takes the last of several numbers.  This
parser rejects all of these, so that a library that parses the same bytes later cannot read a different model.  Messages
nest only as deeply as their descriptions, in which no message contains itself; every length is checked against the
enclosing message; and the number of fields is limited, which bounds the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from onrig.runtime.policy.contract import ModelRefused

MAX_FIELDS: Final = 30_000
MAX_NAME_BYTES: Final = 512

VARINT: Final = 0
BYTES: Final = 2
FIXED32: Final = 5

Span = tuple[int, int]
"""Start and end offset of a byte range."""


def format_refusal(reason: str) -> ModelRefused:
    """Return the refusal of bytes that are not a supported model."""
    return ModelRefused("format", reason)


class Field(NamedTuple):
    """One field of a message type."""

    wire: int
    repeated: bool = False
    message: Message | None = None
    """Message type of the field; None for fields that are not messages."""
    limit: int = MAX_FIELDS
    """Maximum number of repetitions."""
    plural: str = ""
    """Name of the repeated values in error messages; required if ``limit`` is set."""


class Message:
    """Fields of one message type by number, and what the rejected fields contain.

    Inner messages are read in the order of ``fields``.
    """

    def __init__(
        self, name: str, fields: Mapping[int, Field], rejected_fields: Mapping[int, str] | None = None
    ) -> None:
        self.name: Final = name
        self.fields: Final = {number: (field.wire, field.repeated) for number, field in fields.items()}
        self.rejected_fields: Final = rejected_fields or {}
        self.inner: Final = [(number, f.message, f) for number, f in fields.items() if f.message is not None]
        """Fields that contain messages: number, message type and description of each."""


class Fields(NamedTuple):
    """Parsed fields of one message: numbers (varints signed, fixed32 raw), spans of byte strings, and inner
    messages."""

    data: bytes
    scalars: dict[int, list[int]]
    spans: dict[int, list[Span]]
    messages: dict[int, list[Fields]]

    def number(self, field: int) -> int:
        """Return the number in the singular ``field``; 0 if it is absent."""
        values = self.scalars.get(field)
        return values[0] if values else 0

    def span(self, field: int) -> Span:
        """Return the span of the singular ``field``; an empty span if it is absent."""
        spans = self.spans.get(field)
        return spans[0] if spans else (0, 0)

    def text(self, field: int, max_bytes: int = MAX_NAME_BYTES) -> str:
        """Return the string in the singular ``field``, of at most ``max_bytes`` bytes; empty if it is absent."""
        return self._decode_text(self.span(field), max_bytes)

    def texts(self, field: int) -> tuple[str, ...]:
        """Return all strings in the repeated ``field``."""
        return tuple(self._decode_text(span, MAX_NAME_BYTES) for span in self.spans.get(field, ()))

    def message(self, field: int) -> Fields:
        """Return the message in the singular ``field``; an empty message if it is absent."""
        messages = self.messages.get(field)
        return messages[0] if messages else Fields(self.data, {}, {}, {})

    def has(self, field: int) -> bool:
        """Return whether ``field`` is present."""
        return field in self.scalars or field in self.spans

    def _decode_text(self, span: Span, max_bytes: int) -> str:
        start, end = span
        if end - start > max_bytes:
            raise format_refusal(f"a string of {end - start} bytes; at most {max_bytes} allowed")
        try:
            return self.data[start:end].decode()
        except UnicodeDecodeError as error:
            raise format_refusal(f"a string at byte {start} is not UTF-8") from error


def decode(data: bytes, message: Message) -> Fields:
    """Parse all of ``data`` as one message, including its inner messages; raises ModelRefused (stage ``format``)."""
    return _Reader(data).fields((0, len(data)), message)


class _Reader:
    """Parser for the messages at given spans of ``data``; limits the total number of fields in them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._n_remaining_fields = MAX_FIELDS

    def _read_varint(self, offset: int, end: int) -> tuple[int, int]:
        """Decode a varint as a signed 64-bit number; return it and the offset of the byte after it."""
        data, value, shift = self._data, 0, 0
        while offset < end:
            byte = data[offset]
            offset += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << 64:
                    raise format_refusal(f"integer of more than 64 bits before byte {offset}")
                return (value - (1 << 64) if value >= 1 << 63 else value), offset
            shift += 7
            if shift > 63:
                raise format_refusal(f"integer of more than ten bytes at byte {offset}")
        raise format_refusal(f"truncated at byte {end}")

    def _count_field(self) -> None:
        self._n_remaining_fields -= 1
        if self._n_remaining_fields < 0:
            raise format_refusal(f"more than {MAX_FIELDS} fields")

    def fields(self, span: Span, message: Message) -> Fields:
        """Split the bytes of one message into fields, and then do the same for its inner messages."""
        offset, end = span
        data = self._data
        scalars: dict[int, list[int]] = {}
        spans: dict[int, list[Span]] = {}
        while offset < end:
            self._count_field()
            tag, offset = (data[offset], offset + 1) if data[offset] < 0x80 else self._read_varint(offset, end)
            field, wire = tag >> 3, tag & 7
            expected_field = message.fields.get(field)
            if expected_field is None:
                subject = message.rejected_fields.get(field)
                raise format_refusal(
                    f"{message.name} has {subject or f'unknown field {field}'}, which policies may not use"
                )
            expected, repeated = expected_field
            if not repeated and (field in scalars or field in spans):
                raise format_refusal(f"{message.name} has field {field} twice")
            if wire == BYTES:
                length, offset = (
                    (data[offset], offset + 1)
                    if offset < end and data[offset] < 0x80
                    else self._read_varint(offset, end)
                )
                if not 0 <= length <= end - offset:
                    raise format_refusal(f"{message.name} ends before its field {field} does (truncated at byte {end})")
                if expected == VARINT and repeated:
                    scalars.setdefault(field, []).extend(self._read_packed((offset, offset + length)))
                elif expected == BYTES:
                    spans.setdefault(field, []).append((offset, offset + length))
                else:
                    raise format_refusal(f"{message.name} has field {field} in wire type {wire}, expected {expected}")
                offset += length
            elif wire != expected:
                raise format_refusal(f"{message.name} has field {field} in wire type {wire}, expected {expected}")
            elif wire == VARINT:
                value, offset = self._read_varint(offset, end)
                scalars.setdefault(field, []).append(value)
            else:
                if end - offset < 4:
                    raise format_refusal(f"truncated at byte {end}")
                scalars.setdefault(field, []).append(int.from_bytes(data[offset : offset + 4], "little"))
                offset += 4
        messages: dict[int, list[Fields]] = {}
        for number, kind, field_type in message.inner:
            if number in spans:
                inner = spans[number]
                if len(inner) > field_type.limit:
                    raise format_refusal(f"{len(inner)} {field_type.plural}; at most {field_type.limit} allowed")
                messages[number] = [self.fields(inner_span, kind) for inner_span in inner]
        return Fields(data, scalars, spans, messages)

    def _read_packed(self, span: Span) -> list[int]:
        offset, end = span
        values: list[int] = []
        while offset < end:
            self._count_field()
            value, offset = self._read_varint(offset, end)
            values.append(value)
        return values
