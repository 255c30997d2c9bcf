"""Policies learned on an identified twin, compared with policies learned on the true plant."""

from __future__ import annotations

import numpy as np
import pytest

from onrig.sim.plants.integrate import Array
from onrig.tools.identification.policies import compare_policies
from onrig.tools.identification.study import Outcome
from onrig.tools.load import load

NAMES = ("gravity_per_s2", "damping_per_s", "gain_per_v_s2", "dry_friction", "dead_band", "delay_s", "zero_angle")
TRUE_PARAMETERS = np.array([*np.log([26.0, 0.4, 6.0]), 0.5, 0.1, 0.01, 0.02])
CONFIG = load("pendulum", ["episodes=3", "task.episode_s=1.0", "learner.updates_per_episode=3"])


def outcome(estimate: Array) -> Outcome:
    zeros = np.zeros(len(NAMES))
    return Outcome(NAMES, TRUE_PARAMETERS, estimate, zeros, zeros, True, 0)


def test_a_twin_that_equals_the_true_plant_makes_no_difference() -> None:
    progress: list[int] = []
    comparison = compare_policies(CONFIG, [outcome(TRUE_PARAMETERS), outcome(TRUE_PARAMETERS)], progress.append)
    np.testing.assert_array_equal(comparison.identified_scores, comparison.true_scores)
    assert comparison.difference.value == 0.0
    assert progress == [1, 2, 3]


def test_another_twin_makes_a_difference_even_though_both_are_evaluated_on_the_true_plant() -> None:
    other = TRUE_PARAMETERS + np.array([0.5, 0, -0.5, 0, 0, 0, 0])
    comparison = compare_policies(CONFIG, [outcome(other), outcome(TRUE_PARAMETERS)])
    without_other = compare_policies(CONFIG, [outcome(TRUE_PARAMETERS), outcome(TRUE_PARAMETERS)])
    assert comparison.identified_scores[0] != comparison.true_scores[0]
    np.testing.assert_array_equal(comparison.true_scores, without_other.true_scores)
    assert comparison.identified_scores[1] == pytest.approx(without_other.identified_scores[1])
