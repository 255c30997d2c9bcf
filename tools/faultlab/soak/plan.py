"""Which fault comes when: a pure function of the length, the spacing and the seed of a soak."""

from __future__ import annotations

import enum
import random
from typing import Final, NamedTuple

from onrig.runtime.run_state.faults import FaultName


class Place(enum.StrEnum):
    """Where a fault happens."""

    SERIAL = "serial"
    NETWORK = "network"
    PROCESS = "process"


class Kind(enum.StrEnum):
    """What happens."""

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
    """What is known of a kind beforehand."""

    place: Place
    weight: int
    """How often it comes, relative to the others."""
    lasts_s: tuple[float, float] = (0.0, 0.0)
    """Shortest and longest."""
    amount: tuple[float, float] = (0.0, 0.0)
    """Smallest and largest: frames, seconds of delay, share of the pieces that stall."""
    ends_run: bool = False
    """By design: the rig is started anew."""
    may_end_run: bool = False
    """Where it meets a request to the device, which then goes unanswered."""
    rearms: bool = False
    """The run may have to re-arm the device by itself, which it does a bounded number of times."""
    names: tuple[str, ...] = ()
    """Any of these names it; none: there is nothing to name."""


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
"""How events name what the loop did not get to see."""
RESTARTED: Final = "started again"
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
"""Those after which a process has to be started anew."""
MAX_REARMS: Final = 8
"""Faults in one run that it may have to re-arm by itself; after ten it ends, as after a fault that nothing ends."""
MAX_REPLAY_KILLS: Final = 4
"""In one run; after five the supervisor starts no other replay process."""


class Fault(NamedTuple):
    """One fault of a plan."""

    at_s: float
    """Since the soak began to count."""
    kind: Kind
    lasts_s: float
    amount: float


def plan(length_s: float, every_s: float, seed: int) -> tuple[Fault, ...]:
    """Return the faults of a soak, one every ``every_s``, in order; equal arguments give equal plans.

    Every kind comes at least once where there is room for all; the others are drawn by weight.  Where the soak is long
    enough nothing dies in its last two fifths, so that every process lives long enough to be watched.  Between two
    faults that end the run there are never more of those that a run answers a bounded number of times than it
    answers.
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
        faults.append(Fault((i + 1) * every_s, kind, rng.uniform(*nature.lasts_s), rng.uniform(*nature.amount)))
        if nature.ends_run:
            rearms = kills = 0
        else:
            rearms += nature.rearms
            kills += kind is Kind.REPLAY_KILLED
    return tuple(faults)


def _calm_from(count: int) -> int:
    """Number of the first fault from which on nothing dies; ``count`` where there is no room for that."""
    return count - 2 * count // 5 if count >= 2 * len(Kind) else count


def _reserved(count: int, rng: random.Random) -> dict[int, Kind]:
    """Where each kind comes for sure: those that kill among the first faults, the others anywhere."""
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
