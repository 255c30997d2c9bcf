from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onrig.runtime.shm.segment import Segment
from onrig.runtime.shm.slot import MAX_POLICY_BYTES, SLOT_BYTES, SLOT_SCHEMA, PolicySlot, SlotPolicy

BUFFERS = (64, 64 + MAX_POLICY_BYTES + 64)
"""Where the two buffers begin; the model lies 64 bytes behind."""


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return Segment.create(tmp_path / "slot", SLOT_BYTES, SLOT_SCHEMA)


def test_an_empty_slot_gives_nothing(segment: Segment) -> None:
    slot = PolicySlot(segment)
    assert slot.version == 0
    assert slot.take() is None


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=64)), min_size=1, max_size=6))
def test_the_newest_policy_is_given_out_as_often_as_asked(segment: Segment, policies: list[tuple[int, bytes]]) -> None:
    writer, reader = PolicySlot(segment), PolicySlot(segment)
    start = writer.version
    for n, (policy_id, model) in enumerate(policies, start + 1):
        writer.put(policy_id, model)
        assert reader.version == n
        assert reader.take() == reader.take() == SlotPolicy(n, policy_id, model)


def test_the_largest_policy_fits_and_one_byte_more_is_refused(segment: Segment) -> None:
    slot = PolicySlot(segment)
    model = bytes(range(256)) * (MAX_POLICY_BYTES // 256)
    for policy_id in (1, 2):  # one in each buffer
        slot.put(policy_id, model)
    assert slot.take() == SlotPolicy(2, 2, model)
    with pytest.raises(ValueError, match="the slot holds"):
        slot.put(3, model + b"x")
    assert slot.take() == SlotPolicy(2, 2, model), "a refusal changes nothing"


@pytest.mark.parametrize("at", [4, 8, 64, 70], ids=["length", "seal", "first byte", "later byte"])
def test_a_torn_policy_is_not_given_out(segment: Segment, at: int) -> None:
    slot = PolicySlot(segment)
    slot.put(1, b"a policy of some length")
    segment.body[BUFFERS[1] + at] ^= 1
    assert slot.take() is None


def test_an_absurd_length_is_not_followed(segment: Segment) -> None:
    slot = PolicySlot(segment)
    slot.put(1, b"policy")
    segment.body[BUFFERS[1] + 4 : BUFFERS[1] + 8] = b"\xff\xff\xff\xff"
    assert slot.take() is None


def test_a_writer_that_was_killed_half_way_leaves_the_policy_before_it(segment: Segment) -> None:
    slot = PolicySlot(segment)
    slot.put(1, b"whole")
    segment.body[BUFFERS[0] : BUFFERS[0] + 80] = b"\xa5" * 80  # where the second one was going
    assert slot.take() == SlotPolicy(1, 1, b"whole")
    slot.put(2, b"its successor's")
    assert slot.take() == SlotPolicy(2, 2, b"its successor's")


@pytest.mark.parametrize("puts", [1, 2, 3])
def test_a_policy_that_is_overtaken_while_it_is_taken_is_given_up(
    segment: Segment, monkeypatch: pytest.MonkeyPatch, puts: int
) -> None:
    slot = PolicySlot(segment)
    slot.put(1, b"one")

    def interrupted(data: bytes) -> int:
        monkeypatch.undo()
        for n in range(puts):
            slot.put(2 + n, b"another")
        return zlib.crc32(data)

    monkeypatch.setattr(zlib, "crc32", interrupted)
    assert slot.take() is None
    assert slot.take() == SlotPolicy(1 + puts, 1 + puts, b"another")


def test_a_version_that_is_seen_before_its_policy_gives_nothing_and_is_asked_for_again(segment: Segment) -> None:
    """As a weakly ordered memory may show it for a moment: the buffer still holds the policy before the last."""
    slot = PolicySlot(segment)
    slot.put(1, b"first")
    slot.put(2, b"second")
    segment.body[:8] = (3).to_bytes(8, "little")
    assert slot.take() is None
    segment.body[:8] = (2).to_bytes(8, "little")
    slot.put(3, b"third")
    assert slot.take() == SlotPolicy(3, 3, b"third")


def test_the_reader_leaves_word_of_what_it_took_and_whoever_peeks_does_not(segment: Segment) -> None:
    writer, reader = PolicySlot(segment), PolicySlot(segment)
    assert reader.take() is None
    writer.put(7, b"seven")
    assert writer.peek() == SlotPolicy(1, 7, b"seven")
    assert writer.taken == 0
    assert reader.take() == SlotPolicy(1, 7, b"seven")
    writer.put(9, b"nine")
    assert (writer.taken, reader.taken) == (7, 7)


def test_the_word_is_there_before_the_policy_is_copied(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a writer that replaces it in this moment would take it for one that nobody has."""
    slot = PolicySlot(segment)
    slot.put(7, b"seven")
    seen: list[int] = []
    monkeypatch.setattr(slot, "peek", lambda: seen.append(slot.taken))
    slot.take()
    assert seen == [7]
