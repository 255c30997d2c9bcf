"""KLPER's score against closed forms and Monte Carlo, and its selection of a batch."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.learner.samplers import SamplerContext
from onrig.learner.samplers.klper import Klper, kl_scores, select_closest
from onrig.learner.samplers.uniform import Uniform
from onrig.runtime.memory.strategy import Strategy, parse_strategy
from tests.learner.samplers.looks import random_view

RNG = np.random.default_rng


def digamma(x: float) -> float:
    """Digamma function of arguments that are not too small, by recurrence and asymptotic series."""
    recurrence_sum = 0.0
    while x < 20.0:
        recurrence_sum -= 1.0 / x
        x += 1.0
    return recurrence_sum + float(np.log(x)) - 0.5 / x - 1 / (12 * x**2) + 1 / (120 * x**4)


def expected_score(b: int, m: int, v: float, variance: float) -> float:
    """Mean score of b draws from N(0, v I_m): Wishart moments of the log determinant, trace and mean."""
    log_det = m * np.log(v) + sum(digamma((b - i) / 2) for i in range(1, m + 1)) + m * np.log(2 / (b - 1))
    return float(0.5 * (m * v / variance + m * v / b / variance - m + m * np.log(variance) - log_det))


@pytest.mark.parametrize(
    ("b", "m", "variance", "expected"), [(64, 1, 0.1, 0.7101), (64, 3, 0.1, 2.1547), (256, 6, 0.2, 6.1793)]
)
def test_the_scores_of_finite_batches_match_the_closed_form(b: int, m: int, variance: float, expected: float) -> None:
    assert expected_score(b, m, 0.01, variance) == pytest.approx(expected, abs=1e-4)
    scores = kl_scores(0.1 * RNG(b + m).standard_normal((3_000, b, m)), variance)
    error = 5 * scores.std() / np.sqrt(len(scores)) + 1e-3  # the ridge shifts it a little
    assert scores.mean() == pytest.approx(expected, abs=error)


@pytest.mark.parametrize(
    ("variance", "on_policy", "random"),
    [(0.1, 0.7013, 0.5647), (0.2, 1.0229, 0.0779), (0.01, 0.0, 14.41), (0.04, 0.3181, 2.607)],
)
def test_with_sigma_as_a_covariance_random_data_is_preferred_to_the_policys_own(
    variance: float, on_policy: float, random: float
) -> None:
    """The result: the first two lines use sigma as a covariance, the last two as a standard deviation."""
    b = 400_000
    on_policy_score = kl_scores(0.1 * RNG(0).standard_normal((b, 1)), variance)
    random_score = kl_scores(RNG(1).uniform(-1, 1, (b, 1)), variance)
    assert float(on_policy_score) == pytest.approx(on_policy, abs=6e-3)
    assert float(random_score) == pytest.approx(random, rel=6e-3)
    assert (random_score < on_policy_score) == (variance >= 0.1)


def test_the_score_is_the_divergence_of_two_gaussians() -> None:
    d = RNG(2).standard_normal((50, 2)) @ np.array([[0.3, 0.1], [0.0, 0.2]]) + [0.1, -0.2]
    mean, covariance = d.mean(0), np.cov(d.T) + 1e-6 * np.eye(2)
    x = RNG(3).multivariate_normal(mean, covariance, 400_000)
    deviations = x - mean
    log_p = -0.5 * np.einsum("ij,jk,ik->i", deviations, np.linalg.inv(covariance), deviations)
    log_p -= 0.5 * np.log(np.linalg.det(2 * np.pi * covariance))
    log_q = -0.5 * (x**2).sum(1) / 0.1 - np.log(2 * np.pi * 0.1)
    assert float(kl_scores(d, 0.1)) == pytest.approx(float((log_p - log_q).mean()), rel=5e-3)


def test_sign_and_order_do_not_matter_and_equal_differences_cause_no_error() -> None:
    d = RNG(4).standard_normal((16, 3))
    score = kl_scores(d, 0.1)
    np.testing.assert_allclose(kl_scores(-d, 0.1), score)
    np.testing.assert_allclose(kl_scores(RNG(5).permutation(d), 0.1), score)
    assert np.isfinite(kl_scores(np.ones((16, 3)), 0.1))


def make_sampler(candidates: int, actions: NDArray[np.float64], seed: int = 0) -> Klper:
    context = SamplerContext(len(actions), 16, 10, view=random_view(actions[None]))
    klper = Klper.build(context._replace(argument=float(candidates)), RNG(seed), weighted=False)
    klper.on_write(np.arange(len(actions)))
    return klper


def test_the_candidate_with_the_smallest_score_is_replayed() -> None:
    actions = RNG(6).standard_normal((500, 2)) * RNG(7).uniform(0, 1, (500, 1))
    klper, uniform_sampler, view = make_sampler(4, actions), Uniform(RNG(0)), random_view(actions[None])
    uniform_sampler.on_write(np.arange(500))
    policy_distance = view.policy(view.gather(np.arange(500)[None]).observation)[0] - actions
    chosen_scores, offered_scores = [], []
    for _ in range(50):
        (slots,) = klper.draw(16).slots
        candidates = uniform_sampler.draw(16, 4).slots
        scores = kl_scores(policy_distance[candidates], 0.1)
        assert len(set(slots.tolist())) == 16
        assert slots.tolist() == candidates[scores.argmin()].tolist()
        chosen_scores.append(scores.min())
        offered_scores.append(scores.mean())
    assert np.mean(chosen_scores) < np.mean(offered_scores)


def test_one_candidate_is_a_uniform_draw() -> None:
    klper, uniform_sampler = make_sampler(1, RNG(8).standard_normal((100, 1))), Uniform(RNG(0))
    uniform_sampler.on_write(np.arange(100))
    for _ in range(20):
        assert klper.draw(16).slots.tolist() == uniform_sampler.draw(16).slots.tolist()


def test_a_restored_sampler_draws_the_same() -> None:
    actions = RNG(9).standard_normal((100, 1))
    klper = make_sampler(4, actions)
    klper.draw(16)
    state = klper.state()
    expected = [klper.draw(16).slots.tolist() for _ in range(5)]
    other = make_sampler(4, actions, seed=1)
    other.restore(state)
    assert [other.draw(16).slots.tolist() for _ in range(5)] == expected


def test_every_trial_selects_independently() -> None:
    actions = RNG(10).standard_normal((3, 40, 1)) * np.array([0.1, 1.0, 3.0])[:, None, None]
    slots = RNG(11).integers(0, 40, (4, 3, 8))
    joint = select_closest(slots, random_view(actions), 0.1)
    for trial in range(3):
        single = select_closest(slots[:, trial : trial + 1], random_view(actions[[trial]]), 0.1)
        assert joint[trial].tolist() == single[0].tolist()


def test_more_than_one_update_ahead_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 minibatch per draw"):
        make_sampler(4, np.zeros((100, 1))).draw(16, 2)


def test_its_notation_is_parsed() -> None:
    assert parse_strategy("Resv[KLPER( 4 )]") == Strategy("Resv", "KLPER(4)")
    assert str(parse_strategy("FIFO[KLPER(8)]")) == "FIFO[KLPER(8)]"
    for text, message in (
        ("FIFO[KLPER]", r"KLPER needs the number of its candidates, such as KLPER\(4\)"),
        ("FIFO[KLPER(0)]", "whole number of 1 to 64, got '0'"),
        ("FIFO[KLPER(2.5)]", "whole number of 1 to 64, got '2.5'"),
        ("FIFO[KLPER(4)+IS]", "unknown sampling"),
        ("FIFO[Uniform(2)]", r"Uniform takes no number, got '\(2\)'"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_strategy(text)
