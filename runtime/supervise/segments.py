"""Shared memory of a run: its segments and their sizes."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import UNSET

from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Board, Word
from onrig.runtime.shm.exchange import SEGMENT_NAME, exchange_bytes, exchange_schema, make_fifos
from onrig.runtime.shm.frame_log import FRAME_LOG_SCHEMA, frame_log_bytes
from onrig.runtime.shm.images import SEGMENT_NAME as IMAGES
from onrig.runtime.shm.images import images_bytes, images_schema
from onrig.runtime.shm.latest import SLOT_BYTES, SLOT_SCHEMA
from onrig.runtime.shm.ring import ring_bytes
from onrig.runtime.shm.segment import HEADER_BYTES, Segment
from onrig.runtime.shm.view_segment import view_bytes, view_schema

_MIN_RING_RECORDS: Final = 16_384
"""Minimum number of records in the ring: at 1 kHz enough for eight seconds without a replay process, because half of
the records are retained."""
_MAX_RING_RECORDS: Final = 1 << 20
_SESSION_BITS: Final = 62


class _SegmentPlan(NamedTuple):
    name: str
    body_bytes: int
    schema: str


def ring_records(config: RunConfig) -> int:
    """Return the number of records in the ring of a run.

    Half of the ring is retained for a replay process that is restarted.  In real time, this half holds the records of
    two checkpoint intervals, because writing a checkpoint takes a while; in lockstep, where the loop waits for the
    checkpoint, it holds those of one interval.  The number is bounded."""
    if not config.lockstep:
        steps_between = 1e9 * config.checkpoint_s / config.wall_period_ns
        return min(max(_MIN_RING_RECORDS, 4 * math.ceil(steps_between)), _MAX_RING_RECORDS)
    records = round(config.task.episode_s * config.rate_hz) + 1
    episodes = (2 if config.evaluate_every else 1) * (config.checkpoint_episodes + 1)
    return min(max(_MIN_RING_RECORDS, 2 * episodes * records), _MAX_RING_RECORDS)


def _plan(config: RunConfig) -> list[_SegmentPlan]:
    layout = record_layout(config)
    plan = [
        _SegmentPlan("ring", ring_bytes(layout, ring_records(config)), layout.schema),
        _SegmentPlan("slot", SLOT_BYTES, SLOT_SCHEMA),
        _SegmentPlan("view", view_bytes(layout), view_schema(layout)),
        _SegmentPlan("frames", frame_log_bytes(config.rate_hz), FRAME_LOG_SCHEMA),
        _SegmentPlan("board", BOARD_BYTES, BOARD_SCHEMA),
    ]
    if cameras := config.cameras:
        plan.insert(0, _SegmentPlan(IMAGES, images_bytes(cameras), images_schema(cameras)))
    if config.actor is not UNSET:
        plan.insert(0, _SegmentPlan(SEGMENT_NAME, exchange_bytes(layout), exchange_schema(layout)))
    return plan


def shared_bytes(config: RunConfig) -> int:
    """Return the total shared memory of a run in bytes."""
    return sum(HEADER_BYTES + segment.body_bytes for segment in _plan(config))


def create_segments(shm: Path, config: RunConfig) -> Board:
    """Create all segments in the folder ``shm``; return the board, with a new id for this session of the run.

    Raises OSError if the memory is not available.
    """
    if config.actor is not UNSET:
        make_fifos(shm)
    segment: Segment | None = None
    for name, body_bytes, schema in _plan(config):
        if segment is not None:
            segment.close()
        segment = Segment.create(shm / name, body_bytes, schema)
    assert segment is not None
    board = Board(segment)
    board[Word.SESSION_ID] = random.SystemRandom().getrandbits(_SESSION_BITS)
    return board
