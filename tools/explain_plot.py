"""Plot of ``onrig check --plot``: exploration over the run, sample noise, gates, and all limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from onrig.runtime.explore.noise import clip_limit, raw_signal
from onrig.runtime.explore.schedule import (
    BackOffState,
    amplitudes,
    attenuation,
    back_off_factor,
    back_off_once,
    budget_factor,
    interpolate,
    is_quiet,
    schedules,
)
from onrig.runtime.explore.settings import (
    BackOff,
    Budgets,
    EpsilonGreedy,
    NearEnvelope,
    OwnNoise,
    ParameterNoise,
    ScheduledNoise,
)
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps
from onrig.tools.explain_exploration import schedule_range
from onrig.tools.limits_plot import draw_limits, limit_bars
from onrig.tools.reports.style import (
    BLUE,
    GREEN,
    ORANGE,
    PALETTE,
    VIOLET,
    apply_style,
    new_figure,
    save_figure,
    set_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_TRACE_STEPS: Final = 100
_NOISE_MARGIN: Final = 2.6
_MAX_TRIPS: Final = 8
_FIRST_COLOUR, _LAST_COLOUR, _SCHEDULE_COLOUR, _GATE_COLOUR = BLUE, ORANGE, VIOLET, GREEN
_UNITS: Final = {"episodes": "training episode", "steps": "training step", "seconds": "time in training (s)"}
_POINT_LABELS: Final = {"episodes": "episode {:g}", "steps": "step {:g}", "seconds": "{:g} s"}


class Row(NamedTuple):
    """Row of panels that are drawn side by side, and its height in inches."""

    height: float
    panels: tuple[Callable[[Axes], None], ...]


def plot_explanation(config: RunConfig, path: Path) -> bool:
    """Write the plot to a file. Return False if matplotlib is not installed.

    Raises OSError if the file cannot be written, and ValueError if matplotlib does not support its suffix.
    """
    bars, rows = limit_bars(config), exploration_rows(config)
    heights = [*(row.height for row in rows), 0.7 + 0.5 * len(bars)]
    try:
        figure, grid = new_figure(len(heights), 1, sum(heights) + 0.8 * len(heights) + 0.5)
    except ImportError:
        return False
    figure.axes[0].get_gridspec().set_height_ratios(heights)  # type: ignore[union-attr]
    for [cell], row in zip(grid, rows, strict=False):
        columns = cell.get_subplotspec().subgridspec(1, len(row.panels))  # type: ignore[union-attr]
        cell.remove()
        for i, draw in enumerate(row.panels):
            draw(apply_style(figure.add_subplot(columns[i])))
    draw_limits(grid[-1][0], bars)
    parts = (config.rig.name, config.task.name, f"{config.rate_hz:g} Hz", f"seed {config.seed}")
    figure.suptitle(", ".join(parts), fontsize=11)
    save_figure(figure, path)
    return True


def exploration_rows(config: RunConfig) -> list[Row]:
    """Return the rows of the plot, from top to bottom."""
    exploration = config.exploration
    gates: list[Callable[[Axes], None]] = []
    rows = []
    if isinstance(exploration, ScheduledNoise):
        rows.append(Row(1.6, (partial(_draw_schedule, config=config, exploration=exploration),)))
        if not isinstance(exploration, ParameterNoise | EpsilonGreedy):
            rows.append(Row(2.2, (partial(_draw_noise, config=config, exploration=exploration),)))
        if exploration.near_envelope is not None:
            gates.append(partial(_draw_near_envelope, near_envelope=exploration.near_envelope))
        if exploration.back_off is not None:
            gates.append(partial(_draw_back_off, back_off=exploration.back_off))
    if exploration.budgets != Budgets():
        gates.append(partial(_draw_budget, warn_fraction=exploration.budgets.warn))
    return [*rows, Row(1.3, tuple(gates))] if gates else rows


def _draw_schedule(axes: Axes, config: RunConfig, exploration: ScheduledNoise) -> None:
    first_x, last_x = schedule_range(config, exploration)
    xs = (
        [first_x + i * (last_x - first_x) / 400 for i in range(401)]
        if last_x > first_x
        else [first_x - 0.5, first_x + 0.5]
    )
    names = [a.name for a in config.rig.actuators]
    points_by_actuator = dict(zip(names, schedules(exploration.amplitude, names), strict=True))
    names_by_points = {
        points: [n for n in names if points_by_actuator[n] == points]
        for points in dict.fromkeys(points_by_actuator.values())
    }
    for i, (points, group_names) in enumerate(names_by_points.items()):
        amplitude = [interpolate(points, x) for x in xs]
        colour = _SCHEDULE_COLOUR if len(names_by_points) == 1 else PALETTE[i % len(PALETTE)]
        axes.fill_between(xs, amplitude, color=colour, alpha=0.12 / len(names_by_points), lw=0)
        axes.plot(xs, amplitude, color=colour, label=", ".join(group_names))
        for x, value in points:
            if not first_x <= x <= last_x:
                continue
            axes.plot(x, value, "o", ms=5, color=colour, clip_on=False)
            if len(names_by_points) == 1:
                _name_point(
                    axes, f"{value:g} at {_POINT_LABELS[exploration.over].format(x)}", x, value, x < 0.5 * last_x
                )
    if len(names_by_points) == 1 and exploration.over == "episodes":
        for x, colour in ((last_x, _LAST_COLOUR), (first_x, _FIRST_COLOUR)):
            axes.plot(x, amplitudes(exploration, names, x)[0], "o", ms=7, color=colour, clip_on=False)
    elif len(names_by_points) > 1:
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, ncols=4, frameon=False)
    axes.set_xlim(xs[0], xs[-1])
    axes.set_ylim(0, 1.25)
    axes.set_ylabel("amplitude")
    axes.set_xlabel(_UNITS[exploration.over], labelpad=1)
    quiet = exploration.quiet
    suffix = "" if quiet is None else f"; the last {quiet.episodes} of every {quiet.every} episodes without noise"
    set_title(axes, f"exploration over the run{suffix}")


def _name_point(axes: Axes, text: str, x: float, y: float, is_left: bool) -> None:
    axes.annotate(
        text,
        (x, y),
        xytext=(8 if is_left else -8, 9 if is_left else 16),
        textcoords="offset points",
        ha="left" if is_left else "right",
        fontsize=8,
    )


def _draw_noise(axes: Axes, config: RunConfig, exploration: ScheduledNoise) -> None:
    """Draw the exploration noise on the first actuator before the gates apply, from the run's own random streams."""
    is_own_noise, clip = isinstance(exploration, OwnNoise), clip_limit(exploration)
    steps, names = episode_steps(config.task, config.rate_hz), [a.name for a in config.rig.actuators]
    n_shown = min(steps, _TRACE_STEPS)
    time_s = [k * config.period_us * 1e-6 for k in range(n_shown)]
    first_x, last_x = schedule_range(config, exploration)
    for side in (-1, 1):
        axes.axhspan(clip * side, 10 * side, color="0.94", lw=0)
    last_noisy_episode = next((e for e in range(config.episodes, 1, -1) if not is_quiet(exploration.quiet, e)), 1)
    for episode, x, colour in ((1, first_x, _FIRST_COLOUR), (last_noisy_episode, last_x, _LAST_COLOUR))[
        :last_noisy_episode
    ]:
        raw_noise = raw_signal(exploration, stream(config.seed, Role.EXPLORATION, episode), steps, len(names))
        if raw_noise is None:
            continue
        if episode == 1:
            axes.plot(time_s, raw_noise[:n_shown, 0], color="0.7", lw=0.9, label="episode 1, not clipped")
        amplitude = amplitudes(exploration, names, x)[0]
        label = f"episode {episode}: clipped, times {amplitude:.3g}"
        added_noise = amplitude * np.clip(raw_noise[:n_shown, 0], -clip, clip)
        axes.step(time_s, added_noise, where="post", color=colour, lw=1.5, label=label)
    y_limit = _NOISE_MARGIN + clip - 1.0
    axes.set_ylim(-y_limit, y_limit)
    axes.set_yticks([-2, -1, 0, 1, 2])
    axes.set_xlim(0, time_s[-1] if n_shown > 1 else 1)
    axes.set_xlabel("time in the episode (s)", labelpad=1)
    axes.set_ylabel("the policy's input" if is_own_noise else "added, normalised")
    set_title(axes, f"noise on {names[0]}")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, ncols=3, frameon=False, borderaxespad=0.2)


def _draw_near_envelope(axes: Axes, near_envelope: NearEnvelope) -> None:
    _prepare_factor_axes(axes, "near the envelope", "margin (0: at the edge)")
    axes.plot(
        [0, near_envelope.start, 1],
        [attenuation(near_envelope, x) for x in (0, near_envelope.start, 1)],
        color=_GATE_COLOUR,
    )
    axes.set_xlim(0, 1)


def _draw_back_off(axes: Axes, back_off: BackOff) -> None:
    states = [BackOffState()]
    for _ in range(_MAX_TRIPS):
        states.append(back_off_once(back_off, states[-1]))
    _prepare_factor_axes(axes, "after trips", f"trips (one step back per {back_off.clean_episodes} clean episodes)")
    axes.step(
        range(len(states)), [back_off_factor(back_off, r) for r in states], "o-", where="post", color=_GATE_COLOUR
    )
    axes.set_xlim(0, _MAX_TRIPS)


def _draw_budget(axes: Axes, warn_fraction: float) -> None:
    _prepare_factor_axes(axes, "as a budget runs low", "fraction used")
    axes.plot([0, warn_fraction, 1, 1.1], [1, 1, budget_factor(1.0, 1.0, warn_fraction), 0], color=_GATE_COLOUR)
    axes.set_xlim(0, 1.1)


def _prepare_factor_axes(axes: Axes, heading: str, x_label: str) -> None:
    set_title(axes, heading)
    axes.set_xlabel(x_label, labelpad=1, fontsize=9)
    axes.set_ylabel("times", labelpad=1)
    axes.set_ylim(0, 1.1)
