from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.latest import (
    LOOP_STATE_BYTES,
    MAX_POLICY_BYTES,
    SLOT_BYTES,
    SLOT_SCHEMA,
    Latest,
    PolicySlot,
    SlotPolicy,
    latest_bytes,
    loop_state_in,
)
from onrig.runtime.shm.segment import HEADER_BYTES, Segment

BUFFERS = (64, 64 + MAX_POLICY_BYTES + 16)
"""Offsets of the two buffers; the model starts 16 bytes later."""


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return Segment.create(tmp_path / "slot", SLOT_BYTES, SLOT_SCHEMA)


def test_an_empty_slot_returns_nothing(segment: Segment) -> None:
    slot = PolicySlot(segment)
    assert slot.version == 0
    assert slot.take() is None


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=64), st.booleans()), min_size=1, max_size=6))
def test_the_newest_policy_is_returned_as_often_as_requested(
    segment: Segment, policies: list[tuple[int, bytes, bool]]
) -> None:
    writer, reader = PolicySlot(segment), PolicySlot(segment)
    start = writer.version
    for n, (policy_id, model, native) in enumerate(policies, start + 1):
        writer.put(policy_id, model, is_native=native)
        assert reader.version == n
        assert reader.take() == reader.take() == reader.peek() == SlotPolicy(n, policy_id, model, native)
        assert reader.taken_id == policy_id


def test_the_largest_policy_fits_and_one_more_byte_is_refused(segment: Segment) -> None:
    slot = PolicySlot(segment)
    model = bytes(range(256)) * (MAX_POLICY_BYTES // 256)
    for policy_id in (1, 2):  # one in each buffer
        slot.put(policy_id, model)
    assert slot.take() == SlotPolicy(2, 2, model)
    with pytest.raises(ValueError, match="there is room for"):
        slot.put(3, model + b"x")
    assert slot.take() == SlotPolicy(2, 2, model), "a refusal changes nothing"


@pytest.mark.parametrize("offset", [0, 8, 12, 16, 22], ids=["id", "length", "seal", "first byte", "later byte"])
def test_a_torn_policy_is_not_returned(segment: Segment, offset: int) -> None:
    slot = PolicySlot(segment)
    slot.put(1, b"a policy of some length")
    segment.body[BUFFERS[1] + offset] ^= 1
    assert slot.take() is None


def test_an_absurd_length_is_not_followed(segment: Segment) -> None:
    slot = PolicySlot(segment)
    slot.put(1, b"policy")
    segment.body[BUFFERS[1] + 8 : BUFFERS[1] + 12] = b"\xff\xff\xff\xff"
    assert slot.take() is None


def test_a_writer_killed_half_way_leaves_the_previous_policy(segment: Segment) -> None:
    slot = PolicySlot(segment)
    slot.put(1, b"whole")
    segment.body[BUFFERS[0] : BUFFERS[0] + 80] = b"\xa5" * 80  # where the second one would have been written
    assert slot.take() == SlotPolicy(1, 1, b"whole")
    slot.put(2, b"its successor's")
    assert slot.take() == SlotPolicy(2, 2, b"its successor's")


@pytest.mark.parametrize("n_puts", [1, 2, 3])
def test_a_policy_overtaken_during_the_read_is_not_returned(
    segment: Segment, monkeypatch: pytest.MonkeyPatch, n_puts: int
) -> None:
    slot = PolicySlot(segment)
    slot.put(1, b"one")

    def put_and_crc32(data: bytes) -> int:
        monkeypatch.undo()
        for n in range(n_puts):
            slot.put(2 + n, b"another")
        return zlib.crc32(data)

    monkeypatch.setattr(zlib, "crc32", put_and_crc32)
    assert slot.take() is None
    assert slot.take() == SlotPolicy(1 + n_puts, 1 + n_puts, b"another")


def test_a_version_seen_before_its_policy_returns_nothing_and_is_read_again(segment: Segment) -> None:
    """As may be visible for a moment in a weakly ordered memory: the buffer still holds the policy before the last."""
    slot = PolicySlot(segment)
    slot.put(1, b"first")
    slot.put(2, b"second")
    segment.body[:8] = (3).to_bytes(8, "little")
    assert slot.take() is None
    segment.body[:8] = (2).to_bytes(8, "little")
    slot.put(3, b"third")
    assert slot.take() == SlotPolicy(3, 3, b"third")


def test_taking_a_policy_is_recorded_and_peeking_is_not(segment: Segment) -> None:
    writer, reader = PolicySlot(segment), PolicySlot(segment)
    assert reader.take() is None
    writer.put(7, b"seven")
    assert writer.peek() == SlotPolicy(1, 7, b"seven")
    assert writer.taken_id == 0
    assert reader.take() == SlotPolicy(1, 7, b"seven")
    writer.put(9, b"nine")
    assert (writer.taken_id, reader.taken_id) == (7, 7)


def test_the_record_is_written_before_the_policy_is_copied(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a writer that replaces it at this moment would consider it unused."""
    slot = PolicySlot(segment)
    slot.put(7, b"seven")
    taken_ids: list[int] = []
    monkeypatch.setattr(slot, "peek", lambda: taken_ids.append(slot.taken_id))
    slot.take()
    assert taken_ids == [7]


# -- any value


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6))
def test_a_reader_gets_the_newest_content_complete(contents: list[bytes]) -> None:
    buffer = memoryview(bytearray(latest_bytes(40)))
    writer, reader = Latest(buffer, 40), Latest(buffer, 40)
    assert reader.take() is None
    for n, content in enumerate(contents, 1):
        writer.put(content)
        assert (reader.take(), reader.version) == (content, n)


@given(st.integers(0, 7), st.integers(0, 255))
def test_half_written_content_is_not_accepted(offset: int, byte_value: int) -> None:
    buffer = bytearray(latest_bytes(8))
    latest = Latest(memoryview(buffer), 8)
    content = bytes(range(8))
    latest.put(content)
    start = bytes(buffer).index(content)
    buffer[start + offset] = byte_value
    assert latest.take() == (content if byte_value == content[offset] else None)


def test_oversize_content_is_refused_and_the_old_content_remains() -> None:
    latest = Latest(memoryview(bytearray(latest_bytes(4))), 4)
    latest.put(b"old")
    with pytest.raises(ValueError, match="5 bytes"):
        latest.put(b"12345")
    assert latest.take() == b"old"


def test_a_length_beyond_the_room_is_not_followed() -> None:
    buffer = bytearray(latest_bytes(8))
    latest = Latest(memoryview(buffer), 8)
    latest.put(b"x" * 8)
    start = bytes(buffer).index(b"x" * 8) - 8
    buffer[start : start + 4] = (1 << 31).to_bytes(4, "little")
    assert latest.take() is None


# -- the loop's state


@pytest.fixture
def board_segment(tmp_path: Path) -> Segment:
    return Segment.create(tmp_path / "board", BOARD_BYTES, BOARD_SCHEMA)


def test_the_last_message_is_returned_and_none_before_the_first(board_segment: Segment) -> None:
    state = loop_state_in(board_segment)
    assert state.take() is None
    for message in (b"one", b"", b"a longer one", b"four"):
        state.put(message)
        assert loop_state_in(board_segment).take() == message


def test_the_message_lies_behind_the_words_of_the_board(board_segment: Segment) -> None:
    board, state = Board(board_segment), loop_state_in(board_segment)
    state.put(b"\xff" * 10_000)
    state.put(b"\xff" * 10_000)
    assert [board[word] for word in Word] == [0] * len(Word)


def test_an_oversize_message_is_refused_and_the_last_message_remains(board_segment: Segment) -> None:
    state = loop_state_in(board_segment)
    state.put(b"good")
    with pytest.raises(ValueError, match="there is room for"):
        state.put(bytes(LOOP_STATE_BYTES))
    assert state.take() == b"good"


def test_a_reader_whose_two_buffers_both_change_retries(
    board_segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, reader = loop_state_in(board_segment), loop_state_in(board_segment)
    for message in (b"one", b"two"):
        loop.put(message)
    original_crc32 = zlib.crc32
    n_reads = 0

    def wrong_crc32(data: bytes, seed: int = 0) -> int:
        nonlocal n_reads
        n_reads += 1
        return original_crc32(data, seed) + (n_reads <= 4)  # as if the bytes differed from those checksummed

    monkeypatch.setattr("onrig.runtime.shm.latest.zlib.crc32", wrong_crc32)
    assert reader.take() == b"two"


@settings(max_examples=60)
@given(st.data())
def test_a_half_written_message_leaves_the_previous_one(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("shm") / "board"
    board_segment = Segment.create(path, BOARD_BYTES, BOARD_SCHEMA)
    state = loop_state_in(board_segment)
    state.put(b"the first")
    state.put(b"the second")
    body_before = bytes(board_segment.body)
    state.put(b"the third one")
    body_after = bytes(board_segment.body)
    changed_bytes = [i for i, (a, b) in enumerate(zip(body_before, body_after, strict=True)) if a != b]
    written_bytes = data.draw(st.sets(st.sampled_from(changed_bytes), max_size=len(changed_bytes) - 1))
    board_segment.body[:] = body_before
    for i in written_bytes:
        board_segment.body[i] = body_after[i]
    assert state.take() == b"the second"
    assert path.stat().st_size == HEADER_BYTES + BOARD_BYTES
