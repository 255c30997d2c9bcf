"""Path of a step record through the replay process: from the ring to memory, figures, files, log and viewers.

A record stays in the ring until its results are both in a checkpoint and in the log; the horizon is the oldest record
that a successor would need.  A killed replay process therefore loses nothing: its successor restores the checkpoint and
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


def takable(records: NDArray[np.void], done: int) -> int:
    """How many of the next ``records`` may be taken in, in lockstep, when training episode ``done`` is concluded.

    An episode's transitions are inserted once all that follows from the one before is done.  A loop that waits at its
    barriers never runs ahead; records that are taken in once more do.
    """
    opens = records["kind"] == Kind.TRAIN
    early = np.flatnonzero(records["episode"] > np.where(opens, done + 1, done))
    return int(early[0]) if len(early) else len(records)


def since(records: NDArray[np.void], seq: int) -> NDArray[np.void]:
    """Records from number ``seq`` on."""
    return records if not len(records) or records["seq"][0] >= seq else records[records["seq"] >= seq]


def releasable(
    *, tail: int, taken: int, durable: int, capacity: int, full: bool, lockstep: bool, logged: int | None = None
) -> int:
    """Number of the record before which all others may leave the ring.

    ``tail`` is the oldest record in it, ``taken`` the next to be taken in; those before ``durable`` are in a
    checkpoint, those before ``logged`` in the log (None: there is no log).  In real time at most half of the ring is
    kept, so that the loop finds room; in lockstep the loop waits, and only a ring that is ``full`` is made to yield.
    """
    wanted = min(durable, taken) if logged is None else min(durable, taken, logged)
    if not lockstep or (full and taken - tail >= capacity):
        wanted = max(wanted, taken - capacity // 2)
    return max(wanted, tail)


_LEAST_PAUSE_MS: Final = 1
_MOST_PAUSE_MS: Final = 8
_GATHER_S: Final = 0.02
"""To take in a batch of records costs hardly more than to take in one, which at 500 Hz keeps a core busy."""
_BACKLOG: Final = 64
"""Waiting records that are taken in at once."""


class Looks:
    """When to look at the ring, which cannot wake anybody (times in s of one clock).

    In real time records gather for a while; in lockstep the loop waits for what follows from them, and the pause is
    doubled while nothing comes.
    """

    def __init__(self, *, lockstep: bool) -> None:
        self._lockstep = lockstep
        self._pause_ms = _LEAST_PAUSE_MS
        self._next_s = 0.0

    def due(self, waiting: int, now_s: float) -> bool:
        """Whether to take in the ``waiting`` records now."""
        return self._lockstep or waiting >= _BACKLOG or now_s >= self._next_s

    def took(self, now_s: float) -> None:
        """Records are being taken in."""
        self._pause_ms, self._next_s = _LEAST_PAUSE_MS, now_s + _GATHER_S

    def pause_ms(self, now_s: float) -> int:
        """How long to wait for a learner's request if there is nothing else to do."""
        if self._lockstep:
            return self._pause_ms
        left_s = self._next_s - now_s
        return max(_LEAST_PAUSE_MS, round(1e3 * (left_s if left_s > 0.0 else _GATHER_S)))

    def paused(self, *, heard: bool) -> None:
        """The pause is over; ``heard``: by a request."""
        self._pause_ms = _LEAST_PAUSE_MS if heard else min(2 * self._pause_ms, _MOST_PAUSE_MS)


class TakeOver(NamedTuple):
    """Start of a replay process in the ring."""

    taken: int
    """Number of the next record to read."""
    lost: int
    """Number of records that are neither in a checkpoint nor in the ring."""


def take_over(ring_tail: int, life: int, restored: Mapping[str, int] | None) -> TakeOver:
    """Find where to begin, from the checkpoint's counts (None: there is none) and the name of this life of the run."""
    covered = restored["taken"] if restored is not None and restored.get("life") == life else 0
    return TakeOver(max(covered, ring_tail), max(0, ring_tail - covered))


class Horizon:
    """Release of the ring up to what is durable."""

    def __init__(self, ring: RingReader, *, lockstep: bool) -> None:
        self._ring, self._lockstep = ring, lockstep
        self.uncovered = 0
        """Records that had to leave the ring in lockstep though no checkpoint has them: should the replay process die
        now, they are lost."""

    def advance(self, durable: int, logged: int | None) -> None:
        """Free what may leave; ``durable`` and ``logged`` as in `releasable`."""
        ring = self._ring
        upto = releasable(
            tail=ring.tail,
            taken=ring.taken,
            durable=durable,
            capacity=ring.capacity,
            full=ring.full,
            lockstep=self._lockstep,
            logged=logged,
        )
        self.uncovered = max(0, upto - durable) if self._lockstep else 0
        ring.release(upto)


class Intake:
    """Passes records on, in order; those that a process before this one took in are not told or logged again."""

    def __init__(
        self,
        parts: Parts,
        timing: TimingFile,
        log: Sink,
        tick_events: TickEvents,
        telemetry: Telemetry | None,
        *,
        told: int,
        unlogged: int,
    ) -> None:
        self._parts, self._timing, self._log = parts, timing, log
        self._tick_events, self._telemetry = tick_events, telemetry
        self.told: Final = told
        """Number of the first record not reported before."""
        self.unlogged: Final = unlogged
        """Number of the first record not logged by a previous process."""

    def add(self, records: NDArray[np.void]) -> None:
        """Take the next records of the ring (dtype ``RecordLayout.dtype``, at least one)."""
        parts = self._parts
        parts.memory.insert(parts.builder.add(records))
        parts.figures.add(records)
        untold = since(records, self.told)
        parts.watch.follow(records[: len(records) - len(untold)], told=True, ruled=False)
        parts.watch.add(untold)
        parts.policies.follow(records, parts.ring.dropped)
        self._timing.add(records)
        self.log(records)
        if len(untold):
            self._tick_events.add(untold)
            if self._telemetry is not None:
                self._telemetry.add(untold)
        unlogged = since(records, self.unlogged)
        for row in parts.accounts.add(records):
            parts.rows.append(row)
            if len(unlogged) and row.t_mono_ns >= unlogged["t_mono_ns"][0]:  # else it is there with its last record
                self._log.episode(row)
            if row.kind == "train":
                parts.desk.close(row.episode, row.reward_sum)
                parts.figures.add_training(row)

    def log(self, records: NDArray[np.void]) -> None:
        """Log those of these records that no previous process has logged."""
        self._log.add(since(records, self.unlogged))


def closed_before(ring: RingReader, closed: int) -> int:
    """Last training episode of which no record waits in the ring: what is not in the memory by now never will be.

    ``closed`` is the last one that the loop has ended.
    """
    waiting = ring.peek(1)
    if not len(waiting):
        return closed
    return int(waiting[0]["episode"]) - int(waiting[0]["kind"] == Kind.TRAIN)
