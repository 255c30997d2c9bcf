"""Messages of constant length: every field is there and of fixed width, so that numpy lays out thousands at once.

Any protobuf reader takes them as they are.  An enum's varint has two bytes here, the second mostly 0, which is legal
and holds every value of a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from onrig.runtime.log.wire import LENGTH_DELIMITED, MORE, PACKED, VARINT, Field, tag, varint

_NUMPY: Final = {"<d": "<f8", "<f": "<f4", "<Q": "<u8", "<I": "<u4", "<q": "<i8", "<i": "<i4"}


class Column(NamedTuple):
    """A field of constant width, and the name of its values among the columns."""

    field: Field
    column: str
    """Unique within the message; values of an enum must be below 256."""


class Group(NamedTuple):
    """An inner message of columns."""

    field: Field
    columns: tuple[Column, ...]


class Rows:
    """Lays out messages of one type, each of ``size`` bytes; ``row[column]`` of the structured array is a value."""

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
                wire_type, code = PACKED[field.type]
                constant(tag(field.number, wire_type))
                entries.append((column.column, _NUMPY[code]))

        for part in parts:
            if isinstance(part, Column):
                add(part)
                continue
            inner = Rows(part.columns)
            constant(tag(part.field.number, LENGTH_DELIMITED) + varint(inner.size))
            for column in part.columns:
                add(column)
        self.dtype: Final = np.dtype(entries)
        self.size: Final[int] = self.dtype.itemsize
        self._blank = np.zeros(1, self.dtype)
        for name, content in self._constants.items():
            self._blank[name] = np.frombuffer(content, np.uint8)

    def blank(self, n: int) -> npt.NDArray[np.void]:
        """Lay out ``n`` messages whose values are all 0."""
        return np.repeat(self._blank, n)

    def put(self, rows: npt.NDArray[np.void], column: str, values: npt.NDArray[np.generic]) -> None:
        """Set one column, shape (n,)."""
        if column in self._enums:
            numbers = values.astype(np.uint8)
            rows[column][:, 0], rows[column][:, 1] = numbers | MORE, numbers >> 7
        else:
            rows[column] = values

    def get(self, rows: npt.NDArray[np.void], column: str) -> npt.NDArray[np.generic]:
        """Return one column, shape (n,)."""
        values: npt.NDArray[np.generic] = rows[column]
        if column in self._enums:
            return rows[column][:, 0] & np.uint8(0x7F) | rows[column][:, 1] << np.uint8(7)
        return values

    def rows(self, messages: bytes) -> npt.NDArray[np.void]:
        """Take encoded messages, one after the other; raises ValueError where they are laid out otherwise."""
        rows = np.frombuffer(messages, self.dtype)
        for name, content in self._constants.items():
            if not (rows[name] == np.frombuffer(content, np.uint8)).all():
                raise ValueError("these messages have another layout")
        return rows
