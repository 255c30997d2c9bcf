"""A power cut at any moment, with a disk that keeps only synced data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onrig.runtime.replay.checkpoint import CheckpointWriter, restore
from tests.runtime.replay.checkpoint.streams import Fed


class Disk:
    """Notes what of a folder is sure to be there after a power cut, by the calls that make it so.

    A file has the content of its last fsync or fdatasync, and the folder the names of its own last fsync.  What was
    not asked for may be there all the same, so four cases are looked at: all of that is lost; the content alone is
    lost; the names alone are, but for those of manifests; nothing is.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._content: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        self._pinned: list[int] = []  # so that no inode number is used twice
        self.cuts = 0
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._syncing(getattr(os, name)))
        self._open = os.open
        patch.setattr(os, "open", self._opening)
        self.at_each_cut: list[Path] = []

    def _opening(self, path: str | Path, flags: int, mode: int = 0o777, **other: int) -> int:
        fd = self._open(path, flags, mode, **other)
        self._pinned.append(os.dup(fd))
        return fd

    def _syncing(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def synced(fd: int) -> None:
            self._cut()
            sync(fd)
            inode = os.fstat(fd).st_ino
            if inode == self._folder.stat().st_ino:
                self._names = {path.name: path.stat().st_ino for path in self._folder.iterdir()}
            else:
                path = next(p for p in self._folder.iterdir() if p.stat().st_ino == inode)
                self._content[inode] = path.read_bytes()
            self._cut()

        return synced

    def _cut(self) -> None:
        """Keep what a cut now would leave, in the two extremes."""
        now = {path.name: path.stat().st_ino for path in self._folder.iterdir()}
        manifests = {name: inode for name, inode in now.items() if name.startswith("manifest")}
        for how, names in (("lost", self._names), ("named", now), ("ahead", self._names | manifests)):
            folder = self._folder.with_name(f"cut-{self.cuts:03d}-{how}")
            folder.mkdir()
            for name, inode in names.items():
                (folder / name).write_bytes(self._content.get(inode, b""))
            self.at_each_cut.append(folder)
        spared = self._folder.with_name(f"cut-{self.cuts:03d}-spared")
        self.at_each_cut.append(shutil.copytree(self._folder, spared))
        self.cuts += 1

    def close(self) -> None:
        for fd in self._pinned:
            os.close(fd)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    folder = tmp_path / "buffer"
    folder.mkdir()
    disk = Disk(folder, monkeypatch)
    yield disk
    disk.close()


@pytest.mark.parametrize("retention", ["FIFO", "TDE(1.0)", "Expl(0.7)"])
def test_a_power_cut_costs_at_most_what_was_not_on_disk_yet(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, retention: str
) -> None:
    # Small enough segments that each kind of write happens: first, appended, another segment, another generation.
    monkeypatch.setattr("onrig.runtime.replay.checkpoint.rows.MIN_SEGMENT_ROWS", 60)
    monkeypatch.setattr("onrig.runtime.replay.checkpoint.rows.MAX_SMALL_ARRAY_BYTES", 100)
    fed = Fed(retention, 50, per_step=15)
    writer = CheckpointWriter(tmp_path / "buffer", fed.identity)
    digests = {0: fed.storage.digest()}
    bounds: list[tuple[int, int]] = []
    for _ in range(14):
        sure, first = writer.durable_number, disk.cuts
        fed.resume()
        digests[fed.steps] = fed.storage.digest()
        fed.write(writer)
        bounds += [(sure, fed.steps)] * (disk.cuts - first)
    writer.close()
    assert max(path.name for path in (tmp_path / "buffer").glob("rows-*")) > "rows-00000002.seg"
    for folder in disk.at_each_cut:
        least, most = bounds[int(folder.name.split("-")[1])]
        other = Fed(retention, 50, per_step=15)
        restored = restore(folder, other, other.identity)
        steps = restored.extra["steps"] if restored is not None else 0
        assert least <= steps <= most
        if restored is not None:
            assert restored.damaged == ()
        assert other.storage.digest() == digests[steps]
