"""Record of a pretraining: scores on held-out plants, and the criterion that ends it.

If the posterior is correct, the rig's plant and the n = 39 held-out plants are draws from the same distribution, so
that the range of the n scores contains the rig's score with probability (n - 1) / (n + 1) = 95 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from onrig.learner.screening import ScreeningPlants
from onrig.learner.settings import StartFrom
from onrig.learner.trials.intervals import Bounds, PairedComparison, median_bounds, paired_difference
from onrig.runtime.exit_codes import Failure
from onrig.runtime.files import MAX_JSON_BYTES, read_file, replace_own_file
from onrig.runtime.run_config import RunConfig

N_HELD_OUT_PLANTS: Final = 39
"""Number of held-out plants on which policies are evaluated."""
SETTLING_MARGIN: Final = 0.02
"""Score change below which learning has settled, as a share of the improvement so far."""
PATIENCE_PIECES: Final = 3
"""Number of pieces over which the score must have settled."""
SCREENING_MARGIN: Final = 0.1
"""Permitted score loss when a run's policies are screened, as a share of the pretraining's improvement."""
PRETRAINING_FILE: Final = "pretraining.json"


class Scores(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scores of the policy after a number of training episodes, one per held-out plant."""

    episode: int
    scores: tuple[float, ...]
    """Scores in the task's measure (``onrig.runtime.scoring.measure_of``)."""

    @property
    def median(self) -> Bounds:
        """Median over plants, with its 95 % interval."""
        return median_bounds(np.array(self.scores))

    @property
    def range(self) -> tuple[float, float]:
        """Range that contains the score of a further plant with probability 95 %."""
        return min(self.scores), max(self.scores)


class Pretraining(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of ``pretraining.json``: settings, scores and end of a pretraining."""

    config: str
    """Path or shipped name of the configuration."""
    identified: str
    """Hash of the identification, as in the configuration."""
    held_out: dict[str, tuple[float, ...]]
    """Samples of the held-out plants, by parameter (as in ``device.twin.samples``)."""
    piece: int
    """Training episodes between evaluations."""
    minutes: float
    """Maximum computing time."""
    episodes: int
    """Maximum number of training episodes."""
    seconds: float = 0.0
    """Computing time so far, across all starts."""
    evaluations: tuple[Scores, ...] = ()
    """Evaluations of the current attempt."""
    failed_attempts: tuple[tuple[Scores, ...], ...] = ()
    """Evaluations of the attempts that learned nothing."""
    ended: str = ""
    """Reason why the pretraining ended; empty if it has not ended."""


def total_improvement(evaluations: Sequence[Scores]) -> PairedComparison:
    """Return the paired improvement over the first policy."""
    return paired_difference(np.array(evaluations[-1].scores), np.array(evaluations[0].scores))


def has_settled(evaluations: Sequence[Scores]) -> bool:
    """Return whether the score has settled.

    The newest policy must be better than the first one, and the intervals of its differences from the policies of the
    preceding PATIENCE_PIECES pieces must all lie within SETTLING_MARGIN of the improvement so far. All differences are
    paired by plant. A single difference would not suffice, since a policy that varies from piece to piece sometimes
    happens to match an earlier one.
    """
    if len(evaluations) <= PATIENCE_PIECES:
        return False
    improvement = total_improvement(evaluations)
    margin = SETTLING_MARGIN * improvement.value
    newest = np.array(evaluations[-1].scores)
    changes = [paired_difference(newest, np.array(e.scores)) for e in evaluations[-1 - PATIENCE_PIECES : -1]]
    return improvement.low > 0 and all(max(change.high, -change.low) < margin for change in changes)


def expected_score(record: Pretraining) -> dict[str, object]:
    """Return the expected score on the rig, with a tolerance for updates made before the score is measured."""
    last_evaluation = record.evaluations[-1]
    tolerance = SETTLING_MARGIN * abs(total_improvement(record.evaluations).value)
    low, high = last_evaluation.range
    return {
        "low": low,
        "high": high,
        "median": last_evaluation.median.value,
        "tolerance": tolerance,
        "plants": len(last_evaluation.scores),
    }


def screening_problem(start: StartFrom | None) -> str | None:
    """Return why the policies of a run with these initial networks cannot be screened, or None if they can."""
    if start is None:
        return "the plants for the screening are those of a pretraining: set learner.start_from, or omit this setting"
    if not (Path(start.path) / PRETRAINING_FILE).is_file():
        return f"'{start.path}' contains no pretraining: omit this setting, or start from a pretraining"
    return None


def screening_plants(record: Pretraining, config: RunConfig, n_plants: int) -> ScreeningPlants:
    """Return the first ``n_plants`` held-out plants of a pretraining, with the lowest score permitted on each.
    ``config`` is the configuration of the pretraining.
    """
    margin = SCREENING_MARGIN * abs(total_improvement(record.evaluations).value)
    samples = {name: column[:n_plants] for name, column in record.held_out.items()}
    min_scores = tuple(score - margin for score in record.evaluations[-1].scores[:n_plants])
    return ScreeningPlants({**(config.device.twin or {}), "samples": samples}, min_scores, config.seed)


def read_pretraining(folder: Path) -> Pretraining:
    """Read the record of a pretraining. Raises Failure if it is missing or invalid."""
    try:
        return msgspec.json.decode(read_file(folder / PRETRAINING_FILE, MAX_JSON_BYTES), type=Pretraining)
    except OSError:
        raise Failure(
            f"'{folder}' contains no pretraining ({PRETRAINING_FILE}): run `onrig pretrain CONFIG --out {folder}`"
        ) from None
    except msgspec.MsgspecError as error:
        raise Failure(
            f"{folder / PRETRAINING_FILE}: {error}; restore it from a backup, or start a new pretraining"
        ) from None


def write_pretraining(folder: Path, record: Pretraining) -> None:
    """Write the record of a pretraining. Raises OSError."""
    data = msgspec.json.format(msgspec.json.encode(record), indent=1)
    replace_own_file(folder / PRETRAINING_FILE, data, durable=True)
