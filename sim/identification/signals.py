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
"""Maximum lag in periods; a velocity from differences over one period lags by half of it."""
ZERO_TOLERANCE: Final = 0.02
"""Maximum zero, as a share of the half-range of the velocity's observation."""
STEP_TOLERANCE: Final = 0.02
"""Largest step between readings, as a share of the half-range."""
_OUTLIERS: Final = 0.1
"""Maximum share of windows that may contradict the majority."""
_TOUCHED: Final = 4
"""Number of windows that may contradict the majority in a recording of any length, for example at a wall."""

_DEGREES: Final = 180.0 / np.pi
_RATES: Final = (1.0 / (1.0 + GAIN_TOLERANCE), 1.0 / (1.0 - GAIN_TOLERANCE))
"""Interval of rates of the position per unit of velocity that the gain's tolerance allows."""


def signal_problems(rig: Rig, recorded: Sequence[Stretch], pairs: Sequence[Pair]) -> list[str]:
    """List defects of the signals: stuck or coarse sensors, velocities that are not rates, undetermined aspects."""
    return [
        *_reading_problems(rig, recorded, [pair.stuck[0] for pair in pairs if pair.stuck]),
        *(
            line
            for pair in pairs
            for line in significant_problems(rig, recorded, [pair]) or _undetermined_aspects(rig, recorded, pair)
        ),
    ]


def significant_problems(rig: Rig, recorded: Sequence[Stretch], pairs: Sequence[Pair]) -> list[str]:
    """Velocities that are significantly different from the rates of their positions, even in a short, gentle
    recording."""
    return [line for pair in pairs for line in _pair_problems(rig, recorded[0].period_s, pair)]


def reading_steps(rig: Rig, recorded: Sequence[Stretch]) -> list[float]:
    """Smallest step between readings of each sensor (SI units), one count for a correct one; 0 for a single reading."""
    steps = []
    for i, sensor in enumerate(rig.sensors):
        counts = np.unique(np.round(np.concatenate([s.readings[:, i] for s in recorded]) / sensor.resolution))
        steps.append(float(np.diff(counts).min(initial=np.inf)) * sensor.resolution if len(counts) > 1 else 0.0)
    return steps


def _reading_problems(rig: Rig, recorded: Sequence[Stretch], reported: Sequence[int]) -> Iterator[str]:
    for i, (sensor, step) in enumerate(zip(rig.sensors, reading_steps(rig, recorded), strict=True)):
        half = sensor_half_range(rig, sensor.name)
        if step == 0.0 and i not in reported:
            yield f"{sensor.name} never changes its reading: check its supply and wiring"
        elif half and step > max(STEP_TOLERANCE * half, sensor.resolution):
            yield (
                f"{sensor.name} reads in steps of {step:.3g} {sensor.unit}, its resolution is {sensor.resolution:.3g}: "
                f"use a finer sensor (at most {STEP_TOLERANCE * half:.3g})"
            )


def _undetermined_aspects(rig: Rig, recorded: Sequence[Stretch], pair: Pair) -> Iterator[str]:
    """Aspects that the signals do not determine."""
    both = f"{rig.sensors[pair.velocity].name} and {rig.sensors[pair.place].name}"
    more = "excite the plant longer or more strongly, clear of walls"
    if pair.overall is None:
        yield f"{both} cannot be compared: {more}"
    elif _matches_rate(pair.overall.rate) is None:
        rate = pair.overall.rate
        yield f"{both}: the rate is {rate.low:.3g} to {rate.high:.3g} times the velocity, too uncertain: {more}"
    elif pair.overall.lag_s.high - pair.overall.lag_s.low > 2.0 * recorded[0].period_s:
        yield f"{both}: the lag between them is too uncertain: {more}"


def _pair_problems(rig: Rig, period_s: float, pair: Pair) -> Iterator[str]:
    """Significant disagreements of one pair: in scale or, if that is correct, in lag and zero."""
    place, velocity, overall = rig.sensors[pair.place], rig.sensors[pair.velocity], pair.overall
    both = f"{velocity.name} and {place.name}"
    if pair.stuck is not None:
        names = {pair.place: (place.name, velocity.name), pair.velocity: (velocity.name, place.name)}
        stuck, moving = names[pair.stuck[0]]
        when = f" in quarter {pair.stuck[1]} of the recording" if pair.stuck[1] else ""
        yield f"{stuck} is stuck{when} while {moving} moves: check its supply and wiring"
    elif (
        pair.swapped is not None and _matches_rate(pair.swapped.rate) and not (overall and _matches_rate(overall.rate))
    ):
        yield f"{both} are swapped: exchange their wires"
    elif overall is not None and _matches_rate(overall.rate) is False:
        yield _wrong_scale(place.name, velocity.name, overall.rate)
    elif change := _changed_part(pair):
        low, high = sorted(change[1][1:])
        yield (
            f"{velocity.name} changes with respect to {place.name} in quarter {change[0]} of the recording: the rate "
            f"is {low:.3g} to {high:.3g} times the velocity there: check their wiring"
        )
    elif overall is None:
        return
    elif overall.outliers > max(_OUTLIERS, _TOUCHED / overall.windows):
        yield f"{both} contradict each other in {overall.outliers:.0%} of the recording: check for loose contacts"
    else:
        yield from _timing_and_zero(rig, period_s, pair, overall)


def _timing_and_zero(rig: Rig, period_s: float, pair: Pair, overall: Agreement) -> Iterator[str]:
    place, velocity = rig.sensors[pair.place], rig.sensors[pair.velocity]
    lag = overall.lag_s.scaled(1.0 / period_s)
    if lag.lies_beyond(-LAG_TOLERANCE, LAG_TOLERANCE):
        yield (
            f"{velocity.name} lags {place.name} by {lag.value:.2f} periods ({lag.low:.2f} to {lag.high:.2f}; limit "
            f"{LAG_TOLERANCE:g}): sample both at the same time, or shorten the filter"
        )
    max_zero = ZERO_TOLERANCE * (sensor_half_range(rig, velocity.name) or np.inf)
    zeros = [overall.zero, *(part.zero for part in pair.parts if part is not None)]
    worst = max(zeros, key=lambda zero: max(zero.low, -zero.high))
    if worst.lies_beyond(-max_zero, max_zero):
        yield (
            f"{velocity.name} reads {worst.value:.3g} ({worst.low:.3g} to {worst.high:.3g}) {velocity.unit} at rest "
            f"(at most {max_zero:.3g}): calibrate its zero"
        )


def _matches_rate(rate: Interval) -> bool | None:
    """Whether the velocity is the rate of the position, up to its sign; None if the interval does not decide."""
    size = rate if rate.value > 0 else rate.scaled(-1.0)
    if size.lies_within(*_RATES):
        return True
    return False if size.lies_beyond(*_RATES) else None


def _wrong_scale(place: str, velocity: str, rate: Interval) -> str:
    if rate.low <= 0.0 <= rate.high:
        return f"{velocity} does not follow the rate of {place}: check for a stuck or wrong sensor"
    low, high = sorted((1.0 / rate.low, 1.0 / rate.high))
    size = abs(1.0 / rate.value)
    degrees = min(abs(size / _DEGREES - 1.0), abs(size * _DEGREES - 1.0)) < GAIN_TOLERANCE
    remedy = "whether one is in degrees" if degrees else "their scales and units"
    return (
        f"{velocity} reads {1.0 / rate.value:.4g} ({low:.4g} to {high:.4g}) times the rate of {place}: check {remedy}"
    )


def _changed_part(pair: Pair) -> tuple[int, Interval] | None:
    """Return the first quarter whose rate differs significantly from that of earlier ones, and that rate."""
    usual = next((part for part in pair.parts if part is not None and _matches_rate(part.rate)), pair.overall)
    sign = 1.0 if usual is None or usual.rate.value > 0 else -1.0
    for k, part in enumerate(pair.parts, 1):
        if part is not None and part.rate.scaled(sign).lies_beyond(*_RATES):
            return k, part.rate
    return None
