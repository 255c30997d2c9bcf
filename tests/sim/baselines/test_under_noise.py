from __future__ import annotations

import msgspec
import numpy as np
import pytest

from onrig.sim.baselines.fuzzy_q_iteration import Grid, Solution, mean_rewards, solve
from onrig.sim.baselines.under_noise import best_under_noise
from tests.sim.baselines.models import MAGMAN, PENDULUM

SHORT = msgspec.structs.replace(PENDULUM, steps=20)


@pytest.fixture(scope="module")
def solution() -> Solution:
    return solve(SHORT, Grid((12, 13), 3))


def test_without_noise_it_is_the_controllers_score(solution: Solution) -> None:
    found = best_under_noise(SHORT, solution, np.zeros(3), episodes=2, repetitions=2)
    assert found.mean == pytest.approx(mean_rewards(SHORT, solution).interpolated, rel=1e-12)
    assert found.standard_error == 0.0


def test_the_best_of_more_episodes_is_better(solution: Solution) -> None:
    def best(episodes: int) -> float:
        return best_under_noise(SHORT, solution, np.full(3, 0.1), episodes=episodes, repetitions=8).mean

    assert best(1) < best(30)


def test_each_repetition_has_its_own_noise_and_a_seed_reproduces_it(solution: Solution) -> None:
    def found(seed: int) -> tuple[float, float]:
        return best_under_noise(SHORT, solution, np.full(3, 0.1), episodes=4, repetitions=3, seed=seed)

    assert found(0) == found(0) != found(1)
    assert found(0)[1] > 0.0


def test_noise_is_in_normalised_units_of_each_signal() -> None:
    """Only the action's noise, where the policy returns zero: the action is what is drawn."""
    still = Solution(*solve(msgspec.structs.replace(MAGMAN, steps=1), Grid((5, 5), 3)))
    still = still._replace(theta=np.zeros_like(still.theta), actions=np.zeros_like(still.actions))
    weights = {a.name: 1.0 for a in MAGMAN.rig.actuators}
    reward = msgspec.structs.replace(MAGMAN.task.reward, weights={}, action_weights=weights)
    model = msgspec.structs.replace(MAGMAN, steps=1, task=msgspec.structs.replace(MAGMAN.task, reward=reward))
    sigma = np.array([0.0, 0.0, 0.2, 0.2, 0.2, 0.2])
    one = best_under_noise(model, still, sigma, episodes=1, repetitions=400)
    halves = np.array([a.half_range for a in MAGMAN.rig.actuators])
    # E |N(0, s)| = s sqrt(2 / pi).
    assert one.mean == pytest.approx(-float((0.2 * halves).sum()) * np.sqrt(2.0 / np.pi), rel=0.1)


def test_one_repetition_has_no_standard_error(solution: Solution) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        best_under_noise(SHORT, solution, np.zeros(3), repetitions=1)
