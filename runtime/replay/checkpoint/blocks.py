"""Blocks of a segment: a header with a CRC, and a payload.

Header, little-endian, 24 bytes: magic, kind, table, number of entries, length of the payload in bytes, CRC-32.  The CRC
covers the rest of the header and the payload, and continues the CRC of the previous block (the first block continues
the CRC of the segment's name), so that a block is valid only at its position.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray


class CheckpointError(Exception):
    """Checkpoint failure; the message gives the file, the problem and the remedy in one line."""


class CorruptionError(Exception):
    """Raised for a file whose content has changed; the previous checkpoint may still be good."""


_MAGIC: Final = b"ONRB"
_HEADER: Final = struct.Struct("<4sHHIQ")
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEADER.size + _CRC.size


class Kind(enum.IntEnum):
    """Content of a block."""

    ROWS = 1
    """Exported rows, uint32."""
    COMPLETE = 2
    """All entries of a table."""
    CHANGED = 3
    """Slots, uint32, then their new entries in a table."""


class Block(NamedTuple):
    """Block to be written; its payload consists of the arrays in order, which must no longer change."""

    kind: Kind
    table: int
    entries: int
    arrays: Sequence[NDArray[np.generic]]


class StoredBlock(NamedTuple):
    """Block read from a segment; ``at``: offset of its payload in the segment, in bytes."""

    kind: int
    table: int
    entries: int
    payload: memoryview
    at: int


def chain_start(name: str) -> int:
    """Return the CRC that the first block of the segment ``name`` continues."""
    return zlib.crc32(name.encode())


def encode(block: Block, chain: int) -> tuple[list[bytes | memoryview], int]:
    """Return the byte strings to write, and the CRC that the next block continues."""
    payload = [np.ascontiguousarray(a.astype(a.dtype.newbyteorder("<"), copy=False)).data for a in block.arrays]
    views = [p.cast("B") for p in payload if p.nbytes]
    header = _HEADER.pack(_MAGIC, block.kind, block.table, block.entries, sum(v.nbytes for v in views))
    chain = zlib.crc32(header, chain)
    for view in views:
        chain = zlib.crc32(view, chain)
    return [header, _CRC.pack(chain), *views], chain


def read(name: str, data: memoryview, crc: int) -> Iterator[StoredBlock]:
    """Yield the blocks of the segment ``name``; ``data`` is its counted part, which ends in ``crc``.

    Raises CorruptionError if a block differs from what was written, or the last one does not end in ``crc``.
    """
    chain = chain_start(name)
    offset = 0
    while offset < len(data):
        if len(data) - offset < HEADER_BYTES:
            raise CorruptionError(f"{name}: not a block at byte {offset}")
        magic, kind, table, entries, length = _HEADER.unpack_from(data, offset)
        if magic != _MAGIC or length > len(data) - offset - HEADER_BYTES:
            raise CorruptionError(f"{name}: not a block at byte {offset}")
        start = offset + HEADER_BYTES
        payload = data[start : start + length]
        chain = zlib.crc32(payload, zlib.crc32(data[offset : offset + _HEADER.size], chain))
        if _CRC.unpack_from(data, offset + _HEADER.size)[0] != chain:
            raise CorruptionError(f"{name}: wrong CRC in the block at byte {offset}")
        yield StoredBlock(kind, table, entries, payload, start)
        offset = start + length
    if chain != crc:
        raise CorruptionError(f"{name}: its content differs from its manifest")
