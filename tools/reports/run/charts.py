"""Charts of a run: its episodes, its policies, and the time spent in each stage of a tick."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from onrig.runtime.explore.schedule import amplitudes
from onrig.runtime.explore.settings import ScheduledNoise
from onrig.runtime.histogram import coarse_edges_us
from onrig.runtime.record import STAGES
from onrig.runtime.run_config import RunConfig
from onrig.runtime.scoring import measure_of
from onrig.runtime.view.run_view import RunFiles, Values, count_by_episode, episode_columns, read_episodes, to_number
from onrig.runtime.view.sentences import Event
from onrig.tools.quantity import format_duration
from onrig.tools.reports.style import (
    ORANGE,
    PALETTE,
    RED,
    RULE_COLOURS,
    Plot,
    draw_reference_lines,
    inline_plot,
    new_figure,
    page_colour,
    put_legend_outside,
    save_figure,
    set_title,
    use_integer_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMOOTHING_WINDOW: Final = 20
_MIN_SHOWN, _MAX_SHOWN = -1.5, 2.0
"""Range of normalised rewards; single episodes outside it do not extend the axis."""
_CAUSE_COLOURS: Final = {"link": ORANGE, "program": RED, "host": "0.55"}
VERDICT_STYLES: Final = {
    "policy_admitted": ("admitted", "good", ".", 4.0),
    "policy_refused": ("refused", "bad", "x", 7.0),
    "policy_rolled_back": ("rolled back", "warn", "v", 7.0),
    "policy_probation_failed": ("failed its probation", "violet", "^", 7.0),
}
"""Word, page colour, marker and marker size for each kind of event."""


def draw_learning_curve(folder: Path, config: RunConfig) -> Path | None:
    """Draw ``learning_curve.png``: performance, exploration and interventions by episode.

    Returns None if matplotlib is not installed or no episode was finished. Raises OSError.
    """
    episodes = read_episodes(folder)
    m = RunFiles(folder, config, {}, {}, episode_columns(episodes, "train"), episode_columns(episodes, "eval"), (), {})
    if not len(m.train["episode"]):
        return None
    interventions = m.train["interventions"]
    try:
        figure, rows = new_figure(2 + bool(interventions.any()), 1, 5.2 + 1.2 * bool(interventions.any()))
    except ImportError:
        return None
    panels = [row[0] for row in rows]
    _draw_performance(panels[0], m)
    _draw_exploration(panels[1], m)
    if interventions.any():
        set_title(panels[2], "ticks in which the shield acted, per episode")
        panels[2].bar(m.train["episode"], interventions, width=1.0, color=page_colour("warn"), alpha=0.7)
        panels[2].set_ylim(0, max(1.0, 1.1 * float(interventions.max())))
        use_integer_ticks(panels[2])
    _share_episode_axis(panels, m, (2.4, *(1 for _ in panels[1:])))
    parts = (config.rig.name, config.task.name, config.selection.strategy, f"{config.rate_hz:g} Hz")
    figure.suptitle(f"{', '.join(parts)}, seed {config.seed}", x=0.01, ha="left", fontsize=11)
    return save_figure(figure, folder / "learning_curve.png")


def episodes_chart(m: RunFiles) -> Plot | None:
    """Draw performance, exploration, interventions by rule and missed ticks by cause; None if no episode finished."""
    if not len(m.train["episode"]):
        return None
    rules, causes = count_by_episode(m.events, "rule"), count_by_episode(m.events, "cause", "missed")
    rules.pop("fallback", None)  # a fallback continues an intervention that another rule began
    stacked_counts = [
        (rules, RULE_COLOURS, "interventions begun by the shield's rules, per episode"),
        (causes, _CAUSE_COLOURS, "missed ticks by cause, per episode"),
    ]
    stacked_counts = [stack for stack in stacked_counts if stack[0]]
    figure, rows = new_figure(2 + len(stacked_counts), 1, 5.4 + 1.6 * len(stacked_counts))
    panels = [row[0] for row in rows]
    _draw_performance(panels[0], m)
    _draw_exploration(panels[1], m)
    for axes, (counts, colours, name) in zip(panels[2:], stacked_counts, strict=True):
        _draw_stacked_bars(axes, counts, colours, m.train["episode"])
        set_title(axes, name)
    _share_episode_axis(panels, m, (2.4, *(1 for _ in panels[1:])))
    measure_note = "Normalised reward: 0 for random actions, 1 for the reference controller"
    if m.config.task.may_terminate:
        measure_note += ", steps cut off by an early end count as the random or the terminal reward"
    if m.config.task.normalization is None:
        measure_note = "Return: sum of an episode's rewards in raw units; the task has no references"
    absent_names = [name for name, counts in (("interventions", rules), ("missed ticks", causes)) if not counts]
    note = f" There were no {' and no '.join(absent_names)}." if absent_names else ""
    caption = (
        f"{measure_note}; lines are means of the last {_SMOOTHING_WINDOW} episodes.{note} Evaluation episodes run "
        "without exploration after a training episode and are not used for learning. Exploration is the mean distance "
        "of the explored action from the policy's, in normalised units."
    )
    return inline_plot(figure, "Episode by episode", caption, "learning curve, exploration, interventions, misses")


def _share_episode_axis(panels: Sequence[Axes], m: RunFiles, heights: Sequence[float]) -> None:
    """Give stacked panels a common axis of episodes."""
    grid = panels[0].get_gridspec()
    if grid is not None:
        grid.set_height_ratios(heights)
    low, high = float(m.train["episode"][0]), float(m.train["episode"][-1])
    for axes in panels:
        axes.set_xlim(low - 0.01 * (high - low) - 0.6, high + 0.01 * (high - low) + 0.6)
        put_legend_outside(axes)
        if axes is not panels[-1]:
            axes.tick_params(labelbottom=False)
    panels[-1].set_xlabel("training episode", fontsize=9.5)


def smooth(values: Values, window: int = _SMOOTHING_WINDOW) -> Values:
    """Return the moving average over the last ``window`` values, or over fewer at the start."""
    cumulative = np.cumsum(np.insert(values, 0, 0.0))
    count = np.arange(1, len(values) + 1)
    first = np.maximum(count - window, 0)
    means: Values = (cumulative[1:] - cumulative[first]) / (count - first)
    return means


def _draw_performance(axes: Axes, m: RunFiles) -> None:
    """Draw the performance. The axis fits all means; single episodes beyond it are drawn at its edge."""
    measure, is_normalized = measure_of(m.config.task), m.config.task.normalization is not None
    set_title(axes, measure.title if is_normalized else f"{measure.title} ({measure.scale})")
    if is_normalized:
        draw_reference_lines(axes)
    curves = []
    for columns, role, name in ((m.train, "accent", "training"), (m.evaluation, "second", "evaluation, no noise")):
        colour = page_colour(role)
        is_finite = np.isfinite(columns[measure.column])
        x, y = columns["episode"][is_finite], columns[measure.column][is_finite]
        if len(x):
            curves.append((x, y, colour))
            axes.plot(x, smooth(y), "-", color=colour, lw=1.6, label=name)
    low, high = -np.inf, np.inf
    if is_normalized:
        means = np.concatenate([[0.0], *(smooth(y) for _, y, _ in curves)])
        lows, highs = ([float(reduce(y)) for _, y, _ in curves] for reduce in (np.min, np.max))
        low = min(-0.1, max(min(lows, default=0.0), _MIN_SHOWN), float(means.min())) - 0.05
        high = max(1.08, min(max(highs, default=1.0), _MAX_SHOWN) + 0.05, float(means.max()) + 0.05)
        axes.set_ylim(low, high)
    for x, y, colour in curves:
        axes.plot(x, np.clip(y, low, high), ".", ms=2.5, color=colour, alpha=0.4, clip_on=False)


def _draw_exploration(axes: Axes, m: RunFiles) -> None:
    set_title(axes, "exploration")
    x = m.train["episode"]
    axes.plot(x, m.train["exploration"], ".", ms=2.5, color=page_colour("violet"), alpha=0.5)
    axes.plot(
        x, smooth(m.train["exploration"]), "-", color=page_colour("violet"), lw=1.6, label="measured (mean of 1-norm)"
    )
    exploration = m.config.exploration
    if isinstance(exploration, ScheduledNoise):
        steps = np.cumsum(m.train["steps"])
        positions = {"episodes": x, "steps": steps, "seconds": steps * m.config.period_us * 1e-6}[exploration.over]
        names = [a.name for a in m.config.rig.actuators]
        planned_amplitudes = [max(amplitudes(exploration, names, value)) for value in positions.tolist()]
        axes.plot(x, planned_amplitudes, "-", color="0.45", lw=1.2, label="amplitude as scheduled")
    axes.set_ylim(bottom=0.0)


def _draw_stacked_bars(
    axes: Axes, counts_by_label: Mapping[str, Counter[int]], colours: Mapping[str, str], episodes: Values
) -> None:
    """Draw bars stacked by label; in long runs, each bar is the mean over several episodes."""
    first, last = int(episodes[0]), int(episodes[-1])
    width = max(1, (last - first + 1) // 250)
    edges = np.arange(first, last + width + 1, width)
    centres = edges[:-1] + 0.5 * (width - 1)
    base = np.zeros(len(centres))
    spare_colours = iter(PALETTE)
    for label in sorted(counts_by_label, key=lambda w: -sum(counts_by_label[w].values())):
        counts = np.array(sorted(counts_by_label[label].items()), np.float64).reshape(-1, 2)
        total, _ = np.histogram(counts[:, 0], edges, weights=counts[:, 1])
        colour = colours.get(label) or next(spare_colours)
        legend_label = f"{label} ({int(counts[:, 1].sum())})"
        axes.bar(centres, total / width, width, bottom=base, color=colour, label=legend_label, linewidth=0)
        base += total / width
    if width == 1:
        use_integer_ticks(axes)
    axes.set_ylim(0.0, max(1.0, 1.1 * float(base.max(initial=0.0))))


def policies_chart(m: RunFiles) -> Plot | None:
    """Draw the policies over time with their verdicts; None if there are no policies."""
    events = m.events_of_kind(*VERDICT_STYLES)
    if not events or not m.events:
        return None
    start = m.events[0].t_unix_s
    span = max(e.t_unix_s for e in m.events) - start
    unit, scale = ("h", 3600.0) if span > 7200 else ("min", 60.0) if span > 180 else ("s", 1.0)
    figure, [[axes]] = new_figure(1, 1, 2.5)
    set_title(axes, "policy id")
    for kind, (label, colour, marker, size) in VERDICT_STYLES.items():
        kind_events = [e for e in events if e.kind == kind]
        if kind_events:
            x = [(e.t_unix_s - start) / scale for e in kind_events]
            axes.plot(
                x,
                [_policy_id(e) for e in kind_events],
                marker,
                color=page_colour(colour),
                ms=size,
                label=f"{label} ({len(kind_events)})",
            )
    axes.set_xlabel(f"time since the start ({unit})", fontsize=9.5)
    use_integer_ticks(axes)
    put_legend_outside(axes)
    caption = (
        "Policies offered by the learner. Admitted: the policy passed the checks of its contract, operators, outputs "
        "(finite, bounded) and speed, so that the loop may use it. The table below gives the reason for each refusal "
        "and rollback."
    )
    return inline_plot(figure, "Policies", caption, "policies over time by verdict")


def _policy_id(event: Event) -> float:
    return to_number(event.fields.get("policy"))


def timing_chart(m: RunFiles) -> Plot | None:
    """Draw one histogram of durations for each stage, one above the other; None if nothing was timed."""
    names = [n for n in ("lateness", "tick", *STAGES) if n in m.timing]
    if not names:
        return None
    figure, [[axes]] = new_figure(1, 1, 0.5 * len(names) + 1.2)
    axes.set_xscale("log")
    edges_us = coarse_edges_us()
    for row, name in enumerate(reversed(names)):
        histogram = m.timing[name]
        nonzero = np.flatnonzero(histogram.counts)
        first, last = int(nonzero[0]), int(nonzero[-1])
        counts, bins_us = histogram.counts[first : last + 1], edges_us[first : last + 2]
        height = np.sqrt(counts / counts.max())
        colour = page_colour("accent" if name == "lateness" else "second" if name == "tick" else "faint")
        axes.stairs(row + 0.85 * height, bins_us, baseline=row, fill=True, color=colour, alpha=0.35)
        axes.stairs(row + 0.85 * height, bins_us, baseline=row, color=colour, lw=0.8)
        p50, p99 = histogram.percentile_us(50) or 0.0, histogram.percentile_us(99) or 0.0
        for value, line_style in ((p50, "-"), (p99, (0, (2, 1)))):
            axes.plot((value, value), (row, row + 0.85), color="0.1", lw=1.0, ls=line_style)
        values_us = {"p50": p50, "p99": p99, "max": float(bins_us[-1])}
        text = ", ".join(f"{key} {format_duration(value * 1e-6)}" for key, value in values_us.items())
        axes.text(1.01, row + 0.3, text, transform=axes.get_yaxis_transform(), fontsize=8.5, va="center")
    period_us = m.config.wall_period_ns / 1e3
    if not m.config.lockstep:
        axes.axvline(period_us, color=page_colour("bad"), lw=1.0)
        axes.text(period_us, len(names) + 0.05, "one period", color=page_colour("bad"), fontsize=8.5, ha="center")
    axes.set_yticks([i + 0.3 for i in range(len(names))], ["whole tick" if n == "tick" else n for n in reversed(names)])
    axes.set_ylim(-0.1, len(names) + 0.35)
    axes.set_xlim(left=max(0.5, axes.get_xlim()[0]))  # an estimated sampling time may be after the receipt
    axes.set_xlabel("duration (µs, logarithmic)", fontsize=9.5)
    axes.grid(axis="y", visible=False)
    lateness = "" if m.config.lockstep else "Lateness is the time from the device's sample to its receipt. "
    caption = (
        f"{lateness}Heights are square roots of counts, so that single late ticks are visible; lines are at the median "
        "and at p99 (dashed); max is the upper edge of the last bin. All ticks of the run are included."
    )
    if m.config.lockstep:
        caption += " In lockstep, no tick can be late: these durations were measured under the default scheduler."
    return inline_plot(figure, "Where the time of a tick went", caption, "histograms of tick stages and lateness")
