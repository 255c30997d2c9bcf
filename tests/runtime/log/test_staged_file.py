"""A file that accepts each piece completely or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from onrig.runtime.log.staged_file import StagedFile, next_file


class FullDisk:
    """A file that accepts a number of bytes, and then none."""

    def __init__(self, file: object, room_bytes: int) -> None:
        self._file, self.room_bytes = file, room_bytes

    def write(self, data: memoryview) -> int:
        if not self.room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        n_written = self._file.write(data[: self.room_bytes])  # type: ignore[attr-defined]
        self.room_bytes -= n_written
        return int(n_written)

    def fileno(self) -> int:
        return int(self._file.fileno())  # type: ignore[attr-defined]

    def close(self) -> None:
        self._file.close()  # type: ignore[attr-defined]


def limit_disk(file: StagedFile, room_bytes: int) -> None:
    """Limit the room on the disk from now on."""
    file._file = FullDisk(file._file, room_bytes)  # type: ignore[assignment]


def test_nothing_is_written_before_the_commit(tmp_path: Path) -> None:
    file = StagedFile(tmp_path / "f")
    assert (file.write(b"abc"), file.tell(), file.staged_bytes, file.written_bytes) == (3, 3, 3, 0)
    file.flush()
    assert (tmp_path / "f").read_bytes() == b""
    file.put()
    assert ((tmp_path / "f").read_bytes(), file.tell(), file.staged_bytes, file.written_bytes) == (b"abc", 3, 0, 3)
    file.close()


@pytest.mark.parametrize("room_bytes", [0, 1, 3])
def test_a_partial_write_on_a_full_disk_is_undone(tmp_path: Path, room_bytes: int) -> None:
    file = StagedFile(tmp_path / "f")
    file.write(b"abc")
    file.put()
    limit_disk(file, room_bytes)
    file.write(b"defg")
    with pytest.raises(OSError, match="No space"):
        file.put()
    assert (tmp_path / "f").read_bytes() == b"abc"
    file.close()


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        StagedFile(tmp_path / "f")


def test_the_next_file_takes_no_name_already_in_use(tmp_path: Path) -> None:
    assert next_file(tmp_path).name == "log.mcap"
    assert next_file(tmp_path, ["log.mcap", "episodes.csv"]).name == "log-2.mcap"
    (tmp_path / "log-3.mcap").touch()
    assert next_file(tmp_path, ["log.mcap"]).name == "log-4.mcap"
