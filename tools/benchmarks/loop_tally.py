"""What the step records of a measured loop come to: histograms of bounded size, and each missed tick by itself."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.record import STAGES, Flag, Kind, Miss
from runtime.replay.histogram import DurationHistogram
from tools.benchmarks.loop_lateness import arrivals_ns, lateness_ns, pauses

NEAR_TICKS: Final = 10
"""A swap is felt, if at all, by the ticks that prepare it and by those after it: so many on either side."""
DEVICE_CLOCK: Final = "sampling interval error, device clock"
HOST_CLOCK: Final = "arrival interval error, host clock"
LATENESS: Final = ("lateness", "lateness near a swap", "lateness elsewhere")
TICK: Final = ("tick", "tick near a swap", "tick elsewhere")
_WHOLE: Final = (*LATENESS, *TICK, DEVICE_CLOCK, HOST_CLOCK)
_KEPT: Final = 10_000


class Missed(NamedTuple):
    """Ticks missed in a row, and the tick that followed them; times in ns of the host's monotonic clock."""

    frames: int
    cause: Miss
    """As the loop itself saw it."""
    due_ns: int
    """When the first of the missed frames was due."""
    received_ns: int
    """When the frame that was answered instead arrived."""
    near_swap: bool
    tick_before_us: float
    """How long the loop's own work on the tick before took."""


class Tally:
    """Takes the records of one stretch of a loop at work; tallies of several stretches add up.

    Between ``add`` and ``finish`` it grows by 9 bytes per tick, for lateness is told at the end.
    """

    def __init__(self, period_ns: int, *, twin: bool = True) -> None:
        self._period_ns, self._twin = period_ns, twin
        self._held: NDArray[np.void] | None = None
        self._judged = 0
        self._arrivals: list[NDArray[np.int64]] = []
        self._near: list[NDArray[np.bool_]] = []
        self._unexplained: list[tuple[int, Missed]] = []
        self._frames = 0
        self.histograms = {name: DurationHistogram() for name in (*_WHOLE, *STAGES)}
        self.ticks = self.swaps = self.pauses = self.lost = 0
        self.missed: list[Missed] = []
        self.missed_ticks = dict.fromkeys((Miss.LINK, Miss.PROGRAM, Miss.HOST), 0)

    def add(self, records: NDArray[np.void]) -> None:
        """Take the next records (dtype ``RecordLayout.dtype``); the newest wait until it is known what follows them."""
        if not len(records):
            return
        held = records if self._held is None else np.concatenate([self._held, records])
        end = max(self._judged, len(held) - NEAR_TICKS)
        self._judge(held, end)
        first = max(0, end - NEAR_TICKS - 1)
        self._held, self._judged = held[first:].copy(), end - first

    def finish(self) -> None:
        """End the stretch: nothing follows the newest, and the most punctual frame is known."""
        if self._held is None:
            return
        self._judge(self._held, len(self._held))
        arrivals, is_near = np.concatenate(self._arrivals), np.concatenate(self._near)
        starts = pauses(arrivals, self._period_ns)
        lateness = lateness_ns(arrivals, starts)
        self.pauses += len(starts)
        self.histograms["lateness"].add(lateness)
        self.histograms["lateness near a swap"].add(lateness[is_near])
        self.histograms["lateness elsewhere"].add(lateness[~is_near])
        for at, missed in self._unexplained:
            # The sample's own time, which its receipt lags behind, tells when the missed ones were due.
            due_ns = missed.received_ns - int(lateness[at]) - missed.frames * self._period_ns
            self.missed.append(missed._replace(due_ns=due_ns))
        self._held, self._judged, self._frames = None, 0, 0
        self._arrivals, self._near, self._unexplained = [], [], []

    def merge(self, other: Tally) -> None:
        """Add what another one of the same period has taken in and finished."""
        for name, histogram in self.histograms.items():
            histogram.merge(other.histograms[name])
        self.ticks += other.ticks
        self.swaps += other.swaps
        self.pauses += other.pauses
        self.lost += other.lost
        self.missed = [*self.missed, *other.missed][:_KEPT]
        for cause, ticks in other.missed_ticks.items():
            self.missed_ticks[cause] += ticks

    def _judge(self, records: NDArray[np.void], end: int) -> None:
        here = slice(self._judged, end)
        swapped, acts = swaps(records), acting(records)
        part, is_near, acted = records[here], near(swapped)[here], acts[here]
        tick = part["tick_ns"]
        followed = np.flatnonzero(follows(records)[here]) + self._judged
        counted = {
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
        for i in np.flatnonzero(part["missed"]).tolist():
            self._miss(part[i], self._frames + i, records[max(0, self._judged + i - 1)], is_near=bool(is_near[i]))
        self._arrivals.append(arrivals_ns(part, twin=self._twin))
        self._near.append(is_near)
        self._frames += len(part)

    def _miss(self, record: np.void, at: int, before: np.void, *, is_near: bool) -> None:
        frames, cause = int(record["missed"]), Miss(record["miss"])
        self.missed_ticks[cause] += frames
        if len(self.missed) + len(self._unexplained) < _KEPT:
            missed = Missed(frames, cause, 0, int(record["t_receive_ns"]), is_near, float(before["tick_ns"]) / 1000)
            self._unexplained.append((at, missed))


def acting(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether each record is of a whole tick, from frame to command (the last of an episode is not)."""
    return np.asarray((records["flags"] & Flag.NO_ACTION) == 0, np.bool_)


def interval_errors(records: NDArray[np.void], at: NDArray[np.intp], clock: str, period: int) -> NDArray[np.int64]:
    """By how much the time since the record before, on the ``clock`` of that name, was no whole number of periods.

    ``at`` are indices of records that follow another, ``period`` is in the clock's unit, and so is what is returned.
    """
    frames = records["frame"].astype(np.int64)
    times = records[clock].astype(np.int64)
    return np.asarray(np.abs(times[at] - times[at - 1] - period * (frames[at] - frames[at - 1])), np.int64)


def follows(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether each record is of the same episode as the one before it."""
    same = np.zeros(len(records), np.bool_)
    kind, episode = records["kind"], records["episode"]
    same[1:] = (kind[1:] == kind[:-1]) & (episode[1:] == episode[:-1]) & ((records["flags"][1:] & Flag.FIRST) == 0)
    return same


def swaps(records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Whether each record is the first under another policy, in the middle of an episode."""
    changed = np.zeros(len(records), np.bool_)
    policy = records["policy_id"]
    changed[1:] = policy[1:] != policy[:-1]
    return np.asarray(changed & follows(records) & acting(records) & (records["kind"] != Kind.RESET), np.bool_)


def near(swapped: NDArray[np.bool_], ticks: int = NEAR_TICKS) -> NDArray[np.bool_]:
    """Whether there is a swap at most ``ticks`` before or after."""
    steps = np.concatenate([[0], np.cumsum(swapped)])
    at = np.arange(len(swapped))
    last, first = np.minimum(at + ticks + 1, len(swapped)), np.maximum(at - ticks, 0)
    return np.asarray(steps[last] > steps[first], np.bool_)
