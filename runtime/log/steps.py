"""The step record as a rig-specific protobuf message: every field exactly, signals by name, and SI values next to
counts.

All messages of a rig have the same length (`RowLayout`): every field is present and of fixed width, so that numpy
encodes thousands at once. Any protobuf reader can decode them.  An enum's varint always has two bytes here, of which
the second is usually 0; this is valid and can represent every value of a byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from onrig.hw.rig import Rig
from onrig.runtime.log.wire import (
    CONTINUATION_BIT,
    FIXED_WIDTH_TYPES,
    LENGTH_DELIMITED,
    VARINT,
    Enum,
    Field,
    FieldType,
    File,
    Message,
    tag,
    varint,
)
from onrig.runtime.record import STAGES, Kind, Miss, RecordLayout, Rule

_NUMPY_TYPES: Final = {"<d": "<f8", "<f": "<f4", "<Q": "<u8", "<I": "<u4", "<q": "<i8", "<i": "<i4"}


class Column(NamedTuple):
    """A field of constant width, and the name of its column."""

    field: Field
    column: str
    """Name of the column, unique within the message; values of an enum must be below 256."""


class Group(NamedTuple):
    """An inner message of columns."""

    field: Field
    columns: tuple[Column, ...]


class RowLayout:
    """Layout of messages of one type, each of ``size`` bytes; ``row[column]`` of the structured array is one value."""

    def __init__(self, parts: Sequence[Column | Group]) -> None:
        entries: list[tuple[str, str, tuple[int, ...]] | tuple[str, str]] = []
        self._constants: dict[str, bytes] = {}
        self._enums: set[str] = set()

        def constant(content: bytes) -> None:
            name = f"#{len(entries)}"
            self._constants[name] = content
            entries.append((name, "u1", (len(content),)))

        def add(column: Column) -> None:
            field = column.field
            if field.type == "enum":
                constant(tag(field.number, VARINT))
                self._enums.add(column.column)
                entries.append((column.column, "u1", (2,)))
            else:
                wire_type, code = FIXED_WIDTH_TYPES[field.type]
                constant(tag(field.number, wire_type))
                entries.append((column.column, _NUMPY_TYPES[code]))

        for part in parts:
            if isinstance(part, Column):
                add(part)
                continue
            group_layout = RowLayout(part.columns)
            constant(tag(part.field.number, LENGTH_DELIMITED) + varint(group_layout.size))
            for column in part.columns:
                add(column)
        self.dtype: Final = np.dtype(entries)
        self.size: Final[int] = self.dtype.itemsize
        self._zero_row = np.zeros(1, self.dtype)
        for name, content in self._constants.items():
            self._zero_row[name] = np.frombuffer(content, np.uint8)

    def zero_rows(self, n: int) -> npt.NDArray[np.void]:
        """Return ``n`` messages with all values 0."""
        return np.repeat(self._zero_row, n)

    def put(self, rows: npt.NDArray[np.void], column: str, values: npt.NDArray[np.generic]) -> None:
        """Set one column, shape (n,)."""
        if column in self._enums:
            numbers = values.astype(np.uint8)
            rows[column][:, 0], rows[column][:, 1] = numbers | CONTINUATION_BIT, numbers >> 7
        else:
            rows[column] = values

    def get(self, rows: npt.NDArray[np.void], column: str) -> npt.NDArray[np.generic]:
        """Return one column, shape (n,)."""
        values: npt.NDArray[np.generic] = rows[column]
        if column in self._enums:
            return rows[column][:, 0] & np.uint8(0x7F) | rows[column][:, 1] << np.uint8(7)
        return values

    def rows(self, messages: bytes) -> npt.NDArray[np.void]:
        """Return concatenated encoded messages as a view of rows; raises ValueError if their layout differs."""
        rows = np.frombuffer(messages, self.dtype)
        for name, content in self._constants.items():
            if not (rows[name] == np.frombuffer(content, np.uint8)).all():
                raise ValueError("these messages have another layout")
        return rows


Records = npt.NDArray[np.void]

FILE: Final = "onrig/step.proto"
PACKAGE: Final = "onrig"
ENUMS: Final = (
    Enum("Kind", tuple((f"KIND_{k.name}", k.value) for k in Kind)),
    Enum("Rule", tuple((f"RULE_{r.name}", r.value) for r in Rule)),
    Enum("Miss", tuple((f"MISS_{m.name}", m.value) for m in Miss)),
)
_TYPES: Final[dict[str, FieldType]] = {
    "u1": "fixed32",
    "u2": "fixed32",
    "u4": "fixed32",
    "u8": "fixed64",
    "i4": "sfixed32",
    "i8": "sfixed64",
    "f4": "float",
    "f8": "double",
}
_GROUP_NAMES: Final = {
    "stage": "Stages",
    "sensor": "Sensor",
    "signal": "Observation",
    "input": "Input",
    "actuator": "Action",
}
_SI_SENSORS_FIELD: Final = 100
"""Field number of the sensors in SI units, which are not part of a record."""


def identifiers(names: Sequence[str]) -> tuple[str, ...]:
    """Derive unique field names from signal names: letters, digits and underscores.

    Names that differ only in underscores and capitals would coincide in JSON.
    """
    results: list[str] = []
    names_in_use: set[str] = set()
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        plain = plain if plain[:1].isalpha() else f"n{plain}"
        identifier, n = plain, 1
        while identifier.replace("_", "").lower() in names_in_use:
            n += 1
            identifier = f"{plain}_{n}"
        names_in_use.add(identifier.replace("_", "").lower())
        results.append(identifier)
    return tuple(results)


class _StepField(NamedTuple):
    """A field of the message and its position in the record."""

    part: Column | Group
    column: str
    """Field of the record; empty for the sensors in SI units."""


class StepMessages:
    """Encoder and decoder of one rig's step records.

    ``behaviour``: whether its policies are stochastic; ``inputs``: names of the policy inputs, if they differ from the
    observation.
    """

    def __init__(self, rig: Rig, *, behaviour: bool = False, inputs: Sequence[str] = ()) -> None:
        self._layout = RecordLayout.for_rig(rig, behaviour=behaviour, n_inputs=len(inputs))
        self._names = {
            "Stages": STAGES,
            "SensorCounts": identifiers([s.name for s in rig.sensors]),
            "Sensors": identifiers([s.name for s in rig.sensors]),
            "ActionCounts": identifiers([a.name for a in rig.actuators]),
            "Observation": identifiers([s.name for s in rig.signals]),
            "Action": identifiers([a.name for a in rig.actuators]),
        }
        if inputs:
            self._names["Input"] = identifiers(inputs)
        self._resolutions = np.array([s.resolution for s in rig.sensors])
        self._parts = list(self._build())
        self._rows = RowLayout([p.part for p in self._parts])
        self.size: Final = self._rows.size
        """Size of every message in bytes."""

    @property
    def file(self) -> File:
        """The .proto file that declares the messages."""
        types = {"Stages": "fixed64", "SensorCounts": "sfixed32", "ActionCounts": "sfixed32"}
        nested: list[Message] = []
        for group, names in self._names.items():
            type_: FieldType = types.get(group, "float")  # type: ignore[assignment]
            nested.append(Message(group, tuple(Field(name, i, type_) for i, name in enumerate(names, 1))))
        fields = tuple(p.part.field for p in self._parts)
        return File(FILE, PACKAGE, (Message("Step", fields, tuple(nested)),), ENUMS)

    @property
    def layout(self) -> RecordLayout:
        """Layout of the records."""
        return self._layout

    def encode(self, records: Records) -> bytes:
        """Encode n records (dtype ``RecordLayout.dtype``) as n concatenated messages of ``size`` bytes."""
        rows = self._rows.zero_rows(len(records))
        for part, column in self._parts:
            if isinstance(part, Column):
                self._rows.put(rows, part.column, records[column])
                continue
            values = records[column] if column else records["sensors"] * self._resolutions
            for i, column_part in enumerate(part.columns):
                self._rows.put(rows, column_part.column, values[:, i])
        return rows.tobytes()

    def decode(self, messages: bytes) -> Records:
        """Decode messages, inverting `encode` bit for bit; raises ValueError if their layout differs."""
        rows = self._rows.rows(messages)
        records = np.zeros(len(rows), self._layout.dtype)
        for part, column in self._parts:
            if isinstance(part, Column):
                records[column] = self._rows.get(rows, part.column)
            elif column:
                for i, column_part in enumerate(part.columns):
                    records[column][:, i] = self._rows.get(rows, column_part.column)
        return records

    def _build(self) -> Iterator[_StepField]:
        enums = {Kind: "Kind", Rule: "Rule", Miss: "Miss"}
        for field in self._layout.fields:
            name, kind, record_field = field
            type_ = _TYPES[record_field.code]
            if kind in enums:
                yield _StepField(
                    Column(Field(name, record_field.number, "enum", f".{PACKAGE}.{enums[kind]}"), name), name
                )
            elif record_field.per == "tick":
                yield _StepField(Column(Field(name, record_field.number, type_), name), name)
            else:
                counts = record_field.unit == "counts"
                if record_field.per == "sensor":
                    yield _StepField(self._group(name, _SI_SENSORS_FIELD, "Sensors", "float"), "")
                group_name = f"{name.removesuffix('s')}_counts" if counts else name
                group = _GROUP_NAMES[record_field.per] + ("Counts" if counts else "")
                yield _StepField(self._group(group_name, record_field.number, group, type_), name)

    def _group(self, name: str, number: int, group: str, type_: FieldType) -> Group:
        columns = tuple(
            Column(Field(element_name, i, type_), f"{name}.{element_name}")
            for i, element_name in enumerate(self._names[group], 1)
        )
        return Group(Field(name, number, "message", f".{PACKAGE}.Step.{group}"), columns)
