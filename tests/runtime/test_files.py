"""Files named on a command line."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.files import (
    LineTail,
    open_file,
    read_fields,
    read_file,
    replace_file,
    replace_own_file,
)


def test_a_file_is_written_completely_and_nothing_is_left_next_to_it(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    replace_file(path, b"1")
    path.chmod(0o600)
    replace_file(path, b"22")
    assert path.read_bytes() == b"22"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_predictable_name_is_not_written_through(tmp_path: Path) -> None:
    """As was possible while the temporary name contained the id of this process."""
    (tmp_path / "precious").write_text("precious")
    for name in (f"link.{os.getpid()}", "link.tmp", ".link.tmp"):
        (tmp_path / name).symlink_to(tmp_path / "precious")
    replace_file(tmp_path / "link", b"/dev/pts/1\n")
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b"\xff", b"3"])
def test_anything_but_a_json_object_has_no_fields(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    if content is not None:
        path.write_bytes(content)
    assert read_fields(path) == {}


def test_fields_are_read(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"episodes": 3, "fault": null}')
    assert read_fields(tmp_path / "summary.json") == {"episodes": 3, "fault": None}


def test_ones_own_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    replace_file(tmp_path / "link", b"1")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes links that belong to others")
def test_a_link_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.lchown(tmp_path / "link", 54_321, 54_321)
    with pytest.raises(PermissionError, match="a link owned by another user"):
        replace_file(tmp_path / "link", b"1")
    assert not (tmp_path / "file").exists()


def test_a_device_file_is_written_to_in_place() -> None:
    replace_file(Path("/dev/null"), b"1")
    assert Path("/dev/null").is_char_device()


def test_a_fifo_without_a_reader_is_an_error_and_one_with_a_reader_gets_the_data(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="No such device or address"):
        replace_file(tmp_path / "fifo", b"1")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        replace_file(tmp_path / "fifo", b"12")
        assert os.read(reader, 10) == b"12"
    finally:
        os.close(reader)


def test_in_a_missing_folder_nothing_is_created(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        replace_file(tmp_path / "nowhere" / "file", b"1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("durable", [False, True])
def test_a_full_disk_leaves_the_existing_file_unchanged_and_nothing_next_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    path = tmp_path / "summary.json"
    replace_own_file(path, b"old", durable=durable)

    def raise_no_space(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", raise_no_space)
    with pytest.raises(OSError, match="No space left"):
        replace_own_file(path, b"new", durable=durable)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("summary.json", b"old")]


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    tail = LineTail(tmp_path / "later")
    assert tail.lines() == []
    (tmp_path / "later").write_bytes(b"a\nb\nhal")
    assert tail.lines() == [b"a", b"b"]
    assert tail.lines() == []


@settings(max_examples=30)
@given(chunks=st.lists(st.binary(max_size=12), max_size=8))
def test_lines_are_returned_complete_once_and_in_order_however_they_are_written(
    tmp_path: Path, chunks: list[bytes]
) -> None:
    path = tmp_path / "growing"
    path.write_bytes(b"")
    tail = LineTail(path)
    lines: list[bytes] = []
    for chunk in chunks:
        with path.open("ab") as file:
            file.write(chunk)
        lines += tail.lines()
    assert lines == b"".join(chunks).split(b"\n")[:-1]


def test_a_restarted_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\n")
    tail = LineTail(path)
    tail.lines()
    path.write_bytes(b"new\n")
    assert tail.lines() == [b"new"]


def test_a_fragment_that_its_writer_removed_is_dropped_and_nothing_is_returned_twice(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntw")
    tail = LineTail(path)
    assert tail.lines() == [b"one"]
    path.write_bytes(b"one\n")
    assert tail.lines() == []
    path.write_bytes(b"one\nthree\n")
    assert tail.lines() == [b"three"]


def test_existing_contents_are_not_returned_again(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(b"before\n")
    tail = LineTail(path, from_end=True)
    with path.open("ab") as file:
        file.write(b"after\n")
    assert tail.lines() == [b"after"]


def test_an_endless_line_is_abandoned(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (1 << 20) + b"y")
    tail = LineTail(path)
    while tail.lines() or tail._partial_line:
        pass
    with path.open("ab") as file:
        file.write(b"\nnext\n")
    assert tail.lines() == [b"", b"next"]


def test_a_backlog_is_read_in_portions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\n")
    tail = LineTail(path, read_bytes=5)
    assert [tail.lines(), tail.lines(), tail.lines()] == [[b"one"], [b"two"], []]


def test_a_regular_file_is_read_up_to_its_limit_and_a_link_to_one_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes") as error:
        read_file(tmp_path / "file", 4)
    assert error.value.filename == str(tmp_path / "file")
    with open_file(tmp_path / "file", None) as file:
        assert file.read() == b"12345"


def test_a_sparse_file_of_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="larger than 1 MiB"):
        read_file(tmp_path / "file", 1 << 20)


def test_other_kinds_of_files_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        for path, kind in (
            (tmp_path / "fifo", "a FIFO"),
            (tmp_path / "folder", "a directory"),
            (tmp_path / "s", "a socket"),
            (Path("/dev/zero"), "a device"),
        ):
            with pytest.raises(OSError, match=f"{kind}, not a regular file"):
                open_file(path, None)


_ALLOWED_OPENERS: Final = {
    "hw/can_bus.py": "a bus, not a file",
    "hw/conformance/page.py": "our own page",
    "hw/native/build.py": "libraries that it has just built",
    "hw/native/library.py": "/proc",
    "runtime/control/realtime.py": "/dev/cpu_dma_latency and /proc",
    "runtime/files.py": "the one way itself, and files that are written",
    "runtime/log/staged_file.py": "a file that it makes",
    "runtime/registry.py": "metadata of installed packages",
    "runtime/run_state/episodes.py": "a file that it appends to, in a folder that was checked",
    "runtime/run_state/events.py": "as above",
    "runtime/run_state/policy_index.py": "as above",
    "runtime/run_state/running.py": "our own shared memory",
    "runtime/supervise/child.py": "a file that it appends to, in a folder that was checked",
    "runtime/supervise/run_folder.py": "as above; /sys",
    "runtime/replay/growth.py": "/proc",
    "runtime/shm/segment.py": "our own shared memory; /proc",
    "sim/baselines/reference_scores.py": "our own sources",
    "tools/bench": "a laboratory's own files",
    "tools/device_process.py": "the log of its own process",
    "tools/cli.py": "/dev/null",
    "tools/exporting/table_formats.py": "a file that it makes",
    "tools/experiments/store.py": "a file that it makes",
    "tools/machine.py": "/proc and /sys",
    "tools/policy_renewal.py": "a file that it makes",
    "tools/ports.py": "/proc",
    "tools/reports/experiment.py": "plots that it has just drawn",
    "tools/reports/style.py": "our own page",
    "tools/first_rig.py": "shipped configurations",
    "tools/identification/sharpening.py": "files that it appends to, in a folder that was checked",
    "tools/web/live_view.py": "a file that it appends to, in a folder that was checked",
    "tools/web/server.py": "our own page",
}
_OPEN_CALL: Final = re.compile(r"(?<!def )(?<![\w.])open\(|\w\.open\(\"|\)\.open\(|path\.open\(|\.read_(bytes|text)\(")


def test_only_the_listed_modules_open_files_themselves() -> None:
    """A file named by a user or a third-party folder is opened by `open_file`; the others are listed above."""
    root = Path(__file__).parents[2]
    files = [f for package in ("runtime", "hw", "sim", "learner", "tools") for f in (root / package).rglob("*.py")]
    opening_files = {str(f.relative_to(root)) for f in files if _OPEN_CALL.search(f.read_text())}
    allowed_by_file = {
        name: [allowed for allowed in _ALLOWED_OPENERS if Path(name).is_relative_to(allowed)] for name in opening_files
    }
    assert [name for name, allowed in allowed_by_file.items() if not allowed] == []
    assert set(_ALLOWED_OPENERS) - {allowed[0] for allowed in allowed_by_file.values()} == set()


def test_an_impossible_file_name_is_an_ordinary_error() -> None:
    with pytest.raises(OSError, match="a name with a NUL byte"):
        read_file(Path("a\0b"), 1)


def test_a_fifo_in_place_of_a_file_gives_no_fields_and_no_lines(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert read_fields(tmp_path / "fifo") == {}
    assert LineTail(tmp_path / "fifo").lines() == []
