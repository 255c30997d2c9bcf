"""Controllers that drive a rig to its start: functions of the observation (SI units) with little state and no clock.

Success and timeouts are determined in ``onrig.runtime.reset.attempts``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onrig.hw.rig import Rig
from onrig.runtime.braking import Brake
from onrig.runtime.reset.schema import Action, Draw, Settle


class SettleDriver:
    """u = -effort u_max sat(v / full_at); later attempts begin with a push in alternating directions."""

    def __init__(self, reset: Settle, start: Mapping[str, float], rig: Rig) -> None:
        index = [a.name for a in rig.actuators].index(reset.actuator)
        self._at = [o.name for o in rig.observations].index(reset.velocity)
        self._safe = tuple(a.safe for a in rig.actuators)
        self._index, self._full_at, self._push_s = index, reset.full_at, reset.push_s
        self._brake = Brake(rig.actuators[index], reset.effort)
        self.begin(1)

    def begin(self, attempt: int) -> None:
        """Store the attempt, which determines the direction of the push."""
        self._attempt = attempt
        self.opposed: float | None = None

    def drive(self, observation: Sequence[float], elapsed_s: float) -> Action:
        """Brake, or push."""
        velocity = observation[self._at]
        if self._attempt > 1 and elapsed_s < self._push_s:
            share, self.opposed = 1.0 if self._attempt % 2 == 0 else -1.0, None
        else:
            share, self.opposed = -velocity / self._full_at, abs(velocity) if abs(velocity) >= self._full_at else None
        value = self._brake.command(share)
        return (*self._safe[: self._index], value, *self._safe[self._index + 1 :])


class DrawDriver:
    """Speed servo for a ball with coils that only pull: v_des = -k (x - goal), bounded, produced by the coil ahead."""

    def __init__(self, reset: Draw, start: Mapping[str, float], rig: Rig) -> None:
        names = [o.name for o in rig.observations]
        self._x, self._v = names.index(reset.position), names.index(reset.velocity)
        self._safe = tuple(a.safe for a in rig.actuators)
        places = {a.name: i for i, a in enumerate(rig.actuators)}
        self._coils = sorted(
            (place, places[name], rig.actuators[places[name]].safe, self._max_effort(rig, places[name], reset.effort))
            for name, place in reset.coils.items()
        )
        self._reset, self._start = reset, start[reset.position]
        self._near = reset.within.get(reset.position, 1e-3)
        self._via = reset.via
        self.begin(1)

    @staticmethod
    def _max_effort(rig: Rig, index: int, effort: float) -> float:
        a = rig.actuators[index]
        return a.safe + effort * (a.high - a.safe)

    def begin(self, attempt: int) -> None:
        """Set ``via`` as the first goal."""
        self._underway = False
        self.opposed: float | None = None

    def drive(self, observation: Sequence[float], elapsed_s: float) -> Action:
        """Return the next currents."""
        x, v = observation[self._x], observation[self._v]
        goal = self._start if self._via is None else self._goal(x, v, self._via)
        wish = min(max(-self._reset.stiffness * (x - goal), -self._reset.speed), self._reset.speed)
        action, at_most = self._pull(x, wish - v)
        self.opposed = abs(x - goal) if at_most else None
        return action

    def _goal(self, x: float, v: float, via: float) -> float:
        """Return the current goal: the start once the ball has left ``via`` towards it, otherwise ``via`` (also if it
        has turned back)."""
        side = 1.0 if via > self._start else -1.0
        ahead, speed = side * (x - self._start), -side * v
        slow = 0.25 * self._reset.speed
        if not self._underway:
            self._underway = abs(x - via) <= 2 * self._near and abs(v) <= slow
        elif ahead < -self._near or (speed < -slow and ahead < side * (via - self._start)):
            self._underway = False
        return self._start if self._underway else via

    def _pull(self, x: float, missing: float) -> tuple[Action, bool]:
        """Energise the nearest coil in the required direction, at least ``lever`` away; return the action and whether
        it saturates."""
        at_most = False
        out = list(self._safe)
        side = 1.0 if missing > 0 else -1.0
        ahead = [c for c in self._coils if side * (c[0] - x) >= self._reset.lever]
        if ahead and missing:
            place, index, safe, max_pull = min(ahead, key=lambda c: side * (c[0] - x))
            d, r = abs(place - x), self._reset
            pull = r.strength * d / (d * d + r.reach) ** 3
            out[index] = min(safe + abs(missing) / (r.response_s * pull), max_pull)
            at_most = out[index] == max_pull
        return tuple(out), at_most
