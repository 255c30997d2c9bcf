"""Checksums of a run's files, and the index of its policies."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onrig.runtime.run_state.checksums import (
    EMPTY_CHECKSUM,
    FileChecksum,
    RunningChecksums,
    difference,
    extent_of,
    measure,
    read_list,
    write_list,
)
from onrig.runtime.run_state.policy_index import PolicyIndex, read_index, truncate_index


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_a_checksum_continues_where_it_left_off(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("file") / "file"
    extent = EMPTY_CHECKSUM
    for n, _ in enumerate(pieces):
        path.write_bytes(b"".join(pieces[: n + 1]))
        extent = measure(path, extent)
        assert extent == extent_of(b"".join(pieces[: n + 1]))
        assert difference(path, extent) is None


@pytest.mark.parametrize(
    ("content", "may_grow", "message"),
    [
        (b"0123456789", False, None),
        (b"0123456789more", True, None),
        (b"0123456789more", False, "has 4 bytes more than the run wrote"),
        (b"0123", True, "is truncated to 4 of 10 bytes"),
        (b"0123456798", True, "differs from what the run wrote: its checksum has changed"),
        (None, True, "is missing"),
    ],
)
def test_a_file_is_compared_with_its_recorded_state(
    tmp_path: Path, content: bytes | None, may_grow: bool, message: str
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    assert difference(path, extent_of(b"0123456789"), may_be_longer=may_grow) == message


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    assert difference(tmp_path, EMPTY_CHECKSUM) == "is not a regular file"


def test_in_a_file_of_lines_complete_ones_count_and_what_was_written_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    checksums = RunningChecksums(tmp_path, {"log.mcap": FileChecksum(7, 7)})
    for content, complete_lines in ((b"{}\n{", b"{}\n"), (b"{}\n{}\n", b"{}\n{}\n")):
        path.write_bytes(content)
        assert checksums.advance(["events.jsonl", "log.mcap"]) == {
            "events.jsonl": extent_of(complete_lines),
            "log.mcap": FileChecksum(7, 7),
        }
    path.unlink()
    assert checksums.advance(["events.jsonl"])["events.jsonl"] == extent_of(b"{}\n{}\n")


def test_the_list_itself_is_checked(tmp_path: Path) -> None:
    assert read_list(tmp_path).problem == "is missing"
    write_list(tmp_path, {"a": FileChecksum(3, 9), "summary.json": EMPTY_CHECKSUM}, ["log.mcap", "log.mcap"])
    file_list = read_list(tmp_path)
    assert (dict(file_list.files), file_list.damaged) == (
        {"a": FileChecksum(3, 9), "summary.json": EMPTY_CHECKSUM},
        ("log.mcap",),
    )
    assert file_list.is_final
    path = tmp_path / "checksums.json"
    content = path.read_bytes()
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 0x01
        path.write_bytes(flipped)
        assert read_list(tmp_path).problem or read_list(tmp_path) == file_list  # a blank
    path.write_bytes(content[:-20])
    assert read_list(tmp_path).problem == "cannot be read"


def test_the_index_is_truncated_after_its_last_complete_line_or_where_a_checkpoint_left_it(tmp_path: Path) -> None:
    index, path = PolicyIndex(tmp_path), tmp_path / "index.csv"
    for policy_id in (1, 2):
        index.add(policy_id, b"model %d" % policy_id)
    index.add(2, b"model 2")
    both_lines, first_length = path.read_bytes(), len(path.read_bytes()) - len(b"2,7,00000000\n")
    assert both_lines.count(b"\n") == 3, "what is listed already is not listed again"
    assert read_index(path, first_length).keys() == {1}
    path.write_bytes(both_lines + b"3,7,12")
    assert read_index(path) == PolicyIndex(tmp_path)._entries == {n: extent_of(b"model %d" % n) for n in (1, 2)}
    truncate_index(tmp_path, None)
    assert path.read_bytes() == both_lines
    truncate_index(tmp_path, first_length)
    assert path.read_bytes() == both_lines[:first_length]
    PolicyIndex(tmp_path).add(2, b"another 2")
    assert read_index(path)[2] == extent_of(b"another 2")
