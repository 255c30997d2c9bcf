from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onrig.learner.algorithms.refer_ddpg import ReferDdpg
from onrig.learner.networks import Layout
from tests.learner.algorithms.hosts import CAPACITY, Memory, host


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
    before = ddpg.state()["online_critic"]
    memory.mean[:] = memory.drawn[:] = 3.0  # far from every policy, whose means are within 1
    ddpg.update(memory.draws(3, 8))
    assert np.array_equal(ddpg.state()["online_critic"], before)
    memory.mean[:] = memory.drawn[:] = ddpg.policy(memory.observation)
    ddpg.update(memory.draws(1, 8))
    assert not np.array_equal(ddpg.state()["online_critic"], before)
    assert ddpg.departure()[0, 1] < 1.0


def _network(layout: Layout, vector: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Linear outputs behind softsign units, from a plain vector of parameters."""
    start = 0
    for layer in layout.layers:
        block = vector[start : start + layer.n_parameters].view(-1, layer.outputs)
        x, start = x @ block[:-1] + block[-1], start + layer.n_parameters
        x = x if layer.last else x / (1.0 + x.abs())
    return x


def test_the_actors_gradient_mixes_that_of_the_value_and_that_of_the_divergence() -> None:
    memory, beta, variance = Memory(1), 0.4, 0.2**2
    ddpg = _ddpg(memory, {"standardise": False}, batch=CAPACITY, critic_lr=1e-2)
    memory.mean[:] = ddpg.policy(memory.observation) + 0.3 * memory.mean
    memory.drawn[:] = memory.mean + 0.2 * np.random.default_rng(0).standard_normal(memory.drawn.shape)
    ddpg.update(memory.draws(20, CAPACITY))
    assert ddpg._refer is not None
    ddpg._refer.beta[:] = beta
    before = ddpg.state()
    ddpg.update(memory.draws(1, CAPACITY))
    first, second = (np.asarray(state["adam_mean_actor"], np.float64)[0, 0] for state in (before, ddpg.state()))

    s, drawn, acted = (torch.tensor(c[0]).double() for c in (memory.observation, memory.drawn, memory.mean))
    actor, critic = (torch.tensor(before[f"online_{name}"][0, 0]).double() for name in ("actor", "critic"))
    actor.requires_grad_()
    mean = _network(ddpg._layout, actor, s).tanh()
    value = _network(ddpg._critic_layout, critic, torch.cat((s, mean), dim=1))[:, 0]
    divergence = (acted - mean).square().sum(dim=1) / (2.0 * variance)
    ratio = (((drawn - acted).square() - (drawn - mean).square()).sum(dim=1) / (2.0 * variance)).exp()
    near = (ratio > 0.2) & (ratio < 5.0)
    assert 10 < near.sum() < CAPACITY
    of_value, of_divergence = (
        torch.autograd.grad(part.mean(), actor, retain_graph=True)[0].numpy() for part in (near * value, divergence)
    )
    wanted = -beta * of_value + (1.0 - beta) * of_divergence
    np.testing.assert_allclose((second - 0.9 * first) / 0.1, wanted, rtol=2e-3, atol=1e-4)


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
