"""Controllers that drive a rig to its start: functions of the observation (SI units) with little state and no clock.

``onrig.runtime.reset.attempts`` determines success and timeouts.
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
        self._velocity_index = [o.name for o in rig.observations].index(reset.velocity)
        self._safe_action = tuple(a.safe for a in rig.actuators)
        self._index, self._full_at, self._push_s = index, reset.full_at, reset.push_s
        self._brake = Brake(rig.actuators[index], reset.effort)
        self.begin(1)

    def begin(self, attempt: int) -> None:
        """Start an attempt; its number determines the direction of the push."""
        self._attempt = attempt
        self.opposed: float | None = None

    def drive(self, observation: Sequence[float], elapsed_s: float) -> Action:
        """Return the braking command or, at the beginning of a later attempt, the command that pushes the rig."""
        velocity = observation[self._velocity_index]
        if self._attempt > 1 and elapsed_s < self._push_s:
            fraction, self.opposed = 1.0 if self._attempt % 2 == 0 else -1.0, None
        else:
            fraction, self.opposed = (
                -velocity / self._full_at,
                abs(velocity) if abs(velocity) >= self._full_at else None,
            )
        value = self._brake.command(fraction)
        return (*self._safe_action[: self._index], value, *self._safe_action[self._index + 1 :])


class DrawDriver:
    """Speed servo for a ball with coils that only pull: the coil ahead produces v_des = -k (x - goal), bounded."""

    def __init__(self, reset: Draw, start: Mapping[str, float], rig: Rig) -> None:
        names = [o.name for o in rig.observations]
        self._position_index, self._velocity_index = names.index(reset.position), names.index(reset.velocity)
        self._safe_action = tuple(a.safe for a in rig.actuators)
        index_by_name = {a.name: i for i, a in enumerate(rig.actuators)}
        self._coils = sorted(
            (
                coil_position,
                index_by_name[name],
                rig.actuators[index_by_name[name]].safe,
                self._max_effort(rig, index_by_name[name], reset.effort),
            )
            for name, coil_position in reset.coils.items()
        )
        self._reset, self._start = reset, start[reset.position]
        self._tolerance = reset.within.get(reset.position, 1e-3)
        self._via = reset.via
        self.begin(1)

    @staticmethod
    def _max_effort(rig: Rig, index: int, effort: float) -> float:
        a = rig.actuators[index]
        return a.safe + effort * (a.high - a.safe)

    def begin(self, attempt: int) -> None:
        """Start an attempt with ``via`` as its first goal."""
        self._has_left_via = False
        self.opposed: float | None = None

    def drive(self, observation: Sequence[float], elapsed_s: float) -> Action:
        """Return the coil currents."""
        x, v = observation[self._position_index], observation[self._velocity_index]
        goal = self._start if self._via is None else self._current_goal(x, v, self._via)
        desired_velocity = min(max(-self._reset.stiffness * (x - goal), -self._reset.speed), self._reset.speed)
        action, is_saturated = self._currents_for(x, desired_velocity - v)
        self.opposed = abs(x - goal) if is_saturated else None
        return action

    def _current_goal(self, x: float, v: float, via: float) -> float:
        """Return the goal: the start once the ball has been slow at ``via``, otherwise ``via``.

        The goal becomes ``via`` again if the ball overshoots the start or turns back on the way to it.
        """
        direction = 1.0 if via > self._start else -1.0
        distance_ahead, speed = direction * (x - self._start), -direction * v
        slow_speed = 0.25 * self._reset.speed
        if not self._has_left_via:
            self._has_left_via = abs(x - via) <= 2 * self._tolerance and abs(v) <= slow_speed
        elif distance_ahead < -self._tolerance or (
            speed < -slow_speed and distance_ahead < direction * (via - self._start)
        ):
            self._has_left_via = False
        return self._start if self._has_left_via else via

    def _currents_for(self, x: float, velocity_error: float) -> tuple[Action, bool]:
        """Return the currents that correct a velocity error, and whether the coil that does so saturates.

        This is the nearest coil in the direction of the error that is at least ``lever`` away.
        """
        is_saturated = False
        currents = list(self._safe_action)
        direction = 1.0 if velocity_error > 0 else -1.0
        coils_ahead = [c for c in self._coils if direction * (c[0] - x) >= self._reset.lever]
        if coils_ahead and velocity_error:
            coil_position, index, safe, max_pull = min(coils_ahead, key=lambda c: direction * (c[0] - x))
            d, r = abs(coil_position - x), self._reset
            pull = r.strength * d / (d * d + r.reach) ** 3
            currents[index] = min(safe + abs(velocity_error) / (r.response_s * pull), max_pull)
            is_saturated = currents[index] == max_pull
        return tuple(currents), is_saturated
