"""The exchange with a trainer: newest messages only, wake-ups, nothing that waits for the other side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.runtime.record import RecordLayout
from onrig.runtime.shm.exchange import (
    NO_SEED,
    SEGMENT_NAME,
    LoopSide,
    Sample,
    TrainerRequest,
    TrainerSide,
    exchange_bytes,
    exchange_schema,
    make_fifos,
)
from onrig.runtime.shm.segment import Segment, SegmentError

LAYOUT = RecordLayout(2, 2, 2)
ORDER = TrainerRequest(1, NO_SEED, 7, 5, False, (0.5, -1.5))
SAMPLE = Sample(1, 3, -2.5, 9, True, bytes(range(256))[: 2 * LAYOUT.size].ljust(2 * LAYOUT.size, b"x"))
Ends = tuple[LoopSide, TrainerSide]


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    make_fifos(tmp_path)
    Segment.create(tmp_path / SEGMENT_NAME, exchange_bytes(LAYOUT), exchange_schema(LAYOUT)).close()
    both = LoopSide(tmp_path, LAYOUT), TrainerSide(tmp_path, LAYOUT)
    yield both
    for end in both:
        end.close()


def test_each_side_has_the_newest_message_of_the_other(ends: Ends) -> None:
    loop, trainer = ends
    assert loop.request is None
    assert trainer.sample() is None
    trainer.send(ORDER._replace(tick=6))
    trainer.send(ORDER)
    loop.wait(10**10)
    assert loop.request == ORDER
    assert loop.request == ORDER
    loop.send(SAMPLE)
    trainer.wait(10**10)
    assert trainer.sample() == SAMPLE
    trainer.wait(0)


def test_a_side_that_never_reads_stops_nobody(ends: Ends) -> None:
    loop, trainer = ends
    for k in range(70_000):  # more than a FIFO holds
        trainer.send(ORDER._replace(tick=k))
    assert loop.request == ORDER._replace(tick=69_999)


def test_what_is_not_an_order_is_none(ends: Ends) -> None:
    loop, trainer = ends
    trainer.send(ORDER)
    assert loop.request == ORDER
    trainer._requests.put(b"short")
    assert loop.request == ORDER, "the last valid one"


def test_the_layouts_of_both_sides_must_agree(ends: Ends, tmp_path: Path) -> None:
    with pytest.raises(SegmentError, match="another schema"):
        TrainerSide(tmp_path, RecordLayout(2, 2, 1))
