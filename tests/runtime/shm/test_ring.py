from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.record import RecordLayout
from onrig.runtime.shm.ring import RingReader, RingWriter, ring_bytes
from onrig.runtime.shm.segment import Segment

LAYOUT = RecordLayout(1, 1, 1)
N_VALUES = sum(int(np.prod(LAYOUT.dtype[f.name].shape)) for f in LAYOUT.fields) - 2
"""Values of a record between ``seq`` and ``crc``."""


def fields(tick: int) -> tuple[float, ...]:
    """A record without ``seq`` that is identified by its tick, which is also in its last field."""
    return (tick, *(1,) * (N_VALUES - 2), tick)


class Ring:
    """A ring of ``capacity`` records in a file, both ends open."""

    def __init__(self, path: Path, capacity: int) -> None:
        self.path = path
        self.segment = Segment.create(path, ring_bytes(LAYOUT, capacity), LAYOUT.schema)
        self.writer = RingWriter(self.segment, LAYOUT)
        self.reader = RingReader(Segment.attach(path, LAYOUT.schema), LAYOUT)

    def ticks(self, limit: int = 4096) -> list[int]:
        """Ticks of the readable records, each checked for completeness."""
        records = self.reader.peek(limit)
        assert records["tick"].tolist() == records["stage_ns"][:, -1].tolist()
        ticks: list[int] = records["tick"].tolist()
        return ticks

    def release(self, n: int) -> None:
        """Read the next ``n`` records, and release them from the ring."""
        self.reader.take(n)
        self.reader.release(self.reader.n_taken)

    def corrupt(self, index: int, byte: int, value: int | None = None) -> int:
        """Change a byte of the record in a place of the ring; returns the original record."""
        offset = 8 * 24 + index * LAYOUT.size + byte
        previous = self.segment.body[offset]
        self.segment.body[offset] = previous ^ 0xFF if value is None else value
        return previous


@settings(max_examples=60)
@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_it_is_a_bounded_queue_that_counts_dropped_records(
    tmp_path: Path, capacity: int, turns: list[tuple[int, int]]
) -> None:
    path = tmp_path / "ring"
    path.unlink(missing_ok=True)
    ring, model, dropped, tick = Ring(path, capacity), deque[int](), 0, 0
    assert ring.writer.capacity == ring.reader.capacity == capacity
    for pushes, releases in turns:
        for _ in range(pushes):
            assert ring.writer.is_full == (len(model) == capacity)
            was_pushed = ring.writer.push(fields(tick))
            assert was_pushed == (len(model) < capacity)
            if was_pushed:
                model.append(tick)
            else:
                dropped += 1
            tick += 1
        assert ring.ticks() == list(model)
        assert ring.reader.n_waiting == len(ring.writer) == len(model)
        n = min(releases, len(model))
        ring.release(n)
        for _ in range(n):
            model.popleft()
        assert ring.ticks() == list(model)
    assert ring.reader.n_dropped == ring.writer.n_dropped == dropped


def test_records_are_numbered_without_a_gap_even_if_some_were_dropped(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", 3)
    for tick in range(5):
        ring.writer.push(fields(tick))
    assert ring.ticks() == [0, 1, 2]
    ring.release(3)
    ring.writer.push(fields(5))
    assert ring.reader.peek()["seq"].tolist() == [3]
    assert ring.ticks() == [5]


def test_a_restarted_reader_sees_again_what_was_not_released(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", 8)
    for tick in range(6):
        ring.writer.push(fields(tick))
    assert ring.ticks(limit=4) == [0, 1, 2, 3]
    ring.release(2)
    restarted_reader = RingReader(Segment.attach(ring.path, LAYOUT.schema), LAYOUT)
    assert restarted_reader.peek()["tick"].tolist() == [2, 3, 4, 5]


def test_records_that_were_read_remain_until_released(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", 4)
    for tick in range(4):
        ring.writer.push(fields(tick))
    ring.reader.take(3)
    assert ring.ticks() == [3]
    assert ring.reader.retained()["tick"].tolist() == [0, 1, 2]
    assert ring.writer.is_full
    ring.reader.release(2)
    assert (ring.reader.tail, ring.reader.retained()["tick"].tolist()) == (2, [2])
    ring.reader.release(1)
    assert ring.reader.tail == 2, "released records are not taken back"
    with pytest.raises(ValueError, match="records from 3 on were not read"):
        ring.reader.release(4)
    successor = RingReader(Segment.attach(ring.path, LAYOUT.schema), LAYOUT)
    assert successor.peek()["tick"].tolist() == [2, 3]


def test_records_that_were_read_do_not_change_when_their_place_is_overwritten(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", 2)
    ring.writer.push(fields(0))
    kept_records = ring.reader.peek()
    ring.release(1)
    for tick in (1, 2):
        ring.writer.push(fields(tick))
    assert kept_records["tick"].tolist() == [0]


@pytest.mark.parametrize("byte", [0, 9, LAYOUT.size - 5, LAYOUT.size - 1], ids=["number", "tick", "stages", "seal"])
def test_neither_a_torn_record_nor_anything_after_it_is_returned(tmp_path: Path, byte: int) -> None:
    ring = Ring(tmp_path / "ring", 4)
    for tick in range(4):
        ring.writer.push(fields(tick))
    original_byte = ring.corrupt(2, byte)
    assert ring.ticks() == [0, 1]
    ring.corrupt(2, byte, original_byte)
    assert ring.ticks() == [0, 1, 2, 3], "it is returned once complete"


def test_a_complete_record_of_the_previous_round_is_not_mistaken_for_a_new_one(tmp_path: Path) -> None:
    """On a weakly ordered machine the head may become visible before the record."""
    ring = Ring(tmp_path / "ring", 2)
    for tick in range(2):
        ring.writer.push(fields(tick))
    ring.release(2)
    ring.segment.body[:8].cast("Q")[0] = 3
    assert ring.ticks() == []


def test_reading_can_be_limited(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", 8)
    for tick in range(8):
        ring.writer.push(fields(tick))
    assert ring.ticks(limit=3) == [0, 1, 2]
    assert ring.ticks(limit=0) == []


def test_an_empty_ring_returns_an_empty_array_of_the_right_type(tmp_path: Path) -> None:
    records = Ring(tmp_path / "ring", 2).reader.peek()
    assert (len(records), records.dtype) == (0, LAYOUT.dtype)


_WRITE_FOREVER = """
import sys
from pathlib import Path
from onrig.runtime.shm.ring import RingWriter
from onrig.runtime.shm.segment import Segment
from tests.runtime.shm.test_ring import LAYOUT, fields
writer = RingWriter(Segment.attach(Path(sys.argv[1]), LAYOUT.schema), LAYOUT)
tick = 0
while True:
    tick += writer.push(fields(tick))
"""


def test_a_killed_writer_leaves_complete_records_and_another_continues(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", 64)
    process = subprocess.Popen([sys.executable, "-c", _WRITE_FOREVER, str(ring.path)])
    n_seen, deadline_s = 0, time.monotonic() + 60
    try:
        while n_seen < 20 * 64:
            assert process.poll() is None, "the writer ended by itself"
            assert time.monotonic() < deadline_s, "the writer has stalled"
            ticks = ring.ticks(limit=17)
            assert ticks == list(range(n_seen, n_seen + len(ticks)))
            ring.release(len(ticks))
            n_seen += len(ticks)
    finally:
        process.kill()
        process.wait()
    remaining_ticks = ring.ticks()
    assert remaining_ticks == list(range(n_seen, n_seen + len(remaining_ticks)))
    ring.release(len(remaining_ticks))
    new_writer = RingWriter(Segment.attach(ring.path, LAYOUT.schema), LAYOUT)
    assert new_writer.push(fields(4321))
    assert ring.ticks() == [4321]
    assert np.all(ring.reader.peek()["seq"] == n_seen + len(remaining_ticks))
