"""Minibatches gathered into records: one contiguous block of floats per trial and update, field after field."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from onrig.hw.native import library
from onrig.runtime.memory.layout import Floats, Slots, Words


class Field(NamedTuple):
    """Field of a record: the words that it takes from a row, and the offset of its matrix (batch, columns)."""

    column: int
    columns: int
    offset: int
    mask: int = 0
    """0: words are copied bit for bit; otherwise a word with one of these bits becomes 1.0, any other 0.0."""


class _RecordsStruct(ctypes.Structure):
    """The struct ``records`` of ``hw/native/minibatch.c``."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("trials", "capacity", "width", "record", "fields")),
        *((name, ctypes.c_void_p) for name in ("rows", "field")),
    )


@cache
def _load_function() -> Any:
    """Return the library's function, which releases the GIL, or None if the library is not available."""
    shared_library = library()
    if shared_library is None:
        return None
    function = shared_library.onrig_gather
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes, function.restype = (pointer, pointer, number, number, pointer), number
    return function


class Records:
    """Rows of S trials and the fields that make up a record.

    ``rows``: (S, capacity, width) uint32 (for a float32 array, pass its ``view``), C-contiguous, held by reference
    rather than copied.  For a rig's memory, pass ``storage.words[None]``.
    """

    def __init__(self, rows: Words, fields: Sequence[Field], record: int) -> None:
        """``record``: floats per record.

        Raises ValueError if ``rows`` have the wrong shape or type, or if a field lies outside a row or a record.
        """
        if rows.ndim != 3 or rows.dtype != np.uint32 or not rows.flags.c_contiguous:
            raise ValueError(
                f"rows of shape {rows.shape} and type {rows.dtype}, expected contiguous (S, n, width) uint32"
            )
        for field in fields:
            fits_row = field.column >= 0 and 1 <= field.columns <= rows.shape[2] - field.column
            if not fits_row or not 0 <= field.offset < record or not 0 <= field.mask < 1 << 32:
                raise ValueError(f"{field} lies outside rows of {rows.shape[2]} words or records of {record}")
        self._rows: Final = rows
        self._fields: Final = fields
        self._record_floats: Final = record
        self._table: Final = np.array(fields, np.int64).reshape(-1, 4)
        pointers = rows.ctypes.data, self._table.ctypes.data
        self._struct: Final = _RecordsStruct(*rows.shape, record, len(fields), *pointers)
        self._address: Final = ctypes.addressof(self._struct)

    def gather(self, slots: Slots, out: Floats) -> None:
        """Write the records of ``slots`` (updates, S, batch) to ``out`` (S, updates, record) float32, C-contiguous.

        Raises ValueError if shapes do not match, and IndexError if a slot lies outside the memory; nothing is written
        in either case.
        """
        updates, trials, batch = slots.shape
        shape = (self._rows.shape[0], updates, self._record_floats)
        fits_record = all(field.offset + batch * field.columns <= self._record_floats for field in self._fields)
        if trials != shape[0] or not fits_record or out.shape != shape or out.dtype != np.float32:
            raise ValueError(f"minibatches of shape {slots.shape} do not fit records of shape {out.shape}")
        if not out.flags.c_contiguous or not out.flags.writeable:
            raise ValueError("records must be contiguous and writeable")
        slots = np.ascontiguousarray(slots, np.int64)
        function = _load_function()
        if function is None:
            self._gather(slots, out.view(np.uint32))
        elif function(self._address, slots.ctypes.data, updates, batch, out.ctypes.data):
            raise IndexError(f"a slot lies outside the {self._rows.shape[1]} rows")

    def _gather(self, slots: Slots, out: Words) -> None:
        """Reference implementation in numpy."""
        if slots.size and not 0 <= slots.min() <= slots.max() < self._rows.shape[1]:
            raise IndexError(f"a slot lies outside the {self._rows.shape[1]} rows")
        batch = slots.shape[2]
        for trial, records in enumerate(out):
            rows = self._rows[trial].take(slots[:, trial], axis=0)
            for column, columns, offset, mask in self._fields:
                words = rows[..., column : column + columns].reshape(len(records), batch * columns)
                if mask:
                    words = ((words & np.uint32(mask)) != 0).astype(np.float32).view(np.uint32)
                records[:, offset : offset + batch * columns] = words
