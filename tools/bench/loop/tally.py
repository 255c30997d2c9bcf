"""Statistics of a measured loop's step records: bounded histograms, and missed ticks matched with stalls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.histogram import DurationHistogram
from onrig.runtime.record import STAGES, Flag, Kind, Miss
from onrig.sim.twin.pacing import TraceReader
from onrig.tools.bench.loop.sentinel import RECORDED_NS, SentinelRecords

NEAR_TICKS: Final = 10
"""Number of ticks on either side of a policy swap that it may affect."""
DEVICE_CLOCK: Final = "sampling interval error, device clock"
HOST_CLOCK: Final = "arrival interval error, host clock"
SENT_LATE: Final = "frame sent late"
LATENESS: Final = ("lateness", "lateness near a swap", "lateness elsewhere")
TICK: Final = ("tick", "tick near a swap", "tick elsewhere")
_PER_TICK: Final = (*LATENESS, *TICK, SENT_LATE, DEVICE_CLOCK, HOST_CLOCK)
_MAX_MISSED: Final = 10_000


class Missed(NamedTuple):
    """Consecutive missed ticks, and the tick after them; times in ns of the host's monotonic clock."""

    frames: int
    cause: Miss
    """Cause recorded by the loop."""
    due_ns: int
    """Due time of the first missed frame."""
    received_ns: int
    """Arrival of the frame that was answered instead."""
    near_swap: bool
    tick_before_us: float
    """Duration of the previous tick."""
    longest_stage: str = ""
    """Longest stage of that tick."""


class Tally:
    """Statistics of the records of one slice; tallies of several slices can be merged."""

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._held: NDArray[np.void] | None = None
        self._sendings = Sendings(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._n_counted = 0
        self.histograms = {name: DurationHistogram() for name in (*_PER_TICK, *STAGES)}
        self.ticks = self.swaps = self.pauses = self.lost = self.unknown = 0
        self.missed: list[Missed] = []
        self.missed_ticks = dict.fromkeys((Miss.LINK, Miss.PROGRAM, Miss.HOST), 0)

    def add(self, records: NDArray[np.void], sendings: Sendings) -> None:
        """Add the next records (dtype ``RecordLayout.dtype``) and the send times of their frames.

        The newest records are counted once their successors are known.
        """
        if not len(records):
            return
        self.unknown += sendings.unknown
        records_held = records if self._held is None else np.concatenate([self._held, records])
        self._sendings = self._sendings.append(sendings)
        end = max(self._n_counted, len(records_held) - NEAR_TICKS)
        self._count(records_held, end)
        first = max(0, end - NEAR_TICKS - 1)
        self._held, self._n_counted = records_held[first:].copy(), end - first
        self._sendings = self._sendings.part(first, len(records_held))

    def finish(self) -> None:
        """End the slice."""
        if self._held is not None:
            self._count(self._held, len(self._held))
        self._held, self._n_counted, self._sendings = None, 0, self._sendings.part(0, 0)

    def merge(self, other: Tally) -> None:
        """Add another, finished tally of the same period."""
        for name, histogram in self.histograms.items():
            histogram.merge(other.histograms[name])
        self.ticks += other.ticks
        self.swaps += other.swaps
        self.pauses += other.pauses
        self.lost += other.lost
        self.unknown += other.unknown
        self.missed = [*self.missed, *other.missed][:_MAX_MISSED]
        for cause, ticks in other.missed_ticks.items():
            self.missed_ticks[cause] += ticks

    def _count(self, records: NDArray[np.void], end: int) -> None:
        new = slice(self._n_counted, end)
        swapped, is_complete = swaps(records), acting(records)
        part, is_near, acted = records[new], near_swap_ticks(swapped)[new], is_complete[new]
        sendings = self._sendings.part(self._n_counted, end)
        lateness_ns = part["t_receive_ns"] - sendings.sent_ns
        tick_ns = part["tick_ns"]
        following = np.flatnonzero(continues_episode(records)[new]) + self._n_counted
        durations_by_name = {
            "lateness": lateness_ns,
            "lateness near a swap": lateness_ns[is_near],
            "lateness elsewhere": lateness_ns[~is_near],
            SENT_LATE: sendings.sent_ns - sendings.due_ns,
            "tick": tick_ns[acted],
            "tick near a swap": tick_ns[acted & is_near],
            "tick elsewhere": tick_ns[acted & ~is_near],
            DEVICE_CLOCK: 1000 * interval_errors(records, following, "t_device_us", self._period_ns // 1000),
            HOST_CLOCK: interval_errors(records, following, "t_receive_ns", self._period_ns),
            **{name: part["stage_ns"][acted, k].astype(np.int64) for k, name in enumerate(STAGES)},
        }
        for name, durations in durations_by_name.items():
            self.histograms[name].add(durations)
        self.ticks += int(np.count_nonzero(acted))
        self.swaps += int(np.count_nonzero(swapped[new]))
        since = max(0, self._n_counted - 1)
        self.pauses += pauses(records[since:end], self._sendings.due_ns[since:end], self._period_ns)
        for i in np.flatnonzero(part["missed"]).tolist():
            previous = records[max(0, self._n_counted + i - 1)]
            self._miss(part[i], int(sendings.due_ns[i]), previous, is_near=bool(is_near[i]))

    def _miss(self, record: np.void, due_ns: int, previous: np.void, *, is_near: bool) -> None:
        """Record the misses before a record whose frame was due at ``due_ns``."""
        frames, cause = int(record["missed"]), Miss(record["miss"])
        self.missed_ticks[cause] += frames
        if len(self.missed) < _MAX_MISSED:
            first_ns = due_ns - frames * self._period_ns
            tick_us, longest_stage = float(previous["tick_ns"]) / 1000, STAGES[int(np.argmax(previous["stage_ns"]))]
            self.missed.append(
                Missed(frames, cause, first_ns, int(record["t_receive_ns"]), is_near, tick_us, longest_stage)
            )


def acting(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return whether each record belongs to a complete tick, from frame to command (an episode's last one does not)."""
    return np.asarray((records["flags"] & Flag.NO_ACTION) == 0, np.bool_)


def interval_errors(records: NDArray[np.void], indices: NDArray[np.intp], clock: str, period: int) -> NDArray[np.int64]:
    """Deviation of the time since the previous record from a whole number of periods, measured by ``clock``.

    ``indices``: records that follow another; ``period`` and the result have the clock's unit.
    """
    frames = records["frame"].astype(np.int64)
    times = records[clock].astype(np.int64)
    return np.asarray(
        np.abs(times[indices] - times[indices - 1] - period * (frames[indices] - frames[indices - 1])), np.int64
    )


def continues_episode(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return whether each record belongs to the same episode as the previous one."""
    same = np.zeros(len(records), np.bool_)
    kind, episode = records["kind"], records["episode"]
    same[1:] = (kind[1:] == kind[:-1]) & (episode[1:] == episode[:-1]) & ((records["flags"][1:] & Flag.FIRST) == 0)
    return same


def swaps(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return whether each record is the first one of another policy within an episode."""
    changed = np.zeros(len(records), np.bool_)
    policy = records["policy_id"]
    changed[1:] = policy[1:] != policy[:-1]
    return np.asarray(
        changed & continues_episode(records) & acting(records) & (records["kind"] != Kind.RESET), np.bool_
    )


def near_swap_ticks(swapped: NDArray[np.bool_], ticks: int = NEAR_TICKS) -> NDArray[np.bool_]:
    """Return whether a swap is at most ``ticks`` away from each record."""
    steps = np.concatenate([[0], np.cumsum(swapped)])
    indices = np.arange(len(swapped))
    last, first = np.minimum(indices + ticks + 1, len(swapped)), np.maximum(indices - ticks, 0)
    return np.asarray(steps[last] > steps[first], np.bool_)


_PAUSE_SHARE: Final = 0.5
"""Lateness above which a twin counts as paused, as a share of the period."""

Array = NDArray[np.int64]


class Sendings(NamedTuple):
    """Due and send times of frames, (n,) each, in ns of the host's monotonic clock."""

    due_ns: Array
    sent_ns: Array
    unknown: int = 0
    """Number of frames without exact times."""

    def part(self, first: int, end: int) -> Sendings:
        """Select the frames from ``first`` to before ``end``."""
        return Sendings(self.due_ns[first:end], self.sent_ns[first:end])

    def append(self, more: Sendings) -> Sendings:
        """Append ``more``."""
        return Sendings(np.concatenate([self.due_ns, more.due_ns]), np.concatenate([self.sent_ns, more.sent_ns]))


def sendings(records: NDArray[np.void], trace: TraceReader | None) -> Sendings:
    """Determine the send times of the frames of records (dtype ``RecordLayout.dtype``).

    Without a trace (a device on a port), they follow from the loop's ``lateness_ns`` (see ``onrig.hw.clock``), which is
    relative to the most punctual frames.
    """
    estimate = np.asarray(records["t_receive_ns"] - records["lateness_ns"], np.int64)
    if trace is None:
        return Sendings(estimate, estimate)
    known, due_ns, sent_ns = trace.times(records["frame"])
    unknown = int(np.count_nonzero(~known))
    return Sendings(np.where(known, due_ns, estimate), np.where(known, sent_ns, estimate), unknown)


def pauses(records: NDArray[np.void], due_ns: Array, period_ns: int) -> int:
    """Number of pauses of the device's clock between consecutive records."""
    offset_ns = due_ns - 1000 * records["t_device_us"].astype(np.int64)
    return int(np.count_nonzero(np.diff(offset_ns) > _PAUSE_SHARE * period_ns))


_MIN_STALL_SHARE: Final = 0.25
"""Minimum duration of a stall that can cost a tick, as a share of the period."""


class ExplainedMiss(NamedTuple):
    """A miss and its attribution to the machine."""

    missed: Missed
    stall_ms: float
    """Longest stall at that time; 0 if none was observed."""
    line_ms: float = 0.0
    """Longest delay of a byte through a pseudo-terminal at that time; 0 if short."""

    @property
    def caused_by_machine(self) -> bool:
        """Whether the machine stalled at that time."""
        return self.stall_ms > 0

    @property
    def caused_by_line(self) -> bool:
        """Whether the machine ran, but the kernel delivered bytes late."""
        return self.line_ms > 0 and not self.caused_by_machine

    @property
    def caused_by_program(self) -> bool:
        """Whether the program caused it: the tick overran without a stall."""
        return self.missed.cause is Miss.PROGRAM and not self.caused_by_machine


class Stalls:
    """Stalls observed by the sentinels that are long enough to cost a tick at a given period."""

    def __init__(self, records: Sequence[SentinelRecords], period_ns: int) -> None:
        min_ns = max(RECORDED_NS, _MIN_STALL_SHARE * period_ns)
        self._spans = {
            kind: np.array(
                sorted(span for s in records if s.kind == kind for span in s.stalls if span[1] - span[0] >= min_ns),
                np.int64,
            ).reshape(-1, 2)
            for kind in ("timer", "line")
        }
        self._period_ns = period_ns

    def explain(self, missed: Missed) -> ExplainedMiss:
        """Attribute a miss to stalls from one period before the first missed frame to the answered one."""
        longest = []
        for due, woken in (self._spans[kind].T for kind in ("timer", "line")):
            overlapping = (woken >= missed.due_ns - self._period_ns) & (due <= missed.received_ns)
            longest.append(int((woken - due)[overlapping].max()) / 1e6 if overlapping.any() else 0.0)
        return ExplainedMiss(missed, *longest)

    def share_of(self, measured_s: float) -> float:
        """Upper bound on the share of time in which a miss coincides with a stall by chance."""
        spans = np.concatenate(list(self._spans.values()))
        reach = (spans[:, 1] - spans[:, 0]) + 2 * self._period_ns
        return min(1.0, float(reach.sum()) / (measured_s * 1e9)) if measured_s > 0 else 0.0


class LoopMiss(msgspec.Struct, frozen=True):
    """A missed tick in the JSON."""

    rate_hz: float
    subject: str
    frames: int
    cause: str
    due_ns: int
    delay_us: float
    """Time from the first missed frame's due time to the answered frame."""
    stall_ms: float
    line_ms: float
    near_swap: bool
    tick_before_us: float
    longest_stage: str
    """Longest stage of the previous tick."""


def as_row(rate_hz: float, subject: str, e: ExplainedMiss) -> LoopMiss:
    """Return the JSON form of a miss."""
    m = e.missed
    return LoopMiss(
        rate_hz,
        subject,
        m.frames,
        m.cause.name.lower(),
        m.due_ns,
        round((m.received_ns - m.due_ns) / 1000, 1),
        round(e.stall_ms, 3),
        round(e.line_ms, 3),
        m.near_swap,
        round(m.tick_before_us, 1),
        m.longest_stage,
    )
