"""What a page needs to know of a run once: names, units, ranges, the picture, the planned exploration."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from onrig.runtime.explore.schedule import amplitudes
from onrig.runtime.explore.settings import Gaussian, NoExploration, OrnsteinUhlenbeck, ParameterNoise
from onrig.runtime.histogram import coarse_edges_us
from onrig.runtime.record import STAGES, Miss, Rule
from onrig.runtime.run_config import RunConfig, Scaled
from onrig.runtime.task import episode_steps
from onrig.tools.web.drawing import drawing_of
from onrig.tools.web.history import FIELDS

_POINTS: Final = 200
_ROOM: Final = 1.15
"""Beyond an envelope that the shield keeps there is nothing to be seen."""


class Axis(NamedTuple):
    """One observation, in its unit."""

    name: str
    unit: str
    low: float
    high: float
    centre: float
    half: float
    """``centre`` and ``half`` turn normalised values back: value = centre + half * normalised."""


def axes_of(config: RunConfig) -> tuple[Axis, ...]:
    """Choose the axes: the rig's range of each observation, narrower where the envelope is."""
    axes = []
    for o in config.rig.signals:
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
        "name": folder.name,
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
        "actuators": [{"name": a.name, "unit": a.unit, "low": a.low, "high": a.high} for a in rig.actuators],
        "target": {name: task.reward.target[name] for name in task.reward.weights if name in task.reward.target},
        "drawing": drawing_of(config),
        "exploration": schedule(config),
        "process": _process(config),
        "episode_fields": FIELDS,
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
