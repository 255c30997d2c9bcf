from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onrig.learner.algorithms.refer_ddpg import ReferDdpg
from tests.learner.algorithms.hosts import Memory, host


def _ddpg(memory: Memory, refer: dict[str, Any] | None = None, **section: Any) -> ReferDdpg:
    made = host(memory, section, {} if refer is None else refer)
    assert isinstance(made, ReferDdpg)
    return made


def test_the_error_is_that_of_the_target_policys_value_at_the_successor() -> None:
    memory = Memory(2)
    ddpg = _ddpg(memory, {"standardise": False}, gamma=0.5, tau=0.1)
    ddpg.update(memory.draws(30, 8))
    batches = memory.draws(1, 8)
    x, x_next = (ddpg._inputs(states[0]) for states in (batches.observation, batches.next_observation))
    taken = torch.zeros(2, 8, 4)
    taken[..., :2] = torch.from_numpy(batches.action[0])
    with torch.no_grad():
        after = ddpg._value(ddpg._critic.target, x_next, ddpg._acts(ddpg._actor.target, x_next)).numpy()
        q = ddpg._value(ddpg._critic.frozen, x, taken).numpy()
    target = batches.reward[0] + 0.5 * np.where(batches.terminated[0], 0.0, after)
    signals = ddpg.update(batches)
    assert signals.target is not None
    np.testing.assert_allclose(signals.target[0], target, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(signals.td[0], target - q, rtol=1e-4, atol=1e-5)


def test_the_critic_learns_from_near_experiences_alone_whatever_beta() -> None:
    memory = Memory(1)
    ddpg = _ddpg(memory, {"standardise": False}, critic_decay=0.0)
    memory.drawn[:] = memory.mean  # with these, |ln rho| is the distance of the means
    before = ddpg.state()["online_critic"]
    memory.deviates[:] = True
    ddpg.update(memory.draws(3, 8))
    assert np.array_equal(ddpg.state()["online_critic"], before)
    memory.deviates[:] = False
    memory.mean[:] = memory.drawn[:] = ddpg.policy(memory.observation)
    ddpg.update(memory.draws(1, 8))
    assert not np.array_equal(ddpg.state()["online_critic"], before)
    assert ddpg.departure()[0, 1] < 1.0


@pytest.mark.parametrize("rules", ["both", 2, "none"])
def test_it_learns_the_best_action_and_stays_near_where_it_is_told_to(rules: str | int) -> None:
    memory = Memory(1, m=1)
    memory.terminated[:] = True
    memory.mean[:], memory.std[:] = 0.0, 0.2
    memory.drawn[:] = 0.2 * np.random.default_rng(0).standard_normal(memory.drawn.shape)
    memory.reward[:] = -4.0 * (memory.drawn[..., 0] - 0.3) ** 2
    refer = {"rules": rules, "standardise": False}
    ddpg = _ddpg(memory, refer, batch=16, actor_lr=1e-2, critic_lr=1e-2, critic_decay=0.0, tau=0.1)
    ddpg.update(memory.draws(150, 16))
    mean, kl = float(ddpg.policy(memory.observation).mean()), ddpg.departure()[0, 0]
    if rules == "none":
        assert mean > 0.25
        assert kl > 1.0
    else:
        assert 0.02 < mean < 0.3
        assert kl < 1.0
