"""The checkpoint writer on a slow or full disk."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from onrig.runtime.replay.checkpoint import CheckpointError, CheckpointWriter, restore
from tests.runtime.replay.checkpoint.streams import FedMemory, assert_same


def test_a_slow_disk_is_not_waited_for_and_the_next_checkpoint_includes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = threading.Event()
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: ready.wait() and sync(fd))
    memory = FedMemory("TDE(1.0)", 600)
    writer = CheckpointWriter(tmp_path, memory.identity)
    memory.resume()
    assert writer.write(memory, {"steps": 1})
    memory.resume()
    assert not writer.write(memory, {"steps": 2})
    assert writer.durable_number == 0
    ready.set()
    writer.wait()
    assert writer.durable_number == 1
    memory.resume()
    memory.write(writer)
    writer.close()
    other = FedMemory("TDE(1.0)", 600)
    assert_same(memory, other.continue_from(restore(tmp_path, other, other.identity)))


@pytest.mark.parametrize("function_name", ["fdatasync", "write", "ftruncate", "fsync", "open"])
def test_a_failed_write_is_reported_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function_name: str
) -> None:
    memory = FedMemory("TDE(1.0)", 600)
    writer = CheckpointWriter(tmp_path, memory.identity)
    memory.resume()
    memory.write(writer)
    original = getattr(os, function_name)
    left = 3

    def fail_once(*arguments: object, **kwargs: object) -> object:
        nonlocal left
        if left:
            left -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments, **kwargs)

    monkeypatch.setattr(os, function_name, fail_once)
    memory.resume()
    assert writer.write(memory, {"steps": memory.steps})
    for _ in range(3):
        with pytest.raises(CheckpointError, match=r"No space left.* last checkpoint is number 1") as error:
            writer.wait()
        assert "\n" not in str(error.value)
    writer.wait()
    assert (left, writer.durable_number) == (0, 2)
    memory.resume()
    memory.write(writer)
    writer.close()
    other = FedMemory("TDE(1.0)", 600)
    restored = restore(tmp_path, other, other.identity)
    assert restored is not None
    assert restored.damaged == ()
    assert_same(memory, other.continue_from(restored))


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = FedMemory("FIFO", 600)
    writer = CheckpointWriter(tmp_path, memory.identity)
    original = os.write
    left = 2

    def write_half(fd: int, data: bytes | memoryview) -> int:
        nonlocal left
        if left == 0:
            return original(fd, data)
        left -= 1
        if left:
            return original(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write_half)
    memory.resume()
    assert writer.write(memory, {"steps": memory.steps})
    with pytest.raises(CheckpointError):
        writer.wait()
    writer.wait()
    writer.close()
    other = FedMemory("FIFO", 600)
    assert_same(memory, other.continue_from(restore(tmp_path, other, other.identity)))


def test_files_that_do_not_belong_to_a_checkpoint_are_left_unchanged(tmp_path: Path) -> None:
    notes = tmp_path / "notes-1.txt"
    notes.write_text("mine")
    for name in ("rows-00000009.seg", "manifest.tmp"):  # left by a process that was killed before its first checkpoint
        (tmp_path / name).write_bytes(b"cut")
    memory = FedMemory("FIFO", 7)
    writer = CheckpointWriter(tmp_path, memory.identity)
    memory.resume()
    memory.write(writer)
    writer.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["manifest-00000001.json", notes.name, "rows-00000010.seg"]
