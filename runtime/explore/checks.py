"""Checks of section ``exploration`` against the rig and the length of an episode."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from onrig.hw.rig import Rig
from onrig.runtime.config.problem import (
    Finding,
    NodePath,
    collect_problems,
    describe_unknown_name,
    format_path,
    parse_path,
)
from onrig.runtime.explore.settings import Budgets, Exploration, Points, Quota, ScheduledNoise, TemperatureLimit


def exploration_findings(exploration: Exploration, rig: Rig, *, steps: int, rate_hz: float) -> Iterator[Finding]:
    """List (path, message) for each inconsistent value; ``steps``: length of an episode, 0 if unknown."""
    for subpath, message in _findings(exploration, rig, steps, rate_hz):
        path: NodePath = ("exploration", *subpath)
        yield path, f"{message} at {format_path(path)}"


def _findings(exploration: Exploration, rig: Rig, steps: int, rate_hz: float) -> Iterator[Finding]:
    if isinstance(exploration, ScheduledNoise):
        yield from _schedule_findings(exploration, rig)
        quiet = exploration.quiet
        if quiet is not None and quiet.episodes >= quiet.every:
            message = f"expected 1 to {quiet.every - 1} of every {quiet.every}, got {quiet.episodes}"
            yield ("quiet", "episodes"), message
    problems = collect_problems(lambda: exploration.problems(rig), "the process")
    yield from ((parse_path(path), message) for path, message in problems)
    yield from _budget_findings(exploration.budgets, rig, steps, rate_hz)
    yield from _temperature_findings(exploration.budgets.temperature, rig)


def _schedule_findings(exploration: ScheduledNoise, rig: Rig) -> Iterator[Finding]:
    amplitude = exploration.amplitude
    if not isinstance(amplitude, dict):
        yield from _points_findings(("amplitude",), amplitude, exploration.over)
        return
    actuators = [a.name for a in rig.actuators]
    for name, points in amplitude.items():
        if name not in actuators:
            yield ("amplitude", name), describe_unknown_name(f"rig '{rig.name}'", "actuator", name, actuators)
        yield from _points_findings(("amplitude", name), points, exploration.over)
    missing = [name for name in actuators if name not in amplitude]
    if missing and set(amplitude) <= set(actuators):  # otherwise the misspelled name is reported
        yield ("amplitude",), f"no schedule for {', '.join(missing)}"


def _points_findings(node_path: NodePath, points: Points, over: str) -> Iterator[Finding]:
    if not points:
        yield node_path, f"expected at least one [{over.removesuffix('s')}, amplitude]"
    for i, (x, _) in enumerate(points):
        if i and x <= points[i - 1][0]:
            yield (*node_path, i), f"{over} must increase, got {x:g}"


def _budget_findings(budgets: Budgets, rig: Rig, steps: int, rate_hz: float) -> Iterator[Finding]:
    for name, limit in _configured_limits(budgets.session):
        hour_limit = getattr(budgets.hour, name)
        if hour_limit is not None and limit < hour_limit:
            yield ("budgets", "hour", name), f"{hour_limit:g} per hour exceeds the session's budget of {limit:g}"
    largest_use = _largest_episode_use(rig, steps, rate_hz) if steps else {}
    for span in ("hour", "session"):
        for name, limit in _configured_limits(getattr(budgets, span)):
            required_limits = [n for n in (getattr(budgets.episode, name), largest_use.get(name)) if n is not None]
            if limit < min(required_limits, default=0):
                yield ("budgets", span, name), f"{limit:g} is less than one episode may use ({min(required_limits):g})"


def _largest_episode_use(rig: Rig, steps: int, rate_hz: float) -> dict[str, float]:
    """Return the largest consumption of an episode, for quantities that exploration alone may exhaust."""
    driven_s, m = steps / rate_hz, len(rig.actuators)
    return {"energy_s": m * driven_s, "wear_strokes": float(m * steps), "driven_s": driven_s}


def _temperature_findings(temperature: TemperatureLimit | None, rig: Rig) -> Iterator[Finding]:
    if temperature is None:
        return
    sensors = [s.name for s in rig.sensors]
    if temperature.sensor not in sensors:
        message = describe_unknown_name(f"rig '{rig.name}'", "sensor", temperature.sensor, sensors)
        yield ("budgets", "temperature", "sensor"), message
    if not temperature.warn < temperature.limit:
        yield (
            ("budgets", "temperature"),
            f"expected warn below limit, got warn {temperature.warn:g} and limit {temperature.limit:g}",
        )


def _configured_limits(quota: Quota) -> Iterator[tuple[str, float]]:
    for name, limit in msgspec.structs.asdict(quota).items():
        if limit is not None:
            yield name, float(limit)
