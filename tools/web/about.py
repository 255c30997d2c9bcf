"""Initial message to a page: names, units, ranges, drawing of the rig and planned exploration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from onrig.hw.rig import Observation
from onrig.runtime.explore.schedule import amplitudes
from onrig.runtime.explore.settings import ScheduledNoise
from onrig.runtime.histogram import coarse_edges_us
from onrig.runtime.lease import describe_lease
from onrig.runtime.printable import printable
from onrig.runtime.record import STAGES, Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.promise import promise_of
from onrig.runtime.scoring import measure_of
from onrig.runtime.task import episode_steps
from onrig.runtime.tracking import followers
from onrig.tools.drawings import drawing_of
from onrig.tools.run_description import describe_bounds, pace_of
from onrig.tools.web.history import FIELDS

_LONGEST_NAME: Final = 200
"""Maximum number of characters of the run folder's name on the page."""
_SCHEDULE_POINTS: Final = 200
_AXIS_MARGIN: Final = 1.15
"""Limits of an axis, relative to those of the envelope that the shield enforces."""


class Axis(NamedTuple):
    """One observation, in its unit."""

    name: str
    unit: str
    low: float
    high: float
    centre: float
    half: float
    """Factors for denormalisation: value = centre + half * normalised."""


def axes_of(config: RunConfig, signals: Sequence[Observation] | None = None) -> tuple[Axis, ...]:
    """Return the axes of ``signals`` (default: the rig's), each with the signal's range, limited to its envelope."""
    axes = []
    for o in config.rig.signals if signals is None else signals:
        low, high = o.low, o.high
        envelope = config.limits.envelope.get(o.name)
        if envelope is not None:
            low, high = max(low, envelope.low * _AXIS_MARGIN), min(high, envelope.high * _AXIS_MARGIN)
        axes.append(Axis(o.name, o.unit, low, high, 0.5 * (o.low + o.high), 0.5 * (o.high - o.low)))
    return tuple(axes)


def about(config: RunConfig, folder: Path) -> dict[str, object]:
    """Describe a run as plain data for JSON."""
    rig, task = config.rig, config.task
    return {
        "name": printable(folder.name, _LONGEST_NAME),
        "rig": rig.name,
        "task": task.name,
        "strategy": config.selection.strategy,
        "seed": config.seed,
        "rate_hz": config.rate_hz,
        "episodes": config.episodes,
        "episode_s": task.episode_s,
        "pace": pace_of(config),
        "lockstep": config.lockstep,
        "lease": "" if config.device.twin is not None else describe_lease(config),
        "period_us": config.wall_period_ns / 1000,
        "observations": [a._asdict() for a in axes_of(config)],
        "inputs": [] if config.cameras else [a._asdict() for a in axes_of(config, config.signals)],
        "cameras": [{"name": c.name, "rows": c.rows, "columns": c.columns} for c in config.cameras],
        "actuators": [
            {"name": a.name, "unit": a.unit, "low": a.low, "high": a.high, "safe": a.safe} for a in rig.actuators
        ],
        "target": {name: task.reward.target[name] for name in task.reward.weights if name in task.reward.target},
        "followed": {of: name for name, of in followers(task).items()},
        "drawing": drawing_of(config),
        "exploration": schedule(config),
        "process": config.exploration.title,
        "episode_fields": FIELDS,
        "kept": describe_bounds(config),
        "promise": promise_of(config.limits)._asdict(),
        "measure": {**measure_of(task)._asdict(), "normalized": task.normalization is not None},
        "edges_us": [float(f"{e:.6g}") for e in coarse_edges_us().tolist()],
        "rules": [r.name.lower() for r in Rule],
        "stages": STAGES,
    }


def schedule(config: RunConfig) -> dict[str, list[float]]:
    """Return the scheduled amplitude, the largest of any actuator, by training episode.

    The result is {episode: [...], amplitude: [...]}. During the run, gates and budgets reduce the amplitude further. A
    schedule over steps or seconds assumes episodes of full length.
    """
    exploration = config.exploration
    if not isinstance(exploration, ScheduledNoise):
        return {"episode": [], "amplitude": []}
    names = [a.name for a in config.rig.actuators]
    steps = episode_steps(config.task, config.rate_hz)
    per_episode = {"episodes": 1.0, "steps": float(steps), "seconds": steps * config.period_us * 1e-6}[exploration.over]
    n = min(_SCHEDULE_POINTS, max(config.episodes, 2))
    episodes = [1 + (config.episodes - 1) * i / (n - 1) for i in range(n)]
    positions = [e if exploration.over == "episodes" else (e - 1) * per_episode for e in episodes]
    return {
        "episode": [round(e, 2) for e in episodes],
        "amplitude": [round(max(amplitudes(exploration, names, x)), 4) for x in positions],
    }
