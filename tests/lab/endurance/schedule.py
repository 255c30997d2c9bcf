"""Fault schedules of soak and attack: pure functions of seed, number, length and interval.

A soak follows a plan of all kinds of faults; in an attack, single processes are hit: killed, or stopped for a while.
"""

from __future__ import annotations

import enum
import random
from typing import Final, Literal, NamedTuple

from onrig.runtime.run_state.faults import FaultName

Role = Literal["control", "replay", "learner", "device", "supervisor"]
ROLES: Final[tuple[Role, ...]] = ("control", "replay", "learner", "device", "supervisor")
FATAL: Final = ("control", "device", "supervisor")
"""Roles whose death ends the run; it is then resumed."""
_LATE_S: Final = 0.02
_SHORT_S: Final = (0.05, 3.0)
_HUNG_SHARE: Final = 0.2


class Place(enum.StrEnum):
    """Location of a fault."""

    SERIAL = "serial"
    NETWORK = "network"
    PROCESS = "process"


class Kind(enum.StrEnum):
    """Kind of a fault."""

    CORRUPTED_BURST = "corrupted burst"
    LOST_FRAMES = "lost frames"
    FROZEN_FRAMES = "frozen frames"
    CABLE_LOOSE = "cable loose"
    CABLE_PULLED = "cable pulled"
    LINE_FROZEN = "line frozen"
    DEVICE_REBOOT = "device reboot"
    NETWORK_CUT = "network cut"
    NETWORK_SILENT = "network silent"
    NETWORK_DELAY = "network delay"
    NETWORK_LOSS = "network loss"
    LEARNER_KILLED = "learner killed"
    LEARNER_STOPPED = "learner stopped"
    REPLAY_KILLED = "replay killed"
    REPLAY_STOPPED = "replay stopped"
    CONTROL_STOPPED = "control stopped"
    CONTROL_KILLED = "control killed"
    RIG_KILLED = "rig killed"


class Nature(NamedTuple):
    """Properties of a kind of fault."""

    place: Place
    weight: int
    """Relative frequency."""
    duration_s: tuple[float, float] = (0.0, 0.0)
    """Minimum and maximum duration."""
    amount: tuple[float, float] = (0.0, 0.0)
    """Minimum and maximum amount: frames, seconds of delay, share of the pieces that stall."""
    ends_run: bool = False
    """Whether it ends the run by design; the rig is then restarted."""
    may_end_run: bool = False
    """Whether it may end the run: a coinciding request to the device may remain unanswered."""
    rearms: bool = False
    """Whether the run may have to re-arm the device, which it does a bounded number of times."""
    names: tuple[str, ...] = ()
    """Possible names in events; empty if no event reports it."""


_LINE: Final = tuple(
    f.value
    for f in (
        FaultName.DEVICE_LEASE,
        FaultName.DEVICE_DISARMED,
        FaultName.DEVICE_REFUSED,
        FaultName.LINK_SILENT,
        FaultName.LINK_GARBLED,
        FaultName.LINK_FROZEN,
        FaultName.LINK_CLOSED,
    )
)
MISSED: Final = "missed ticks"
"""Name of missed-tick events in a soak."""
RESTARTED: Final = "restarted"
_LOST: Final = (*_LINE, FaultName.DEVICE_REBOOTED.value)
NATURES: Final[dict[Kind, Nature]] = {
    Kind.CORRUPTED_BURST: Nature(Place.SERIAL, 9, (0.05, 0.3), may_end_run=True, rearms=True, names=(*_LINE, MISSED)),
    Kind.LOST_FRAMES: Nature(Place.SERIAL, 12, amount=(1, 3), may_end_run=True, rearms=True, names=(*_LINE, MISSED)),
    Kind.FROZEN_FRAMES: Nature(Place.SERIAL, 9, (0.05, 0.3), may_end_run=True, rearms=True, names=(*_LINE, MISSED)),
    Kind.CABLE_LOOSE: Nature(Place.SERIAL, 9, (0.1, 0.6), may_end_run=True, rearms=True, names=(*_LINE, MISSED)),
    Kind.CABLE_PULLED: Nature(Place.SERIAL, 1, ends_run=True, names=_LOST),
    Kind.LINE_FROZEN: Nature(Place.SERIAL, 1, ends_run=True, names=_LOST),
    Kind.DEVICE_REBOOT: Nature(Place.SERIAL, 1, ends_run=True, names=_LOST),
    Kind.NETWORK_CUT: Nature(Place.NETWORK, 12, (0.5, 6.0)),
    Kind.NETWORK_SILENT: Nature(Place.NETWORK, 9, (0.5, 4.0)),
    Kind.NETWORK_DELAY: Nature(Place.NETWORK, 9, (2.0, 8.0), (0.02, 0.2)),
    Kind.NETWORK_LOSS: Nature(Place.NETWORK, 9, (2.0, 8.0), (0.02, 0.2)),
    Kind.LEARNER_KILLED: Nature(Place.PROCESS, 4),
    Kind.LEARNER_STOPPED: Nature(Place.PROCESS, 9, (0.5, 8.0)),
    Kind.REPLAY_KILLED: Nature(Place.PROCESS, 4, names=(RESTARTED,)),
    Kind.REPLAY_STOPPED: Nature(Place.PROCESS, 9, (0.5, 5.0)),
    Kind.CONTROL_STOPPED: Nature(
        Place.PROCESS, 3, (0.1, 2.0), may_end_run=True, rearms=True, names=(*_LINE, MISSED, FaultName.LOOP_HUNG.value)
    ),
    Kind.CONTROL_KILLED: Nature(Place.PROCESS, 1, ends_run=True, names=(FaultName.LOOP_KILLED.value,)),
    Kind.RIG_KILLED: Nature(Place.PROCESS, 1, ends_run=True),
}
LETHAL: Final = {k for k, nature in NATURES.items() if nature.ends_run} | {Kind.LEARNER_KILLED, Kind.REPLAY_KILLED}
"""Kinds that require the restart of a process."""
MAX_REARMS: Final = 8
"""Maximum number of re-arming faults in one run, which ends after ten."""
MAX_REPLAY_KILLS: Final = 4
"""Maximum kills of the replay process in one run; after five the supervisor gives up."""


class Fault(NamedTuple):
    """One fault of a plan."""

    at_s: float
    """Time since the start of the soak."""
    kind: Kind
    duration_s: float
    amount: float


def plan(length_s: float, every_s: float, seed: int) -> tuple[Fault, ...]:
    """Return the faults of a soak in order, one every ``every_s``; equal arguments give equal plans.

    Every kind occurs at least once if there is room for all; the others are drawn by weight.  In a long soak no process
    is killed in the last two fifths, so that the trend of its memory can be tested.  Between two faults that end the
    run, limited faults remain within their limits.
    """
    if not (every_s > 0 and length_s >= 0):
        raise ValueError(f"no plan for {length_s:g} s with a fault every {every_s:g} s")
    rng = random.Random(seed)
    count = int(length_s / every_s + 1e-9)
    reserved = _reserved(count, rng)
    calm_from = _calm_from(count)
    rearms = kills = 0
    faults = []
    for i in range(count):
        ahead = [k for at, k in reserved.items() if at >= i]
        kind = reserved.get(i)
        if kind is None:
            barred = {k for k in Kind if NATURES[k].rearms} if rearms + _rearming(ahead) >= MAX_REARMS else set()
            barred |= {Kind.REPLAY_KILLED} if kills + ahead.count(Kind.REPLAY_KILLED) >= MAX_REPLAY_KILLS else set()
            barred |= LETHAL if i >= calm_from else set()
            choice = [k for k in Kind if k not in barred]
            kind = rng.choices(choice, [NATURES[k].weight for k in choice])[0]
        nature = NATURES[kind]
        faults.append(Fault((i + 1) * every_s, kind, rng.uniform(*nature.duration_s), rng.uniform(*nature.amount)))
        if nature.ends_run:
            rearms = kills = 0
        else:
            rearms += nature.rearms
            kills += kind is Kind.REPLAY_KILLED
    return tuple(faults)


def _calm_from(count: int) -> int:
    """Return the index of the first fault after which no process dies; ``count`` if the plan is too short."""
    return count - 2 * count // 5 if count >= 2 * len(Kind) else count


def _reserved(count: int, rng: random.Random) -> dict[int, Kind]:
    """Reserve indices so that each kind occurs once: lethal ones among the first faults, the others anywhere."""
    once = list(Kind)
    rng.shuffle(once)
    if count < len(once):
        return dict(enumerate(once[:count]))
    lethal = [k for k in once if k in LETHAL]
    early = rng.sample(range(_calm_from(count)), len(lethal))
    others = [i for i in range(count) if i not in early]
    rest = [k for k in once if k not in LETHAL]
    return {**dict(zip(early, lethal, strict=True)), **dict(zip(rng.sample(others, len(rest)), rest, strict=True))}


def _rearming(kinds: list[Kind]) -> int:
    return sum(NATURES[k].rearms for k in kinds)


class Hit(NamedTuple):
    """Kill or stop of a process."""

    at: float
    """Position in the run, as a share of it."""
    delay_s: float
    """Delay after the selected tick, so that hits are spread over a tick."""
    role: Role
    stop_s: float | None
    """Duration of a stop; infinite: permanent; None: the process is killed."""

    @property
    def description(self) -> str:
        """Short description, with the time as a share of the run."""
        if self.stop_s is None:
            return f"{self.role} killed at {self.at:.0%}"
        duration = "for good" if self.stop_s == float("inf") else f"for {self.stop_s:.1f} s"
        return f"{self.role} stopped at {self.at:.0%} {duration}"


def hits(seed: str, count: int, *, stop: bool, max_stop_s: float | None = None) -> list[Hit]:
    """``count`` hits in order of time, all kills or all stops; with ``max_stop_s`` no stop lasts longer."""
    rng = random.Random(seed)
    return sorted(_hit(rng, stop=stop, max_stop_s=max_stop_s) for _ in range(count))


def _hit(rng: random.Random, *, stop: bool, max_stop_s: float | None) -> Hit:
    role = rng.choice(ROLES)
    at, delay_s, duration_s = rng.random(), rng.uniform(0, _LATE_S), rng.uniform(*_SHORT_S)
    # Only systemd watches the supervisor, and nothing watches the device, whose silence is a link fault.
    permanent = role not in ("supervisor", "device") and max_stop_s is None and rng.random() < _HUNG_SHARE
    stop_s = float("inf") if permanent else min(duration_s, max_stop_s or duration_s)
    return Hit(at, delay_s, role, stop_s if stop else None)
