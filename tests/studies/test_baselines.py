"""The baselines reach the references of the shipped tasks: `make study` solves the fine grids (a minute)."""

from __future__ import annotations

import pytest

from onrig.runtime.scoring import normalized
from onrig.sim.baselines.fuzzy_q_iteration import mean_rewards, solve
from onrig.sim.baselines.reference_scores import grids_for
from onrig.sim.baselines.task_model import random_reward
from tests.sim.baselines.models import ALL


@pytest.mark.study
@pytest.mark.parametrize("name", ALL)
def test_the_shipped_references_are_reproduced(name: str) -> None:
    model = ALL[name]
    estimate = random_reward(model)
    reached = mean_rewards(model, solve(model, grids_for(model, "fine")[-1]))
    print(f"\n{name}: random {estimate.mean:.4f} +- {estimate.standard_error:.4f}, {reached}")
    assert normalized(model.task, estimate.mean, 1) == pytest.approx(0.0, abs=0.003)
    assert normalized(model.task, max(reached), 1) == pytest.approx(1.0, abs=0.005)
