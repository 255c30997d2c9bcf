"""Progress display of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Final, Protocol

from onrig.runtime.printable import printable
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.report import Report
from onrig.tools.quantity import format_duration
from onrig.tools.run_facts import facts_from_progress
from onrig.tools.terminal import drawing_stream

_LINE_INTERVAL_S: Final = 5.0


class Display(Protocol):
    """Consumer of a run's reports."""

    def show(self, report: Report) -> None:
        """Show one report."""

    def close(self) -> None:
        """Restore the terminal."""


class PlainDisplay:
    """Display that prints a line every few seconds, and every warning and error."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._last_line_s = self._start_s = time.monotonic()
        self._last_episode = -1

    def show(self, report: Report) -> None:
        """Print warnings, errors and periodic progress."""
        if report.kind in ("warning", "error", "fault"):
            print(f"{report.source}: {report.message}", file=sys.stderr, flush=True)
        elif report.kind == "ready" and report.message:
            print(f"{report.source}: ready, {report.message}", flush=True)
        elif report.kind == "progress":
            now = time.monotonic()
            episode = int(report.values.get("episode") or 0)
            is_last = episode == self._config.episodes
            if episode != self._last_episode and (is_last or now - self._last_line_s >= _LINE_INTERVAL_S):
                self._last_line_s, self._last_episode = now, episode
                print(progress_line(self._config, report, now - self._start_s), flush=True)

    def close(self) -> None:
        """Do nothing: there is no terminal state to restore."""


class RichDisplay:
    """Display with a progress bar, followed by the main facts."""

    def __init__(self, config: RunConfig) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.text import Text

        self._config, self._text = config, Text
        self._console = Console(file=drawing_stream(sys.stdout))
        self._progress = Progress(
            TextColumn("episode"),
            MofNCompleteColumn(),
            BarColumn(20),
            TextColumn("{task.fields[facts]}", markup=False),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._progress.add_task("", total=config.episodes, facts="")
        self._progress.start()

    def show(self, report: Report) -> None:
        """Update the bar, or print a line above it."""
        if report.kind in ("warning", "error", "fault"):
            colour = "yellow" if report.kind == "warning" else "red"
            # Text, not str: rich would interpret messages from devices and learners as markup.
            line = self._text.assemble((printable(report.source), colour), f": {printable(report.message)}")
            self._console.print(line)
        elif report.kind == "ready" and report.message:
            self._console.print(self._text(f"{printable(report.source)}: ready, {printable(report.message)}"))
        elif report.kind == "progress":
            facts = facts_from_progress(self._config, report.values)
            self._progress.update(self._task, completed=facts.episode, facts=facts.line())

    def close(self) -> None:
        """Stop the bar."""
        self._progress.stop()


def progress_line(config: RunConfig, report: Report, elapsed_s: float) -> str:
    """Return a plain progress line with the remaining time."""
    facts = facts_from_progress(config, report.values)
    remaining_text = (
        f", {format_duration(elapsed_s / facts.episode * (config.episodes - facts.episode))} left"
        if facts.episode
        else ""
    )
    return f"episode {facts.words()['episodes']}, {facts.line()}{remaining_text}"


def display_for(config: RunConfig) -> Display:
    """Return a rich display if stdout is a terminal and rich is installed, otherwise a plain one."""
    if sys.stdout.isatty():
        try:
            return RichDisplay(config)
        except ImportError:
            pass
    return PlainDisplay(config)
