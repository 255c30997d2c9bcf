"""Races on given scores: which candidates leave, which are paused, and the stated bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onrig.tools.advice.race import (
    MIN_STD,
    RUNGS,
    Budget,
    Interval,
    LowTenth,
    Mean,
    Rules,
    State,
    predict_eliminations,
    race,
    standings,
)
from tests.studies.races import PAIRS, repetition, summary

Values = NDArray[np.float64]
UNLIMITED = 1e9


def budget(names: list[str], total: float = UNLIMITED) -> Budget:
    return Budget(total, dict.fromkeys(names, 1.0))


def random_scores(seed: int, means: list[float], std: float = 0.05, pairs: int = 64) -> dict[str, Values]:
    """Scores around means, with a common component in each pair."""
    rng = np.random.default_rng(seed)
    common_scores = rng.normal(0.0, 0.1, pairs)
    return {chr(97 + k): m + common_scores + rng.normal(0.0, std, pairs) for k, m in enumerate(means)}


def grid(rng: np.random.Generator, cells: int = 8) -> Values:
    """Scores (cells, 2 * PAIRS) of heteroscedastic cells, in some of which trials fail; the best is 0.1 above the
    median."""
    means = np.sort(rng.uniform(0.5, 0.85, cells))
    means[-1] = max(np.median(means) + 0.1, means[-2] + 0.03)
    std = rng.uniform(0.01, 0.06, cells)
    scores = means[:, None] + rng.normal(0.0, 0.05, 2 * PAIRS) + std[:, None] * rng.standard_normal((cells, 2 * PAIRS))
    is_failing = rng.random(cells) < 0.3
    is_failing[-1] = False
    has_failed = (rng.random(scores.shape) < 0.1) & is_failing[:, None]
    return np.asarray(np.where(has_failed, rng.uniform(0.0, 0.3, scores.shape), scores))


def test_certainly_worse_candidates_leave_and_the_best_remains() -> None:
    scores = random_scores(0, [0.5, 0.9, 0.7, 0.2])
    rules = Rules(Mean())
    state = race([*"abcd"], scores, rules, budget([*"abcd"]))
    assert (state.active_names, state.end_reason) == (("b",), "one left")
    assert all(eliminated.leader == "b" and eliminated.deficit.high < 0 for eliminated in state.eliminations.values())
    assert state.pairs["b"] == max(state.pairs.values())


def test_a_few_equal_pairs_decide_nothing() -> None:
    scores_by_name = {"a": np.full(4, 0.5), "b": np.full(4, 0.5 - 2.0 * MIN_STD)}
    state = race(["a", "b"], scores_by_name, Rules(Mean()), budget(["a", "b"], 8))
    assert state.active_names == ("a", "b")
    assert not state.eliminations


def test_practically_equal_candidates_end_a_race() -> None:
    scores = random_scores(1, [0.8, 0.8], std=0.01)
    state = race(["a", "b"], scores, Rules(Mean()), budget(["a", "b"]))
    assert state.end_reason == "equal"
    assert len(state.active_names) == 2
    deficit = standings(state, scores, Rules(Mean()))[1].deficit
    assert max(-deficit.low, deficit.high) <= 0.02


def test_a_race_requests_complete_rungs_until_their_scores_arrive() -> None:
    names = ["a", "b"]
    first_rung = race(names, {}, Rules(Mean()), budget(names))
    assert first_rung.next_pairs == {"a": RUNGS[0], "b": RUNGS[0]}
    assert not any(first_rung.pairs.values())
    scores = random_scores(2, [0.8, 0.7], std=0.2)
    partial = race(names, {name: values[:5] for name, values in scores.items()}, Rules(Mean()), budget(names))
    assert partial.next_pairs == {"a": RUNGS[1], "b": RUNGS[1]}
    assert set(partial.pairs.values()) == {RUNGS[0]}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 7), st.integers(0, 200))
def test_a_race_stays_within_its_budget_and_counts_losses(seed: int, number: int, total: int) -> None:
    rng = np.random.default_rng(seed)
    scores = random_scores(seed, rng.uniform(0.3, 0.9, number).tolist(), std=0.1)
    names, rules = list(scores), Rules(Mean())
    state = race(names, scores, rules, budget(names, total))
    assert budget(names).cost_of(state.pairs) <= total
    assert sorted((*state.remaining_names, *state.eliminations)) == names
    assert state.end_reason
    assert all(state.pairs[name] >= state.pairs[other] for name in state.active_names for other in names)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_a_race_fed_rung_by_rung_takes_the_same_course(seed: int) -> None:
    scores = random_scores(seed, [0.8, 0.78, 0.6, 0.75], std=0.1)
    names, rules = list(scores), Rules(Mean())
    known_scores: dict[str, Values] = {}
    state = race(names, known_scores, rules, budget(names, 100))
    while state.next_pairs:
        known_scores |= {name: scores[name][:n] for name, n in state.next_pairs.items()}
        state = race(names, known_scores, rules, budget(names, 100))
    assert state == race(names, scores, rules, budget(names, 100))


def test_with_a_short_budget_the_closest_rivals_continue_and_the_others_are_paused() -> None:
    scores = random_scores(3, [0.8, 0.79, 0.6, 0.5, 0.55], std=0.15)
    names = list(scores)
    state = race(names, scores, Rules(Mean()), budget(names, 50))
    assert state.end_reason == "budget"
    assert state.paused_names
    assert min(state.pairs[name] for name in state.active_names) > max(state.pairs[name] for name in state.paused_names)
    assert {standing.name for standing in standings(state, scores, Rules(Mean())) if standing.may_be_best} == set(
        state.remaining_names
    )


def race_with_newcomer(scores: dict[str, Values], total: float) -> State:
    old_names = [name for name in scores if name != "new"]
    previous_state = race(old_names, scores, Rules(Mean()), budget(old_names, 40))
    return race(["new"], scores, Rules(Mean()), budget(list(scores), total), previous_state)


def test_a_better_newcomer_takes_the_lead_once_it_has_caught_up() -> None:
    scores = random_scores(4, [0.7, 0.69, 0.75], std=0.05)
    scores["new"] = scores.pop("c")
    state = race_with_newcomer(scores, UNLIMITED)
    assert (state.leader, state.end_reason) == ("new", "one left")
    assert state.pairs["new"] > 14
    short_state = race_with_newcomer(scores, 28 + RUNGS[0])
    assert short_state.remaining_names == ("a", "b", "new")
    assert short_state.pairs == {"a": 14, "b": 14, "new": RUNGS[0]}


def test_a_newcomer_that_beats_all_others_at_once_leads() -> None:
    scores = random_scores(4, [0.7, 0.69, 0.9], std=0.02)
    scores["new"] = scores.pop("c")
    state = race_with_newcomer(scores, 28 + RUNGS[1])
    assert (state.remaining_names, state.end_reason) == (("new",), "one left")


def test_barred_candidates_are_excluded_after_the_first_rung() -> None:
    scores = random_scores(5, [0.9, 0.7, 0.69])
    state = race([*"abc"], scores, Rules(Mean()), budget([*"abc"]), excluded_names={"a"})
    assert "a" not in state.remaining_names
    assert state.pairs["a"] == RUNGS[0]
    both_excluded = race(["a", "b"], scores, Rules(Mean()), budget(["a", "b"]), excluded_names={"a", "b"})
    assert (both_excluded.remaining_names, both_excluded.end_reason) == ((), "none left")


def test_the_tenth_percentile_decides_nothing_before_14_pairs() -> None:
    scores = {"a": np.full(64, 0.9), "b": np.full(64, 0.1)}
    state = race(["a", "b"], scores, Rules(LowTenth()), budget(["a", "b"]))
    assert state.pairs == {"a": 14, "b": 14}
    assert [*state.eliminations] == ["b"]


def test_the_tenth_percentile_of_pairs_is_resampled_jointly() -> None:
    common_scores = np.random.default_rng(0).normal(0.5, 0.2, 32)
    deficit = LowTenth().difference(common_scores, common_scores - 0.05, 0.025)
    assert deficit.value == pytest.approx(0.05)
    assert deficit.half_width == pytest.approx(MIN_STD)
    assert LowTenth().summarize(common_scores, 0.025).half_width > 0.05


def test_contenders_separable_by_more_pairs_are_predicted() -> None:
    scores = random_scores(6, [0.8, 0.72, 0.799], std=0.1)
    names, rules = list(scores), Rules(Mean())
    table = standings(race(names, scores, rules, budget(names, 42)), scores, rules)
    contenders = [standing for standing in table if standing.may_be_best]
    wide_standing = contenders[1]._replace(deficit=Interval(-0.08, -0.2, 0.04), n_pairs=14)
    close = contenders[1]._replace(name="c", deficit=Interval(-0.001, -0.1, 0.1), n_pairs=14)
    assert predict_eliminations([contenders[0], wide_standing, close], 64, rules) == [wide_standing.name]
    assert predict_eliminations([contenders[0], wide_standing, close], 14, rules) == []


def test_races_at_a_quarter_of_the_cost_find_the_best_and_state_honest_bounds() -> None:
    repetitions = [repetition(grid(np.random.default_rng(k)), k) for k in range(20)]
    report = summary(repetitions)
    assert all(record["spent"] <= 0.25 for record in repetitions)
    assert report["close"] >= 18
    assert report["covered"] >= 17
