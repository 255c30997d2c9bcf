"""Record of a pretraining: scores on held-out plants, and the criterion that ends it.

If the posterior is correct, the rig's plant and the n held-out plants are draws from one distribution, so that the
range of the n scores contains the rig's score with probability (n - 1) / (n + 1) = 95 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from onrig.learner.trials.intervals import Bounds, PairedComparison, median_bounds, paired_difference
from onrig.runtime.exit_codes import Failure
from onrig.runtime.files import MAX_JSON_BYTES, read_file, replace_own_file

N_HELD_OUT_PLANTS: Final = 39
"""Number of plants for the evaluation."""
SETTLING_MARGIN: Final = 0.02
"""Change of the score below which learning has settled, as a share of what has been learned."""
PATIENCE_PIECES: Final = 3
"""Number of pieces over which the score must have settled."""
PRETRAINING_FILE: Final = "pretraining.json"


class Scores(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scores of the policy after a number of training episodes, one per held-out plant."""

    episode: int
    scores: tuple[float, ...]
    """In the task's measure (``onrig.runtime.scoring.measure_of``)."""

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
    """Samples of the plants for the evaluation (``device.twin.samples``)."""
    piece: int
    """Training episodes between evaluations."""
    minutes: float
    """Maximum computing time."""
    episodes: int
    """Maximum number of training episodes."""
    seconds: float = 0.0
    """Computing time so far, over all starts."""
    evaluations: tuple[Scores, ...] = ()
    """Of the current attempt."""
    failed_attempts: tuple[tuple[Scores, ...], ...] = ()
    """Evaluations of the attempts that learned nothing."""
    ended: str = ""
    """Reason why the pretraining ended; empty if it is not complete."""


def recent_change(evaluations: Sequence[Scores]) -> PairedComparison | None:
    """Return the paired change of the score over the last PATIENCE_PIECES pieces; None if fewer have run."""
    if len(evaluations) <= PATIENCE_PIECES:
        return None
    return paired_difference(np.array(evaluations[-1].scores), np.array(evaluations[-1 - PATIENCE_PIECES].scores))


def total_improvement(evaluations: Sequence[Scores]) -> PairedComparison:
    """Return the paired improvement on the first policy."""
    return paired_difference(np.array(evaluations[-1].scores), np.array(evaluations[0].scores))


def has_settled(evaluations: Sequence[Scores]) -> bool:
    """Return whether the score has settled.

    The policy must be better than the first one, and the interval of the score's change over the last PATIENCE_PIECES
    pieces must lie within SETTLING_MARGIN of the improvement so far.  Both are paired by plant.
    """
    recent = recent_change(evaluations)
    if recent is None:
        return False
    improvement = total_improvement(evaluations)
    return improvement.low > 0 and max(recent.high, -recent.low) < SETTLING_MARGIN * improvement.value


def read_pretraining(folder: Path) -> Pretraining:
    """Read the record of a pretraining; raises Failure."""
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
    """Write the record of a pretraining; raises OSError."""
    data = msgspec.json.format(msgspec.json.encode(record), indent=1)
    replace_own_file(folder / PRETRAINING_FILE, data, durable=True)
