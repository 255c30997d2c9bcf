"""Statistics of step records: bounded histograms, and missed ticks matched with machine stalls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.histogram import DurationHistogram
from onrig.runtime.record import STAGES, Flag, Kind, Miss
from onrig.sim.twin.pacing import TraceReader
from onrig.tools.bench.loop.sentinel import MIN_RECORDED_NS, SentinelRecords

NEAR_TICKS: Final = 10
"""Number of ticks before and after a policy swap that the swap may affect."""
DEVICE_CLOCK_ERROR: Final = "sampling interval error, device clock"
HOST_CLOCK_ERROR: Final = "arrival interval error, host clock"
SENT_LATE: Final = "frame sent late"
LATENESS_NAMES: Final = ("lateness", "lateness near a swap", "lateness elsewhere")
TICK_NAMES: Final = ("tick", "tick near a swap", "tick elsewhere")
_PER_TICK_NAMES: Final = (*LATENESS_NAMES, *TICK_NAMES, SENT_LATE, DEVICE_CLOCK_ERROR, HOST_CLOCK_ERROR)
_MAX_MISSED: Final = 10_000


class MissedTicks(NamedTuple):
    """Consecutive missed ticks before an answered frame; times in ns of the host's monotonic clock."""

    frames: int
    cause: Miss
    """Cause recorded by the loop."""
    due_ns: int
    """Due time of the first missed frame."""
    received_ns: int
    """Arrival time of the frame that was answered instead."""
    near_swap: bool
    tick_before_us: float
    """Duration of the tick before the miss."""
    longest_stage: str = ""
    """Longest stage of the tick before the miss."""


class Tally:
    """Statistics of the records of one slice; tallies of several slices can be merged."""

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._pending_records: NDArray[np.void] | None = None
        self._send_times = SendTimes(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._n_counted = 0
        self.histograms = {name: DurationHistogram() for name in (*_PER_TICK_NAMES, *STAGES)}
        self.ticks = self.swaps = self.pauses = self.n_lost = self.n_unknown = 0
        self.misses: list[MissedTicks] = []
        self.missed_ticks = dict.fromkeys((Miss.LINK, Miss.PROGRAM, Miss.HOST), 0)

    def add(self, records: NDArray[np.void], send_times: SendTimes) -> None:
        """Add the next records (dtype ``RecordLayout.dtype``) and the send times of their frames.

        The newest records are counted only once their successors are known.
        """
        if not len(records):
            return
        self.n_unknown += send_times.n_unknown
        pending_records = records if self._pending_records is None else np.concatenate([self._pending_records, records])
        self._send_times = self._send_times.append(send_times)
        end = max(self._n_counted, len(pending_records) - NEAR_TICKS)
        self._count(pending_records, end)
        first = max(0, end - NEAR_TICKS - 1)
        self._pending_records, self._n_counted = pending_records[first:].copy(), end - first
        self._send_times = self._send_times.select(first, len(pending_records))

    def finish(self) -> None:
        """Count the pending records at the end of the slice."""
        if self._pending_records is not None:
            self._count(self._pending_records, len(self._pending_records))
        self._pending_records, self._n_counted, self._send_times = None, 0, self._send_times.select(0, 0)

    def merge(self, other: Tally) -> None:
        """Add a finished tally of the same period."""
        for name, histogram in self.histograms.items():
            histogram.merge(other.histograms[name])
        self.ticks += other.ticks
        self.swaps += other.swaps
        self.pauses += other.pauses
        self.n_lost += other.n_lost
        self.n_unknown += other.n_unknown
        self.misses = [*self.misses, *other.misses][:_MAX_MISSED]
        for cause, ticks in other.missed_ticks.items():
            self.missed_ticks[cause] += ticks

    def _count(self, records: NDArray[np.void], end: int) -> None:
        new_slice = slice(self._n_counted, end)
        is_swap, is_complete = is_policy_swap(records), is_complete_tick(records)
        new_records, is_near, has_action = records[new_slice], is_near_swap(is_swap)[new_slice], is_complete[new_slice]
        send_times = self._send_times.select(self._n_counted, end)
        lateness_ns = new_records["t_receive_ns"] - send_times.sent_ns
        tick_ns = new_records["tick_ns"]
        successors = np.flatnonzero(is_in_same_episode(records)[new_slice]) + self._n_counted
        durations_by_name = {
            "lateness": lateness_ns,
            "lateness near a swap": lateness_ns[is_near],
            "lateness elsewhere": lateness_ns[~is_near],
            SENT_LATE: send_times.sent_ns - send_times.due_ns,
            "tick": tick_ns[has_action],
            "tick near a swap": tick_ns[has_action & is_near],
            "tick elsewhere": tick_ns[has_action & ~is_near],
            DEVICE_CLOCK_ERROR: 1000 * interval_errors(records, successors, "t_device_us", self._period_ns // 1000),
            HOST_CLOCK_ERROR: interval_errors(records, successors, "t_receive_ns", self._period_ns),
            **{name: new_records["stage_ns"][has_action, k].astype(np.int64) for k, name in enumerate(STAGES)},
        }
        for name, durations in durations_by_name.items():
            self.histograms[name].add(durations)
        self.ticks += int(np.count_nonzero(has_action))
        self.swaps += int(np.count_nonzero(is_swap[new_slice]))
        first_index = max(0, self._n_counted - 1)
        self.pauses += count_pauses(records[first_index:end], self._send_times.due_ns[first_index:end], self._period_ns)
        for i in np.flatnonzero(new_records["missed"]).tolist():
            previous = records[max(0, self._n_counted + i - 1)]
            self._record_miss(new_records[i], int(send_times.due_ns[i]), previous, is_near=bool(is_near[i]))

    def _record_miss(self, record: np.void, due_ns: int, previous: np.void, *, is_near: bool) -> None:
        """Record the misses before a record whose frame was due at ``due_ns``."""
        frames, cause = int(record["missed"]), Miss(record["miss"])
        self.missed_ticks[cause] += frames
        if len(self.misses) < _MAX_MISSED:
            first_ns = due_ns - frames * self._period_ns
            tick_us, longest_stage = float(previous["tick_ns"]) / 1000, STAGES[int(np.argmax(previous["stage_ns"]))]
            self.misses.append(
                MissedTicks(frames, cause, first_ns, int(record["t_receive_ns"]), is_near, tick_us, longest_stage)
            )


def is_complete_tick(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return which records belong to a complete tick, from frame to command; an episode's last record does not."""
    return np.asarray((records["flags"] & Flag.NO_ACTION) == 0, np.bool_)


def interval_errors(records: NDArray[np.void], indices: NDArray[np.intp], clock: str, period: int) -> NDArray[np.int64]:
    """Return how far each interval between records is from a whole number of periods, according to ``clock``.

    ``indices`` selects records that have a predecessor. ``period`` and the result are in the clock's unit.
    """
    frames = records["frame"].astype(np.int64)
    times = records[clock].astype(np.int64)
    return np.asarray(
        np.abs(times[indices] - times[indices - 1] - period * (frames[indices] - frames[indices - 1])), np.int64
    )


def is_in_same_episode(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return which records belong to the same episode as their predecessor."""
    is_same = np.zeros(len(records), np.bool_)
    kind, episode = records["kind"], records["episode"]
    is_same[1:] = (kind[1:] == kind[:-1]) & (episode[1:] == episode[:-1]) & ((records["flags"][1:] & Flag.FIRST) == 0)
    return is_same


def is_policy_swap(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return which records are the first of a new policy within an episode."""
    is_changed = np.zeros(len(records), np.bool_)
    policy = records["policy_id"]
    is_changed[1:] = policy[1:] != policy[:-1]
    return np.asarray(
        is_changed & is_in_same_episode(records) & is_complete_tick(records) & (records["kind"] != Kind.RESET), np.bool_
    )


def is_near_swap(is_swap: NDArray[np.bool_], ticks: int = NEAR_TICKS) -> NDArray[np.bool_]:
    """Return which records are at most ``ticks`` away from a swap."""
    n_swaps_before = np.concatenate([[0], np.cumsum(is_swap)])
    indices = np.arange(len(is_swap))
    end_indices, first_indices = np.minimum(indices + ticks + 1, len(is_swap)), np.maximum(indices - ticks, 0)
    return np.asarray(n_swaps_before[end_indices] > n_swaps_before[first_indices], np.bool_)


_PAUSE_FRACTION: Final = 0.5
"""Lateness above which a twin is assumed to have paused, as a fraction of the period."""

Array = NDArray[np.int64]


class SendTimes(NamedTuple):
    """Due and send times of frames, (n,) each, in ns of the host's monotonic clock."""

    due_ns: Array
    sent_ns: Array
    n_unknown: int = 0
    """Number of frames whose exact times are unknown."""

    def select(self, start: int, end: int) -> SendTimes:
        """Select the frames from ``start`` up to, but excluding, ``end``."""
        return SendTimes(self.due_ns[start:end], self.sent_ns[start:end])

    def append(self, other: SendTimes) -> SendTimes:
        """Return these times followed by ``other``."""
        return SendTimes(np.concatenate([self.due_ns, other.due_ns]), np.concatenate([self.sent_ns, other.sent_ns]))


def send_times(records: NDArray[np.void], trace: TraceReader | None) -> SendTimes:
    """Determine the send times of the records' frames (dtype ``RecordLayout.dtype``).

    Without a trace (a device on a port), they are derived from the loop's ``lateness_ns`` (see ``onrig.hw.clock``),
    which is relative to the most punctual frames.
    """
    estimated_ns = np.asarray(records["t_receive_ns"] - records["lateness_ns"], np.int64)
    if trace is None:
        return SendTimes(estimated_ns, estimated_ns)
    is_known, due_ns, sent_ns = trace.times(records["frame"])
    n_unknown = int(np.count_nonzero(~is_known))
    return SendTimes(np.where(is_known, due_ns, estimated_ns), np.where(is_known, sent_ns, estimated_ns), n_unknown)


def count_pauses(records: NDArray[np.void], due_ns: Array, period_ns: int) -> int:
    """Count the pauses of the device's clock between consecutive records."""
    offset_ns = due_ns - 1000 * records["t_device_us"].astype(np.int64)
    return int(np.count_nonzero(np.diff(offset_ns) > _PAUSE_FRACTION * period_ns))


_MIN_STALL_FRACTION: Final = 0.25
"""Minimum duration, as a fraction of the period, of a stall that can cost a tick."""


class ExplainedMiss(NamedTuple):
    """Missed ticks with the stalls that may have caused them."""

    miss: MissedTicks
    stall_ms: float
    """Longest stall at that time; 0 if none was observed."""
    line_ms: float = 0.0
    """Longest delay of a byte through a pseudo-terminal at that time; 0 if no delay was long enough to cost a tick."""

    @property
    def caused_by_machine(self) -> bool:
        """Whether the machine stalled at that time."""
        return self.stall_ms > 0

    @property
    def caused_by_line(self) -> bool:
        """Whether the kernel delivered bytes late although the machine did not stall."""
        return self.line_ms > 0 and not self.caused_by_machine

    @property
    def caused_by_program(self) -> bool:
        """Whether the program is the cause: the tick overran although the machine did not stall."""
        return self.miss.cause is Miss.PROGRAM and not self.caused_by_machine


class Stalls:
    """Observed stalls that are long enough to cost a tick at a given period."""

    def __init__(self, records: Sequence[SentinelRecords], period_ns: int) -> None:
        min_ns = max(MIN_RECORDED_NS, _MIN_STALL_FRACTION * period_ns)
        self._spans = {
            kind: np.array(
                sorted(span for s in records if s.kind == kind for span in s.stalls if span[1] - span[0] >= min_ns),
                np.int64,
            ).reshape(-1, 2)
            for kind in ("timer", "line")
        }
        self._period_ns = period_ns

    def explain(self, miss: MissedTicks) -> ExplainedMiss:
        """Attribute a miss to the longest stalls around it.

        The stalls considered overlap the time from one period before the first missed frame to the answered frame.
        """
        longest_ms = []
        for due_ns, wake_ns in (self._spans[kind].T for kind in ("timer", "line")):
            is_overlapping = (wake_ns >= miss.due_ns - self._period_ns) & (due_ns <= miss.received_ns)
            longest_ms.append(int((wake_ns - due_ns)[is_overlapping].max()) / 1e6 if is_overlapping.any() else 0.0)
        return ExplainedMiss(miss, *longest_ms)

    def chance_fraction(self, measured_s: float) -> float:
        """Return an upper bound on the probability that a miss coincides with a stall by chance."""
        spans = np.concatenate(list(self._spans.values()))
        window_ns = (spans[:, 1] - spans[:, 0]) + 2 * self._period_ns
        return min(1.0, float(window_ns.sum()) / (measured_s * 1e9)) if measured_s > 0 else 0.0


class LoopMiss(msgspec.Struct, frozen=True):
    """Missed ticks in the JSON report."""

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


def loop_miss(rate_hz: float, subject: str, e: ExplainedMiss) -> LoopMiss:
    """Convert missed ticks for the JSON report."""
    m = e.miss
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
