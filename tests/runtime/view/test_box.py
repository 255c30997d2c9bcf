from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.view.box import Box, box_bytes


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6))
def test_a_reader_gets_the_newest_content_whole(contents: list[bytes]) -> None:
    room = memoryview(bytearray(box_bytes(40)))
    writer, reader = Box(room, 40), Box(room, 40)
    assert reader.take() is None
    for n, content in enumerate(contents, 1):
        writer.put(content)
        assert (reader.take(), reader.version) == (content, n)


@settings(deadline=None)
@given(st.integers(0, 7), st.integers(0, 255))
def test_a_content_that_is_half_written_is_not_believed(at: int, wrong: int) -> None:
    room = bytearray(box_bytes(8))
    box = Box(memoryview(room), 8)
    content = bytes(range(8))
    box.put(content)
    where = bytes(room).index(content)
    room[where + at] = wrong
    assert box.take() == (content if wrong == content[at] else None)


def test_what_is_too_large_is_refused_and_the_old_content_stays() -> None:
    box = Box(memoryview(bytearray(box_bytes(4))), 4)
    box.put(b"old")
    with pytest.raises(ValueError, match="5 bytes"):
        box.put(b"12345")
    assert box.take() == b"old"


def test_a_length_beyond_the_box_is_not_followed() -> None:
    room = bytearray(box_bytes(8))
    box = Box(memoryview(room), 8)
    box.put(b"x" * 8)
    start = bytes(room).index(b"x" * 8) - 16
    room[start : start + 8] = (1 << 40).to_bytes(8, "little")
    assert box.take() is None
