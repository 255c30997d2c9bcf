"""The ledger of a soak: counts that must agree, and trends of memory and descriptors.  Pure except for ``Gauges``.

A restarted process begins a new series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.record import Miss
from onrig.tools.bench.report import Check, check_at_least, check_at_most
from tests.lab.endurance.schedule import NATURES, Kind
from tests.lab.rig.processes import use_of
from tests.lab.rig.run_folder import ReportedCounts

WARM_UP_S: Final = 20.0
MIN_SLOPE_TIME_S: Final = 90.0
"""Minimum lifetime after warm-up for a slope to be tested; over less time, a single page looks like a slope."""
MIN_GROWTH_TIME_S: Final = 20.0
"""Minimum time after warm-up over which growth is tested."""
MAX_SAMPLES: Final = 400
"""Maximum number of samples of a series used for slopes; longer series are thinned evenly."""
MIN_SERIES_S: Final = 10.0
"""Minimum length of a series, after its warm-up, for a slope."""


class Series(NamedTuple):
    """Time series of one process."""

    role: str
    pid: int
    times_s: list[float]
    private_mb: list[float]
    descriptors: list[float]


class Gauges:
    """Time series of samples, one for each process."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, int], Series] = {}

    def sample(self, now_s: float, processes: dict[str, int]) -> None:
        """Take one sample of each process (role to pid)."""
        for role, pid in processes.items():
            use = use_of(pid)
            if use is None:
                continue
            one = self.series.setdefault((role, pid), Series(role, pid, [], [], []))
            one.times_s.append(round(now_s, 3))
            one.private_mb.append(round(use.private_mb, 3))
            one.descriptors.append(float(use.descriptors))

    @property
    def roles(self) -> list[str]:
        """Roles, in order of appearance."""
        return list(dict.fromkeys(role for role, _ in self.series))

    def of(self, role: str) -> list[Series]:
        """Return the series of a role."""
        return [s for s in self.series.values() if s.role == role]

    def grown_mb(self, warm_up_s: float = WARM_UP_S) -> dict[str, float]:
        """Return the worst growth per role from the first tenth of a process's lifetime to the last, MB."""
        grown: dict[str, float] = {}
        for one in self.series.values():
            more = grown_mb(one.times_s, one.private_mb, warm_up_s)
            if more is not None:
                grown[one.role] = max(round(more, 2), grown.get(one.role, -1e9))
        return grown

    def memory(self, role: str) -> Trend | None:
        """Return the trend of the memory of a role, MB per minute, over all its processes."""
        return _long_series_trend([(s.times_s, s.private_mb) for s in self.of(role)])

    def open_descriptors(self, role: str) -> Trend | None:
        """Return the trend of the open descriptors of a role."""
        return _long_series_trend([(s.times_s, s.descriptors) for s in self.of(role)])


def grown_mb(times_s: Sequence[float], values_mb: Sequence[float], warm_up_s: float = WARM_UP_S) -> float | None:
    """Return the median of the last tenth minus that of the first; None if the series is too short."""
    kept = [v for t, v in zip(times_s, values_mb, strict=True) if t - times_s[0] >= warm_up_s]
    if not kept or times_s[-1] - times_s[0] < warm_up_s + MIN_GROWTH_TIME_S:
        return None
    tenth = max(1, len(kept) // 10)
    return median(kept[-tenth:]) - median(kept[:tenth])


def _long_series_trend(series: list[tuple[list[float], list[float]]]) -> Trend | None:
    """Return the trend of the series that are long enough, or of all with a slope if there are none."""
    return trend(series, WARM_UP_S, MIN_SLOPE_TIME_S) or trend(series, WARM_UP_S)


class Trend(msgspec.Struct, frozen=True):
    """Theil-Sen estimate (Sen 1968)."""

    per_minute: float
    """Median slope, in units of the figure per minute."""
    longest_s: float
    """Length of the longest series in it."""
    series: int
    """Number of series that were long enough."""


def slopes_per_minute(times_s: Sequence[float], values: Sequence[float]) -> NDArray[np.float64]:
    """Return the slopes between all pairs of samples at different times, units per minute, for at most MAX_SAMPLES."""
    t, v = np.asarray(times_s, np.float64), np.asarray(values, np.float64)
    if len(t) > MAX_SAMPLES:
        at = np.linspace(0, len(t) - 1, MAX_SAMPLES).astype(np.int64)
        t, v = t[at], v[at]
    i, j = np.triu_indices(len(t), 1)
    apart = t[j] > t[i]
    slopes: NDArray[np.float64] = 60.0 * (v[j] - v[i])[apart] / (t[j] - t[i])[apart]
    return slopes


def trend(
    series: Sequence[tuple[Sequence[float], Sequence[float]]], warm_up_s: float, shortest_s: float = MIN_SERIES_S
) -> Trend | None:
    """Return the trend of one or more series (times in s, values), with pairs only within a series; None if all are
    short.

    The first ``warm_up_s`` of each series are dropped; the weight of a series is the square of its number of samples.
    """
    found, spans = [], []
    for times, values in series:
        if not times:
            continue
        kept = [(t, v) for t, v in zip(times, values, strict=True) if t - times[0] >= warm_up_s]
        if len(kept) < 3 or kept[-1][0] - kept[0][0] < shortest_s:
            continue
        found.append(slopes_per_minute([t for t, _ in kept], [v for _, v in kept]))
        spans.append(kept[-1][0] - kept[0][0])
    if not found:
        return None
    return Trend(float(np.median(np.concatenate(found))), max(spans), len(found))


FLAT_MB_PER_MIN: Final = 1.0
"""Maximum slope of a process's memory that counts as flat."""
FLAT_FDS_PER_MIN: Final = 0.5
FLAT_ROLES: Final = ("device", "control", "replay", "learner", "supervisor")
"""Processes of the rig, whose memory must be flat; the others belong to the soak."""


@dataclass
class Lifetime:
    """One lifetime of the rig: the soak's own counts, and the rig's account."""

    number: int
    resumed: bool = False
    exit_code: int | None = None
    graceful: bool = False
    """Whether it left a summary; if all processes are killed at once, only a checkpoint remains."""
    before: ReportedCounts = field(default_factory=ReportedCounts)
    """The rig's counts at the start (a resumed run continues them)."""
    reported: ReportedCounts = field(default_factory=ReportedCounts)
    written: int = 0
    """Number of records in the ring, from its own counter."""
    read: int = 0
    """Number of records read by the soak, to which the counts below refer."""
    missed: Counter[str] = field(default_factory=Counter)
    """Missed ticks by cause."""
    produced: int = 0
    """Number of transitions that follow from the records."""
    replay_kills: int = 0
    admitted: int = 0
    """Count from the rig's events, as for the two below."""
    refused: int = 0
    rolled_back: int = 0
    final_mirrors: dict[str, str] = field(default_factory=dict)
    """Hash of each mirror that received the end, by owner."""

    @property
    def taken_in(self) -> int:
        """Number of records that the rig read in this lifetime."""
        return self.reported.taken_in - self.before.taken_in

    @property
    def offered(self) -> int:
        """Number of experiences in this lifetime."""
        return self.reported.offered - self.before.offered

    @property
    def kept(self) -> int:
        """Number of writes in this lifetime."""
        return self.reported.kept - self.before.kept

    @property
    def error_batches(self) -> int:
        """Number of TD-error batches in this lifetime, as far as the rig reports them."""
        return (self.reported.error_batches or 0) - (self.before.error_batches or 0)

    @property
    def lost(self) -> int:
        """Number of records written but missing in the rig's account: lost in kills."""
        return self.written - self.taken_in


@dataclass
class FaultRecord:
    """One fault and its consequences."""

    kind: Kind
    due_s: float
    at_s: float
    """Time of its injection."""
    duration_s: float
    life: int
    names: list[str] = field(default_factory=list)
    """Names in events."""
    recovered_s: float | None = None
    """Time from its injection to its end; None if it exceeded the limit."""
    ended_run: bool = False
    exit_code: int | None = None


@dataclass
class Ledger:
    """Ledger of a complete soak."""

    lifetimes: list[Lifetime] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    planned: int = 0
    durable_records: int = 0
    """Maximum loss in records per kill of the replay process or the rig."""
    mirrored: int = 0
    compared: int = 0
    compared_complete: int = 0
    mismatches: int = 0
    unexpected_ends: list[str] = field(default_factory=list)
    unreported: list[str] = field(default_factory=list)
    """Contradictions between a run's account and its files."""
    learner_starts: int = 0
    memory: dict[str, Trend] = field(default_factory=dict)
    """MB, by role."""
    descriptors: dict[str, Trend] = field(default_factory=dict)


def life_checks(life: Lifetime, durable_records: int) -> list[Check]:
    """Check the identities that must hold for one lifetime of the rig."""
    name = f"run {life.number}"
    kills = life.replay_kills + (not life.graceful)
    reported, before = life.reported, life.before
    checks = [
        _equal(f"{name}: records read along, of those written", life.read, life.written),
        check_at_least(f"{name}: records written and never taken in", life.lost, 0),
        check_at_most(
            f"{name}: records written and never taken in, including dropped ones", life.lost, kills * durable_records
        ),
        check_at_most(f"{name}: records dropped", reported.dropped - before.dropped, 0),
        check_at_least(
            f"{name}: experiences produced and not offered to the memory", life.produced - life.offered, -kills
        ),
        check_at_most(
            f"{name}: experiences produced and not offered to the memory",
            life.produced - life.offered,
            kills * durable_records,
        ),
        _equal(f"{name}: experiences kept, of those offered (FIFO keeps all)", life.kept, life.offered),
        _equal(f"{name}: experiences stored", reported.stored, min(reported.capacity, reported.kept)),
        check_at_most(f"{name}: policies rolled back, of those admitted", life.rolled_back, life.admitted + 1),
        check_at_most(f"{name}: mirrors that the rig found to differ", reported.mirror_mismatches, 0),
    ]
    if not kills:
        missed = sum(life.missed.values())
        checks.append(_equal(f"{name}: missed ticks, counted twice", reported.missed - before.missed, missed))
        for outcome, mine, theirs in (
            ("admitted", life.admitted, reported.policies_admitted),
            ("refused", life.refused, reported.policies_refused),
            ("offered", life.admitted + life.refused, reported.policies_offered),
            ("rolled back", life.rolled_back, reported.rolled_back),
        ):
            if theirs is not None and not life.resumed:
                checks.append(_equal(f"{name}: policies {outcome}, counted twice", theirs, mine))
    if life.graceful:
        for whose, digest in life.final_mirrors.items():
            differs = int(digest != reported.digest)
            checks.append(_equal(f"{name}: final mirrors of the {whose} that differ from the memory", differs, 0))
    return checks


def checks(ledger: Ledger) -> list[Check]:
    """Check everything that must balance."""
    found = [check for life in ledger.lifetimes for check in life_checks(life, ledger.durable_records)]
    faults = ledger.faults
    ends = [h for h in faults if NATURES[h.kind].ends_run]
    to_name = [h for h in ends if NATURES[h.kind].names] + [h for h in faults if h.kind is Kind.REPLAY_KILLED]
    found += [
        _equal("faults brought about, of those planned", len(faults), ledger.planned),
        _equal("faults that were not over in time", sum(h.recovered_s is None for h in faults), 0),
        _equal("faults to be named that were not", sum(not h.names for h in to_name), 0),
        _equal("faults that end the run and did not", sum(not h.ended_run for h in ends), 0),
        _equal("ends of the rig that no fault explains", len(ledger.unexpected_ends), 0),
        _equal("unreported losses", len(ledger.unreported), 0),
        check_at_least("comparisons of a mirror with the memory", ledger.compared, 1),
        check_at_least("of them of the whole memory, by its hash", ledger.compared_complete, 1),
        _equal("mirror mismatches", ledger.mismatches, 0),
        check_at_least("mirrors that heard of the last end and were compared", _final_mirrors(ledger), 1),
    ]
    if any(slope.longest_s >= MIN_SLOPE_TIME_S for slope in (*ledger.memory.values(), *ledger.descriptors.values())):
        unseen = [role for role in FLAT_ROLES if role not in ledger.memory or role not in ledger.descriptors]
        found.append(_equal("processes of the rig that were not followed", len(unseen), 0))
    for role, slope in ledger.memory.items():
        if role in FLAT_ROLES and slope.longest_s >= MIN_SLOPE_TIME_S:
            found.append(check_at_most(f"memory of {role}, MB per minute", slope.per_minute, FLAT_MB_PER_MIN))
    for role, slope in ledger.descriptors.items():
        if role in FLAT_ROLES and slope.longest_s >= MIN_SLOPE_TIME_S:
            found.append(check_at_most(f"file descriptors of {role}, per minute", slope.per_minute, FLAT_FDS_PER_MIN))
    return found


def _final_mirrors(ledger: Ledger) -> int:
    """Count mirrors compared at the end of the last run, if it ended on request; an end by a fault has none."""
    last = ledger.lifetimes[-1] if ledger.lifetimes else Lifetime(0)
    return len(last.final_mirrors) if last.graceful else 0


def causes() -> tuple[str, ...]:
    """Names of the causes of missed ticks."""
    return tuple(m.name.lower() for m in Miss if m is not Miss.NONE)


def by_kind(faults: Iterable[FaultRecord]) -> dict[Kind, list[FaultRecord]]:
    """Faults by kind, in the order of the kinds."""
    groups: dict[Kind, list[FaultRecord]] = {kind: [] for kind in Kind}
    for h in faults:
        groups[h.kind].append(h)
    return {kind: group for kind, group in groups.items() if group}


def failed(found: Sequence[Check]) -> list[Check]:
    """Checks that do not hold."""
    return [check for check in found if not check.holds]


def _equal(name: str, value: int, wanted: int) -> Check:
    return Check(name, float(value), float(wanted), value == wanted)
