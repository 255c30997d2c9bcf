"""Initial message to a page: names, units, ranges, drawing of the rig, planned exploration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onrig.hw.rig import Observation
from onrig.runtime.explore.schedule import amplitudes
from onrig.runtime.explore.settings import (
    EpsilonGreedy,
    Gaussian,
    NoExploration,
    OrnsteinUhlenbeck,
    OwnNoise,
    ParameterNoise,
)
from onrig.runtime.histogram import coarse_edges_us
from onrig.runtime.printable import printable
from onrig.runtime.record import STAGES, Miss, Rule
from onrig.runtime.run_config import RunConfig, Scaled
from onrig.runtime.safety.fallback import Damp, Hold
from onrig.runtime.safety.plant_box import Sketch
from onrig.runtime.scoring import measure_of
from onrig.runtime.task import episode_steps
from onrig.sim.twin.options import TwinOptions
from onrig.tools.web.history import FIELDS

Drawing = dict[str, object]


def drawing_of(config: RunConfig) -> Drawing:
    """Describe the picture: ``kind`` (pendulum, track, bars) and indices into observations and actuators."""
    for sketch in _sketches(config):
        if sketch["kind"] == "pendulum":
            return _pendulum(config, sketch)
        if sketch["kind"] == "track":
            return _track(config, sketch)
    return {"kind": "bars"}


def _sketches(config: RunConfig) -> Iterator[Sketch]:
    """What says how the rig looks, the surest first: at last, an angle that wraps is a pendulum."""
    rig, fallback, reset = config.rig, config.limits.fallback, config.task.reset
    if config.limits.predicted is not None:
        yield config.limits.predicted.sketch()
    if isinstance(fallback, Hold):
        yield {"kind": "track", "position": fallback.position, "magnets": fallback.magnets}
    position = getattr(reset, "position", None)
    if isinstance(getattr(reset, "coils", None), dict) and position in [o.name for o in rig.signals]:
        yield {"kind": "track", "position": position, "magnets": getattr(reset, "coils", {})}
    if config.device.twin is not None:
        sketch = msgspec.convert(config.device.twin, TwinOptions).plant.sketch(rig)
        if sketch is not None:
            yield sketch
    wraps = {s.name for s in rig.sensors if s.wrap}
    angles = [o.name for o in rig.observations if (o.sensor or o.name) in wraps and not o.derivative_of]
    if len(angles) == len(rig.actuators) == 1:
        velocity = fallback.observation if isinstance(fallback, Damp) else None
        yield {"kind": "pendulum", "angle": angles[0], "velocity": velocity, "actuator": rig.actuators[0].name}


def _pendulum(config: RunConfig, sketch: Sketch) -> Drawing:
    names = [o.name for o in config.rig.signals]
    angle, velocity = str(sketch["angle"]), sketch["velocity"]
    return {
        "kind": "pendulum",
        "angle": names.index(angle),
        "velocity": None if velocity is None else names.index(str(velocity)),
        "actuator": [a.name for a in config.rig.actuators].index(str(sketch["actuator"])),
        "target": config.task.reward.target.get(angle),
    }


def _track(config: RunConfig, sketch: Sketch) -> Drawing:
    position = [o.name for o in config.rig.signals].index(str(sketch["position"]))
    axis, wall = config.rig.signals[position], config.task.reward.wall
    walled = wall is not None and wall.observation == axis.name
    low, high = (wall.low, wall.high) if wall is not None and walled else (axis.low, axis.high)
    actuators = [a.name for a in config.rig.actuators]
    magnets = msgspec.convert(sketch["magnets"], dict[str, float])
    return {
        "kind": "track",
        "position": position,
        "low": low,
        "high": high,
        "walls": walled,
        "target": config.task.reward.target.get(axis.name),
        "magnets": [{"at": at, "actuator": actuators.index(name)} for name, at in magnets.items() if name in actuators],
    }


_LONGEST_NAME: Final = 200
"""Characters of the run folder's name on the page."""
_POINTS: Final = 200
_ROOM: Final = 1.15
"""Range of an axis relative to the envelope that the shield keeps."""


class Axis(NamedTuple):
    """One observation, in its unit."""

    name: str
    unit: str
    low: float
    high: float
    centre: float
    half: float
    """``centre`` and ``half`` turn normalised values back: value = centre + half * normalised."""


def axes_of(config: RunConfig, signals: Sequence[Observation] | None = None) -> tuple[Axis, ...]:
    """Choose the axes: the range of each signal, by default of the rig's, narrower where the envelope is."""
    axes = []
    for o in config.rig.signals if signals is None else signals:
        low, high = o.low, o.high
        envelope = config.limits.envelope.get(o.name)
        if envelope is not None:
            low, high = max(low, envelope.low * _ROOM), min(high, envelope.high * _ROOM)
        axes.append(Axis(o.name, o.unit, low, high, 0.5 * (o.low + o.high), 0.5 * (o.high - o.low)))
    return tuple(axes)


def about(config: RunConfig, folder: Path) -> dict[str, object]:
    """Describe a run; plain values, ready for JSON."""
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
        "period_us": config.wall_period_ns / 1000,
        "observations": [a._asdict() for a in axes_of(config)],
        "inputs": [a._asdict() for a in axes_of(config, config.signals)],
        "actuators": [
            {"name": a.name, "unit": a.unit, "low": a.low, "high": a.high, "safe": a.safe} for a in rig.actuators
        ],
        "target": {name: task.reward.target[name] for name in task.reward.weights if name in task.reward.target},
        "drawing": drawing_of(config),
        "exploration": schedule(config),
        "process": _process(config),
        "episode_fields": FIELDS,
        "measure": {**measure_of(task)._asdict(), "normalized": task.normalization is not None},
        "edges_us": [float(f"{e:.6g}") for e in coarse_edges_us().tolist()],
        "rules": [r.name.lower() for r in Rule],
        "misses": [m.name.lower() for m in Miss],
        "stages": STAGES,
    }


def pace_of(config: RunConfig) -> str:
    """How the run's time passes, in words."""
    pace = config.device.pace
    if isinstance(pace, Scaled):
        return f"{pace.scaled:g}× real time"
    return "lockstep" if pace == "lockstep" else "real time"


def _process(config: RunConfig) -> str:
    match config.exploration:
        case OrnsteinUhlenbeck():
            return "Ornstein-Uhlenbeck noise"
        case Gaussian():
            return "Gaussian noise"
        case ParameterNoise():
            return "parameter noise"
        case OwnNoise():
            return "the policy's own noise"
        case EpsilonGreedy():
            return "random levels, epsilon-greedily"
        case NoExploration():
            return "none"


def schedule(config: RunConfig) -> dict[str, list[float]]:
    """Amplitude as scheduled over training episodes, the largest of the actuators': {episode: [...], amplitude: [...]}.

    Gates and budgets cut it back further; a schedule over steps or seconds takes episodes to be whole.
    """
    exploration = config.exploration
    if isinstance(exploration, NoExploration):
        return {"episode": [], "amplitude": []}
    names = [a.name for a in config.rig.actuators]
    steps = episode_steps(config.task, config.rate_hz)
    per_episode = {"episodes": 1.0, "steps": float(steps), "seconds": steps * config.period_us * 1e-6}[exploration.over]
    n = min(_POINTS, max(config.episodes, 2))
    episodes = [1 + (config.episodes - 1) * i / (n - 1) for i in range(n)]
    done = [e if exploration.over == "episodes" else (e - 1) * per_episode for e in episodes]
    return {
        "episode": [round(e, 2) for e in episodes],
        "amplitude": [round(max(amplitudes(exploration, names, x)), 4) for x in done],
    }
