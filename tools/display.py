"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Final, Protocol

from onrig.runtime.printable import printable
from onrig.runtime.run_state.report import Report
from onrig.tools.terminal import drawing_stream

_LINE_EVERY_S: Final = 5.0


class Display(Protocol):
    """Consumer of a run's reports."""

    def show(self, report: Report) -> None:
        """Show one report."""

    def close(self) -> None:
        """Restore the terminal."""


class PlainDisplay:
    """One line every few seconds, and every warning and error."""

    def __init__(self, episodes: int) -> None:
        self._episodes = episodes
        self._shown_s = self._started_s = time.monotonic()
        self._last = -1

    def show(self, report: Report) -> None:
        """Print warnings, errors and periodic progress."""
        if report.kind in ("warning", "error", "fault"):
            print(f"{report.source}: {report.message}", file=sys.stderr, flush=True)
        elif report.kind == "ready" and report.message:
            print(f"{report.source}: ready, {report.message}", flush=True)
        elif report.kind == "progress":
            now = time.monotonic()
            episode = int(report.values.get("episode") or 0)
            last = episode == self._episodes
            if episode != self._last and (last or now - self._shown_s >= _LINE_EVERY_S):
                self._shown_s, self._last = now, episode
                print(progress_line(report, self._episodes, now - self._started_s), flush=True)

    def close(self) -> None:
        """Nothing to restore."""


class RichDisplay:
    """Progress bar followed by the main figures."""

    def __init__(self, episodes: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.text import Text

        self._text = Text
        self._console = Console(file=drawing_stream(sys.stdout))
        self._progress = Progress(
            TextColumn("episode"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._progress.add_task("", total=episodes, figures="")
        self._progress.start()

    def show(self, report: Report) -> None:
        """Move the bar, or print a line above it."""
        if report.kind in ("warning", "error", "fault"):
            colour = "yellow" if report.kind == "warning" else "red"
            # Text, not str: rich would parse messages of devices and learners as markup.
            line = self._text.assemble((printable(report.source), colour), f": {printable(report.message)}")
            self._console.print(line)
        elif report.kind == "ready" and report.message:
            self._console.print(self._text(f"{printable(report.source)}: ready, {printable(report.message)}"))
        elif report.kind == "progress":
            self._progress.update(self._task, completed=int(report.values.get("episode") or 0), figures=figures(report))

    def close(self) -> None:
        """Stop the bar."""
        self._progress.stop()


def figures(report: Report) -> str:
    """One-line figures: performance (the return where the task has no references), policy, stored experiences, updates
    per second, missed ticks."""
    v = report.values
    score, total = v.get("normalized"), v.get("return")
    shown = f"normalized(20) {score:.2f}" if isinstance(score, float) else "normalized(20) -"
    if score is None and isinstance(total, float):
        shown = f"return(20) {total:.6g}"
    return (
        f"{shown}  policy {printable(str(v.get('policy')))}  kept {v.get('stored')}  "
        f"{float(v.get('updates_per_s') or 0):.0f} updates/s  missed {v.get('missed')}"
    )


def progress_line(report: Report, episodes: int, elapsed_s: float) -> str:
    """Plain progress line with the remaining time."""
    done = int(report.values.get("episode") or 0)
    left = f"{elapsed_s / done * (episodes - done):.0f} s left" if done else ""
    return f"episode {done}/{episodes}  {figures(report)}  {left}"


def display_for(episodes: int) -> Display:
    """The rich display on a terminal where rich is installed, otherwise plain lines."""
    if sys.stdout.isatty():
        try:
            return RichDisplay(episodes)
        except ImportError:
            pass
    return PlainDisplay(episodes)
