"""Raw curves of an experiment as CSV, one file per cell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np

from onrig.learner.trials.step_run import REPLAY_MEASURES, SHIELD_COUNTS
from onrig.tools.experiments.store import AnyCell, WorldCell, read_trials, write_atomically

CURVES_FOLDER: Final = "curves"


def write_curves(folder: Path, cells: list[AnyCell]) -> None:
    """Write ``curves/LABEL-ID.csv`` for each cell with finished trials. Raises OSError.

    Each row is an episode or, in a world, an evaluation with its number of environment steps. The columns, one per seed
    for each quantity, are the evaluation and training scores (mean raw reward per step; in a world, mean return),
    followed by the replay measures (``REPLAY_MEASURES``) and the shield's counts (``SHIELD_COUNTS``) between
    evaluations.
    """
    (folder / CURVES_FOLDER).mkdir(exist_ok=True)
    for cell in cells:
        trials = read_trials(folder, cell)
        if not len(trials.seeds):
            continue
        in_world = isinstance(cell, WorldCell)
        interval = cell.config.evaluation.every if isinstance(cell, WorldCell) else 1
        columns, kinds = [trials.evaluation, trials.train], ["evaluation", "training"]
        for names, measures in ((REPLAY_MEASURES, trials.replayed), (SHIELD_COUNTS, trials.shield)):
            if measures is not None:
                columns.extend(measures.swapaxes(0, 1))
                kinds.extend(names)
        header = (f"{kind} {seed}" for kind in kinds for seed in trials.seeds)
        lines = [",".join(("step" if in_world else "episode", *header))]
        for index, row in enumerate(np.concatenate(columns).T.tolist(), 1):
            lines.append(",".join((str(interval * index), *("" if value != value else repr(value) for value in row))))
        write_atomically(folder / CURVES_FOLDER / f"{_file_stem(cell)}.csv", ("\n".join(lines) + "\n").encode())


def _file_stem(cell: AnyCell) -> str:
    label = "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", str(value)).strip("-") for value in cell.label.values())
    return f"{label[:80]}-{cell.id}"
