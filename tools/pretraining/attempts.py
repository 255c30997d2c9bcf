"""Attempts of a pretraining: an attempt that has learned nothing is set aside, and the next one has a longer horizon.

Learning can end in a policy that does nothing. On plants with little force, this is the best policy for a short
horizon, because moving costs something at once and is rewarded only after several swings. Another attempt takes a
minute on a drawn plant; on a rig, it would take an hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from onrig.learner.settings import learner_settings
from onrig.runtime.config.identified import FILE_NAME
from onrig.runtime.files import sync
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_resolved
from onrig.tools.pretrained import PATIENCE_PIECES, PRETRAINING_FILE, Scores, total_improvement

MIN_PIECES: Final = 6
"""Number of pieces in which the first attempt must improve on its first policy; doubled for each further attempt."""
HORIZON_FACTOR: Final = 1.5
"""Factor by which each attempt lengthens the horizon of the previous one."""
_CONFIG_FILE: Final = "config.yaml"
_MAX_SEED: Final = 2**31


def is_stuck(evaluations: Sequence[Scores], n_earlier: int) -> bool:
    """Return whether an attempt after ``n_earlier`` others has learned nothing.

    This is the case after enough pieces if none of the last PATIENCE_PIECES policies is better than the first one, that
    is, if no 95 % interval of the median difference, paired by plant, lies above 0.
    """
    if len(evaluations) <= MIN_PIECES * 2**n_earlier:
        return False
    ends = range(len(evaluations) - PATIENCE_PIECES, len(evaluations))
    return all(total_improvement(evaluations[: end + 1]).low <= 0 for end in ends)


def attempt_folder(folder: Path, number: int) -> Path:
    """Return the subfolder of ``folder`` to which the failed attempt ``number``, counted from 1, is moved."""
    return folder / f"attempt-{number}"


def attempt_config(folder: Path, n_failed: int, episodes: int) -> RunConfig:
    """Return the configuration for the first piece of the attempt that follows ``n_failed`` failed ones."""
    config = load_resolved(attempt_folder(folder, n_failed) / _CONFIG_FILE)
    return msgspec.structs.replace(
        config,
        seed=_attempt_seed(folder, n_failed),
        episodes=episodes,
        learner=_lengthen_horizon(config.learner),
    )


def _lengthen_horizon(learner: dict[str, Any]) -> dict[str, Any]:
    """Return the learner section with HORIZON_FACTOR times the horizon 1 / (1 - gamma), if its algorithm has one."""
    algorithm = learner_settings(learner).algorithm
    section = learner.get(algorithm)
    if not isinstance(section, dict) or not isinstance(gamma := section.get("gamma"), float):
        return learner
    return {**learner, algorithm: {**section, "gamma": round(1.0 - (1.0 - gamma) / HORIZON_FACTOR, 6)}}


def _sync_folders(*folders: Path) -> None:
    for folder in folders:
        sync(folder)


def set_aside(folder: Path, n_failed: int) -> None:
    """Move the run of the latest failed attempt to a folder of its own, unless this has already been done.

    The configuration is moved last, so that an interrupted move is detected and completed.
    """
    destination = attempt_folder(folder, n_failed)
    if not n_failed or (destination / _CONFIG_FILE).exists():
        return
    destination.mkdir(exist_ok=True)
    for path in sorted(folder.iterdir(), key=lambda path: path.name == _CONFIG_FILE):
        if path.name not in kept_names(n_failed):
            if path.name == _CONFIG_FILE:
                _sync_folders(destination, folder)
            path.rename(destination / path.name)
    _sync_folders(destination, folder)


def kept_names(n_failed: int) -> set[str]:
    """Return the names in a pretraining's folder that do not belong to the run of its current attempt."""
    return {PRETRAINING_FILE, FILE_NAME, *(attempt_folder(Path(), k).name for k in range(1, n_failed + 1))}


def _attempt_seed(folder: Path, n_failed: int) -> int:
    """Return the seed of the attempt that follows ``n_failed`` failed ones."""
    first_seed = load_resolved(attempt_folder(folder, 1) / _CONFIG_FILE).seed
    return int(np.random.SeedSequence((first_seed, n_failed)).generate_state(1)[0] % _MAX_SEED)
