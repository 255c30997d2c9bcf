"""Policies learned on an identified twin, compared with policies learned on the true plant."""

from __future__ import annotations

import numpy as np
import pytest

from onrig.sim.plants.integrate import Array
from onrig.tools.identification.policies import compare_policies
from onrig.tools.identification.study import Outcome
from onrig.tools.load import load

NAMES = ("gravity_per_s2", "damping_per_s", "gain_per_v_s2", "dry_friction", "dead_band", "delay_s", "zero_angle")
TRUTH = np.array([*np.log([26.0, 0.4, 6.0]), 0.5, 0.1, 0.01, 0.02])
CONFIG = load("pendulum", ["episodes=3", "task.episode_s=1.0", "learner.updates_per_episode=3"])


def outcome(estimate: Array) -> Outcome:
    nothing = np.zeros(len(NAMES))
    return Outcome(NAMES, TRUTH, estimate, nothing, nothing, True, 0)


def test_a_twin_that_is_the_true_plant_makes_no_difference() -> None:
    done: list[int] = []
    found = compare_policies(CONFIG, [outcome(TRUTH), outcome(TRUTH)], done.append)
    np.testing.assert_array_equal(found.identified_scores, found.true_scores)
    assert found.difference.value == 0.0
    assert done == [1, 2, 3]


def test_another_twin_makes_one_though_both_are_evaluated_on_the_true_plant() -> None:
    other = TRUTH + np.array([0.5, 0, -0.5, 0, 0, 0, 0])
    found = compare_policies(CONFIG, [outcome(other), outcome(TRUTH)])
    alone = compare_policies(CONFIG, [outcome(TRUTH), outcome(TRUTH)])
    assert found.identified_scores[0] != found.true_scores[0]
    np.testing.assert_array_equal(found.true_scores, alone.true_scores)
    assert found.identified_scores[1] == pytest.approx(alone.identified_scores[1])
