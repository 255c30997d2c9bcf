"""Prediction for pendulums: a command is accepted only if it leads into the safe set (``phase_plane``)."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import ceil, floor, inf, pi
from typing import ClassVar, Final

import msgspec

from onrig.hw.bounds import NotNegative, Positive, Quantity
from onrig.runtime.config.problem import Finding
from onrig.runtime.safety.fallback import Damp
from onrig.runtime.safety.phase_plane import (
    N_LEVELS,
    N_NODES,
    Box,
    Case,
    NoSafeSet,
    Span,
    check_feasible,
    mirror_case,
    upper_side,
)
from onrig.runtime.safety.plant_box import (
    MAX_PLAUSIBLE,
    PredictionContext,
    Sketch,
    Units,
    common_findings,
    dead_band_of,
    error_bound,
    plant_delay_s_of,
    unknown_name_message,
)
from onrig.runtime.safety.promise import Basis

_NODES_PER_RAD: Final = N_NODES / (2.0 * math.pi)
_MAX_LEVEL: Final = N_LEVELS - 1
_MAX_DELAY_S: Final = 5.0
"""Longest delay (lease, one tick and the plant's delay) for which a safe set is computed."""


class PendulumBox(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="pendulum", tag_field="kind"):
    """Plants theta'' = -A sin(theta) - D theta' + G u, with each parameter within ``spread`` of its nominal value."""

    angle: str
    """Observation of the angle, which is 0 when the pendulum hangs down."""
    velocity: str
    """Observation whose envelope is guaranteed."""
    actuator: str
    """Actuator that accelerates the angle."""
    gravity_per_s2: NotNegative
    """A = M g l / J."""
    damping_per_s: NotNegative
    """D = (b + K^2 / R) / J."""
    gain_per_v_s2: Positive
    """G = K / (R J)."""
    dead_band: NotNegative | msgspec.UnsetType = msgspec.UNSET
    """Largest dead band of the actuator (V): only the part of a voltage that exceeds it is certain to act."""
    spread: Quantity = 0.3
    """Largest relative deviation of each parameter from its nominal value."""
    late_us: int = 1000
    """Longest time from a sample to the effect of its command in ordinary operation; the lease is added to it."""
    plant_delay_us: int | msgspec.UnsetType = msgspec.UNSET
    """Longest part of ``late_us`` that passes between the device's output and its effect; it also delays the safe
    output."""
    sensor_error: dict[str, NotNegative] = {}
    """Bound on each observation's error in its unit; default: half a count of its sensor."""

    units: ClassVar[Units] = Units("rad", "V")
    promise: ClassVar[Basis] = Basis.PROVED
    varying: ClassVar[frozenset[str]] = frozenset({"gravity_per_s2", "damping_per_s", "gain_per_v_s2", "dead_band"})

    @property
    def place(self) -> str:
        """Observation of the angle."""
        return self.angle

    @property
    def nominal(self) -> dict[str, float]:
        """Nominal A, D and G."""
        return {
            "gravity_per_s2": self.gravity_per_s2,
            "damping_per_s": self.damping_per_s,
            "gain_per_v_s2": self.gain_per_v_s2,
        }

    def findings(self, context: PredictionContext) -> Iterator[Finding]:
        """List the problems that prevent a prediction."""
        problems = [*common_findings(self, context, "angle")]
        if message := unknown_name_message(context.rig, "actuator", self.actuator):
            problems.append((("predicted", "actuator"), message))
        yield from problems or self._feasibility_findings(context)

    def _feasibility_findings(self, context: PredictionContext) -> Iterator[Finding]:
        fallback, signals = context.fallback, (self.actuator, self.velocity)
        if not isinstance(fallback, Damp) or (fallback.actuator, fallback.observation) != signals:
            yield ("predicted",), f"expected the fallback to damp {self.velocity} with {self.actuator}"
            return
        if context.rig.releases and next(a.safe for a in context.rig.actuators if a.name == self.actuator):
            yield (
                ("predicted", "actuator"),
                f"a released motor has no torque: expected 0 as the safe value of {self.actuator}",
            )
            return
        delay_s = _max_delay_s(self, context)
        if delay_s > _MAX_DELAY_S:
            yield ("predicted",), f"lease and tick last {delay_s:g} s together: the maximum is {_MAX_DELAY_S:g} s"
            return
        try:
            for case in side_cases(self, context):
                check_feasible(case)
        except NoSafeSet as error:
            dead_band = ", or the dead band" if dead_band_of(self) else ""
            remedies = f"widen the envelope, shorten the lease (rig.lease_periods) or the spread{dead_band}"
            if context.rig.releases:
                remedies += ", or use a driver that brakes while disarmed (rig.safe_output: driven)"
            yield ("predicted",), f"{error}: {remedies}"

    def prediction(self, context: PredictionContext) -> PendulumPrediction:
        """Return the prediction, computing the tables of the safe set unless they are cached."""
        return PendulumPrediction(self, context)

    @property
    def actuators(self) -> tuple[str, ...]:
        """Name of the motor."""
        return (self.actuator,)

    def max_acceleration(self, context: PredictionContext) -> float:
        """Return the largest acceleration within the envelope, rad/s^2."""
        volts, e = max(map(abs, context.ranges[self.actuator])), context.envelope[self.velocity]
        max_speed = max(abs(e.low), abs(e.high))
        nominal = self.gravity_per_s2 + self.damping_per_s * max_speed + self.gain_per_v_s2 * volts
        return (1.0 + self.spread) * nominal

    def sketch(self) -> Sketch:
        """Return the drawing of a mass on an arm."""
        return {"kind": "pendulum", "angle": self.angle, "velocity": self.velocity, "actuator": self.actuator}


def side_cases(box: PendulumBox, context: PredictionContext) -> tuple[Case, Case]:
    """Return the parameters of the upper and the (mirrored) lower side of the safe set.

    The longest delay is the lease plus one tick and the plant's own delay.  The velocity's error includes the effect of
    rounding a command to counts.
    """
    rig, period_s, fallback = context.rig, context.period_s, context.fallback
    if not isinstance(fallback, Damp):
        raise ValueError("expected the fallback 'damp': the prediction for pendulums supports no other")
    actuator = next(a for a in rig.actuators if a.name == box.actuator)
    low, high = context.ranges[actuator.name]
    if low >= high:
        raise NoSafeSet(f"the range of '{actuator.name}' contains a single command")
    gain = _span_around(box.gain_per_v_s2, box.spread)
    case = Case(
        box=Box(
            _span_around(box.gravity_per_s2, box.spread),
            _span_around(box.damping_per_s, box.spread),
            gain,
            dead_band_of(box),
        ),
        command=Span(low, high),
        limit=context.envelope[box.velocity].high,
        full_at=fallback.full_at,
        period_s=period_s,
        delay_s=_max_delay_s(box, context),
        late_s=min(box.late_us * 1e-6, period_s + plant_delay_s_of(box)),
        angle_error=error_bound(box, rig, box.angle),
        velocity_error=error_bound(box, rig, box.velocity) + 0.5 * actuator.resolution * gain.high * period_s,
        safe_output=None if rig.releases else actuator.safe,
    )
    return case, mirror_case(case, context.envelope[box.velocity].low)


def _max_delay_s(box: PendulumBox, context: PredictionContext) -> float:
    return (context.rig.lease_periods + 1) * context.period_s + plant_delay_s_of(box)


class PendulumPrediction:
    """Tables of the highest and lowest measured velocity at which a command may be sent, by command and angle."""

    def __init__(self, box: PendulumBox, context: PredictionContext) -> None:
        rig = context.rig
        names = [o.name for o in rig.observations]
        self._angle, self._velocity = names.index(box.angle), names.index(box.velocity)
        self._actuator = [a.name for a in rig.actuators].index(box.actuator)
        velocity_signal = rig.observations[self._velocity]
        self._per_unit = 2.0 / (velocity_signal.high - velocity_signal.low)
        upper, lower = side_cases(box, context)
        self._min_command = upper.command.low
        self._per_volt = _MAX_LEVEL / (upper.command.high - upper.command.low)
        self._high, self._low = _tables(upper, lower)

    def evaluate(self, observation: Sequence[float], action: Sequence[float]) -> tuple[float, float]:
        """See :class:`onrig.runtime.safety.plant_box.Prediction`."""
        angle, velocity = observation[self._angle], observation[self._velocity]
        if not (-MAX_PLAUSIBLE < angle < MAX_PLAUSIBLE and -MAX_PLAUSIBLE < velocity < MAX_PLAUSIBLE):
            return inf, 0.0
        node = int((angle + pi) * _NODES_PER_RAD // 1.0) % N_NODES
        level = min(max((action[self._actuator] - self._min_command) * self._per_volt, 0.0), _MAX_LEVEL)
        # Between two levels, the worse one counts.
        high = self._high[ceil(level) * N_NODES + node]
        low = self._low[floor(level) * N_NODES + node]
        if velocity > high:
            return (velocity - high) * self._per_unit, 0.0
        if velocity < low:
            return (low - velocity) * self._per_unit, 0.0
        if not low < 0.0 < high:
            return 0.0, 0.0
        return 0.0, min(1.0 - velocity / high, 1.0 - velocity / low, 1.0)


@lru_cache(maxsize=8)
def _tables(upper: Case, lower: Case) -> tuple[array[float], array[float]]:
    """Return the highest and the lowest velocity as flat tables, indexed by command and then by angle."""
    lowest = -upper_side(lower).cells[::-1, ::-1]
    return array("d", upper_side(upper).cells.tobytes()), array("d", lowest.tobytes())


def _span_around(value: float, spread: float) -> Span:
    return Span(value * (1.0 - spread), value * (1.0 + spread))
