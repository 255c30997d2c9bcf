"""When a pretraining has settled, and the range of scores to expect from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onrig.runtime.exit_codes import Failure
from onrig.tools.pretrained import N_HELD_OUT_PLANTS, PATIENCE_PIECES, Scores, has_settled, read_pretraining


def history(*median_scores: float, spread: float = 0.001) -> list[Scores]:
    plants = np.linspace(-spread, spread, N_HELD_OUT_PLANTS)
    return [Scores(10 * i, tuple((m + plants).tolist())) for i, m in enumerate(median_scores)]


def test_pretraining_has_settled_when_the_last_pieces_change_little_of_what_was_learned() -> None:
    assert has_settled(history(0.1, 0.5, 0.90, 0.905, 0.91, 0.905))
    assert not has_settled(history(0.1, 0.5, 0.88, 0.905, 0.91, 0.91)), "still rising"
    assert not has_settled(history(0.1, 0.5, 0.93, 0.93, 0.92, 0.90)), "falling"
    assert not has_settled(history(0.1, 0.5, 0.90, 0.87, 0.86, 0.90)), "varying"


def test_a_plateau_without_learning_is_not_an_end() -> None:
    assert not has_settled(history(*[0.1] * 8))
    assert not has_settled(history(*[0.9] * PATIENCE_PIECES)), "too few pieces"


def test_an_undecided_change_is_not_an_end() -> None:
    rng = np.random.default_rng(0)
    noisy_scores = [Scores(i, tuple(rng.normal(0.9, 0.3, N_HELD_OUT_PLANTS).tolist())) for i in range(6)]
    assert not has_settled([*history(0.0), *noisy_scores])


def test_the_range_contains_a_further_draw_in_95_of_100_cases() -> None:
    rng = np.random.default_rng(1)
    draws = rng.gamma(2.0, size=(4000, N_HELD_OUT_PLANTS + 1))
    is_inside = [low <= row[0] <= high for row in draws for low, high in [Scores(1, tuple(row[1:])).range]]
    assert np.mean(is_inside) == pytest.approx(0.95, abs=0.012)


def test_a_folder_without_a_record_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"contains no pretraining .*: run `onrig pretrain CONFIG --out"):
        read_pretraining(tmp_path)
