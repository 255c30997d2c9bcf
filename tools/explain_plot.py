"""The picture that goes with ``onrig check --explain``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hw.rig import Observation
from runtime.config.schema import OrnsteinUhlenbeck, RunConfig
from runtime.control.explore import episode_noise, interpolate, ornstein_uhlenbeck
from runtime.random_streams import Role, stream
from runtime.task import episode_steps
from tools.explain import release_bounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TRACE_STEPS: Final = 100
_BEYOND: Final = 1.25
"""How far the limits' axis reaches, in normalised units."""


def plot_explanation(config: RunConfig, path: Path) -> bool:
    """Draw exploration over the run, the noise of its first and its last episode, and every limit; False without
    matplotlib.  Raises OSError where the file cannot be written.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return False
    exploration = config.exploration
    rows = len(config.rig.observations) + len(config.rig.actuators)
    heights = [1.5, 2.4, 0.6 + 0.42 * rows] if isinstance(exploration, OrnsteinUhlenbeck) else [0.6 + 0.42 * rows]
    figure, grid = plt.subplots(
        len(heights),
        1,
        figsize=(9, sum(heights) + 0.9 * len(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    panels: list[Axes] = list(grid[:, 0])
    if isinstance(exploration, OrnsteinUhlenbeck):
        _schedule(panels[0], config, exploration)
        _noise(panels[1], config, exploration)
    _limits(panels[-1], config)
    what = (config.rig.name, config.task.name, f"{config.rate_hz:g} Hz", f"seed {config.seed}")
    figure.suptitle(", ".join(what), fontsize=10)
    try:
        figure.savefig(path, dpi=120)
    finally:
        plt.close(figure)
    return True


def _schedule(axes: Axes, config: RunConfig, exploration: OrnsteinUhlenbeck) -> None:
    episodes = [1 + i * (config.episodes - 1) / 400 for i in range(401)] if config.episodes > 1 else [0.5, 1.5]
    axes.plot(episodes, [interpolate(exploration.amplitude, e) for e in episodes], color="tab:purple")
    for episode, amplitude in exploration.amplitude:
        if 1 <= episode <= config.episodes:
            axes.plot(episode, amplitude, "o", ms=4, color="tab:purple")
            axes.annotate(
                f"{amplitude:g} at {episode:g}",
                (episode, amplitude),
                xytext=(6 if episode < config.episodes / 2 else -6, 5),
                textcoords="offset points",
                ha="left" if episode < config.episodes / 2 else "right",
                fontsize=8,
            )
    axes.set_xlim(min(episodes), max(episodes))
    axes.set_ylim(0, 1.2)
    axes.set_ylabel("amplitude")
    axes.set_xlabel("training episode", labelpad=1)
    axes.set_title("exploration over the run", fontsize=9, loc="left")


def _noise(axes: Axes, config: RunConfig, exploration: OrnsteinUhlenbeck) -> None:
    """The signals that this very run adds to its first actuator: the same streams, the same draws."""
    steps, m = episode_steps(config.task, config.rate_hz), len(config.rig.actuators)
    shown = min(steps, _TRACE_STEPS)
    time_s = [k * config.period_us * 1e-6 for k in range(shown)]
    rng = stream(config.seed, Role.EXPLORATION, 1)
    raw = ornstein_uhlenbeck(rng, steps, m, exploration.gain, exploration.friction)[:shown, 0]
    axes.axhspan(1, 100, color="0.93", lw=0)
    axes.axhspan(-100, -1, color="0.93", lw=0)
    axes.plot(time_s, raw, color="0.6", lw=0.9, label="episode 1, before the clip to [-1, 1]")
    for episode, colour in dict(((1, "tab:blue"), (config.episodes, "tab:orange"))).items():
        rng = stream(config.seed, Role.EXPLORATION, episode)
        added = [u[0] for u in episode_noise(exploration, rng, episode, steps, m)[:shown]]
        amplitude = interpolate(exploration.amplitude, episode)
        label = f"episode {episode}, clipped, times {amplitude:.3g}"
        axes.step(time_s, added, where="post", color=colour, lw=1.3, label=label)
    reach = max(2.0, min(6.0, float(abs(raw).max())))
    axes.set_ylim(-reach, reach)
    axes.set_xlim(0, time_s[-1] if shown > 1 else 1)
    axes.set_xlabel("time in the episode (s)", labelpad=1)
    axes.set_ylabel("added, normalised")
    axes.legend(loc="upper right", fontsize=7, ncols=3, framealpha=0.9)
    axes.set_title(f"noise on {config.rig.actuators[0].name}, as seed {config.seed} draws it", fontsize=9, loc="left")


def _limits(axes: Axes, config: RunConfig) -> None:
    """One bar per observation and actuator, in normalised units, with the SI values written at the bounds."""
    names = []
    y = 0.0
    seen: set[str] = set()

    def label(text: str) -> str:
        """Each kind of mark once in the legend."""
        fresh = text not in seen
        seen.add(text)
        return text if fresh else f"_{text}"

    def bar(at: float, low: float, high: float, thickness: float, colour: str, text: str) -> None:
        shown_low, shown_high = max(low, -_BEYOND), min(high, _BEYOND)
        axes.barh(at, shown_high - shown_low, thickness, shown_low, color=colour, lw=0, label=label(text))

    def values(at: float, ends: tuple[tuple[float, float], ...], colour: str = "0.25") -> None:
        for x, value in ends:
            side = "right" if x < 0 else "left"
            near = min(max(x, -_BEYOND), _BEYOND)
            axes.text(near + 0.015 * (1 if x >= 0 else -1), at, f"{value:.4g}", ha=side, va="center", fontsize=7, color=colour)

    for o in config.rig.observations:
        scale = _scale(o)
        bar(y, -1, 1, 0.62, "0.88", "range of the observation")
        envelope = config.limits.envelope.get(o.name)
        if envelope is not None:
            low, high = scale(envelope.low), scale(envelope.high)
            inner = release_bounds(envelope.low, envelope.high, envelope.release)
            bar(y, low, high, 0.44, "tab:red", "envelope: beyond it the fallback acts")
            bar(y, scale(inner[0]), scale(inner[1]), 0.44, "tab:green", "the fallback lets go")
            values(y, ((low, envelope.low), (high, envelope.high)), "tab:red")
        values(y, ((-1.0, o.low), (1.0, o.high)))
        terminate = config.task.terminate.get(o.name)
        for bound in terminate or ():
            axes.plot(scale(bound), y, "|", ms=14, mew=2, color="k", label=label("the episode terminates"))
        if o.name in config.task.start:
            axes.plot(scale(config.task.start[o.name]), y, "o", ms=5, color="tab:blue", label=label("start"))
        target = config.task.reward.target.get(o.name)
        if target is not None:
            both = {target, -target} if o.name in config.task.reward.folded else {target}
            for value in both:
                axes.plot(scale(value), y, "*", ms=9, color="tab:orange", mec="k", mew=0.4, label=label("target"))
        names.append(f"{o.name} ({o.unit})")
        y -= 1.0
    for a in config.rig.actuators:
        low_si, high_si = config.limits.range.get(a.name, (a.low, a.high))
        low, high = (low_si - a.centre) / a.half_range, (high_si - a.centre) / a.half_range
        bar(y, -1, 1, 0.62, "0.78", "range of the rig's actuator")
        bar(y, low, high, 0.44, "tab:cyan", "configured range")
        rate = config.limits.rate_per_s.get(a.name)
        safe = (a.safe - a.centre) / a.half_range
        if rate is not None:
            step = min(rate * config.period_us * 1e-6 / a.half_range, 2.0)
            axes.errorbar(safe, y, xerr=step, color="k", capsize=3, lw=1, label=label("reach of one tick from there"))
        axes.plot(safe, y, "s", ms=5, color="k", label=label("safe output"))
        values(y, ((-1.0, a.low), (1.0, a.high)))
        if (low, high) != (-1.0, 1.0):
            values(y + 0.36, ((low, low_si), (high, high_si)), "tab:cyan")
        names.append(f"{a.name} ({a.unit})")
        y -= 1.0
    axes.set_yticks([-float(i) for i in range(len(names))], names, fontsize=8)
    axes.set_ylim(y + 0.4, 0.6)
    axes.set_xlim(-_BEYOND - 0.15, _BEYOND + 0.15)
    axes.set_xticks([-1, 0, 1])
    axes.set_xlabel("normalised", labelpad=1)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16 if len(names) < 4 else -0.1), ncols=4, fontsize=7)
    axes.set_title("limits and landmarks", fontsize=9, loc="left")


def _scale(o: Observation):  # type: ignore[no-untyped-def]
    centre, half = 0.5 * (o.low + o.high), 0.5 * (o.high - o.low)
    return lambda value: math.copysign(1, value - centre) * abs(value - centre) / half
