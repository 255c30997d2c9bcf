"""Screen of ``onrig watch``: panels of text on at least 80 x 24 characters, or one line on a plain terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from onrig.runtime.histogram import CoarseHistogram, coarse_edges_us
from onrig.runtime.printable import printable
from onrig.runtime.record import Rule
from onrig.runtime.run_state.states import State
from onrig.runtime.scoring import measure_of
from onrig.tools.quantity import format_duration
from onrig.tools.run_description import describe_bounds
from onrig.tools.run_facts import N_AVERAGED_EPISODES, PERCENTILES, Times, format_times
from onrig.tools.watching.rig_text import Sketch, bar, columns, rig_rows, sparkline
from onrig.tools.watching.snapshot import EventLine, Snapshot

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.panel import Panel
    from rich.text import Text

_COLOURS: Final = {
    State.RUNNING: "green",
    State.FALLBACK: "yellow",
    State.FADING: "yellow",
    State.RESETTING: "cyan",
    State.PAUSED: "yellow",
    State.FAULT: "red",
}
KEYS: Final = "q leaves (the run continues)   s stops the run"
_TOP, _MIDDLE, _MIN_EVENTS = 9, 7, 4
_BORDERS: Final = 2
_STYLES: Final = {"bad": "red", "warn": "yellow", "good": "green"}
_EDGES_US: Final = coarse_edges_us()
FROM_US, TO_US = 4.0, 65_536.0
"""Range of the histograms; durations outside it are counted in the outermost bins."""


def screen(
    s: Snapshot, sketch: Sketch, footer: str, width: int, height: int, *, unicode: bool = True
) -> RenderableType:
    """Lay out the snapshot on ``width`` x ``height`` characters, cutting off what does not fit."""
    from rich.layout import Layout
    from rich.panel import Panel
    from rich.text import Text

    spare_rows = max(0, height - 2 - _MIDDLE - _TOP - _MIN_EVENTS - _BORDERS)
    top_rows = _TOP + spare_rows // 2
    layout = Layout()
    layout.split_column(
        Layout(_header_panel(s), size=1),
        Layout(name="top", size=top_rows),
        Layout(name="middle", size=_MIDDLE),
        Layout(name="events"),
        Layout(Text(footer, style="reverse"), size=1),
    )
    left_width = width // 2
    inner_widths = (left_width - 4, width - left_width - 4)
    layout["top"].split_row(
        Layout(
            _panel(
                "rig",
                rig_rows(s.config.rig, sketch, s.last_step, inner_widths[0], top_rows - _BORDERS, unicode=unicode),
            ),
            size=left_width,
        ),
        Layout(_panel("learning", learning_lines(s, inner_widths[1], unicode=unicode))),
    )
    layout["middle"].split_row(
        Layout(_panel("timing (logarithmic)", timing_lines(s, inner_widths[0], unicode=unicode)), size=left_width),
        Layout(_panel(describe_bounds(s.config), safety_lines(s))),
    )
    events = max(1, height - 2 - top_rows - _MIDDLE - _BORDERS)
    layout["events"].update(
        Panel(_event_lines(s.events[-events:]), title="events", title_align="left", border_style="dim")
    )
    return layout


def _header_panel(s: Snapshot) -> Text:
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f" {s.state.name} ", style=f"bold reverse {_COLOURS.get(s.state, 'white')}")
    text.append(f" {headline(s)}")
    text.append(printable(f"  {s.folder.name}"), style="dim")
    return text


def _panel(title: str, rows: Sequence[str]) -> Panel:
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    lines = [Text(printable(row), no_wrap=True, overflow="ellipsis") for row in rows]
    return Panel(Group(*lines), title=title, title_align="left", border_style="dim")


def _event_lines(events: Sequence[EventLine]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if not events:
        return Text("none yet", style="dim")
    lines = []
    for event in events:
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{event.clock} ", style="dim")
        line.append(printable(event.text), style=_STYLES.get(event.level, ""))
        lines.append(line)
    return Group(*lines)


def headline(s: Snapshot) -> str:
    """Return the run's episode, tick and rate."""
    pace = f", {s.rate_hz:.0f} ticks/s" if s.rate_hz is not None else ""
    return f"episode {s.episode} of {s.config.episodes}, tick {s.tick}{pace}"


def learning_lines(s: Snapshot, width: int, *, unicode: bool = True) -> list[str]:
    """Return lines with the learning curve, exploration, memory, learner and policies."""
    scores = _finite(s.train[-N_AVERAGED_EPISODES:])
    low, high = min(0.0, *scores, 0.0), 1.0
    if s.config.task.normalization is None:
        low, high = min(scores, default=0.0), max(scores, default=1.0)
    chart_width, number_format = width - 12, measure_of(s.config.task).number_format
    rows = [
        f"{name:6} {_format_mean(scores, number_format)} {sparkline(scores, chart_width, low, high, unicode=unicode)}"
        for name, scores in (("train", s.train), ("eval", s.evaluation))
    ]
    if s.last_step is not None:
        rows.append(f"explore amplitude {s.last_step.amplitude:.2f}, now {s.last_step.exploration:.2f}")
    if s.facts is None:
        return [*rows, f"policy {s.policy} is active", "no figures from the replay process yet"]
    facts = s.facts.words()
    fill_fraction = (s.facts.stored or 0) / s.facts.capacity if s.facts.capacity else 0.0
    return [
        *rows,
        f"memory {bar(fill_fraction, 4, unicode=unicode)} {facts['memory']}",
        f"learner {facts['learner']}",
        f"policy {s.policy}; {facts['policies']}",
    ]


def timing_lines(s: Snapshot, width: int, *, unicode: bool = True) -> list[str]:
    """Return lines with the histograms of tick durations and lateness."""
    if s.facts is None or s.durations is None:
        return ["no figures yet"]
    bins = max(8, width - 5)
    tick, lateness = s.durations
    rows = [_histogram_row("tick", tick, bins, unicode=unicode), _percentiles(s.facts.tick)]
    if s.facts.lateness:
        rows += [_histogram_row("late", lateness, bins, unicode=unicode), _percentiles(s.facts.lateness)]
    else:
        rows.append("late lockstep has no deadlines")
    first_text, last_text = format_duration(FROM_US * 1e-6), format_duration(TO_US * 1e-6)
    return [*rows, f"     {first_text}{last_text:>{bins - len(first_text)}}"]


def _histogram_row(name: str, histogram: CoarseHistogram, bins: int, *, unicode: bool) -> str:
    return f"{name:4} {columns(rebin(histogram, bins), unicode=unicode)}"


def _percentiles(times: Times) -> str:
    labels = {name: PERCENTILES[name] for name in ("p50", "p99", "max")}
    return format_times(times, labels, between=" ") or "none yet"


def rebin(histogram: CoarseHistogram, bins: int) -> list[int]:
    """Return the counts in ``bins`` bins of equal width in logarithmic time, from 4 µs to 65 ms."""
    centres = np.sqrt(_EDGES_US[:-1] * _EDGES_US[1:])
    fractions = np.log(centres / FROM_US) / math.log(TO_US / FROM_US)
    bin_indices = np.clip((fractions * bins).astype(np.int64), 0, bins - 1)
    return [int(n) for n in np.bincount(bin_indices, weights=histogram.counts, minlength=bins)]


def safety_lines(s: Snapshot) -> list[str]:
    """Return lines with the acting rule, interventions, misses, late commands and faults."""
    acting_rule = (
        s.last_step.rule.name.lower() if s.last_step is not None and s.last_step.rule is not Rule.NONE else "no rule"
    )
    rows = [f"acting now {acting_rule}; {s.actuators}"]
    if s.facts is not None:
        facts = s.facts.words()
        rows += [f"shield {facts['shield']}", facts["ticks"]]
        rows += [f"late commands {facts['late commands']}", f"faults {facts['faults']}"]
        rows[-1] += f", {facts['records lost']} records lost" if "records lost" in facts else ""
    return rows


def one_line(s: Snapshot) -> str:
    """Summarise the run in one line, for a plain terminal."""
    facts = f", {s.facts.line()}" if s.facts is not None else f", policy {s.policy}"
    actuators = f", {s.actuators}" if s.state is State.DISCONNECTED and s.tick else ""
    return f"{s.state.name.lower()}  {headline(s)}{facts}{actuators}"


def _format_mean(values: Sequence[float], number_format: str) -> str:
    finite = _finite(values[-N_AVERAGED_EPISODES:])
    return f"{sum(finite) / len(finite):5{number_format}}" if finite else "    –"


def _finite(values: Sequence[float]) -> list[float]:
    return [v for v in values if math.isfinite(v)]
