"""The exchange with a trainer: newest messages only, wake-ups, and no waiting for the other side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

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
REQUEST = TrainerRequest(1, NO_SEED, 7, 5, False, (0.5, -1.5))
SAMPLE = Sample(1, 3, -2.5, 9, True, bytes(range(256))[: 2 * LAYOUT.size].ljust(2 * LAYOUT.size, b"x"))
Sides = tuple[LoopSide, TrainerSide]


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    make_fifos(tmp_path)
    Segment.create(tmp_path / SEGMENT_NAME, exchange_bytes(LAYOUT), exchange_schema(LAYOUT)).close()
    loop_and_trainer = LoopSide(tmp_path, LAYOUT), TrainerSide(tmp_path, LAYOUT)
    yield loop_and_trainer
    for end in loop_and_trainer:
        end.close()


def test_each_side_receives_the_newest_message_of_the_other(sides: Sides) -> None:
    loop, trainer = sides
    assert loop.request is None
    assert trainer.sample() is None
    trainer.send(REQUEST._replace(tick=6))
    trainer.send(REQUEST)
    loop.wait(10**10)
    assert loop.request == REQUEST
    assert loop.request == REQUEST
    loop.send(SAMPLE)
    trainer.wait(10**10)
    assert trainer.sample() == SAMPLE
    trainer.wait(0)


@pytest.mark.parametrize("timeout_ns", [1_500_000, 300_000])
def test_a_wait_is_not_rounded_up_to_milliseconds(
    sides: Sides, monkeypatch: pytest.MonkeyPatch, timeout_ns: int
) -> None:
    """A rounded one made each late action miss its period at 500 Hz."""
    loop, _ = sides
    waits_ns: list[float] = []
    poll = SimpleNamespace(poll=lambda timeout_ms: waits_ns.append(math.ceil(timeout_ms) * 1e6))
    monkeypatch.setattr(loop, "_poll", poll)
    select = SimpleNamespace(select=lambda r, w, x, timeout_s: waits_ns.append(timeout_s * 1e9))
    monkeypatch.setattr("onrig.hw.transport.select", select)
    loop.wait(timeout_ns)
    assert sum(waits_ns) == pytest.approx(timeout_ns)


def test_a_side_that_never_reads_blocks_no_one(sides: Sides) -> None:
    loop, trainer = sides
    for k in range(70_000):  # more than a FIFO holds
        trainer.send(REQUEST._replace(tick=k))
    assert loop.request == REQUEST._replace(tick=69_999)


def test_an_invalid_order_is_ignored(sides: Sides) -> None:
    loop, trainer = sides
    trainer.send(REQUEST)
    assert loop.request == REQUEST
    trainer._requests.put(b"short")
    assert loop.request == REQUEST, "the last valid one"


def test_the_layouts_of_both_sides_must_agree(sides: Sides, tmp_path: Path) -> None:
    with pytest.raises(SegmentError, match="another schema"):
        TrainerSide(tmp_path, RecordLayout(2, 2, 1))
