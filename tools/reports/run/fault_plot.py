"""Plot of a post-mortem: signals, commands and frames over the last few seconds, with the fault marked.

Damaged files in the post-mortem's folder are ignored.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.messages import Status
from onrig.runtime.files import MAX_JSON_BYTES, MAX_TABLE_BYTES, read_file
from onrig.runtime.run_config import RunConfig
from onrig.runtime.supervise.post_mortem import FAULT, FRAMES, RECORDS, find_post_mortems
from onrig.runtime.tracking import followers
from onrig.runtime.view.run_view import to_number
from onrig.tools.quantity import axis_label
from onrig.tools.reports.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    RED,
    RULE_COLOURS,
    new_figure,
    page_colour,
    save_figure,
    set_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLOT_FILE: Final = "picture.png"
_MAX_FAULT_DELAY_SPANS: Final = 4.0
"""Maximum delay between the last record and the fault, in multiples of the recorded time; the time axis excludes later
faults."""
_STATUS_STYLES: Final = (
    (Status.ARMED, "armed", GREEN),
    (Status.SAFE, "safe output", "0.55"),
    (Status.FAULT, "fault", RED),
)
Values = NDArray[np.float64]
_TEXT_COLUMNS: Final = ("kind", "rule", "miss", "flags")


class Frame(msgspec.Struct, frozen=True):
    """Fields of a line of ``frames.jsonl`` that the plot uses."""

    t_mono_ns: int
    type: str
    frame: int | None = None
    t_us: int | None = None
    status: int | None = None
    fault: int | None = None
    answers: int | None = None


class LastMoments(NamedTuple):
    """Content of one post-mortem."""

    folder: Path
    facts: Mapping[str, object]
    """Content of ``fault.json``; empty if it cannot be read."""
    columns: Mapping[str, Values]
    """Numeric columns of the records, each (n,)."""
    text_columns: Mapping[str, Sequence[str]]
    frames: Sequence[Frame]

    @property
    def fault(self) -> str:
        """Name of the fault."""
        return str(self.facts.get("fault", self.folder.name))

    @property
    def is_virtual_time(self) -> bool:
        """Whether the records' times are virtual."""
        return bool(self.facts.get("virtual_time"))

    def record_times_s(self) -> Values:
        """Return the receipt times of the recorded frames (s), or their sampling times in virtual time.

        Zero is the time of the fault; in virtual time, or if the time of the fault is unknown, it is the time of the
        last record.
        """
        return (self.columns["t_mono_ns" if self.is_virtual_time else "t_receive_ns"] - self._zero_ns()) / 1e9

    def episode_starts(self) -> NDArray[np.bool_]:
        """Return whether each record begins an episode or a reset."""
        flags = self.text_columns.get("flags", [""] * len(next(iter(self.columns.values()), ())))
        return np.array(["first" in words.split("|") for words in flags], np.bool_)

    def frame_times_s(self, frames: Sequence[Frame]) -> Values:
        """Return the times of frames (s), with the same zero as those of the records."""
        if self.is_virtual_time:
            return (np.array([float(f.t_us or 0) for f in frames]) * 1e3 - self._zero_ns()) / 1e9
        return (np.array([float(f.t_mono_ns) for f in frames]) - self._zero_ns()) / 1e9

    def _zero_ns(self) -> float:
        moments = self.facts.get("t_mono_ns")
        if isinstance(moments, int) and not self.is_virtual_time:
            return float(moments)
        times = self.columns.get("t_mono_ns" if self.is_virtual_time else "t_receive_ns")
        if times is not None and len(times):
            return float(times[-1])
        return float(self.frames[-1].t_mono_ns) if self.frames else 0.0


def read_last_moments(folder: Path) -> LastMoments:
    """Read a folder in ``post-mortem/``, ignoring missing or damaged files."""
    facts: dict[str, object] = {}
    with contextlib.suppress(OSError, msgspec.DecodeError):
        facts = msgspec.json.decode(read_file(folder / FAULT, MAX_JSON_BYTES), type=dict[str, object])
    return LastMoments(folder, facts, *_read_records(folder / RECORDS), _read_frames(folder / FRAMES))


def _read_records(path: Path) -> tuple[dict[str, Values], dict[str, list[str]]]:
    header: list[str] = []
    rows: list[list[str]] = []
    with contextlib.suppress(OSError, UnicodeDecodeError, csv.Error):
        reader = csv.reader(read_file(path, MAX_TABLE_BYTES).decode().splitlines())
        header = next(reader, [])
        rows = [row for row in reader if len(row) == len(header)]
    text_columns, columns = {}, {}
    for i, name in enumerate(header):
        cells = [row[i] for row in rows]
        if name in _TEXT_COLUMNS:
            text_columns[name] = cells
        else:
            with contextlib.suppress(ValueError):
                columns[name] = np.array(cells, np.float64)
    return columns, text_columns


def _read_frames(path: Path) -> list[Frame]:
    frames = []
    with contextlib.suppress(OSError):
        for line in read_file(path, MAX_TABLE_BYTES).splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                frames.append(msgspec.json.decode(line, type=Frame))
    return frames


def draw_post_mortems(run_folder: Path, config: RunConfig, *, redraw: bool = False) -> list[Path]:
    """Draw the missing plots of a run's post-mortems, or all of them if ``redraw`` is set, and return all paths.

    Raises OSError if a plot cannot be written, and ImportError if matplotlib is missing.
    """
    plots = []
    for folder in find_post_mortems(run_folder):
        plot = folder / PLOT_FILE
        if redraw or not plot.exists():
            draw_post_mortem(read_last_moments(folder), config, plot)
        plots.append(plot)
    return plots


def draw_last_post_mortem(run_folder: Path, config: RunConfig) -> Path | None:
    """Draw only the plot of a run's last post-mortem, which takes about a second. Raises OSError and ImportError."""
    folders = find_post_mortems(run_folder)
    return draw_post_mortem(read_last_moments(folders[-1]), config, folders[-1] / PLOT_FILE) if folders else None


def draw_post_mortem(moments: LastMoments, config: RunConfig, path: Path) -> Path:
    """Draw one post-mortem. Raises OSError, and ImportError if matplotlib is missing."""
    rig = config.rig
    has_records = len(moments.columns.get("t_mono_ns", ())) > 0 and "t_receive_ns" in moments.columns
    targets = {of: name for name, of in followers(config.task).items()}
    signals = [o for o in rig.signals if o.name not in targets.values()] if has_records else []
    actuators = [a.name for a in rig.actuators] if has_records else []
    rows = len(signals) + len(actuators) + 1 + has_records
    figure, panels = new_figure(rows, 1, 1.35 * rows + 1.2)
    column = [row[0] for row in panels]
    for axes, signal in zip(column, signals, strict=False):
        _draw_target(axes, moments, targets.get(signal.name))
        _draw_signal(axes, moments, signal.name, signal.unit, wrap_period=signal.high - signal.low)
    for axes, actuator in zip(column[len(signals) :], rig.actuators if has_records else (), strict=False):
        _draw_commands(axes, moments, actuator.name, actuator.unit, (actuator.low, actuator.high))
    if has_records:
        _draw_timing(column[-2], moments)
    _draw_link(column[-1], moments, 1e3 / _wall_rate_hz(config))
    _share_time_axis(column, moments)
    figure.suptitle(_headline(moments), x=0.01, ha="left", fontsize=11)
    return save_figure(figure, path)


def _wall_rate_hz(config: RunConfig) -> float:
    return 1e9 / config.wall_period_ns


def _headline(moments: LastMoments) -> str:
    facts = moments.facts
    position = f"state {facts.get('state', '?')}, episode {facts.get('episode', '?')}, tick {facts.get('tick', '?')}"
    return f"{moments.fault}: {facts.get('cause', '')}\n{position}, policy {facts.get('policy', '?')}"


def _split_at_jumps(x: Values, y: Values, span: float, episode_starts: NDArray[np.bool_]) -> tuple[Values, Values]:
    """Split a curve where it wraps around and where an episode or a reset begins."""
    jumps = np.flatnonzero((np.abs(np.diff(y)) > 0.5 * span) | episode_starts[1:]) + 1
    return np.insert(x, jumps, np.nan), np.insert(y, jumps, np.nan)


def _draw_target(axes: Axes, moments: LastMoments, name: str | None) -> None:
    values = moments.columns.get(f"observation.{name}")
    if values is not None:
        axes.step(moments.record_times_s(), values, where="post", color=page_colour("faint"), lw=1.2)


def _draw_signal(axes: Axes, moments: LastMoments, name: str, unit: str, wrap_period: float) -> None:
    values = moments.columns.get(f"observation.{name}")
    set_title(axes, axis_label(name, unit))
    if values is None:
        return
    t = moments.record_times_s()
    axes.plot(
        *_split_at_jumps(t, values, wrap_period, moments.episode_starts()), "-", color=page_colour("accent"), lw=1.2
    )
    axes.plot(t, values, ".", color=page_colour("accent"), ms=2.5)


def _draw_commands(axes: Axes, moments: LastMoments, name: str, unit: str, limits: tuple[float, float]) -> None:
    set_title(axes, axis_label(name, unit))
    t = moments.record_times_s()
    for field, colour, width, label in (
        ("policy", "faint", 1.0, "policy"),
        ("explored", "violet", 1.0, "with exploration"),
        ("commanded", "warn", 1.2, "commanded"),
        ("applied", "second", 1.6, "applied by the device"),
    ):
        values = moments.columns.get(f"{field}.{name}")
        if values is not None:
            axes.step(t, values, where="post", color=page_colour(colour), lw=width, label=label)
    for limit in limits:
        axes.axhline(limit, color="0.6", lw=0.8, ls=(0, (1, 3)))
    low, high = limits
    axes.set_ylim(low - 0.3 * (high - low), high + 0.08 * (high - low))
    rules = np.array(moments.text_columns.get("rule", [""] * len(t)))
    for rule in sorted(set(rules.tolist()) - {"none", ""}):
        times = t[rules == rule]
        label = f"rule: {rule}"
        axes.plot(
            times,
            np.full(len(times), low - 0.18 * (high - low)),
            "|",
            color=RULE_COLOURS.get(rule, INK),
            ms=7,
            label=label,
        )
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), fontsize=8, frameon=False)


def _draw_timing(axes: Axes, moments: LastMoments) -> None:
    set_title(axes, "ticks (ms, logarithmic)")
    t = moments.record_times_s()
    tick = moments.columns.get("tick_ns")
    lateness_ns = moments.columns.get("lateness_ns")
    if tick is not None:
        axes.plot(t, np.maximum(tick, 1e3) / 1e6, ".", color=BLUE, ms=3, label="tick duration")
    if lateness_ns is not None and not moments.is_virtual_time:
        axes.plot(t, np.maximum(lateness_ns, 1e3) / 1e6, ".", color=ORANGE, ms=3, label="sample to receipt")
    n_missed = moments.columns.get("missed")
    if n_missed is not None and np.any(n_missed > 0):
        causes = np.array(moments.text_columns.get("miss", [""] * len(t)))
        for index in np.flatnonzero(n_missed > 0):
            axes.axvline(t[index], color=RED, lw=1.0, alpha=0.5)
        label = f"missed: {int(n_missed.sum())} ({', '.join(sorted(set(causes[n_missed > 0].tolist())))})"
        axes.plot([], [], color=RED, lw=1.0, alpha=0.5, label=label)
    axes.set_yscale("log")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), fontsize=8, frameon=False)


def _draw_link(axes: Axes, moments: LastMoments, period_ms: float) -> None:
    """Draw the gaps between state frames, missing and non-increasing frame numbers, and the device's status."""
    set_title(axes, "gap between state frames (ms)")
    states = [f for f in moments.frames if f.type == "state" and f.frame is not None]
    if not states:
        axes.text(0.5, 0.5, "no state frame was recorded", transform=axes.transAxes, ha="center", color=INK)
        return
    t = moments.frame_times_s(states)
    number = np.array([f.frame or 0 for f in states])
    gaps = np.diff(t) * 1e3
    axes.axhline(period_ms, color="0.6", lw=0.8, ls=(0, (1, 3)))
    axes.plot(t[1:], gaps, "-", color="0.75", lw=0.8)
    axes.plot(t[1:], gaps, ".", color=BLUE, ms=3, label=f"state frames ({len(states)})")
    step = np.diff(number)
    for label, is_selected, marker in (
        ("preceding numbers missing", step > 1, "x"),
        ("number does not increase", step <= 0, "+"),
    ):
        if np.any(is_selected):
            axes.plot(
                t[1:][is_selected],
                gaps[is_selected],
                marker,
                color=RED,
                ms=7,
                label=f"{label}: {int(np.sum(is_selected))}",
            )
    _draw_status_strip(axes, t, states)
    top = max(2.0 * period_ms, 1.15 * float(np.max(gaps, initial=0.0)))
    axes.set_ylim(-0.22 * top, top)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), fontsize=8, frameon=False)


def _draw_status_strip(axes: Axes, t: Values, states: Sequence[Frame]) -> None:
    """Draw a strip at the bottom that shows the most recent frame's status: armed, safe output or fault."""
    statuses = [next((w for w in reversed(_STATUS_STYLES) if (f.status or 0) & w[0]), None) for f in states]
    labelled_statuses: set[str] = set()
    for i, status in enumerate(statuses):
        if status is None:
            continue
        end = t[i + 1] if i + 1 < len(t) else t[i]
        label = None if status[1] in labelled_statuses else status[1]
        labelled_statuses.add(status[1])
        axes.axvspan(t[i], end, 0.0, 0.08, color=status[2], lw=0, label=label)


def _share_time_axis(column: Sequence[Axes], moments: LastMoments) -> None:
    """Give all panels a common time axis, and mark the fault and earlier changes of state on it."""
    spans = [axes.dataLim.intervalx for axes in column if np.isfinite(axes.dataLim.intervalx).all()]
    low, last_s = min((float(a) for a, _ in spans), default=-1.0), max((float(b) for _, b in spans), default=0.0)
    # A fault long after the last record would compress the records on the axis, so its delay is only written.
    is_far = -last_s > _MAX_FAULT_DELAY_SPANS * max(last_s - low, 0.1)
    high = last_s if is_far else max(last_s, 0.0)
    margin = 0.02 * max(high - low, 0.05)
    changes = [(t, state) for t, state in _state_changes(moments) if low < t < min(high, 0.0)]
    for axes in column:
        axes.set_xlim(low - margin, high + margin)
        if not is_far:
            axes.axvline(0.0, color=RED, lw=1.4)
        for t, _ in changes:
            axes.axvline(t, color="0.5", lw=0.8, ls=(0, (4, 2)))
        if axes is not column[-1]:
            axes.tick_params(labelbottom=False)
    transform = column[0].get_xaxis_transform()
    min_width = 0.09 * (high - low)
    for (t, state), (next_t, _) in zip(changes, [*changes, (high, "")][1:], strict=True):
        if next_t - t >= min_width:
            column[0].text(t, 0.99, f" {state}", transform=transform, va="top", fontsize=8, color="0.35")
    if is_far:
        column[0].text(
            high, 1.02, f"fault {-last_s:.3g} s later", transform=transform, color=RED, ha="right", fontsize=9
        )
    else:
        column[0].text(0.0, 1.02, "fault", transform=transform, color=RED, ha="center", fontsize=9)
    label = "virtual seconds before the last record" if moments.is_virtual_time else "seconds before (after) the fault"
    column[-1].set_xlabel(label, fontsize=9.5)


def _state_changes(moments: LastMoments) -> list[tuple[float, str]]:
    """Return the changes of state with their times relative to the fault (s).

    In virtual time, the result is empty, since the changes of state have wall-clock times.
    """
    transitions = moments.facts.get("transitions")
    if moments.is_virtual_time or not isinstance(transitions, list):
        return []
    zero = to_number(moments.facts.get("t_mono_ns"))
    return [
        ((to_number(t.get("t_mono_ns")) - zero) / 1e9, str(t.get("state"))) for t in transitions if isinstance(t, dict)
    ]
