"""The picture that goes with ``onrig check --explain``: exploration over the run, its noise, and every limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtime.config.schema import OrnsteinUhlenbeck, RunConfig
from runtime.control.explore import episode_noise, interpolate, ornstein_uhlenbeck
from runtime.random_streams import Role, stream
from runtime.task import episode_steps
from tools.limit_bars import draw_limits, limit_bars

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TRACE_STEPS: Final = 100
_NOISE_REACH: Final = 2.6
_FIRST, _LAST = "tab:blue", "tab:orange"


def plot_explanation(config: RunConfig, path: Path) -> bool:
    """Draw the picture into a file; False where matplotlib is not installed.

    Raises OSError where the file cannot be written, ValueError for a suffix that matplotlib does not know.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return False
    exploration = config.exploration
    bars = limit_bars(config)
    heights = [0.7 + 0.5 * len(bars)]
    if isinstance(exploration, OrnsteinUhlenbeck):
        heights = [1.6, 2.2, *heights]
    figure, grid = plt.subplots(
        len(heights),
        1,
        figsize=(9, sum(heights) + 0.8 * len(heights) + 0.5),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    panels: list[Axes] = list(grid[:, 0])
    if isinstance(exploration, OrnsteinUhlenbeck):
        _schedule(panels[0], config, exploration)
        _noise(panels[1], config, exploration)
    draw_limits(panels[-1], bars)
    what = (config.rig.name, config.task.name, f"{config.rate_hz:g} Hz", f"seed {config.seed}")
    figure.suptitle(", ".join(what), fontsize=11)
    try:
        figure.savefig(path, dpi=120)
    finally:
        plt.close(figure)
    return True


def _schedule(axes: Axes, config: RunConfig, exploration: OrnsteinUhlenbeck) -> None:
    last = config.episodes
    episodes = [1 + i * (last - 1) / 400 for i in range(401)] if last > 1 else [0.5, 1.5]
    amplitude = [interpolate(exploration.amplitude, e) for e in episodes]
    axes.fill_between(episodes, amplitude, color="tab:purple", alpha=0.12, lw=0)
    axes.plot(episodes, amplitude, color="tab:purple")
    for episode, value in exploration.amplitude:
        if 1 <= episode <= last:
            left = episode < 0.5 * last
            axes.annotate(
                f"{value:g} at episode {episode:g}",
                (episode, value),
                xytext=(8 if left else -8, 9 if left else 16),
                textcoords="offset points",
                ha="left" if left else "right",
                fontsize=8,
            )
            axes.plot(episode, value, "o", ms=5, color="tab:purple", clip_on=False)
    for episode, colour in ((last, _LAST), (1, _FIRST)):
        axes.plot(episode, interpolate(exploration.amplitude, episode), "o", ms=7, color=colour, clip_on=False)
    axes.set_xlim(episodes[0], episodes[-1])
    axes.set_ylim(0, 1.25)
    axes.set_ylabel("amplitude")
    axes.set_xlabel("training episode", labelpad=1)
    axes.set_title("exploration over the run", fontsize=10, loc="left")


def _noise(axes: Axes, config: RunConfig, exploration: OrnsteinUhlenbeck) -> None:
    """The signals that this very run adds to its first actuator: the same streams, the same draws."""
    steps, m = episode_steps(config.task, config.rate_hz), len(config.rig.actuators)
    shown = min(steps, _TRACE_STEPS)
    time_s = [k * config.period_us * 1e-6 for k in range(shown)]
    rng = stream(config.seed, Role.EXPLORATION, 1)
    raw = ornstein_uhlenbeck(rng, steps, m, exploration.gain, exploration.friction)[:shown, 0]
    for side in (-1, 1):
        axes.axhspan(side, 10 * side, color="0.94", lw=0)
    axes.plot(time_s, raw, color="0.7", lw=0.9, label="episode 1, not clipped")
    for episode, colour in ({1: _FIRST} | {config.episodes: _LAST}).items():
        rng = stream(config.seed, Role.EXPLORATION, episode)
        added = [u[0] for u in episode_noise(exploration, rng, episode, steps, m)[:shown]]
        amplitude = interpolate(exploration.amplitude, episode)
        label = f"episode {episode}: clipped, times {amplitude:.3g}"
        axes.step(time_s, added, where="post", color=colour, lw=1.5, label=label)
    axes.set_ylim(-_NOISE_REACH, _NOISE_REACH)
    axes.set_yticks([-2, -1, 0, 1, 2])
    axes.set_xlim(0, time_s[-1] if shown > 1 else 1)
    axes.set_xlabel("time in the episode (s)", labelpad=1)
    axes.set_ylabel("added, normalised")
    axes.set_title(f"noise on {config.rig.actuators[0].name}", fontsize=10, loc="left")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, ncols=3, frameon=False, borderaxespad=0.2)
