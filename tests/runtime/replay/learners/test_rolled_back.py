from __future__ import annotations

from pathlib import Path

import pytest

from onrig.runtime.replay.learners.rolled_back import FILE_NAME, Entry, RolledBack, digest_of

BAD, WORSE = digest_of(b"bad"), digest_of(b"worse")


def test_what_is_on_the_list_stays_on_it(tmp_path: Path) -> None:
    assert RolledBack(tmp_path).entry(BAD) is None
    RolledBack(tmp_path).add(3, BAD, "no number")
    RolledBack(tmp_path).add(9, WORSE, "slow")
    again = RolledBack(tmp_path)
    entries = [Entry(3, BAD.hex(), "no number"), Entry(9, WORSE.hex(), "slow")]
    assert (len(again), [again.entry(BAD), again.entry(WORSE)]) == (2, entries)
    assert (again.has(3), again.has(9), again.has(4)) == (True, True, False)
    assert [p.name for p in tmp_path.iterdir()] == [FILE_NAME]


def test_one_is_on_it_once(tmp_path: Path) -> None:
    list_ = RolledBack(tmp_path)
    list_.add(3, BAD, "no number")
    list_.add(3, BAD, "slow")
    assert len(RolledBack(tmp_path)) == 1


@pytest.mark.parametrize("content", [b"", b"[{", b"{}", b'[{"policy": "x"}]', b"\xff\xfe"])
def test_a_list_that_cannot_be_read_is_told_of_and_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    list_ = RolledBack(tmp_path)
    assert (len(list_), bool(list_.damaged)) == (0, True)
    list_.add(3, BAD, "no number")
    assert (len(RolledBack(tmp_path)), RolledBack(tmp_path).damaged) == (1, "")


def test_where_it_cannot_be_written_it_holds_for_this_process(tmp_path: Path) -> None:
    list_ = RolledBack(tmp_path / "gone")
    with pytest.raises(OSError, match="No such file"):
        list_.add(3, BAD, "no number")
    assert list_.entry(BAD) == Entry(3, BAD.hex(), "no number")
