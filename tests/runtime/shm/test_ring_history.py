from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.shm.ring import RingHistory, RingReader, RingWriter, ring_bytes
from onrig.runtime.shm.segment import Segment
from tests.runtime.samples import LAYOUT, state, step

CAPACITY = 6


def make_ring(path: Path) -> tuple[RingWriter, RingReader, RingHistory]:
    path.unlink(missing_ok=True)
    segment = Segment.create(path, ring_bytes(LAYOUT, CAPACITY), LAYOUT.schema)
    return RingWriter(segment, LAYOUT), RingReader(segment, LAYOUT), RingHistory(segment, LAYOUT)


def push(writer: RingWriter, tick: int) -> bool:
    return writer.push(LAYOUT.values(step(tick, state(tick + 1))))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=10), st.integers(0, 20), st.integers(0, 8))
def test_it_sees_the_last_records_whether_or_not_they_were_taken(
    tmp_path: Path, turns: list[tuple[int, int]], since_tick: int, limit: int
) -> None:
    writer, reader, history = make_ring(tmp_path / "ring")
    ticks: list[int] = []
    for pushes, takes in turns:
        for _ in range(pushes):
            if push(writer, len(ticks)):
                ticks.append(len(ticks))
        reader.take(len(reader.peek(takes)))
        reader.release(reader.n_taken)
    assert history.n_written == len(ticks)
    assert history.records_since(0)["tick"].tolist() == ticks[-CAPACITY:]
    newest_ticks = ticks[len(ticks) - limit :] if limit and limit <= len(ticks) else ticks[-limit:] if limit else []
    assert history.records_since(since_tick, limit)["tick"].tolist() == [
        t for t in newest_ticks[-CAPACITY:] if t >= since_tick
    ]


def test_reading_the_history_takes_nothing_away(tmp_path: Path) -> None:
    writer, reader, history = make_ring(tmp_path / "ring")
    for tick in range(3):
        push(writer, tick)
    history.records_since(0)
    assert reader.peek()["tick"].tolist() == [0, 1, 2]


def test_a_torn_record_is_left_out(tmp_path: Path) -> None:
    writer, _, history = make_ring(tmp_path / "ring")
    for tick in range(4):
        push(writer, tick)
    segment = Segment.attach(tmp_path / "ring", LAYOUT.schema)
    segment.body[8 * 24 + 2 * LAYOUT.size + 40] ^= 0xFF
    assert history.records_since(0)["tick"].tolist() == [0, 1, 3]
