"""From cells to finished trials: what is missing, in which units it is done, and where the results go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from onrig.tools.experiments.grid import shown
from onrig.tools.experiments.jobs import Unit
from onrig.tools.experiments.progress import Display, Tally
from onrig.tools.experiments.store import Cell, missing_seeds, write_trial
from onrig.tools.experiments.workers import Advanced, Done, Lost, Workers

AT_ONCE: Final = 16
"""Trials that are trained together: per trial about as fast as 50, in a third of the memory."""


class Outcome(NamedTuple):
    """What a run of the experiment came to."""

    trials: int
    """Finished, with those of earlier."""
    total: int
    lost: list[Lost]


def missing(folder: Path, cells: Sequence[Cell], seeds: Sequence[int]) -> list[Unit]:
    """For each cell with trials that are not there yet, these."""
    found = [Unit(cell, tuple(missing_seeds(folder, cell, seeds))) for cell in cells]
    return [unit for unit in found if unit.seeds]


def split(units: Sequence[Unit], slots: int, at_once: int = AT_ONCE) -> list[Unit]:
    """Cut units into pieces of at most ``at_once`` trials, about equal and enough of them for every slot.

    The first seeds of all cells come first, so that an unfinished experiment has something of everything.
    """
    trials = sum(len(unit.seeds) for unit in units)
    largest = max(1, min(at_once, math.ceil(trials / slots)))
    rounds: dict[int, list[Unit]] = {}
    for unit in units:
        n = math.ceil(len(unit.seeds) / largest)
        for i in range(n):
            first, end = (len(unit.seeds) * k // n for k in (i, i + 1))
            rounds.setdefault(i, []).append(Unit(unit.cell, unit.seeds[first:end]))
    return [unit for i in sorted(rounds) for unit in rounds[i]]


def run_units(folder: Path, units: Sequence[Unit], there: int, workers: Workers, display: Display) -> Outcome:
    """Do units and keep their trials; ``there`` trials are finished already.

    Raises OSError where results cannot be written, NoWorkers, and KeyboardInterrupt; whatever was finished before
    stays, and the rest can be done later.
    """
    tally = Tally(units, there)
    lost: list[Lost] = []
    for event in workers.run(units):
        match event:
            case Advanced(unit, episodes):
                tally.advanced(unit, episodes)
            case Done(unit, trials):
                for seed, trial in zip(unit.seeds, trials, strict=True):
                    write_trial(folder, unit.cell, seed, trial)
                tally.settled(unit, done=True)
            case Lost(unit, reason):
                lost.append(event)
                tally.settled(unit, done=False)
                seeds = f"seeds {unit.seeds[0]} to {unit.seeds[-1]}" if len(unit.seeds) > 1 else f"seed {unit.seeds[0]}"
                display.warn(f"lost: {shown(unit.cell)}, {seeds} ({unit.cell.id}): {reason}")
        display.show(tally)
    return Outcome(tally.trials, tally.total, lost)
