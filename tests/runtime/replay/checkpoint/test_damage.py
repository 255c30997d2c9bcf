"""Damaged files are detected, and the previous checkpoint is used."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.replay.checkpoint import CheckpointError, CheckpointWriter, restore
from tests.runtime.replay.checkpoint.streams import FedMemory, assert_same

CAPACITY = 600
RETENTIONS = ("FIFO", "TDE(1.0)")
STEPS = (2, 30, 31)
"""Steps at the first, second and last checkpoint."""

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def files_by_retention(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    """The files of a folder, by retention."""
    folders = {}
    for retention in RETENTIONS:
        folder = tmp_path_factory.mktemp("written")
        memory = FedMemory(retention, CAPACITY)
        writer = CheckpointWriter(folder, memory.identity)
        for steps in STEPS:
            memory.resume(steps - memory.steps)
            memory.write(writer)
        writer.close()
        folders[retention] = {path.name: path.read_bytes() for path in folder.iterdir()}
    return folders


def write_files(folder: Path, files: Files) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def restored_outcome(folder: Path, retention: str) -> int | str:
    """Step of the restored checkpoint, after checking that it was restored exactly; or the reason why there is none."""
    memory = FedMemory(retention, CAPACITY)
    try:
        restored = restore(folder, memory, memory.identity)
    except CheckpointError as error:
        restored, message = None, str(error)
    if restored is None:
        assert memory.storage.inserted == 0
        assert "\n" not in message
        return message
    memory.continue_from(restored)
    uninterrupted = FedMemory(retention, CAPACITY)
    uninterrupted.resume(memory.steps)
    steps = memory.steps
    assert_same(memory, uninterrupted, 60)
    return steps


def newest_name(files: Files, kind: str) -> str:
    return max(name for name in files if name.startswith(kind))


@pytest.mark.parametrize("retention", RETENTIONS)
def test_two_checkpoints_are_kept_and_the_newest_is_restored(
    tmp_path: Path, files_by_retention: dict[str, Files], retention: str
) -> None:
    write_files(tmp_path / "f", files_by_retention[retention])
    assert len(list((tmp_path / "f").glob("manifest-*"))) == 2
    assert restored_outcome(tmp_path / "f", retention) == STEPS[2]


@pytest.mark.parametrize("retention", RETENTIONS)
def test_if_the_newest_manifest_is_truncated_anywhere_the_previous_checkpoint_is_restored(
    tmp_path: Path, files_by_retention: dict[str, Files], retention: str
) -> None:
    files = files_by_retention[retention]
    name = newest_name(files, "manifest")
    write_files(tmp_path / "f", files)
    for length in range(len(files[name])):
        (tmp_path / "f" / name).write_bytes(files[name][:length])
        memory = FedMemory(retention, CAPACITY)
        restored = restore(tmp_path / "f", memory, memory.identity)
        assert restored is not None
        assert restored.extra["steps"] == STEPS[1]
        assert len(restored.damaged) == 1
        assert name in restored.damaged[0]
    assert restored_outcome(tmp_path / "f", retention) == STEPS[1]


@settings(max_examples=60)
@given(data=st.data())
def test_a_segment_truncated_anywhere_gives_a_complete_checkpoint_or_none(
    tmp_path: Path, files_by_retention: dict[str, Files], data: st.DataObject
) -> None:
    retention = data.draw(st.sampled_from(RETENTIONS))
    files = files_by_retention[retention]
    name = newest_name(files, data.draw(st.sampled_from(["rows"] if retention == "FIFO" else ["rows", "order"])))
    length = data.draw(st.integers(0, len(files[name])))
    write_files(tmp_path / "f", {**files, name: files[name][:length]})
    result = restored_outcome(tmp_path / "f", retention)
    assert result in STEPS[1:] or (isinstance(result, str) and name in result)
    assert (result == STEPS[2]) == (length == len(files[name]))


def test_each_length_of_a_segment_gives_the_newest_complete_checkpoint_in_it(
    tmp_path: Path, files_by_retention: dict[str, Files]
) -> None:
    files = files_by_retention["FIFO"]
    name = newest_name(files, "rows")
    block = 24 + 20 * (12 + 40)  # the last checkpoint's: one step
    full_length = len(files[name])
    for length, expected in ((full_length, STEPS[2]), (full_length - 1, STEPS[1]), (full_length - block, STEPS[1])):
        write_files(tmp_path / "f", {**files, name: files[name][:length]})
        assert restored_outcome(tmp_path / "f", "FIFO") == expected
    write_files(tmp_path / "f", {**files, name: files[name][: full_length - block - 1]})
    message = restored_outcome(tmp_path / "f", "FIFO")
    assert isinstance(message, str)
    assert message.count(f"{name}: truncated") == 2
    assert "move the folder away" in message


@settings(max_examples=150)
@given(data=st.data())
def test_a_flipped_bit_is_always_detected(
    tmp_path: Path, files_by_retention: dict[str, Files], data: st.DataObject
) -> None:
    retention = data.draw(st.sampled_from(RETENTIONS))
    files = files_by_retention[retention]
    name = data.draw(st.sampled_from(sorted(files)))
    position = data.draw(st.integers(0, len(files[name]) - 1))
    flipped = bytearray(files[name])
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))
    write_files(tmp_path / "f", {**files, name: bytes(flipped)})
    result = restored_outcome(tmp_path / "f", retention)
    newest_manifest = newest_name(files, "manifest")
    if name == newest_manifest:
        assert result == STEPS[1]
    elif name.startswith("manifest"):
        assert result == STEPS[2]
    else:
        # Data appended by the last checkpoint are not part of the previous one.
        assert result == STEPS[1] or (isinstance(result, str) and f"{name}: " in result)


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_missing_file_is_named(tmp_path: Path, files_by_retention: dict[str, Files], retention: str) -> None:
    for name in files_by_retention[retention]:
        write_files(tmp_path / "f", {k: v for k, v in files_by_retention[retention].items() if k != name})
        result = restored_outcome(tmp_path / "f", retention)
        if name.startswith("manifest"):
            assert result == STEPS[1 if name == newest_name(files_by_retention[retention], "manifest") else 2]
        else:
            assert isinstance(result, str)
            assert f"{name}: No such file" in result


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.EIO], ids=errno.errorcode.get)
def test_a_file_that_cannot_be_opened_now_is_not_damaged(
    tmp_path: Path, files_by_retention: dict[str, Files], monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Falling back to the previous checkpoint, or to none, would discard what the next attempt can read."""
    write_files(tmp_path / "f", files_by_retention["FIFO"])
    original_open = os.open

    def fail_on_target(path: Any, *arguments: Any, **kwargs: Any) -> int:
        if str(path).endswith(".seg"):
            raise OSError(error, os.strerror(error), str(path))
        return original_open(path, *arguments, **kwargs)

    monkeypatch.setattr(os, "open", fail_on_target)
    with pytest.raises(OSError, match=re.escape(os.strerror(error))):
        restored_outcome(tmp_path / "f", "FIFO")
    monkeypatch.undo()
    assert restored_outcome(tmp_path / "f", "FIFO") == STEPS[2]


def test_a_segment_of_another_run_is_not_mistaken_for_this_one(
    tmp_path: Path, files_by_retention: dict[str, Files]
) -> None:
    files = files_by_retention["FIFO"]
    name = newest_name(files, "rows")
    other = FedMemory("FIFO", CAPACITY)
    other.steps = 1000
    writer = CheckpointWriter(tmp_path / "other", other.identity)
    for steps in (STEPS[0], STEPS[1] - STEPS[0], STEPS[2] - STEPS[1]):
        other.resume(steps)
        other.write(writer)
    writer.close()
    other_content = (tmp_path / "other" / name).read_bytes()
    assert len(other_content) == len(files[name])
    write_files(tmp_path / "f", {**files, name: other_content})
    result = restored_outcome(tmp_path / "f", "FIFO")
    assert isinstance(result, str)
    assert f"{name}: its content differs from its manifest" in result


def test_a_renamed_manifest_is_detected(tmp_path: Path, files_by_retention: dict[str, Files]) -> None:
    files = files_by_retention["FIFO"]
    write_files(tmp_path / "f", {**files, "manifest-00000009.json": files[newest_name(files, "manifest")]})
    memory = FedMemory("FIFO", CAPACITY)
    restored = restore(tmp_path / "f", memory, memory.identity)
    assert restored is not None
    assert restored.manifest.number == 3
    assert "manifest-00000009.json: its number differs from its name" in restored.damaged[0]


@pytest.mark.parametrize("retention", RETENTIONS)
def test_after_falling_back_writing_continues_and_removes_what_was_damaged(
    tmp_path: Path, files_by_retention: dict[str, Files], retention: str
) -> None:
    files = files_by_retention[retention]
    damaged_name = newest_name(files, "manifest")
    write_files(tmp_path / "f", {**files, damaged_name: files[damaged_name][:50]})
    memory = FedMemory(retention, CAPACITY)
    restored = restore(tmp_path / "f", memory, memory.identity)
    assert restored is not None
    memory.continue_from(restored)
    writer = CheckpointWriter(tmp_path / "f", memory.identity, restored)
    assert writer.durable_number == 2
    memory.resume()
    memory.write(writer)
    assert writer.durable_number == 4
    assert sorted(path.name for path in (tmp_path / "f").glob("manifest-*")) == [
        "manifest-00000002.json",
        "manifest-00000004.json",
    ]
    assert restored_outcome(tmp_path / "f", retention) == STEPS[1] + 1
    memory.resume()
    memory.write(writer)
    writer.close()
    assert restored_outcome(tmp_path / "f", retention) == STEPS[1] + 2
