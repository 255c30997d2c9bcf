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
from tests.runtime.replay.checkpoint.streams import Fed, same

CAPACITY = 600
RETENTIONS = ("FIFO", "TDE(1.0)")
STEPS = (2, 30, 31)
"""Steps behind the checkpoints before last, last but one, and last."""

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Files]:
    """The files of a folder, by retention."""
    folders = {}
    for retention in RETENTIONS:
        folder = tmp_path_factory.mktemp("written")
        fed = Fed(retention, CAPACITY)
        writer = CheckpointWriter(folder, fed.identity)
        for steps in STEPS:
            fed.resume(steps - fed.steps)
            fed.write(writer)
        writer.close()
        folders[retention] = {path.name: path.read_bytes() for path in folder.iterdir()}
    return folders


def put(folder: Path, files: Files) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def outcome(folder: Path, retention: str) -> int | str:
    """Steps of the checkpoint that is restored, after it was checked to be just that; or why there is none."""
    fed = Fed(retention, CAPACITY)
    try:
        restored = restore(folder, fed, fed.identity)
    except CheckpointError as error:
        restored, message = None, str(error)
    if restored is None:
        assert fed.storage.inserted == 0
        assert "\n" not in message
        return message
    fed.taken_up(restored)
    through = Fed(retention, CAPACITY)
    through.resume(fed.steps)
    steps = fed.steps
    same(fed, through, 60)
    return steps


def newest(files: Files, kind: str) -> str:
    return max(name for name in files if name.startswith(kind))


@pytest.mark.parametrize("retention", RETENTIONS)
def test_two_checkpoints_are_there_and_the_newest_is_taken(
    tmp_path: Path, written: dict[str, Files], retention: str
) -> None:
    put(tmp_path / "f", written[retention])
    assert len(list((tmp_path / "f").glob("manifest-*"))) == 2
    assert outcome(tmp_path / "f", retention) == STEPS[2]


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_newest_manifest_cut_anywhere_gives_the_checkpoint_before(
    tmp_path: Path, written: dict[str, Files], retention: str
) -> None:
    files = written[retention]
    name = newest(files, "manifest")
    put(tmp_path / "f", files)
    for length in range(len(files[name])):
        (tmp_path / "f" / name).write_bytes(files[name][:length])
        fed = Fed(retention, CAPACITY)
        restored = restore(tmp_path / "f", fed, fed.identity)
        assert restored is not None
        assert restored.extra["steps"] == STEPS[1]
        assert len(restored.damaged) == 1
        assert name in restored.damaged[0]
    assert outcome(tmp_path / "f", retention) == STEPS[1]


@settings(max_examples=60)
@given(data=st.data())
def test_a_segment_cut_anywhere_gives_a_whole_checkpoint_or_none(
    tmp_path: Path, written: dict[str, Files], data: st.DataObject
) -> None:
    retention = data.draw(st.sampled_from(RETENTIONS))
    files = written[retention]
    name = newest(files, data.draw(st.sampled_from(["rows"] if retention == "FIFO" else ["rows", "order"])))
    length = data.draw(st.integers(0, len(files[name])))
    put(tmp_path / "f", {**files, name: files[name][:length]})
    got = outcome(tmp_path / "f", retention)
    assert got in STEPS[1:] or (isinstance(got, str) and name in got)
    assert (got == STEPS[2]) == (length == len(files[name]))


def test_each_length_of_a_segment_gives_the_newest_checkpoint_it_holds_whole(
    tmp_path: Path, written: dict[str, Files]
) -> None:
    files = written["FIFO"]
    name = newest(files, "rows")
    block = 24 + 20 * (12 + 40)  # the last checkpoint's: one step
    whole = len(files[name])
    for length, expected in ((whole, STEPS[2]), (whole - 1, STEPS[1]), (whole - block, STEPS[1])):
        put(tmp_path / "f", {**files, name: files[name][:length]})
        assert outcome(tmp_path / "f", "FIFO") == expected
    put(tmp_path / "f", {**files, name: files[name][: whole - block - 1]})
    message = outcome(tmp_path / "f", "FIFO")
    assert isinstance(message, str)
    assert message.count(f"{name}: truncated") == 2
    assert "move the folder away" in message


@settings(max_examples=150)
@given(data=st.data())
def test_a_flipped_bit_is_never_believed(tmp_path: Path, written: dict[str, Files], data: st.DataObject) -> None:
    retention = data.draw(st.sampled_from(RETENTIONS))
    files = written[retention]
    name = data.draw(st.sampled_from(sorted(files)))
    at = data.draw(st.integers(0, len(files[name]) - 1))
    flipped = bytearray(files[name])
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    put(tmp_path / "f", {**files, name: bytes(flipped)})
    got = outcome(tmp_path / "f", retention)
    newest_manifest = newest(files, "manifest")
    if name == newest_manifest:
        assert got == STEPS[1]
    elif name.startswith("manifest"):
        assert got == STEPS[2]
    else:
        # What the last checkpoint appended is no part of the one before.
        assert got == STEPS[1] or (isinstance(got, str) and f"{name}: " in got)


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_missing_file_is_named(tmp_path: Path, written: dict[str, Files], retention: str) -> None:
    for name in written[retention]:
        put(tmp_path / "f", {k: v for k, v in written[retention].items() if k != name})
        got = outcome(tmp_path / "f", retention)
        if name.startswith("manifest"):
            assert got == STEPS[1 if name == newest(written[retention], "manifest") else 2]
        else:
            assert isinstance(got, str)
            assert f"{name}: No such file" in got


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.EIO], ids=errno.errorcode.get)
def test_a_file_that_the_machine_cannot_open_now_is_not_damaged(
    tmp_path: Path, written: dict[str, Files], monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Falling back to the previous checkpoint, or to none, would discard what the next try can read."""
    put(tmp_path / "f", written["FIFO"])
    opens = os.open

    def cannot(path: Any, *arguments: Any, **named: Any) -> int:
        if str(path).endswith(".seg"):
            raise OSError(error, os.strerror(error), str(path))
        return opens(path, *arguments, **named)

    monkeypatch.setattr(os, "open", cannot)
    with pytest.raises(OSError, match=re.escape(os.strerror(error))):
        outcome(tmp_path / "f", "FIFO")
    monkeypatch.undo()
    assert outcome(tmp_path / "f", "FIFO") == STEPS[2]


def test_a_segment_of_another_run_is_not_taken_for_this_one(tmp_path: Path, written: dict[str, Files]) -> None:
    files = written["FIFO"]
    name = newest(files, "rows")
    other = Fed("FIFO", CAPACITY)
    other.steps = 1000
    writer = CheckpointWriter(tmp_path / "other", other.identity)
    for steps in (STEPS[0], STEPS[1] - STEPS[0], STEPS[2] - STEPS[1]):
        other.resume(steps)
        other.write(writer)
    writer.close()
    strange = (tmp_path / "other" / name).read_bytes()
    assert len(strange) == len(files[name])
    put(tmp_path / "f", {**files, name: strange})
    got = outcome(tmp_path / "f", "FIFO")
    assert isinstance(got, str)
    assert f"{name}: its content differs from its manifest" in got


def test_a_renamed_manifest_is_noticed(tmp_path: Path, written: dict[str, Files]) -> None:
    files = written["FIFO"]
    put(tmp_path / "f", {**files, "manifest-00000009.json": files[newest(files, "manifest")]})
    fed = Fed("FIFO", CAPACITY)
    restored = restore(tmp_path / "f", fed, fed.identity)
    assert restored is not None
    assert restored.manifest.number == 3
    assert "manifest-00000009.json: its number differs from its name" in restored.damaged[0]


@pytest.mark.parametrize("retention", RETENTIONS)
def test_after_falling_back_writing_goes_on_and_clears_what_was_damaged(
    tmp_path: Path, written: dict[str, Files], retention: str
) -> None:
    files = written[retention]
    damaged = newest(files, "manifest")
    put(tmp_path / "f", {**files, damaged: files[damaged][:50]})
    fed = Fed(retention, CAPACITY)
    restored = restore(tmp_path / "f", fed, fed.identity)
    assert restored is not None
    fed.taken_up(restored)
    writer = CheckpointWriter(tmp_path / "f", fed.identity, restored)
    assert writer.durable_number == 2
    fed.resume()
    fed.write(writer)
    assert writer.durable_number == 4
    assert sorted(path.name for path in (tmp_path / "f").glob("manifest-*")) == [
        "manifest-00000002.json",
        "manifest-00000004.json",
    ]
    assert outcome(tmp_path / "f", retention) == STEPS[1] + 1
    fed.resume()
    fed.write(writer)
    writer.close()
    assert outcome(tmp_path / "f", retention) == STEPS[1] + 2
