"""The screen of ``onrig watch``: panels of text from 80 x 24 characters up; and one line for a plain terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from onrig.runtime.histogram import CoarseHistogram, coarse_edges_us
from onrig.runtime.printable import printable
from onrig.runtime.record import Miss, Rule
from onrig.runtime.run_state.states import State
from onrig.runtime.scoring import measure_of
from onrig.runtime.view.reader import Figures
from onrig.tools.watching.rig_text import Sketch, bar, columns, rig_rows, sparkline
from onrig.tools.watching.snapshot import Happened, Snapshot

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
KEYS: Final = "q leaves (the run goes on)   s stops the run"
_TOP, _MIDDLE, _LEAST_EVENTS = 9, 7, 4
_BORDERS: Final = 2
_STYLES: Final = {"bad": "red", "warn": "yellow", "good": "green"}
_LAST: Final = 20
_EDGES_US: Final = coarse_edges_us()
FROM_US, TO_US = 4.0, 65_536.0
"""What the histograms show; what lies outside counts as at their ends."""


def screen(s: Snapshot, sketch: Sketch, footer: str, width: int, height: int, *, fancy: bool = True) -> RenderableType:
    """Lay the snapshot out on ``width`` x ``height`` characters; what does not fit is cut off."""
    from rich.layout import Layout
    from rich.panel import Panel
    from rich.text import Text

    spare = max(0, height - 2 - _MIDDLE - _TOP - _LEAST_EVENTS - _BORDERS)
    top = _TOP + spare // 2
    layout = Layout()
    layout.split_column(
        Layout(_head(s), size=1),
        Layout(name="top", size=top),
        Layout(name="middle", size=_MIDDLE),
        Layout(name="events"),
        Layout(Text(footer, style="reverse"), size=1),
    )
    left = width // 2
    inside = (left - 4, width - left - 4)
    layout["top"].split_row(
        Layout(_panel("rig", rig_rows(s.config.rig, sketch, s.now, inside[0], top - _BORDERS, fancy=fancy)), size=left),
        Layout(_panel("learning", learning(s, inside[1], fancy=fancy))),
    )
    layout["middle"].split_row(
        Layout(_panel("timing (logarithmic)", timing(s, inside[0], fancy=fancy)), size=left),
        Layout(_panel("safety", safety(s))),
    )
    events = max(1, height - 2 - top - _MIDDLE - _BORDERS)
    layout["events"].update(Panel(_events(s.events[-events:]), title="events", title_align="left", border_style="dim"))
    return layout


def _head(s: Snapshot) -> Text:
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


def _events(events: Sequence[Happened]) -> RenderableType:
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
    """State of the run."""
    pace = f", {s.rate_hz:.0f} ticks/s" if s.rate_hz is not None else ""
    return f"episode {s.episode} of {s.config.episodes}, tick {s.tick}{pace}"


def learning(s: Snapshot, width: int, *, fancy: bool = True) -> list[str]:
    """The learning curve, exploration, memory, learner and policies."""
    seen = _finite(s.train[-_LAST:])
    low, high = min(0.0, *seen, 0.0), 1.0
    if s.config.task.normalization is None:
        low, high = min(seen, default=0.0), max(seen, default=1.0)
    room, form = width - 12, measure_of(s.config.task).form
    rows = [
        f"train  {_mean(s.train, form)} {sparkline(s.train, room, low, high, fancy=fancy)}",
        f"eval   {_mean(s.evaluation, form)} {sparkline(s.evaluation, room, low, high, fancy=fancy)}",
    ]
    if s.now is not None:
        rows.append(f"explore amplitude {s.now.amplitude:.2f}, now {s.now.exploration:.2f}")
    f = s.figures
    if f is not None:
        share = f.stored / f.capacity if f.capacity else 0.0
        rows.append(f"memory {bar(share, 10, fancy=fancy)} {f.stored} of {f.capacity}")
        rows.append(f"learner {f.updates} updates, {f.updates_per_s:.0f}/s")
        verdicts = f"{f.policies_offered} offered, {f.policies_refused} refused"
        rows.append(f"policy {s.policy} acts; {verdicts}")
    else:
        rows += [f"policy {s.policy} acts", "the replay process has told nothing yet"]
    return rows


def timing(s: Snapshot, width: int, *, fancy: bool = True) -> list[str]:
    """Histograms of ticks and of lateness."""
    f = s.figures
    if f is None:
        return ["no figures yet"]
    bins = max(8, width - 5)
    rows = [_spread("tick", f.tick, bins, fancy=fancy)]
    rows.append(_percentiles(f.tick))
    if f.lateness.counts.any():
        rows.append(_spread("late", f.lateness, bins, fancy=fancy))
        rows.append(_percentiles(f.lateness))
    else:
        rows.append("late lockstep: nothing is ever late")
    rows.append(f"     {_us(FROM_US)}{_us(TO_US):>{bins - len(_us(FROM_US))}}")
    return rows


def _spread(name: str, histogram: CoarseHistogram, bins: int, *, fancy: bool) -> str:
    return f"{name:4} {columns(rebinned(histogram, bins), fancy=fancy)}"


def _percentiles(histogram: CoarseHistogram) -> str:
    p50, p99 = histogram.percentile_us(50), histogram.percentile_us(99)
    if p50 is None or p99 is None:
        return "     none yet"
    return f"     p50 {_us(p50)} p99 {_us(p99)} max {_us(histogram.max_ns / 1000)}"


def rebinned(histogram: CoarseHistogram, bins: int) -> list[int]:
    """Counts in so many bins of equal width in logarithmic time, from 4 us to 65 ms."""
    middle = np.sqrt(_EDGES_US[:-1] * _EDGES_US[1:])
    share = np.log(middle / FROM_US) / math.log(TO_US / FROM_US)
    at = np.clip((share * bins).astype(np.int64), 0, bins - 1)
    return [int(n) for n in np.bincount(at, weights=histogram.counts, minlength=bins)]


def safety(s: Snapshot) -> list[str]:
    """Interventions, misses, faults and the current actor."""
    f = s.figures
    acting = s.now.rule.name.lower() if s.now is not None and s.now.rule is not Rule.NONE else "no rule"
    rows = [f"acting now    {acting}; {s.actuators}"]
    if f is None:
        return rows
    rows.append(f"intervened {sum(f.rules[1:])}{_parts(f.rules, Rule)}")
    rows.append(f"missed {sum(f.missed)}{_parts(f.missed, Miss)}")
    rows.append(f"late commands {f.late_commands} of {f.ticks}")
    rows.append(f"faults        {f.faults}{f', {f.dropped} records lost' if f.dropped else ''}")
    return rows


def _parts(counts: Sequence[int], names: type[Rule] | type[Miss]) -> str:
    listed = [f"{names(i).name.lower()} {n}" for i, n in enumerate(counts) if i and n]
    return f": {', '.join(listed)}" if listed else ""


def one_line(s: Snapshot) -> str:
    """One-line summary, for a plain terminal."""
    f: Figures | None = s.figures
    measure = measure_of(s.config.task)
    score = f"{f.score_last20:{measure.form}}" if f is not None and f.score_last20 is not None else "-"
    counts = f", missed {sum(f.missed)}, kept {f.stored}, {f.updates_per_s:.0f} updates/s" if f is not None else ""
    ending = f", {s.actuators}" if s.state is State.DISCONNECTED and s.tick else ""
    return f"{s.state.name.lower()}  {headline(s)}, policy {s.policy}, {measure.column}(20) {score}{counts}{ending}"


def _mean(values: Sequence[float], form: str) -> str:
    some = _finite(values[-_LAST:])
    return f"{sum(some) / len(some):5{form}}" if some else "    -"


def _finite(values: Sequence[float]) -> list[float]:
    return [v for v in values if math.isfinite(v)]


def _us(value: float) -> str:
    return f"{value / 1e3:.3g}ms" if value >= 1e3 else f"{value:.3g}us"
