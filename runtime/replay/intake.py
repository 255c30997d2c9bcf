"""Path of a step record through the replay process: from the ring to memory, figures, files, log and viewers.

A record stays in the ring until its results are both in a checkpoint and in the log, so the ring has every record that
a successor would need.  A killed replay process therefore loses nothing: its successor restores the checkpoint and
reads the later records again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.log.sink import Sink
from onrig.runtime.record import Kind
from onrig.runtime.replay.accounts.figures import TickEvents, TimingFile
from onrig.runtime.replay.accounts.telemetry import Telemetry
from onrig.runtime.replay.summary import Parts
from onrig.runtime.shm.ring import RingReader


def records_from(records: NDArray[np.void], seq: int) -> NDArray[np.void]:
    """Return the records with number ``seq`` and later."""
    return records if not len(records) or records["seq"][0] >= seq else records[records["seq"] >= seq]


class RingPosition(NamedTuple):
    """Position in the ring at which a replay process starts."""

    taken: int
    """Number of the next record to read."""
    lost: int
    """Number of records that are neither in a checkpoint nor in the ring."""


def find_ring_position(ring_tail: int, session_id: int, restored: Mapping[str, int] | None) -> RingPosition:
    """Return the starting position, given the loop's session id and the checkpoint's counts (None: no checkpoint)."""
    first_unread = restored["taken"] if restored is not None and restored.get("life") == session_id else 0
    return RingPosition(max(first_unread, ring_tail), max(0, ring_tail - first_unread))


class Intake:
    """Passes on records in order; what a previous process has reported or logged is not reported or logged again."""

    def __init__(
        self,
        parts: Parts,
        timing: TimingFile,
        log: Sink,
        tick_events: TickEvents,
        telemetry: Telemetry | None,
        *,
        first_unreported: int,
        first_unlogged: int,
    ) -> None:
        self._parts, self._timing, self._log = parts, timing, log
        self._tick_events, self._telemetry = tick_events, telemetry
        self.first_unreported: Final = first_unreported
        """Number of the first record not yet reported."""
        self.first_unlogged: Final = first_unlogged
        """Number of the first record not yet logged by a previous process."""

    def add(self, records: NDArray[np.void]) -> None:
        """Process the next records of the ring (dtype ``RecordLayout.dtype``, at least one)."""
        parts = self._parts
        parts.memory.insert(parts.builder.add(records))
        parts.figures.add(records)
        unreported_records = records_from(records, self.first_unreported)
        parts.watch.add_earlier_records(
            records[: len(records) - len(unreported_records)], were_reported=True, were_applied=False
        )
        parts.watch.add(unreported_records)
        parts.policies.record_acting(records, parts.ring.n_dropped)
        self._timing.add(records)
        self.log(records)
        if len(unreported_records):
            self._tick_events.add(unreported_records)
            if self._telemetry is not None:
                self._telemetry.add(unreported_records)
        first_unlogged = records_from(records, self.first_unlogged)
        for row in parts.accounts.add(records):
            parts.rows.append(row)
            if (
                len(first_unlogged) and row.t_mono_ns >= first_unlogged["t_mono_ns"][0]
            ):  # otherwise a previous process logged it, with its last record
                self._log.episode(row)
            if row.kind == "train":
                parts.requests.feed.close(row.episode, row.reward_sum)
                parts.figures.add_training(row)

    def log(self, records: NDArray[np.void]) -> None:
        """Log the records, except those that a previous process has logged."""
        self._log.add(records_from(records, self.first_unlogged))


def last_complete_episode(ring: RingReader, closed: int) -> int:
    """Return the last training episode with no unread records in the ring, whose content in the memory is thus final.

    ``closed``: last training episode that the loop has ended.
    """
    waiting_records = ring.peek(1)
    if not len(waiting_records):
        return closed
    return int(waiting_records[0]["episode"]) - int(waiting_records[0]["kind"] == Kind.TRAIN)
