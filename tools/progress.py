"""Progress display of a verb, with the remaining time: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from onrig.tools.terminal import drawing_stream

_LINE_INTERVAL_S: Final = 5.0


class Progress(Protocol):
    """Display of progress in steps, each weighted by its approximate duration in seconds."""

    def begin_step(self, step: str) -> None:
        """Show the current step."""

    def finish_step(self, weight: float) -> None:
        """Count a step as done."""

    def close(self) -> None:
        """Restore the terminal."""


class PlainProgress:
    """Progress display that prints a line to stderr every few seconds."""

    def __init__(self, total: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._total: Final = total
        self._clock: Final = clock
        self._start_s = self._last_line_s = clock()
        self._done = 0.0
        self._step = ""

    def begin_step(self, step: str) -> None:
        """Print the current step, unless a line was printed within the last few seconds."""
        self._step = step
        now = self._clock()
        if now - self._last_line_s >= _LINE_INTERVAL_S:
            self._last_line_s = now
            sys.stderr.write(self.line() + "\n")
            sys.stderr.flush()

    def finish_step(self, weight: float) -> None:
        """Count a step as done."""
        self._done = min(self._done + weight, self._total)

    def line(self) -> str:
        """Return the current progress line."""
        fraction = self._done / self._total
        elapsed_s = self._clock() - self._start_s
        remaining = f", about {elapsed_s * (1 - fraction) / fraction:.0f} s left" if fraction > 0.02 else ""
        return f"{fraction:4.0%}  {self._step}{remaining}"

    def close(self) -> None:
        """Do nothing: there is no terminal state to restore."""


class RichProgress:
    """Progress display with a bar on stderr."""

    def __init__(self, total: float) -> None:
        from rich import progress
        from rich.console import Console

        self._progress = progress.Progress(
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.description}", markup=False),
            console=Console(file=drawing_stream(sys.stderr)),
            transient=True,
            refresh_per_second=2,  # low, so that the display takes little time from a measured process
        )
        self._task = self._progress.add_task("", total=total)
        self._progress.start()

    def begin_step(self, step: str) -> None:
        """Show the current step."""
        self._progress.update(self._task, description=step)

    def finish_step(self, weight: float) -> None:
        """Move the bar."""
        self._progress.advance(self._task, weight)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def progress_for(total: float) -> Progress:
    """Return a rich bar if stderr is a terminal and rich is installed, otherwise a plain display."""
    if sys.stderr.isatty():
        try:
            return RichProgress(total)
        except ImportError:
            pass
    return PlainProgress(total)


@contextlib.contextmanager
def show_progress(task: str, total: float) -> Iterator[Callable[[float], None]]:
    """Context manager that shows the progress of one task. It yields a function to be called with the completed part of
    ``total``.
    """
    reported = 0.0
    with contextlib.closing(progress_for(total)) as progress:

        def report(done: float) -> None:
            nonlocal reported
            progress.finish_step(done - reported)
            progress.begin_step(task)
            reported = done

        report(0.0)
        yield report
