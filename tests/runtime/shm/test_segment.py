from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.shm import segment
from onrig.runtime.shm.segment import (
    HEADER_BYTES,
    Segment,
    SegmentError,
    SegmentMissing,
    create_folder,
    remove_folder,
    sweep_folders,
)

HEADER = struct.Struct("<8sII16sQ")


def test_both_ends_see_the_same_bytes(tmp_path: Path) -> None:
    owner = Segment.create(tmp_path / "s", 100, "schema")
    attached = Segment.attach(tmp_path / "s", "schema")
    assert bytes(attached.body) == bytes(100)
    owner.body[7] = 1
    attached.body[99] = 2
    assert (attached.body[7], owner.body[99], len(attached.body)) == (1, 2, 100)
    attached.close()
    assert owner.body[99] == 2, "closing an attached end removes nothing"
    owner.close()
    assert (tmp_path / "s").exists(), "closing does not remove the file"


def test_a_missing_segment_is_distinguished_from_one_with_another_layout(tmp_path: Path) -> None:
    with pytest.raises(SegmentMissing):
        Segment.attach(tmp_path / "s", "schema")
    Segment.create(tmp_path / "s", 8, "schema").close()
    with pytest.raises(SegmentError, match="another schema") as error:
        Segment.attach(tmp_path / "s", "other")
    assert not isinstance(error.value, SegmentMissing)


def test_only_its_owner_may_open_it(tmp_path: Path) -> None:
    Segment.create(tmp_path / "s", 8, "schema").close()
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


def test_its_memory_is_allocated_from_the_start(tmp_path: Path) -> None:
    """A sparse file would cause SIGBUS during a run if the memory turns out to be missing."""
    Segment.create(tmp_path / "s", 1 << 20, "schema").close()
    assert (tmp_path / "s").stat().st_blocks * 512 >= 1 << 20


def test_an_existing_file_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        Segment.create(tmp_path / "s", 8, "schema")
    assert (tmp_path / "s").read_bytes() == b"precious"


def _write_damaged(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "s"
    Segment.create(path, 32, "schema").close()
    raw = bytearray(path.read_bytes())
    header = dict(zip(("magic", "version", "pid", "digest", "size"), HEADER.unpack_from(raw), strict=True))
    HEADER.pack_into(raw, 0, *(header | {k: v for k, v in changes.items() if k in header}).values())
    length = changes.get("length", len(raw))
    assert isinstance(length, int)
    path.write_bytes(bytes(raw[:length]).ljust(length, b"\0"))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"magic": b"SOMETHIN"}, "not an Onrig segment"),
        ({"version": 2}, "not an Onrig segment of version 1"),
        ({"digest": bytes(16)}, "another schema"),
        ({"size": 33}, "96 bytes instead of 97"),
        ({"length": HEADER_BYTES + 31}, "95 bytes instead of 96"),
        ({"length": HEADER_BYTES + 33}, "97 bytes instead of 96"),
        ({"length": HEADER_BYTES - 1}, "too short"),
        ({"length": 0}, "too short for a segment \\(0 bytes\\)"),
    ],
)
def test_foreign_or_incomplete_files_are_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = _write_damaged(tmp_path, **changes)
    with pytest.raises(SegmentError, match=message) as error:
        Segment.attach(path, "schema")
    assert str(path) in str(error.value)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    Segment.create(tmp_path / "s", 8, "records of two sensors").close()
    with pytest.raises(SegmentError, match="another schema"):
        Segment.attach(tmp_path / "s", "records of three sensors")


def test_a_missing_file_or_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SegmentError, match="No such file"):
        Segment.attach(tmp_path / "s", "schema")
    with pytest.raises(SegmentError, match="Is a directory"):
        Segment.attach(tmp_path, "schema")


@settings(max_examples=40)
@given(st.binary(max_size=200), st.booleans())
def test_no_content_makes_attaching_raise_anything_else(tmp_path: Path, content: bytes, is_own_header: bool) -> None:
    path = tmp_path / "fuzz"
    path.write_bytes((b"ONRIGSHM\x01\0\0\0" if is_own_header else b"") + content)
    with pytest.raises(SegmentError):
        Segment.attach(path, "schema")


@pytest.fixture
def runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(segment, "_base_folder", lambda: tmp_path)
    return tmp_path


def test_the_folder_of_a_live_run_is_private_and_survives_a_sweep(runs_folder: Path) -> None:
    folder = create_folder()
    assert folder.parent == runs_folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sweep_folders() == []
    assert folder.is_dir()
    remove_folder(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    "owner",
    [f"{1 << 30}-123", f"{os.getpid()}-1"],
    ids=["no such process", "a process that got the number of a dead one"],
)
def test_the_folder_of_a_dead_run_is_swept_with_its_contents(runs_folder: Path, owner: str) -> None:
    live_folder, stale_folder = create_folder(), runs_folder / f"onrig-{owner}-abc"
    stale_folder.mkdir()
    (stale_folder / "ring").write_bytes(b"x")
    assert sweep_folders() == [stale_folder]
    assert not stale_folder.exists()
    assert live_folder.exists()


@pytest.mark.parametrize("name", ["onrig-notes", "onrig-a-b-c", "onrig-12", f"other-{1 << 30}-1-x"])
def test_folders_not_made_by_a_run_are_not_swept(runs_folder: Path, name: str) -> None:
    (runs_folder / name).mkdir()
    assert sweep_folders() == []
    assert (runs_folder / name).is_dir()


def test_without_start_times_a_live_run_is_not_swept(runs_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_boot_ticks", lambda pid: None)
    folder = create_folder()
    assert sweep_folders() == []
    assert folder.is_dir()


def test_a_run_in_another_pid_namespace_is_not_swept(runs_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = create_folder()
    monkeypatch.setattr(segment, "_boot_ticks", lambda pid: None)  # its pid is unknown here
    assert sweep_folders() == []
    assert folder.is_dir()
    remove_folder(folder)
    assert not folder.exists()
