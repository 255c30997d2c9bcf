"""A power cut at any moment, with a disk that keeps only synced data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onrig.runtime.replay.checkpoint import CheckpointWriter, restore
from tests.runtime.replay.checkpoint.streams import FedMemory


class RecordingDisk:
    """Records what is certain to remain in a folder after a power cut, from the calls that ensure it.

    A file has the content of its last fsync or fdatasync, and the folder the names of its own last fsync.  Unsynced
    changes may still survive, so four cases are checked: all of them are lost; only the content is lost; only the names
    are lost, except those of manifests; none is lost.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._content: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        self._open_fds: list[int] = []  # so that no inode number is used twice
        self.n_cuts = 0
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._recording_sync(getattr(os, name)))
        self._original_open = os.open
        patch.setattr(os, "open", self._recording_open)
        self.cut_folders: list[Path] = []

    def _recording_open(self, path: str | Path, flags: int, mode: int = 0o777, **other: int) -> int:
        fd = self._original_open(path, flags, mode, **other)
        self._open_fds.append(os.dup(fd))
        return fd

    def _recording_sync(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def sync_and_record(fd: int) -> None:
            self._record_cut()
            sync(fd)
            inode = os.fstat(fd).st_ino
            if inode == self._folder.stat().st_ino:
                self._names = {path.name: path.stat().st_ino for path in self._folder.iterdir()}
            else:
                path = next(p for p in self._folder.iterdir() if p.stat().st_ino == inode)
                self._content[inode] = path.read_bytes()
            self._record_cut()

        return sync_and_record

    def _record_cut(self) -> None:
        """Keep what a cut at this moment would leave, in both extremes."""
        current_names = {path.name: path.stat().st_ino for path in self._folder.iterdir()}
        manifests = {name: inode for name, inode in current_names.items() if name.startswith("manifest")}
        for variant, names in (("lost", self._names), ("named", current_names), ("ahead", self._names | manifests)):
            folder = self._folder.with_name(f"cut-{self.n_cuts:03d}-{variant}")
            folder.mkdir()
            for name, inode in names.items():
                (folder / name).write_bytes(self._content.get(inode, b""))
            self.cut_folders.append(folder)
        complete_copy = self._folder.with_name(f"cut-{self.n_cuts:03d}-spared")
        self.cut_folders.append(shutil.copytree(self._folder, complete_copy))
        self.n_cuts += 1

    def close(self) -> None:
        for fd in self._open_fds:
            os.close(fd)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingDisk]:
    folder = tmp_path / "buffer"
    folder.mkdir()
    disk = RecordingDisk(folder, monkeypatch)
    yield disk
    disk.close()


@pytest.mark.parametrize("retention", ["FIFO", "TDE(1.0)", "Expl(0.7)"])
def test_a_power_cut_costs_only_what_was_not_yet_on_disk(
    tmp_path: Path, disk: RecordingDisk, monkeypatch: pytest.MonkeyPatch, retention: str
) -> None:
    # Segments small enough for each kind of write to occur: first, appended, another segment, another generation.
    monkeypatch.setattr("onrig.runtime.replay.checkpoint.rows.MIN_SEGMENT_ROWS", 60)
    monkeypatch.setattr("onrig.runtime.replay.checkpoint.rows.MAX_SMALL_ARRAY_BYTES", 100)
    memory = FedMemory(retention, 50, per_step=15)
    writer = CheckpointWriter(tmp_path / "buffer", memory.identity)
    digests = {0: memory.storage.digest()}
    bounds: list[tuple[int, int]] = []
    for _ in range(14):
        durable_steps, cuts_before = writer.durable_number, disk.n_cuts
        memory.resume()
        digests[memory.steps] = memory.storage.digest()
        memory.write(writer)
        bounds += [(durable_steps, memory.steps)] * (disk.n_cuts - cuts_before)
    writer.close()
    assert max(path.name for path in (tmp_path / "buffer").glob("rows-*")) > "rows-00000002.seg"
    for folder in disk.cut_folders:
        min_steps, max_steps = bounds[int(folder.name.split("-")[1])]
        other = FedMemory(retention, 50, per_step=15)
        restored = restore(folder, other, other.identity)
        steps = restored.extra["steps"] if restored is not None else 0
        assert min_steps <= steps <= max_steps
        if restored is not None:
            assert restored.damaged == ()
        assert other.storage.digest() == digests[steps]
