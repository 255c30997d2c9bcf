"""Named arrays of a space: the offsets of a trial's parameters or of a record's fields, in elements of one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

ALIGN: Final = 16
"""Alignment of groups of fields, in elements: 64 bytes of float32."""


@dataclass(frozen=True)
class Field:
    """Matrix in the rows of a space."""

    layout: Layout = field(repr=False, compare=False)
    name: str
    offset: int
    shape: tuple[int, int]

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def slice(self) -> slice:
        """Slice of the field's elements in a row."""
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class Group:
    """Adjacent fields without gaps."""

    flat_field: Field
    """All fields of the group as one field (1, size)."""
    fields: tuple[Field, ...]


class Layout:
    """Fields of a space, in the order in which they were added."""

    def __init__(self) -> None:
        self.fields: dict[str, Field] = {}
        self._end = 0

    @property
    def size(self) -> int:
        """Number of elements in a row, a multiple of ``ALIGN``."""
        return -(-self._end // ALIGN) * ALIGN

    def add(self, name: str, rows: int, cols: int) -> Field:
        """Add a field (rows, cols); raise ValueError if the name already exists."""
        return self._put(name, self.size, (rows, cols))

    def group(self, name: str, shapes: Mapping[str, tuple[int, int]]) -> Group:
        """Add adjacent fields ``name/key``; raise ValueError if a name already exists."""
        start, fields = self.size, list[Field]()
        for key, shape in shapes.items():
            fields.append(self._put(f"{name}/{key}", fields[-1].slice.stop if fields else start, shape))
        return Group(Field(self, name, start, (1, self._end - start)), tuple(fields))

    def _put(self, name: str, offset: int, shape: tuple[int, int]) -> Field:
        if name in self.fields:
            raise ValueError(f"the field {name!r} already exists")
        self.fields[name] = field = Field(self, name, offset, shape)
        self._end = field.slice.stop
        return field


def allocate_rows(n_rows: int, layout: Layout, dtype: np.dtype[np.floating]) -> NDArray[np.floating]:
    """Allocate zeros (n_rows, layout.size), with each row aligned to 64 bytes if elements are float32."""
    nbytes = n_rows * layout.size * dtype.itemsize
    buffer = np.zeros(nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    rows: NDArray[np.floating] = buffer[start : start + nbytes].view(dtype).reshape(n_rows, layout.size)
    return rows
