"""Defects of recorded signals, independent of the plant: stuck and coarse sensors, velocities that are not rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from onrig.hw.rig import Rig
from onrig.sim.identification.agreement import Agreement, Interval, Pair
from onrig.sim.identification.recording import Stretch
from onrig.sim.twin.options import sensor_half_range

GAIN_TOLERANCE: Final = 0.05
LAG_TOLERANCE: Final = 0.5
"""Maximum lag in periods; a velocity computed from differences over one period lags by half a period."""
ZERO_TOLERANCE: Final = 0.02
"""Maximum zero, as a share of the half-range of the velocity's observation."""
STEP_TOLERANCE: Final = 0.02
"""Largest step between readings, as a share of the half-range."""
_MAX_OUTLIER_FRACTION: Final = 0.1
"""Maximum share of windows that may contradict the majority."""
_MAX_TOUCHED_WINDOWS: Final = 4
"""Number of windows that may contradict the majority in a recording of any length, for example at a wall."""

_DEGREES: Final = 180.0 / np.pi
_RATES: Final = (1.0 / (1.0 + GAIN_TOLERANCE), 1.0 / (1.0 - GAIN_TOLERANCE))
"""Rates of the position per unit of velocity that the gain's tolerance allows."""


def signal_problems(rig: Rig, recording: Sequence[Stretch], pairs: Sequence[Pair]) -> list[str]:
    """List defects of the signals: stuck or coarse sensors, velocities that are not rates, undetermined aspects."""
    return [
        *_reading_problems(rig, recording, [pair.stuck[0] for pair in pairs if pair.stuck]),
        *(
            line
            for pair in pairs
            for line in significant_problems(rig, recording, [pair]) or _undetermined_aspects(rig, recording, pair)
        ),
    ]


def significant_problems(rig: Rig, recording: Sequence[Stretch], pairs: Sequence[Pair]) -> list[str]:
    """List velocities that differ significantly from the rates of their positions, even in a short, gentle
    recording."""
    return [line for pair in pairs for line in _pair_problems(rig, recording[0].period_s, pair)]


def reading_steps(rig: Rig, recording: Sequence[Stretch]) -> list[float]:
    """Return the smallest step between each sensor's readings (SI units): one count if the sensor is correct, 0 if it
    is constant."""
    steps = []
    for i, sensor in enumerate(rig.sensors):
        counts = np.unique(np.round(np.concatenate([s.readings[:, i] for s in recording]) / sensor.resolution))
        steps.append(float(np.diff(counts).min(initial=np.inf)) * sensor.resolution if len(counts) > 1 else 0.0)
    return steps


def _reading_problems(rig: Rig, recording: Sequence[Stretch], reported_sensors: Sequence[int]) -> Iterator[str]:
    for i, (sensor, step) in enumerate(zip(rig.sensors, reading_steps(rig, recording), strict=True)):
        half_range = sensor_half_range(rig, sensor.name)
        if step == 0.0 and i not in reported_sensors:
            yield f"{sensor.name} never changes its reading: check its supply and wiring"
        elif half_range and step > max(STEP_TOLERANCE * half_range, sensor.resolution):
            yield (
                f"{sensor.name} reads in steps of {step:.3g} {sensor.unit}; its resolution is {sensor.resolution:.3g}: "
                f"use a finer sensor (at most {STEP_TOLERANCE * half_range:.3g})"
            )


def _undetermined_aspects(rig: Rig, recording: Sequence[Stretch], pair: Pair) -> Iterator[str]:
    """Yield the aspects of a pair that the signals do not determine."""
    sensor_names = f"{rig.sensors[pair.velocity].name} and {rig.sensors[pair.position].name}"
    advice = "excite the plant longer or more strongly, clear of walls"
    if pair.overall is None:
        yield f"{sensor_names} cannot be compared: {advice}"
    elif _matches_rate(pair.overall.rate) is None:
        rate = pair.overall.rate
        times = f"{rate.low:.3g} to {rate.high:.3g} times the velocity"
        yield f"{sensor_names}: the rate is {times}, too uncertain: {advice}"
    elif pair.overall.lag_s.high - pair.overall.lag_s.low > 2.0 * recording[0].period_s:
        yield f"{sensor_names}: the lag between them is too uncertain: {advice}"


def _pair_problems(rig: Rig, period_s: float, pair: Pair) -> Iterator[str]:
    """Yield the significant disagreements of one pair: in scale or, if that is correct, in lag and zero."""
    position, velocity, overall = rig.sensors[pair.position], rig.sensors[pair.velocity], pair.overall
    sensor_names = f"{velocity.name} and {position.name}"
    if pair.stuck is not None:
        names = {pair.position: (position.name, velocity.name), pair.velocity: (velocity.name, position.name)}
        stuck_name, moving_name = names[pair.stuck[0]]
        location = f" in quarter {pair.stuck[1]} of the recording" if pair.stuck[1] else ""
        yield f"{stuck_name} is stuck{location} while {moving_name} moves: check its supply and wiring"
    elif (
        pair.swapped is not None and _matches_rate(pair.swapped.rate) and not (overall and _matches_rate(overall.rate))
    ):
        yield f"{sensor_names} are swapped: exchange their wires"
    elif overall is not None and _matches_rate(overall.rate) is False:
        yield _wrong_scale(position.name, velocity.name, overall.rate)
    elif change := _changed_part(pair):
        low, high = sorted(change[1][1:])
        yield (
            f"{velocity.name} changes with respect to {position.name} in quarter {change[0]} of the recording: the "
            f"rate is {low:.3g} to {high:.3g} times the velocity there: check their wiring"
        )
    elif overall is None:
        return
    elif overall.outliers > max(_MAX_OUTLIER_FRACTION, _MAX_TOUCHED_WINDOWS / overall.windows):
        contradiction = f"{sensor_names} contradict each other in {overall.outliers:.0%} of the recording"
        yield f"{contradiction}: check for loose contacts"
    else:
        yield from _timing_and_zero(rig, period_s, pair, overall)


def _timing_and_zero(rig: Rig, period_s: float, pair: Pair, overall: Agreement) -> Iterator[str]:
    position, velocity = rig.sensors[pair.position], rig.sensors[pair.velocity]
    lag = overall.lag_s.rescaled(1.0 / period_s)
    if lag.lies_outside(-LAG_TOLERANCE, LAG_TOLERANCE):
        yield (
            f"{velocity.name} lags {position.name} by {lag.value:.2f} periods ({lag.low:.2f} to {lag.high:.2f}; limit "
            f"{LAG_TOLERANCE:g}): sample both at the same time, or shorten the filter"
        )
    max_zero = ZERO_TOLERANCE * (sensor_half_range(rig, velocity.name) or np.inf)
    zeros = [overall.zero, *(part.zero for part in pair.parts if part is not None)]
    worst_zero = max(zeros, key=lambda zero: max(zero.low, -zero.high))
    if worst_zero.lies_outside(-max_zero, max_zero):
        yield (
            f"{velocity.name} reads {worst_zero.value:.3g} ({worst_zero.low:.3g} to {worst_zero.high:.3g}) "
            f"{velocity.unit} at rest (at most {max_zero:.3g}): calibrate its zero"
        )


def _matches_rate(rate: Interval) -> bool | None:
    """Whether the velocity is the rate of the position, up to its sign; None if the interval does not decide."""
    size = rate if rate.value > 0 else rate.rescaled(-1.0)
    if size.lies_within(*_RATES):
        return True
    return False if size.lies_outside(*_RATES) else None


def _wrong_scale(position: str, velocity: str, rate: Interval) -> str:
    if rate.low <= 0.0 <= rate.high:
        return f"{velocity} does not follow the rate of {position}: check for a stuck or wrong sensor"
    low, high = sorted((1.0 / rate.low, 1.0 / rate.high))
    size = abs(1.0 / rate.value)
    is_in_degrees = min(abs(size / _DEGREES - 1.0), abs(size * _DEGREES - 1.0)) < GAIN_TOLERANCE
    remedy = "whether one is in degrees" if is_in_degrees else "their scales and units"
    factor = f"{1.0 / rate.value:.4g} ({low:.4g} to {high:.4g})"
    return f"{velocity} reads {factor} times the rate of {position}: check {remedy}"


def _changed_part(pair: Pair) -> tuple[int, Interval] | None:
    """Return the first quarter whose rate lies significantly outside the tolerance, and that rate."""
    usual_part = next((part for part in pair.parts if part is not None and _matches_rate(part.rate)), pair.overall)
    sign = 1.0 if usual_part is None or usual_part.rate.value > 0 else -1.0
    for k, part in enumerate(pair.parts, 1):
        if part is not None and part.rate.rescaled(sign).lies_outside(*_RATES):
            return k, part.rate
    return None
