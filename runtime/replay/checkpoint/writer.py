"""Checkpoint writer: changes are collected by the caller and written to disk by a thread."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onrig.runtime.files import sync
from onrig.runtime.replay.checkpoint.blocks import CheckpointError, chain_start, encode
from onrig.runtime.replay.checkpoint.manifest import (
    FORMAT,
    TEMPORARY_NAME,
    Experiences,
    Identity,
    Manifest,
    Segment,
    encode_manifest,
    is_checkpoint_file,
    manifest_name,
    manifest_numbers,
    segment_numbers,
)
from onrig.runtime.replay.checkpoint.restore import RestoredCheckpoint
from onrig.runtime.replay.checkpoint.rows import Append, RowLog, TableLog

_POLL_S: Final = 0.1


class _Job(NamedTuple):
    """A collected checkpoint; ``manifest`` still lacks the lengths and CRCs of the segments."""

    appends: Sequence[Append]
    manifest: Manifest
    required_files: Sequence[Path]


class CheckpointWriter:
    """The only writer to a folder; ``restored`` is the result of :func:`restore` for this folder.

    Raises CheckpointError if the folder contains checkpoints but none was restored, so that they are not lost silently.
    """

    def __init__(self, folder: Path, identity: Identity, restored: RestoredCheckpoint | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        numbers = manifest_numbers(folder)
        if numbers and restored is None:
            raise CheckpointError(f"{folder / manifest_name(numbers[0])}: already exists; restore it, or move it away")
        self._folder, self._identity = folder, identity
        checkpoint = restored.manifest if restored is not None else None
        names = itertools.count(max(segment_numbers(folder), default=0) + 1)
        self._rows = RowLog(lambda: f"rows-{next(names):08d}.seg", checkpoint)
        self._tables = TableLog(lambda: f"order-{next(names):08d}.seg", identity.capacity)
        self._number = max(numbers, default=0)
        self._segment_ends = {s.name: s for s in checkpoint.rows} if checkpoint is not None else {}
        self._manifests = [checkpoint] if checkpoint is not None else []
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._job: _Job | None = None
        self._future: Future[None] | None = None
        self._chunks_written = 0
        """Number of chunks that the thread has written and synced."""

    @property
    def durable_number(self) -> int:
        """Number of the newest checkpoint on disk; 0 if none exists."""
        return self._manifests[-1].number if self._manifests else 0

    @property
    def durable_counts(self) -> Mapping[str, int] | None:
        """Counts of the newest checkpoint on disk; None if none exists."""
        return self._manifests[-1].extra if self._manifests else None

    def write(
        self, memory: Experiences, extra: Mapping[str, int], note: bytes = b"null", required_files: Sequence[Path] = ()
    ) -> bool:
        """Collect a checkpoint of ``memory`` and hand it to the thread; `restore` returns ``extra`` and ``note``
        (JSON).

        ``required_files``: files and folders that the checkpoint relies on; their current content will be on disk
        before the checkpoint is.

        Return False while the previous checkpoint is not yet on disk.  Nothing is collected then; the next checkpoint
        will cover the changes, and take longer (up to a second for 1e6 experiences, after the disk has long been full).
        Raises CheckpointError if the previous checkpoint could not be written; it is retried, and ``write`` returns
        False until it is on disk.
        """
        if self._future is not None and not self._future.done():
            return False
        self.wait()
        self._number += 1
        saved_arrays, order = self._tables.advance(memory.keeper.state())
        rows = self._rows.advance(memory.storage)
        counts = {
            "inserted": memory.storage.inserted,
            "offered": memory.offered,
            "stale_errors": memory.stale_errors,
        }
        manifest = Manifest(
            FORMAT,
            self._number,
            self._identity,
            self._rows.segments,
            self._tables.segments,
            saved_arrays,
            counts,
            dict(extra),
            self._rows.sweep,
            msgspec.Raw(note),
        )
        self._submit(_Job([*rows, *order], manifest, tuple(required_files)))
        return True

    def wait(self, on_progress: Callable[[], object] = lambda: None) -> None:
        """Wait until the collected checkpoint is on disk; raises CheckpointError (like ``write``) if it fails.

        ``on_progress`` is called repeatedly as long as chunks are being written.
        """
        job, future = self._job, self._future
        if job is None or future is None:
            return
        chunks_written = self._chunks_written
        while not wait_for({future}, _POLL_S).done:
            if self._chunks_written != chunks_written:
                chunks_written = self._chunks_written
                on_progress()
        try:
            future.result()
        except OSError as error:
            self._submit(job)
            raise CheckpointError(
                f"{error.filename or self._folder}: {error.strerror}; the last checkpoint is number "
                f"{self.durable_number}, this one will be retried"
            ) from None
        self._future = self._job = None

    def close(self) -> None:
        """Wait for the thread, whether or not its work succeeds."""
        self._thread.shutdown()

    def _submit(self, job: _Job) -> None:
        self._job, self._future = job, self._thread.submit(self._commit, job)

    # -- in the thread; order of writing: see the package ----------------------------------------------------------

    def _commit(self, job: _Job) -> None:
        for path in job.required_files:
            with suppress(FileNotFoundError):  # a failed write has been reported
                sync(path)
            self._chunks_written += 1
        ends = dict(self._segment_ends)
        created_names = [ends_before.name for a in job.appends if (ends_before := self._append(a, ends)).bytes == 0]
        if created_names:
            sync(self._folder)
        manifest = msgspec.structs.replace(
            job.manifest,
            rows=tuple(_with_end(s, ends) for s in job.manifest.rows),
            order=tuple(_with_end(s, ends) for s in job.manifest.order),
        )
        self._write_manifest(manifest)
        self._manifests = [*self._manifests, manifest][-2:]
        needed_names = set().union(*(m.files for m in self._manifests))
        self._segment_ends = {name: end for name, end in ends.items() if name in manifest.files}
        for path in self._folder.iterdir():
            if is_checkpoint_file(path.name) and path.name not in needed_names:
                with suppress(OSError):  # retried with the next checkpoint
                    path.unlink()

    def _append(self, append: Append, ends: dict[str, Segment]) -> Segment:
        """Append blocks after the counted part of a segment; update its end in ``ends``, and return the old end."""
        previous = ends.get(append.segment, Segment(append.segment, crc=chain_start(append.segment)))
        chain, chunks = previous.crc, []
        for block in append.blocks:
            encoded, chain = encode(block, chain)
            chunks += encoded
        path = self._folder / append.segment
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.ftruncate(fd, previous.bytes)  # a failed attempt may have left partial data
            os.lseek(fd, previous.bytes, os.SEEK_SET)
            size = previous.bytes
            for chunk in chunks:
                size += _write_all(fd, chunk)
                self._chunks_written += 1
            os.fdatasync(fd)
        finally:
            os.close(fd)
        ends[append.segment] = msgspec.structs.replace(previous, bytes=size, crc=chain)
        return previous

    def _write_manifest(self, manifest: Manifest) -> None:
        temporary_path = self._folder / TEMPORARY_NAME
        fd = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _write_all(fd, encode_manifest(manifest))
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary_path.replace(self._folder / manifest_name(manifest.number))
        sync(self._folder)


def _with_end(segment: Segment, ends: Mapping[str, Segment]) -> Segment:
    end = ends[segment.name]
    return msgspec.structs.replace(segment, bytes=end.bytes, crc=end.crc)


def _write_all(fd: int, data: bytes | memoryview) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return len(data)
