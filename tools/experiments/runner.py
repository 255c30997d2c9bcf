"""Execution of an experiment's missing trials in units, and storage of the results."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from onrig.runtime.memory.settings import machine_bytes
from onrig.runtime.printable import printable
from onrig.tools.experiments.grid import cell_text
from onrig.tools.experiments.jobs import Unit
from onrig.tools.experiments.store import AnyCell, WorldCell, missing_seeds, write_trial
from onrig.tools.experiments.workers import UnitDone, UnitLost, UnitProgress, Workers
from onrig.tools.quantity import format_duration
from onrig.tools.terminal import drawing_stream

MAX_JOINT_TRIALS: Final = 16
"""Maximum number of jointly trained trials. A trial takes about as long as with 50, but a third of the memory
suffices.
"""


_EXPERIENCE_FRACTION: Final = 0.6
"""Share of the machine's memory that experiences may use; networks and other processes need the rest."""


class Outcome(NamedTuple):
    """Result of running an experiment."""

    trials: int
    """Number of finished trials, including earlier ones."""
    total: int
    lost_units: list[UnitLost]


def missing_units(folder: Path, cells: Sequence[AnyCell], seeds: Sequence[int]) -> list[Unit]:
    """Return the missing trials, one unit per cell."""
    units = [Unit(cell, tuple(missing_seeds(folder, cell, seeds))) for cell in cells]
    return [unit for unit in units if unit.seeds]


def split_units(units: Sequence[Unit], slots: int, n_joint_trials: int = MAX_JOINT_TRIALS) -> list[Unit]:
    """Split units into about equal parts of at most ``n_joint_trials`` trials, at least one for each slot.

    The first seeds of all cells come first, so that an unfinished experiment covers all cells.
    """
    trials = sum(len(unit.seeds) for unit in units)
    max_trials = max(1, min(n_joint_trials, math.ceil(trials / slots)))
    rounds: dict[int, list[Unit]] = {}
    for unit in units:
        n = math.ceil(len(unit.seeds) / max_trials)
        for i in range(n):
            start, end = (len(unit.seeds) * k // n for k in (i, i + 1))
            rounds.setdefault(i, []).append(Unit(unit.cell, unit.seeds[start:end]))
    return [unit for i in sorted(rounds) for unit in rounds[i]]


def max_joint_trials(cells: Sequence[AnyCell], slots: int) -> int:
    """Return how many trials to train jointly: at most ``MAX_JOINT_TRIALS``, and no more than fit into memory when all
    slots are in use.
    """
    from onrig.learner.trials.supported import trial_bytes

    max_bytes = max((trial_bytes(cell.config) for cell in cells if isinstance(cell, WorldCell)), default=0)
    n = _EXPERIENCE_FRACTION * machine_bytes() / max(1, slots * max_bytes)
    return max(1, int(min(MAX_JOINT_TRIALS, n)))


def run_units(folder: Path, units: Sequence[Unit], n_finished: int, workers: Workers, display: Display) -> Outcome:
    """Execute units and store their trials, in addition to ``n_finished`` trials that already exist.

    Raises OSError if results cannot be written, and also NoWorkers, ExecutorMismatch and KeyboardInterrupt. In every
    case, finished trials are kept, and the others can be run later.
    """
    tally = Tally(units, n_finished)
    lost_units: list[UnitLost] = []
    for event in workers.run(units):
        match event:
            case UnitProgress(unit, episodes):
                tally.advance(unit, episodes)
            case UnitDone(unit, trials):
                for seed, trial in zip(unit.seeds, trials, strict=True):
                    write_trial(folder, unit.cell, seed, trial)
                tally.finish_unit(unit, is_done=True)
            case UnitLost(unit, reason):
                lost_units.append(event)
                tally.finish_unit(unit, is_done=False)
                seeds = f"seeds {unit.seeds[0]} to {unit.seeds[-1]}" if len(unit.seeds) > 1 else f"seed {unit.seeds[0]}"
                display.warn(f"lost: {cell_text(unit.cell)}, {seeds} ({unit.cell.id}): {reason}")
        display.show(tally)
    return Outcome(tally.trials, tally.total, lost_units)


_LINE_INTERVAL_S: Final = 10.0


class Tally:
    """Progress of the units, with the remaining time.

    Work is measured in batch updates, which take most of the time; with more expensive samplers, the remaining time is
    a rough estimate.
    """

    def __init__(self, units: Sequence[Unit], n_finished: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start_s = clock()
        self._running_units: dict[tuple[str, int], tuple[Unit, int]] = {}
        self._total_work = sum(unit.work for unit in units)
        self._settled_work = 0.0
        self._settled_episodes = 0
        is_world = any(isinstance(unit.cell, WorldCell) for unit in units)
        self._unit_name = "evaluations" if is_world else "episodes"
        self.trials = n_finished
        """Number of finished trials, including earlier ones."""
        self.total = n_finished + sum(len(unit.seeds) for unit in units)

    def advance(self, unit: Unit, episodes: int) -> None:
        """Record the progress of a unit in episodes or, in a world, in evaluations."""
        self._running_units[_key(unit)] = (unit, episodes)

    def finish_unit(self, unit: Unit, *, is_done: bool) -> None:
        """Record that a unit is finished or lost."""
        self._running_units.pop(_key(unit), None)
        if not is_done:
            self._total_work -= unit.work
        else:
            self._settled_work += unit.work
            self._settled_episodes += unit.cell.points * len(unit.seeds)
            self.trials += len(unit.seeds)

    @property
    def episodes(self) -> int:
        """Number of episodes (in a world, evaluations) of all trials since the start."""
        return self._settled_episodes + sum(points * len(unit.seeds) for unit, points in self._running_units.values())

    @property
    def fraction(self) -> float:
        """Fraction of the work done, 0 to 1."""
        running_work = sum(unit.work_until(points) for unit, points in self._running_units.values())
        return min(1.0, (self._settled_work + running_work) / self._total_work) if self._total_work else 1.0

    def line(self) -> str:
        """Format finished trials, episodes per second and remaining time as one line."""
        elapsed_s = max(self._clock() - self._start_s, 1e-9)
        rate, fraction = self.episodes / elapsed_s, self.fraction
        digits = 0 if rate >= 10 or self._unit_name == "episodes" else 2
        remaining_text = f", {format_duration(elapsed_s / fraction * (1 - fraction))} left" if fraction > 0 else ""
        return f"{self.trials} of {self.total} trials, {rate:.{digits}f} {self._unit_name}/s{remaining_text}"


class Display(Protocol):
    """Display of a tally."""

    def show(self, tally: Tally) -> None:
        """Show the current state; called often."""

    def warn(self, message: str) -> None:
        """Show a permanent line."""

    def close(self) -> None:
        """Restore the terminal."""


class PlainDisplay:
    """Display that prints an occasional progress line, and every warning."""

    def __init__(self) -> None:
        self._last_line_s = time.monotonic()
        self._last_line = ""

    def show(self, tally: Tally) -> None:
        """Print a line every few seconds, and at the end."""
        now = time.monotonic()
        if now - self._last_line_s >= _LINE_INTERVAL_S or (tally.fraction >= 1 and tally.trials == tally.total):
            line = tally.line()
            if line != self._last_line:
                print(line, flush=True)
            self._last_line_s, self._last_line = now, line

    def warn(self, message: str) -> None:
        """Print the message."""
        print(message, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Do nothing: there is no terminal state to restore."""


class RichDisplay:
    """Display with a progress bar followed by numbers."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = Console(file=drawing_stream(sys.stdout))
        self._progress = Progress(BarColumn(), TextColumn("{task.fields[line]}", markup=False), console=self._console)
        self._task = self._progress.add_task("", total=1.0, line="")
        self._progress.start()

    def show(self, tally: Tally) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=tally.fraction, line=tally.line())

    def warn(self, message: str) -> None:
        """Print the message above the bar."""
        self._console.print(printable(message), style="red", highlight=False, markup=False)

    def close(self) -> None:
        """Stop the bar."""
        self._progress.stop()


def new_display() -> Display:
    """Return a progress bar if stdout is a terminal and rich is installed, otherwise a plain display."""
    if sys.stdout.isatty():
        try:
            return RichDisplay()
        except ImportError:
            pass
    return PlainDisplay()


def _key(unit: Unit) -> tuple[str, int]:
    return unit.cell.id, unit.seeds[0]
