"""Polishing: never worse, better where possible, and its result is that of the exact plant."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from onrig.sim.baselines.corridor import polish
from onrig.sim.baselines.finite_horizon import induce, look_ahead, run
from onrig.sim.baselines.fuzzy_q_iteration import Grid
from tests.sim.baselines.models import ALL, MAGMAN, PENDULUM


@pytest.mark.parametrize("name", ALL)
def test_it_never_earns_less_and_reports_what_the_plant_gives(name: str) -> None:
    model = msgspec.structs.replace(ALL[name], steps=20)
    rough = look_ahead(model, induce(model, Grid((16, 17), 5)))
    better = polish(model, rough, passes=3)
    assert better.mean_reward >= rough.mean_reward
    assert better.mean_reward == run(model, better.actions).mean_reward
    assert (better.actions >= model.action_low).all()
    assert (better.actions <= model.action_high).all()


def test_it_recovers_most_of_what_disturbed_actions_lost() -> None:
    model = msgspec.structs.replace(PENDULUM, steps=30)
    best = look_ahead(model, induce(model, Grid((60, 61), 9)))
    noise = np.random.default_rng(0).normal(0.0, 0.3, best.actions.shape)
    worse = run(model, np.clip(best.actions + noise, model.action_low, model.action_high))
    lost = best.mean_reward - worse.mean_reward
    assert lost > 0.1
    assert polish(model, worse, passes=6).mean_reward > worse.mean_reward + 0.5 * lost


def test_without_passes_the_trajectory_is_unchanged() -> None:
    model = msgspec.structs.replace(MAGMAN, steps=5)
    still = run(model, np.zeros((5, 4)))
    assert polish(model, still, passes=0) is still
