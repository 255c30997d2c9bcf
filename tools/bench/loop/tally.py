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
"""Ticks on either side of a policy swap that it may affect."""
DEVICE_CLOCK: Final = "sampling interval error, device clock"
HOST_CLOCK: Final = "arrival interval error, host clock"
SENT_LATE: Final = "frame sent late"
LATENESS: Final = ("lateness", "lateness near a swap", "lateness elsewhere")
TICK: Final = ("tick", "tick near a swap", "tick elsewhere")
_WHOLE: Final = (*LATENESS, *TICK, SENT_LATE, DEVICE_CLOCK, HOST_CLOCK)
_KEPT: Final = 10_000


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
    """Statistics of the records of one stretch; tallies of several stretches can be merged."""

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns
        self._held: NDArray[np.void] | None = None
        self._sendings = Sendings(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._judged = 0
        self.histograms = {name: DurationHistogram() for name in (*_WHOLE, *STAGES)}
        self.ticks = self.swaps = self.pauses = self.lost = self.unknown = 0
        self.missed: list[Missed] = []
        self.missed_ticks = dict.fromkeys((Miss.LINK, Miss.PROGRAM, Miss.HOST), 0)

    def add(self, records: NDArray[np.void], sendings: Sendings) -> None:
        """Add the next records (dtype ``RecordLayout.dtype``) and the send times of their frames. The newest ones wait
        for their successors.
        """
        if not len(records):
            return
        self.unknown += sendings.unknown
        held = records if self._held is None else np.concatenate([self._held, records])
        self._sendings = self._sendings.append(sendings)
        end = max(self._judged, len(held) - NEAR_TICKS)
        self._judge(held, end)
        first = max(0, end - NEAR_TICKS - 1)
        self._held, self._judged = held[first:].copy(), end - first
        self._sendings = self._sendings.part(first, len(held))

    def finish(self) -> None:
        """End the stretch."""
        if self._held is not None:
            self._judge(self._held, len(self._held))
        self._held, self._judged, self._sendings = None, 0, self._sendings.part(0, 0)

    def merge(self, other: Tally) -> None:
        """Add another, finished tally of the same period."""
        for name, histogram in self.histograms.items():
            histogram.merge(other.histograms[name])
        self.ticks += other.ticks
        self.swaps += other.swaps
        self.pauses += other.pauses
        self.lost += other.lost
        self.unknown += other.unknown
        self.missed = [*self.missed, *other.missed][:_KEPT]
        for cause, ticks in other.missed_ticks.items():
            self.missed_ticks[cause] += ticks

    def _judge(self, records: NDArray[np.void], end: int) -> None:
        here = slice(self._judged, end)
        swapped, acts = swaps(records), acting(records)
        part, is_near, acted = records[here], near_swap_ticks(swapped)[here], acts[here]
        sendings = self._sendings.part(self._judged, end)
        late = part["t_receive_ns"] - sendings.sent_ns
        tick = part["tick_ns"]
        followed = np.flatnonzero(continues_episode(records)[here]) + self._judged
        counted = {
            "lateness": late,
            "lateness near a swap": late[is_near],
            "lateness elsewhere": late[~is_near],
            SENT_LATE: sendings.sent_ns - sendings.due_ns,
            "tick": tick[acted],
            "tick near a swap": tick[acted & is_near],
            "tick elsewhere": tick[acted & ~is_near],
            DEVICE_CLOCK: 1000 * interval_errors(records, followed, "t_device_us", self._period_ns // 1000),
            HOST_CLOCK: interval_errors(records, followed, "t_receive_ns", self._period_ns),
            **{name: part["stage_ns"][acted, k].astype(np.int64) for k, name in enumerate(STAGES)},
        }
        for name, durations in counted.items():
            self.histograms[name].add(durations)
        self.ticks += int(np.count_nonzero(acted))
        self.swaps += int(np.count_nonzero(swapped[here]))
        since = max(0, self._judged - 1)
        self.pauses += pauses(records[since:end], self._sendings.due_ns[since:end], self._period_ns)
        for i in np.flatnonzero(part["missed"]).tolist():
            before = records[max(0, self._judged + i - 1)]
            self._miss(part[i], int(sendings.due_ns[i]), before, is_near=bool(is_near[i]))

    def _miss(self, record: np.void, due_ns: int, before: np.void, *, is_near: bool) -> None:
        """Record the misses before a record whose frame was due at ``due_ns``."""
        frames, cause = int(record["missed"]), Miss(record["miss"])
        self.missed_ticks[cause] += frames
        if len(self.missed) < _KEPT:
            first_ns = due_ns - frames * self._period_ns
            tick_us, longest = float(before["tick_ns"]) / 1000, STAGES[int(np.argmax(before["stage_ns"]))]
            self.missed.append(Missed(frames, cause, first_ns, int(record["t_receive_ns"]), is_near, tick_us, longest))


def acting(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return whether each record is of a complete tick, from frame to command (the last of an episode is not)."""
    return np.asarray((records["flags"] & Flag.NO_ACTION) == 0, np.bool_)


def interval_errors(records: NDArray[np.void], at: NDArray[np.intp], clock: str, period: int) -> NDArray[np.int64]:
    """Deviation of the time since the previous record, on this ``clock``, from a whole number of periods.

    ``at``: indices of records that follow another; ``period`` and the result are in the clock's unit.
    """
    frames = records["frame"].astype(np.int64)
    times = records[clock].astype(np.int64)
    return np.asarray(np.abs(times[at] - times[at - 1] - period * (frames[at] - frames[at - 1])), np.int64)


def continues_episode(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return whether each record is of the same episode as the previous one."""
    same = np.zeros(len(records), np.bool_)
    kind, episode = records["kind"], records["episode"]
    same[1:] = (kind[1:] == kind[:-1]) & (episode[1:] == episode[:-1]) & ((records["flags"][1:] & Flag.FIRST) == 0)
    return same


def swaps(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return whether each record is the first under another policy within an episode."""
    changed = np.zeros(len(records), np.bool_)
    policy = records["policy_id"]
    changed[1:] = policy[1:] != policy[:-1]
    return np.asarray(
        changed & continues_episode(records) & acting(records) & (records["kind"] != Kind.RESET), np.bool_
    )


def near_swap_ticks(swapped: NDArray[np.bool_], ticks: int = NEAR_TICKS) -> NDArray[np.bool_]:
    """Return whether a swap is at most ``ticks`` away."""
    steps = np.concatenate([[0], np.cumsum(swapped)])
    at = np.arange(len(swapped))
    last, first = np.minimum(at + ticks + 1, len(swapped)), np.maximum(at - ticks, 0)
    return np.asarray(steps[last] > steps[first], np.bool_)


_PAUSE: Final = 0.5
"""Share of a period beyond which a late twin counts as paused."""

Array = NDArray[np.int64]


class Sendings(NamedTuple):
    """Due and send times of frames on the line; host's monotonic clock, ns, shape (n,) each."""

    due_ns: Array
    sent_ns: Array
    unknown: int = 0
    """Number of frames without exact times."""

    def part(self, first: int, end: int) -> Sendings:
        """Select a stretch of the frames."""
        return Sendings(self.due_ns[first:end], self.sent_ns[first:end])

    def append(self, more: Sendings) -> Sendings:
        """Append ``more``."""
        return Sendings(np.concatenate([self.due_ns, more.due_ns]), np.concatenate([self.sent_ns, more.sent_ns]))


def sendings(records: NDArray[np.void], trace: TraceReader | None) -> Sendings:
    """Determine the send times of the frames of records (dtype ``RecordLayout.dtype``).

    Without a trace (a device on a port), they follow from the loop's ``lateness_ns`` (see ``onrig.hw.clock``), which is
    relative to the most punctual frames.
    """
    guess = np.asarray(records["t_receive_ns"] - records["lateness_ns"], np.int64)
    if trace is None:
        return Sendings(guess, guess)
    known, due_ns, sent_ns = trace.times(records["frame"])
    unknown = int(np.count_nonzero(~known))
    return Sendings(np.where(known, due_ns, guess), np.where(known, sent_ns, guess), unknown)


def pauses(records: NDArray[np.void], due_ns: Array, period_ns: int) -> int:
    """Number of pauses of the device's clock between consecutive records."""
    behind = due_ns - 1000 * records["t_device_us"].astype(np.int64)
    return int(np.count_nonzero(np.diff(behind) > _PAUSE * period_ns))


_SHARE: Final = 0.25
"""Share of a period below which a stall cannot cost a tick."""


class ExplainedMiss(NamedTuple):
    """A miss and its attribution to the machine."""

    missed: Missed
    stall_ms: float
    """Longest stall at that time; 0 if none was seen."""
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
    """Stalls seen by the sentinels, long enough to cost a tick at a given period."""

    def __init__(self, seen: Sequence[SentinelRecords], period_ns: int) -> None:
        least = max(RECORDED_NS, _SHARE * period_ns)
        self._spans = {
            kind: np.array(
                sorted(span for s in seen if s.kind == kind for span in s.stalls if span[1] - span[0] >= least),
                np.int64,
            ).reshape(-1, 2)
            for kind in ("timer", "line")
        }
        self._period_ns = period_ns

    def explain(self, missed: Missed) -> ExplainedMiss:
        """Attribute a miss to stalls between one period before the first missed frame and the answered one."""
        longest = []
        for due, woken in (self._spans[kind].T for kind in ("timer", "line")):
            there = (woken >= missed.due_ns - self._period_ns) & (due <= missed.received_ns)
            longest.append(int((woken - due)[there].max()) / 1e6 if there.any() else 0.0)
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
