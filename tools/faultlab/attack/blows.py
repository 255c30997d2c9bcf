"""Blows: a signal to one of a rig's processes at a random moment, which one and when a pure function of a seed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from onrig.tools.faultlab.processes import send

Role = Literal["control", "replay", "learner", "device", "supervisor"]
ROLES: Final[tuple[Role, ...]] = ("control", "replay", "learner", "device", "supervisor")
FATAL: Final = ("control", "device", "supervisor")
"""Those whose death ends the run; it is then gone on with."""
_LATE_S: Final = 0.02
_SHORT_S: Final = (0.05, 3.0)
_HUNG_SHARE: Final = 0.2


class Blow(NamedTuple):
    """One of them."""

    at: float
    """Share of the way through the run."""
    late_s: float
    """Behind the tick that is meant, so that it falls anywhere within what a tick does."""
    role: Role
    stops_s: float | None
    """For how long the process is stopped; infinite: for good; None: it is killed."""

    @property
    def told(self) -> str:
        """What is done, in a few words."""
        if self.stops_s is None:
            return f"{self.role} killed at {self.at:.0%}"
        how_long = "for good" if self.stops_s == float("inf") else f"for {self.stops_s:.1f} s"
        return f"{self.role} stopped at {self.at:.0%} {how_long}"


def blows(seed: str, count: int, *, stop: bool, longest_s: float | None = None) -> list[Blow]:
    """So many blows in the order in which they fall; with ``longest_s`` nothing is stopped for longer."""
    rng = random.Random(seed)
    return sorted(_blow(rng, stop=stop, longest_s=longest_s) for _ in range(count))


def _blow(rng: random.Random, *, stop: bool, longest_s: float | None) -> Blow:
    role = rng.choice(ROLES)
    at, late_s, lasts_s = rng.random(), rng.uniform(0, _LATE_S), rng.uniform(*_SHORT_S)
    # Nobody but systemd watches the supervisor, and nobody at all a device: its silence is a fault of the link.
    for_good = role not in ("supervisor", "device") and longest_s is None and rng.random() < _HUNG_SHARE
    stops_s = float("inf") if for_good else min(lasts_s, longest_s or lasts_s)
    return Blow(at, late_s, role, stops_s if stop else None)


class Struck:
    """Strikes, and lets what was stopped go on in time; ``again`` is to be called as often as may be."""

    def __init__(self) -> None:
        self._stopped: list[tuple[float, int]] = []

    def strike(self, blow: Blow, pid_of: Callable[[Role], int | None]) -> bool:
        """Bring one about; whether there was a process to be hit."""
        time.sleep(blow.late_s)
        pid = pid_of(blow.role)
        if pid is None or not send(pid, signal.SIGKILL if blow.stops_s is None else signal.SIGSTOP):
            return False
        if blow.stops_s is not None:
            self._stopped.append((time.monotonic() + blow.stops_s, pid))
        return True

    def again(self) -> None:
        """Let go on what has been stopped for long enough."""
        now_s = time.monotonic()
        for over_s, pid in tuple(self._stopped):
            if now_s >= over_s:
                send(pid, signal.SIGCONT)
                self._stopped.remove((over_s, pid))
