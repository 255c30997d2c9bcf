"""Section ``limits`` of a run: the limits that the shield enforces, and their checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, floor, isfinite
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

import msgspec

from onrig.hw.bounds import Quantity
from onrig.hw.rig import Rig, rig_problems
from onrig.runtime.braking import braking_problem
from onrig.runtime.config.problem import Finding, NodePath, collect_findings, format_path
from onrig.runtime.config.registered import WithRegistered, registered
from onrig.runtime.registry import BOXES
from onrig.runtime.safety.fallback import Damp, Fallback, Hold, SafeOutput
from onrig.runtime.safety.plant_box import (
    PlantBox,
    Prediction,
    PredictionContext,
    box_name,
    magnet_findings,
    unknown_name_message,
)
from onrig.runtime.safety.plausibility import plausibility_findings
from onrig.runtime.safety.rules import Envelope

if TYPE_CHECKING:
    Predicted = PlantBox
else:
    Predicted = Annotated[Any, registered(BOXES)]
"""Type of ``limits.predicted``: a registered family of plants."""

_COUNT_TOLERANCE: Final = 1e-6
"""Tolerance, in counts, for a limit at a whole count, because the division by the resolution rounds."""
_MAX_DWELL_S: Final = 3600.0
_MIN_RATE_HZ: Final = 0.1
_MAX_RATE_HZ: Final = 10_000.0
"""Rates outside this range are reported by ``onrig.runtime.run_checks``."""


class Limits(WithRegistered, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits enforced by the shield; they may only be tighter than the device's own."""

    range: dict[str, tuple[Quantity, Quantity]] = {}
    """[low, high] of each actuator in SI units; default: the rig's."""
    rate_per_s: dict[str, Quantity] = {}
    """Maximum rate of each actuator's applied output, SI units per second; default: the full range in one period."""
    jerk_per_s2: dict[str, Quantity] = {}
    """Maximum change of that rate, SI units per second squared; default: none.  Range and rate take precedence."""
    envelope: dict[str, Envelope] = {}
    """Bounds by observation; the fallback acts outside any of them."""
    predicted: Predicted | None = None
    """Plants for which every command must lead to states in which the fallback can keep the velocity in its
    envelope."""
    fallback: Fallback = SafeOutput()
    """Controller that acts when a rule rejects the policy's action."""
    unguarded: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether to accept a rig on a port without an envelope, which only its device's limits guard."""
    fallback_dwell_s: Quantity = 0.1
    """Minimum duration of the fallback."""
    on_withdrawn: Literal["pause", "reduce"] | msgspec.UnsetType = msgspec.UNSET
    """Reaction to a withdrawn promise, or to a plant that no longer matches its identification (``--sharpen``):
    ``pause`` until a person re-arms (default on a port), or ``reduce`` exploration to a tenth; unset with a twin: no
    reaction."""

    def count_ranges(self, rig: Rig) -> tuple[tuple[int, int], ...]:
        """Return the lowest and highest command of each actuator within its range, in counts."""
        return tuple(
            (ceil(low / a.resolution - _COUNT_TOLERANCE), floor(high / a.resolution + _COUNT_TOLERANCE))
            for a in rig.actuators
            for low, high in [self.range.get(a.name, (a.low, a.high))]
        )

    def context(self, rig: Rig, period_s: float) -> PredictionContext:
        """Return the parameters of a prediction under these limits, with ranges rounded to whole counts."""
        ranges = {}
        for a, (low_count, high_count) in zip(rig.actuators, self.count_ranges(rig), strict=True):
            low, high = self.range.get(a.name, (a.low, a.high))
            ranges[a.name] = max(low, low_count * a.resolution), min(high, high_count * a.resolution)
        return PredictionContext(rig, period_s, ranges, self.envelope, self.fallback)


def compile_prediction(limits: Limits, rig: Rig, period_s: float) -> Prediction | None:
    """Build the configured prediction, or return None without one; the first build takes a few tenths of a second.

    Raises ValueError if no guarantee is possible, or KeyError for a name that is not in the rig.
    """
    return None if limits.predicted is None else limits.predicted.prediction(limits.context(rig, period_s))


class _Run(Protocol):
    """Parts of a run that the checks of the limits use."""

    @property
    def limits(self) -> Limits: ...
    @property
    def rig(self) -> Rig: ...
    @property
    def rate_hz(self) -> float: ...
    @property
    def period_us(self) -> int: ...


def limit_findings(run: _Run) -> Iterator[Finding]:
    """List (path, message) for each inconsistent value.

    Plausibility and prediction are only checked if everything else in the limits, and the run's rate and rig, are
    valid.
    """
    basic_findings = [*_actuator_findings(run), *_envelope_findings(run), *_fallback_findings(run)]
    findings: list[Finding] = [(("limits", *path), message) for path, message in basic_findings]
    if not findings and _MIN_RATE_HZ <= run.rate_hz <= _MAX_RATE_HZ and not rig_problems(run.rig):
        box, context = run.limits.predicted, run.limits.context(run.rig, run.period_us * 1e-6)
        findings += plausibility_findings(context, box)
        if box is not None and not findings:
            box_findings = collect_findings(lambda: box.findings(context), box_name(box), ("predicted",))
            findings += ((("limits", *path), message) for path, message in box_findings)
    for path, message in findings:
        yield path, f"{message} at {format_path(path)}"


def _actuator_findings(run: _Run) -> Iterator[Finding]:
    limits = run.limits
    actuators = {a.name: a for a in run.rig.actuators}
    for name, (low, high) in limits.range.items():
        path: NodePath = ("range", name)
        if message := unknown_name_message(run.rig, "actuator", name):
            yield path, message
            continue
        a = actuators[name]
        if not low < high:
            yield path, f"expected low < high, got [{low:g}, {high:g}]"
        elif low < a.low or high > a.high:
            yield path, f"[{low:g}, {high:g}] {a.unit} is wider than the rig's [{a.low:g}, {a.high:g}]"
        elif not low <= a.safe <= high:
            yield path, f"the safe output {a.safe:g} {a.unit} is outside [{low:g}, {high:g}]"
        elif ceil(low / a.resolution - _COUNT_TOLERANCE) > floor(high / a.resolution + _COUNT_TOLERANCE):
            yield path, f"[{low:g}, {high:g}] contains no multiple of the resolution, {a.resolution:g} {a.unit}"
    yield from _change_findings(run, "rate", limits.rate_per_s, "s", 1)
    yield from _change_findings(run, "jerk", limits.jerk_per_s2, "s^2", 2)


def _change_findings(
    run: _Run, quantity: str, limits: Mapping[str, float], time_unit: str, order: int
) -> Iterator[Finding]:
    actuators = {a.name: a for a in run.rig.actuators}
    field = "rate_per_s" if order == 1 else "jerk_per_s2"
    for name, value in limits.items():
        path: NodePath = (field, name)
        if message := unknown_name_message(run.rig, "actuator", name):
            yield path, message
            continue
        a = actuators[name]
        if not value > 0:
            yield path, f"expected a positive {quantity}, got {value:g}"
        elif run.rate_hz > 0 and value / run.rate_hz**order < a.resolution:
            yield (
                path,
                f"{value:g} {a.unit}/{time_unit} at {run.rate_hz:g} Hz is less than one count ({a.resolution:g} "
                f"{a.unit}) per period: the output could never change",
            )


def _envelope_findings(run: _Run) -> Iterator[Finding]:
    for name, e in run.limits.envelope.items():
        if message := unknown_name_message(run.rig, "observation", name):
            yield ("envelope", name), message
        elif not e.low < e.high or not 0 < e.release <= 1:
            yield ("envelope", name), "expected low < high and 0 < release <= 1"


def _fallback_findings(run: _Run) -> Iterator[Finding]:
    fallback, names = run.limits.fallback, []
    match fallback:
        case Damp():
            names = [("actuator", "actuator", fallback.actuator), ("observation", "observation", fallback.observation)]
        case Hold(position=position, velocity=velocity):
            names = [("position", "observation", position), ("velocity", "observation", velocity)]
    for field, kind, name in names:
        if message := unknown_name_message(run.rig, kind, name):
            yield ("fallback", field), message
        elif field == "actuator":
            actuator = next(a for a in run.rig.actuators if a.name == name)
            low, high = run.limits.range.get(name, (actuator.low, actuator.high))
            if message := braking_problem(actuator, low, high):
                yield ("fallback", field), message
    if isinstance(fallback, Hold):
        yield from magnet_findings(run.rig, "fallback", fallback.magnets)
        slow, brake_below = fallback.slow, fallback.brake_below
        if not 0 < slow <= brake_below:
            yield ("fallback", "slow"), f"expected 0 < slow <= brake_below, got {slow:g}, {brake_below:g}"
    if not 0 <= run.limits.fallback_dwell_s <= _MAX_DWELL_S:
        yield ("fallback_dwell_s",), f"expected 0 to {_MAX_DWELL_S:g}"


def prediction_findings(limits: Limits, rig: Rig, period_s: float) -> Iterator[Finding]:
    """List the problems found by building and evaluating the configured prediction; the limits must be valid.

    Exceptions raised by the family's code propagate.
    """
    prediction = compile_prediction(limits, rig, period_s)
    if limits.predicted is None or prediction is None:
        return
    limits.predicted.sketch()
    for observation in ([o.low for o in rig.observations], [o.high for o in rig.observations]):
        for action in ([a.low for a in rig.actuators], [a.high for a in rig.actuators]):
            excess, margin = prediction.evaluate(observation, action)
            if not (isfinite(margin) and excess >= 0.0):
                message = f"{box_name(limits.predicted)} predicts ({excess}, {margin})"
                yield ("limits", "predicted"), f"{message}: expected an excess of at least 0 and a finite margin"
