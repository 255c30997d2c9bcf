"""What is wrong with the section ``exploration``: schedules, gates and budgets against each other and the rig."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from onrig.runtime.config.mismatch import suggestion
from onrig.runtime.config.problem import NodePath, format_path
from onrig.runtime.explore.schedule import follows_episode_alone
from onrig.runtime.explore.settings import (
    Budgets,
    Gaussian,
    NoExploration,
    OrnsteinUhlenbeck,
    ParameterNoise,
    Points,
    Quota,
    Scheduled,
)
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps

Finding = tuple[NodePath, str]

_MAX_ADAPTION: Final = 2.0
_MAX_COOL_S: Final = 86_400.0
_LONGER: Final = ("hour", "session")


def exploration_findings(config: RunConfig) -> Iterator[Finding]:
    """List (path, message) for each value that does not fit the others; steps and rate of the run must be sound."""
    for at, message in _findings(config):
        path: NodePath = ("exploration", *at)
        yield path, f"{message} at {format_path(path)}"


def _findings(config: RunConfig) -> Iterator[Finding]:
    exploration = config.exploration
    match exploration:
        case OrnsteinUhlenbeck(gain=gain, friction=friction):
            if not gain > 0:
                yield ("gain",), f"expected a positive number, got {gain:g}"
            if not 0 <= friction < 2:
                yield ("friction",), "expected 0 to 2, where the process is stable,"
        case Gaussian(std=std):
            if not std > 0:
                yield ("std",), f"expected a positive number, got {std:g}"
        case ParameterNoise():
            yield from _parameter_findings(exploration)
    if not isinstance(exploration, NoExploration):
        yield from _schedule_findings(config, exploration)
        yield from _gate_findings(config, exploration)
    yield from _budget_findings(config, exploration.budgets)
    synthetic = config.selection.synthetic
    if synthetic is not None and synthetic.states > 0 and not follows_episode_alone(exploration):
        yield (
            (),
            "the actions of synthetic states (selection.synthetic.states) are explored as the episode's number tells: "
            "expected a process of signals, scheduled over episodes, without gates and budgets,",
        )


def _parameter_findings(noise: ParameterNoise) -> Iterator[Finding]:
    if not 0 < noise.target_std <= 1:
        yield ("target_std",), f"expected more than 0, at most 1, got {noise.target_std:g}"
    if noise.adapt_every < 1:
        yield ("adapt_every",), f"expected at least 1, got {noise.adapt_every}"
    if not 1 < noise.adaption <= _MAX_ADAPTION:
        yield ("adaption",), f"expected more than 1, at most {_MAX_ADAPTION:g}, got {noise.adaption:g}"


def _schedule_findings(config: RunConfig, exploration: Scheduled) -> Iterator[Finding]:
    amplitude = exploration.amplitude
    if not isinstance(amplitude, dict):
        yield from _points_findings(("amplitude",), amplitude, exploration.over)
        return
    actuators = [a.name for a in config.rig.actuators]
    for name, points in amplitude.items():
        if name not in actuators:
            hint = suggestion(name, actuators)
            yield ("amplitude", name), f"rig '{config.rig.name}' has no actuator '{name}'{f', {hint}' if hint else ''}"
        yield from _points_findings(("amplitude", name), points, exploration.over)
    missing = [name for name in actuators if name not in amplitude]
    if missing and set(amplitude) <= set(actuators):  # else a name is misspelled, and that is told
        yield ("amplitude",), f"no schedule for {', '.join(missing)}"


def _points_findings(at: NodePath, points: Points, over: str) -> Iterator[Finding]:
    if not points:
        yield at, f"expected at least one [{over.removesuffix('s')}, amplitude]"
    for i, (x, amplitude) in enumerate(points):
        if i and x <= points[i - 1][0]:
            yield (*at, i), f"{over} must increase, got {x:g}"
        if x < 0:
            yield (*at, i), f"{over} begin at 0, got {x:g}"
        if not 0 <= amplitude <= 1:
            yield (*at, i), f"expected an amplitude of 0 to 1, got {amplitude:g}"


def _gate_findings(config: RunConfig, exploration: Scheduled) -> Iterator[Finding]:
    near, back_off, quiet = exploration.near_envelope, exploration.back_off, exploration.quiet
    if near is not None:
        if not 0 < near.start <= 1:
            yield ("near_envelope", "from"), f"expected more than 0, at most 1, got {near.start:g}"
        if not 0 <= near.floor <= 1:
            yield ("near_envelope", "floor"), f"expected 0 to 1, got {near.floor:g}"
        if not config.limits.envelope:
            yield ("near_envelope",), "there is no limits.envelope to be near to"
    if back_off is not None:
        if not 0 < back_off.factor < 1:
            yield ("back_off", "factor"), f"expected between 0 and 1, got {back_off.factor:g}"
        if not 0 < back_off.least < 1:
            yield ("back_off", "least"), f"expected between 0 and 1, got {back_off.least:g}"
        if back_off.clean_episodes < 1:
            yield ("back_off", "clean_episodes"), f"expected at least 1, got {back_off.clean_episodes}"
    if quiet is not None:
        if quiet.every < 2:
            yield ("quiet", "every"), f"expected at least 2, got {quiet.every}"
        elif not 1 <= quiet.episodes < quiet.every:
            message = f"expected 1 to {quiet.every - 1} of every {quiet.every}, got {quiet.episodes}"
            yield ("quiet", "episodes"), message


def _budget_findings(config: RunConfig, budgets: Budgets) -> Iterator[Finding]:
    if not 0 <= budgets.warn <= 1:
        yield ("budgets", "warn"), f"expected 0 to 1, got {budgets.warn:g}"
    for span in ("episode", *_LONGER):
        for name, limit in _set(getattr(budgets, span)):
            if not limit > 0:
                yield ("budgets", span, name), f"expected a positive number, got {limit:g}"
    for name, limit in _set(budgets.session):
        hourly = getattr(budgets.hour, name)
        if hourly is not None and 0 < limit < hourly:
            yield ("budgets", "hour", name), f"{hourly:g} an hour are more than the {limit:g} of the whole session"
    if not config.rate_hz > 0:
        return
    worst = _worst_episode(config)
    for span in _LONGER:
        for name, limit in _set(getattr(budgets, span)):
            needed = [n for n in (getattr(budgets.episode, name), worst.get(name)) if n is not None]
            if 0 < limit < min(needed, default=0):
                yield ("budgets", span, name), f"{limit:g} is less than the {min(needed):g} that one episode may use"
    yield from _temperature_findings(config, budgets)


def _worst_episode(config: RunConfig) -> dict[str, float]:
    """What an episode uses at most, where exploration alone may use as much."""
    m = len(config.rig.actuators)
    product = config.task.episode_s * config.rate_hz
    if not 0 < product < 1e9:
        return {}
    steps = episode_steps(config.task, config.rate_hz)
    driven_s = steps / config.rate_hz
    return {"energy_s": m * driven_s, "wear_strokes": float(m * steps), "driven_s": driven_s}


def _temperature_findings(config: RunConfig, budgets: Budgets) -> Iterator[Finding]:
    t = budgets.temperature
    if t is None:
        return
    sensors = [s.name for s in config.rig.sensors]
    if t.sensor not in sensors:
        hint = suggestion(t.sensor, sensors)
        message = f"rig '{config.rig.name}' has no sensor '{t.sensor}'{f', {hint}' if hint else ''}"
        yield ("budgets", "temperature", "sensor"), message
    if not t.warn < t.limit:
        yield ("budgets", "temperature"), f"expected warn < limit, got {t.warn:g} and {t.limit:g}"
    if not 0 < t.cool_s <= _MAX_COOL_S:
        yield (
            ("budgets", "temperature", "cool_s"),
            f"expected more than 0, at most {_MAX_COOL_S:g}, got {t.cool_s:g}",
        )


def _set(quota: Quota) -> Iterator[tuple[str, float]]:
    for name, limit in msgspec.structs.asdict(quota).items():
        if limit is not None:
            yield name, float(limit)
