from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onrig.learner.algorithms import refer as module
from onrig.learner.algorithms.refer import BehaviourSample, PolicyDistance, Refer, Rules, policy_distance
from onrig.learner.notes import Notes
from onrig.learner.refer_settings import ReferSettings
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import concatenate
from tests.learner.tape.evaluation import evaluate

CAPACITY, BATCH = 50, 10


def _refer(trials: int = 1, **changes: Any) -> tuple[Refer, Notes]:
    notes = Notes(trials, CAPACITY)
    refer = Refer(ReferSettings(**changes), BATCH, notes)
    for trial in range(trials):
        notes.on_write(trial, np.arange(CAPACITY))
    return refer, notes


def _is_near(refer: Refer, slots: list[int], *rho: float) -> list[bool]:
    """Mask of the near experiences."""
    ratios = np.array([rho])
    return [not is_far for is_far in refer.classify(np.array([slots]), ratios, np.log(ratios) ** 2)[0]]


def _distance(refer: Refer, *parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ratio and divergence at actions (B, m), for behaviour and current policies, mean and std each."""

    def broadcast(*p: Array) -> Array:
        return concatenate(*policy_distance(refer.settings, BehaviourSample(*p[:3]), *p[3:]))

    rho, kl = evaluate(broadcast, *parts)[0].T
    return rho, kl


def test_beta_rises_from_zero_to_one_without_far_experiences_and_falls_to_zero_with_them() -> None:
    refer, _ = _refer()
    step = 0.1 * BATCH / CAPACITY
    for k in range(1, 200):
        _is_near(refer, [0], 1.0)
        assert refer.beta[0] == pytest.approx(1.0 - (1.0 - step) ** k, abs=1e-12)
    high = refer.beta[0]
    refer.far[0, :6] = True  # 12 % of 50
    for k in range(1, 200):
        _is_near(refer, [9], 1.0)
        assert refer.beta[0] == pytest.approx(high * (1.0 - step) ** k, abs=1e-12)


def test_beta_changes_by_the_count_before_the_update() -> None:
    refer, _ = _refer(far_share=0.0)
    _is_near(refer, [0, 1], 100.0, 100.0)
    assert refer.beta[0] == pytest.approx(0.02)  # none was far at that time
    _is_near(refer, [0, 1], 1.0, 1.0)
    assert refer.beta[0] == pytest.approx(0.02 * 0.98)  # two of 50 were far


def test_an_experience_is_near_only_within_the_bounds() -> None:
    refer, _ = _refer(c=4.0, anneal=0.0)
    assert _is_near(refer, [0, 1, 2, 3, 4], 1.0, 4.99, 5.01, 0.201, 0.199) == [1, 1, 0, 1, 0]
    assert np.flatnonzero(refer.far[0]).tolist() == [2, 4]
    assert refer.far_fraction[0] == 2 / CAPACITY


@pytest.mark.parametrize(
    ("rules", "near_weight", "beta"), [("both", 0.0, 0.0), (1, 0.0, 1.0), (2, 1.0, 0.0), ("none", 1.0, 1.0)]
)
def test_each_rule_can_be_disabled(rules: str | int, near_weight: float, beta: float) -> None:
    refer, _ = _refer(rules=rules)
    assert refer.rules[0, 0] == beta

    def mix(loss: Array, kl: Array) -> Array:
        parts = (loss.tape.filled((1, 1), float(value)) for value in refer.rules[0])
        return Rules(*parts).mix(loss, PolicyDistance(loss.tape.filled((1, 1), 900.0), kl))

    value, _ = evaluate(mix, np.array([[2.0]]), np.array([[3.0]]))
    assert value.item() == beta * near_weight * 2.0 + (1.0 - beta) * 3.0


def test_the_share_of_far_experiences_always_matches_the_stored_bits() -> None:
    rng, (refer, notes) = np.random.default_rng(0), _refer()
    is_far = np.zeros(CAPACITY, np.bool_)
    for k in range(60):
        slots, ratios = rng.permutation(CAPACITY)[:BATCH], np.exp(rng.normal(0.0, 2.0, BATCH))
        bound = 1.0 + 4.0 / (1.0 + 5e-7 * k)
        _is_near(refer, slots.tolist(), *ratios)
        is_far[slots] = (ratios <= 1.0 / bound) | (ratios >= bound)
        if k % 3 == 0:
            written_slots = rng.integers(0, CAPACITY, 4)
            notes.on_write(0, written_slots)
            is_far[written_slots] = False
        assert refer.far_fraction[0] == np.count_nonzero(is_far) / CAPACITY
    assert 0.0 < refer.far_fraction[0] < 1.0


def test_when_the_bound_shrinks_all_are_reclassified_by_their_last_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECLASSIFY_EVERY", 4)
    refer, _ = _refer(c=4.0, anneal=1.0)
    _is_near(refer, [0, 1, 2], 3.0, 1.5, 0.3)
    for _ in range(2):
        _is_near(refer, [5], 1.0)
        assert np.flatnonzero(refer.far[0]).tolist() == []  # 5, and no recount since
    _is_near(refer, [5], 1.0)
    bound = 1.0 + 4.0 / 5.0
    ratios = np.asarray(refer.rho[0], np.float64)
    assert refer.max_near_ratio == bound
    assert (
        np.flatnonzero(refer.far[0]).tolist()
        == np.flatnonzero((ratios <= 1 / bound) | (ratios >= bound)).tolist()
        == [0, 2]
    )


def test_bounds_and_rates_fall_as_in_the_paper() -> None:
    refer, _ = _refer()
    for updates, bound in ((0, 5.0), (10**5, 4.81), (10**6, 3.67), (10**7, 1.67)):
        refer.updates = updates
        assert refer.max_near_ratio == pytest.approx(bound, abs=5e-3)
    assert refer.annealing == pytest.approx(1 / 6)
    assert Refer(ReferSettings(rules="none"), 1, Notes(1, 9)).annealing == 1.0


def test_a_policy_equal_to_that_of_the_data_has_no_distance() -> None:
    refer, _ = _refer()
    mean, std, drawn_action = np.random.default_rng(0).uniform(0.1, 1.0, (3, 5, 2))
    rho, kl = _distance(refer, drawn_action, mean, std, mean, std)
    assert rho.tolist() == [1.0] * 5
    np.testing.assert_allclose(kl, 0.0, atol=1e-15)
    refer.classify(np.arange(5)[None], rho[None], kl[None])
    assert refer.far_fraction[0] == refer.mean_kl[0] == 0.0


def test_the_direction_of_the_divergence_is_configurable() -> None:
    drawn_action, *policies = (np.full((1, 1), value) for value in (0.0, 0.0, 0.2, 0.5, 0.8))
    forward_distance, backward_distance = (
        _distance(_refer(kl=kl)[0], drawn_action, *policies)[1].item() for kl in ("mu_pi", "pi_mu")
    )
    assert forward_distance == pytest.approx(np.log(4.0) + (0.04 + 0.25) / 1.28 - 0.5, rel=1e-6)
    assert backward_distance == pytest.approx(-np.log(4.0) + (0.64 + 0.25) / 0.08 - 0.5, rel=1e-6)


def test_without_the_first_rule_ratios_are_bounded() -> None:
    drawn_action, mean, std = (np.full((1, 1), value) for value in (0.0, 1.0, 0.05))
    scalar_ratio, vector_ratio = (
        _distance(_refer(rules=rules)[0], drawn_action, mean, std, drawn_action, std)[0].item() for rules in (2, "both")
    )
    assert scalar_ratio == 1e3
    assert vector_ratio > 1e3


def test_its_state_is_restored() -> None:
    refer, other = _refer()[0], _refer()[0]
    for _ in range(7):
        _is_near(refer, [1], 1.0)
    other.restore(refer.state())
    assert (other.beta[0], other.updates) == (refer.beta[0], 7)
