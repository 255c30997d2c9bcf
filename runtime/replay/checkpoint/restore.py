"""Restoration of a memory from its newest good checkpoint."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.files import NotRegularFile, open_file
from onrig.runtime.memory.keepers.keeper import Arrays
from onrig.runtime.memory.layout import Words
from onrig.runtime.memory.storage import STAMP_WORDS
from onrig.runtime.replay.checkpoint.blocks import CheckpointError, CorruptionError, Kind, StoredBlock, read
from onrig.runtime.replay.checkpoint.manifest import (
    Experiences,
    Identity,
    Manifest,
    Segment,
    manifest_name,
    manifest_numbers,
    read_manifest,
)

_CHUNK_ROWS: Final = 16384
"""Rows applied at a time."""


class RestoredCheckpoint(NamedTuple):
    """Checkpoint from which a memory was restored."""

    manifest: Manifest
    damaged: tuple[str, ...]
    """Problems with newer checkpoints, one line each; empty if the newest one was good."""

    @property
    def extra(self) -> dict[str, int]:
        """Counts passed to ``CheckpointWriter.write``."""
        return self.manifest.extra

    @property
    def note(self) -> bytes:
        """JSON passed to ``CheckpointWriter.write``."""
        return bytes(self.manifest.note)


def restore(folder: Path, memory: Experiences, identity: Identity) -> RestoredCheckpoint | None:
    """Restore a fresh ``memory`` from the newest good checkpoint in ``folder``; return None if there is no checkpoint.

    A FULL memory may be larger than in its checkpoint.  Raises CheckpointError if a checkpoint belongs to a different
    memory (by ``identity``), or if none is good.
    """
    if memory.storage.inserted or memory.offered:
        raise ValueError("only an empty memory can be restored")
    damaged: list[str] = []
    for number in manifest_numbers(folder):
        try:
            manifest = read_manifest(folder, number)
            is_extended = manifest.identity.grows_into(identity)
            difference = None if is_extended else manifest.identity.difference(identity)
            if difference is not None:
                raise CheckpointError(
                    f"{folder / manifest_name(number)}: {difference}; use the configuration it was written with, or "
                    "move the folder away to start with an empty memory"
                )
            _restore(manifest, folder, memory)
        except CorruptionError as damage:
            damaged.append(f"{folder}/{damage}")
            continue
        return RestoredCheckpoint(manifest, tuple(damaged))
    if damaged:
        raise CheckpointError(
            f"{'; '.join(damaged)}; no checkpoint is left: restore a backup, or move the folder away to start with "
            "an empty memory"
        )
    return None


def _open_segment(folder: Path, segment: Segment) -> tuple[memoryview, Iterator[StoredBlock]]:
    """Memory-map the counted part of a segment; return it and its blocks.  Raises CorruptionError if it is cut off."""
    try:
        with open_file(folder / segment.name, None) as file:
            size = file.seek(0, 2)
            if size < segment.bytes or not segment.bytes:
                raise CorruptionError(f"{segment.name}: truncated to {size} of {segment.bytes} bytes")
            view = memoryview(mmap.mmap(file.fileno(), segment.bytes, access=mmap.ACCESS_READ))
    except (FileNotFoundError, NotRegularFile) as error:  # other errors come from the machine and may be transient
        raise CorruptionError(f"{segment.name}: {error.strerror}") from None
    return view, read(segment.name, view, segment.crc)


def _restore(manifest: Manifest, folder: Path, memory: Experiences) -> None:
    """Restore a memory; everything is checked first, so that a damaged checkpoint leaves the memory unchanged."""
    latest_rows = _LatestRows(manifest, memory.storage.capacity, STAMP_WORDS + memory.storage.layout.width)
    for segment in manifest.rows:
        latest_rows.add_segment(*_open_segment(folder, segment), segment.name)
    latest_rows.check_complete(manifest.counts["inserted"])
    state = _keeper_state(manifest, folder, memory.storage.capacity)
    if "capacity" in state:  # the memory may have grown; the identities have already been compared
        state["capacity"] = np.array(memory.storage.capacity)
    try:
        if set(state) != set(memory.keeper.state()):
            raise ValueError(f"the keeper's state is {', '.join(sorted(state)) or 'empty'}")
        memory.keeper.restore(state)
        for rows in latest_rows.chunks():
            memory.storage.write_rows(rows)
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"{folder / manifest_name(manifest.number)}: {error}; use the configuration and version it was written "
            "with, or move the folder away to start with an empty memory"
        ) from None
    memory.offered, memory.stale_errors = manifest.counts["offered"], manifest.counts["stale_errors"]


class _LatestRows:
    """Location of the latest row of each slot, in 20 bytes per slot."""

    def __init__(self, manifest: Manifest, capacity: int, width: int) -> None:
        self._name = manifest_name(manifest.number)
        self._width = width
        self._number = np.zeros(capacity, np.int64)
        self._word = np.zeros(capacity, np.int64)
        self._segment = np.zeros(capacity, np.int32)
        self._words: list[Words] = []

    def add_segment(self, view: memoryview, blocks: Iterator[StoredBlock], name: str) -> None:
        """Record the rows of a segment."""
        capacity, width, index = len(self._number), self._width, len(self._words)
        self._words.append(np.frombuffer(view, "<u4", len(view) // 4))
        for block in blocks:
            if block.kind != Kind.ROWS or len(block.payload) != 4 * width * block.entries or block.at % 4:
                raise CorruptionError(f"{name}: not {block.entries} rows of {width} words at byte {block.at}")
            rows = np.frombuffer(block.payload, "<u4").reshape(-1, width)
            slots = rows[:, 0].astype(np.int64)
            if block.entries and slots.max() >= capacity:
                raise CorruptionError(f"{name}: a row for slot {slots.max()} of {capacity} at byte {block.at}")
            # A row that comes later in the log is never older, because only the latest row of a slot is carried over.
            self._number[slots] = rows[:, 1].astype(np.int64) | rows[:, 2].astype(np.int64) << 32
            self._word[slots] = np.arange(block.entries) * width + block.at // 4
            self._segment[slots] = index

    def check_complete(self, inserted: int) -> None:
        """Raise CorruptionError unless every slot filled by ``inserted`` writes has a row, and no row is newer."""
        n_occupied = int(np.count_nonzero(self._number))
        newest_number = int(self._number.max())
        n_expected = min(inserted, len(self._number))
        if (newest_number, n_occupied) != (inserted, n_expected) or not self._number[:n_expected].all():
            raise CorruptionError(
                f"{self._name}: {inserted} writes, but the rows are {n_occupied} up to number {newest_number}"
            )

    def chunks(self) -> Iterator[Words]:
        """Yield the rows in chunks, oldest first."""
        n_occupied = int(np.count_nonzero(self._number))
        order = np.argsort(self._number[:n_occupied])
        columns = np.arange(self._width)
        for start in range(0, n_occupied, _CHUNK_ROWS):
            slots = order[start : start + _CHUNK_ROWS]
            rows: Words = np.empty((len(slots), self._width), np.uint32)
            segments = self._segment[slots]
            for index in np.unique(segments).tolist():
                is_in_segment = segments == index
                rows[is_in_segment] = self._words[index][self._word[slots[is_in_segment], None] + columns]
            yield rows


def _keeper_state(manifest: Manifest, folder: Path, capacity: int) -> Arrays:
    name = manifest_name(manifest.number)
    tables: list[NDArray[np.generic]] = []
    state: Arrays = {}
    for saved_array in manifest.keeper:
        if saved_array.data is None and saved_array.shape != (capacity,):
            raise CorruptionError(f"{name}: table '{saved_array.name}' of shape {saved_array.shape}")
        try:
            state[saved_array.name] = saved_array.array()
        except (ValueError, TypeError) as error:
            raise CorruptionError(f"{name}: '{saved_array.name}': {error}") from None
        if saved_array.data is None:
            tables.append(state[saved_array.name])
    complete_tables: set[int] = set()
    for segment in manifest.order:
        for block in _open_segment(folder, segment)[1]:
            _apply(block, tables, segment.name)
            complete_tables.add(block.table)
    if len(complete_tables) != len(tables):
        raise CorruptionError(f"{name}: {len(tables)} tables, {len(complete_tables)} found")
    return state


def _apply(block: StoredBlock, tables: list[NDArray[np.generic]], name: str) -> None:
    """Write one block of an order segment into its table."""
    table = tables[block.table] if block.table < len(tables) else np.zeros(0, np.uint8)
    slot_bytes = 4 * block.entries if block.kind == Kind.CHANGED else 0
    is_complete = block.kind == Kind.COMPLETE and block.entries == len(table)
    if len(block.payload) != slot_bytes + block.entries * table.itemsize or not (
        is_complete or block.kind == Kind.CHANGED
    ):
        raise CorruptionError(f"{name}: not entries of table {block.table} at byte {block.at}")
    values = np.frombuffer(block.payload[slot_bytes:], table.dtype)
    slots = np.frombuffer(block.payload[:slot_bytes], "<u4")
    if is_complete:
        table[:] = values
    elif block.entries and slots.max() < len(table):
        table[slots] = values
    else:
        raise CorruptionError(f"{name}: an entry outside table {block.table} at byte {block.at}")
