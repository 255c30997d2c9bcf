"""Limits and reference values of all observations and actuators, for the plot of ``onrig check --plot``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from onrig.hw.rig import Actuator, Observation
from onrig.runtime.run_config import RunConfig
from onrig.runtime.starts import extreme_starts
from onrig.tools.explain import release_bounds
from onrig.tools.quantity import axis_label
from onrig.tools.reports.style import BLUE, ORANGE, RED, WINE, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_MARGIN: Final = 0.35
"""Margin drawn beyond the outermost bound."""
_MAX_POSITION: Final = 3.0

_FALLBACK_COLOUR, _HOLDS_COLOUR, _POLICY_COLOUR, _RIG_COLOUR, _CONFIGURED_COLOUR = (
    "#f4b6b0",
    "#f7dfa5",
    "#bfe3c3",
    "0.88",
    "#a9d3e8",
)
_COLOURS: Final = {
    "fallback active": _FALLBACK_COLOUR,
    "fallback remains active": _HOLDS_COLOUR,
    "policy active": _POLICY_COLOUR,
    "range of the rig": _RIG_COLOUR,
    "configured range": _CONFIGURED_COLOUR,
}
_MARKS: Final = {
    "start": ("o", 6.0, BLUE),
    "target": ("*", 11.0, ORANGE),
    "safe output": ("s", 6.0, "k"),
    "end of the episode": ("|", 14.0, RED),
    "wall": ("|", 14.0, WINE),
}


@dataclass
class LimitBar:
    """One row of the plot: stretches and marks at normalised positions, and bounds labelled in SI units."""

    label: str
    stretches: list[tuple[str, float, float]] = field(default_factory=list)
    """Tuples (meaning, low, high); infinite ends extend to the edge of the plot."""
    marks: list[tuple[str, float]] = field(default_factory=list)
    labels_above: list[tuple[float, str]] = field(default_factory=list)
    labels_below: list[tuple[float, str]] = field(default_factory=list)
    tick_reach: tuple[float, float] | None = None
    """Range that the output can reach in one tick from its safe value."""


def limit_bars(config: RunConfig) -> list[LimitBar]:
    """Return all rows, observations first."""
    observations = [_observation_bar(config, o) for o in config.rig.observations]
    return observations + [_actuator_bar(config, a) for a in config.rig.actuators]


def _normaliser(low: float, high: float) -> Callable[[float], float]:
    centre, half_range = 0.5 * (low + high), 0.5 * (high - low)
    return lambda value: (value - centre) / half_range


def _observation_bar(config: RunConfig, o: Observation) -> LimitBar:
    normalise = _normaliser(o.low, o.high)
    reward = config.task.reward
    bar = LimitBar(axis_label(o.name, o.unit), labels_below=[(-1.0, f"{o.low:.4g}"), (1.0, f"{o.high:.4g}")])
    envelope = config.limits.envelope.get(o.name)
    if envelope is None:
        bar.stretches.append(("range of the rig", -1.0, 1.0))
    else:
        low, high = release_bounds(envelope.low, envelope.high, envelope.release)
        infinity = float("inf")
        bar.stretches += [
            ("fallback active", -infinity, infinity),
            ("fallback remains active", normalise(envelope.low), normalise(envelope.high)),
            ("policy active", normalise(low), normalise(high)),
        ]
        bar.labels_above = [(normalise(v), f"{v:.4g}") for v in (envelope.low, low, high, envelope.high)]
    bar.marks += [("end of the episode", normalise(bound)) for bound in config.task.terminate.get(o.name, ())]
    if reward.wall is not None and reward.wall.observation == o.name:
        bar.marks += [("wall", normalise(reward.wall.low)), ("wall", normalise(reward.wall.high))]
    starts = [start[o.name] for _, start in extreme_starts(config.task.all_starts) if o.name in start]
    bar.marks += [("start", normalise(value)) for value in dict.fromkeys(starts)]
    target = reward.target.get(o.name)
    if target is not None:
        bar.marks += [("target", normalise(t)) for t in ({target, -target} if o.name in reward.folded else {target})]
    return bar


def _actuator_bar(config: RunConfig, a: Actuator) -> LimitBar:
    normalise = _normaliser(a.low, a.high)
    low, high = config.limits.range.get(a.name, (a.low, a.high))
    bar = LimitBar(
        axis_label(a.name, a.unit),
        stretches=[("range of the rig", -1.0, 1.0), ("configured range", normalise(low), normalise(high))],
        marks=[("safe output", normalise(a.safe))],
        labels_below=[(-1.0, f"{a.low:.4g}"), (1.0, f"{a.high:.4g}")],
    )
    if (low, high) != (a.low, a.high):
        bar.labels_above = [(normalise(low), f"{low:.4g}"), (normalise(high), f"{high:.4g}")]
    rate = config.limits.rate_per_s.get(a.name)
    if rate is not None:
        step = rate * config.period_us * 1e-6
        bar.tick_reach = normalise(max(a.safe - step, low)), normalise(min(a.safe + step, high))
    return bar


def draw_limits(axes: Axes, bars: list[LimitBar]) -> None:
    """Draw the rows from top to bottom."""
    bounds = [abs(x) for bar in bars for _, *limits in bar.stretches for x in limits if abs(x) < _MAX_POSITION]
    reach = max([1.0, *bounds]) + _MARGIN
    labelled_texts: set[str] = set()

    def label(text: str) -> str | None:
        is_new = text not in labelled_texts
        labelled_texts.add(text)
        return text if is_new else None

    for row, bar in enumerate(bars):
        for meaning, low, high in bar.stretches:
            low, high = max(low, -reach), min(high, reach)
            axes.barh(row, high - low, 0.46, low, color=_COLOURS[meaning], lw=0, label=label(meaning))
        for x in (-1.0, 1.0):
            axes.plot((x, x), (row - 0.23, row + 0.23), color="0.45", lw=1)
        if bar.tick_reach is not None:
            axes.plot(
                bar.tick_reach, (row, row), color="k", lw=2, label=label("reach in one tick from the safe output")
            )
        for meaning, x in bar.marks:
            shape, size, colour = _MARKS[meaning]
            kind = label(meaning)
            axes.plot(
                x,
                row,
                shape,
                ms=size,
                mew=2 if shape == "|" else 0.5,
                color=colour,
                mec=_edge_colour(shape, colour),
                label=kind,
            )
        for values, offset in ((bar.labels_above, -0.36), (bar.labels_below, 0.36)):
            for x, text in values:
                if abs(x) <= reach:
                    axes.text(x, row + offset, text, ha="center", va="center", fontsize=7, color="0.25")
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars], fontsize=9)
    axes.set_ylim(len(bars) - 0.45, -0.55)
    axes.set_xlim(-reach, reach)
    axes.set_xticks([-1, 0, 1], ["-1", "0\nnormalised", "1"])
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), borderaxespad=3.4, ncols=4, fontsize=8, frameon=False)
    set_title(axes, "limits and reference values")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)


def _edge_colour(shape: str, colour: str) -> str:
    return colour if shape == "|" else "k"
