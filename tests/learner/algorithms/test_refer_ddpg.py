from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms import State
from onrig.learner.algorithms.refer_ddpg import ReferDdpg
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import concatenate, tanh
from onrig.learner.tape.trace import Tape
from tests.learner.algorithms.refer_algorithms import CAPACITY, RandomMemory, make_algorithm


def _ddpg(memory: RandomMemory, refer: dict[str, Any] | None = None, **section: Any) -> ReferDdpg:
    algorithm = make_algorithm(memory, section, {} if refer is None else refer)
    assert isinstance(algorithm, ReferDdpg)
    return algorithm


def test_the_error_uses_the_target_policys_value_at_the_successor() -> None:
    memory = RandomMemory(2)
    ddpg = _ddpg(memory, {"standardise": False}, gamma=0.5, tau=0.1)
    ddpg.update(memory.draws(30, 8))
    batches = memory.draws(1, 8)

    def value_after(tape: Tape, x: Array, _: Array | None) -> Array:
        return ddpg._target_critic(concatenate(x, tanh(ddpg._target_actor(x))))

    next_value = ddpg.forward(value_after, 3, 1)(batches.next_observation[0])[..., 0]
    pairs = np.concatenate((batches.observation[0], batches.action[0]), axis=-1)
    q = ddpg.forward(lambda tape, pair, _: ddpg._critic(pair), 5, 1)(pairs)[..., 0]
    target = batches.reward[0] + 0.5 * np.where(batches.terminated[0], 0.0, next_value)
    signals = ddpg.update(batches)
    assert signals.target is not None
    np.testing.assert_allclose(signals.target[0], target, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(signals.td[0], target - q, rtol=1e-4, atol=1e-5)


def test_the_critic_learns_only_from_near_experiences_for_any_beta() -> None:
    memory = RandomMemory(1)
    ddpg = _ddpg(memory, {"standardise": False}, critic_decay=0.0)
    state_before = _vector(ddpg.state(), "critic")
    memory.mean[:] = memory.drawn[:] = 3.0  # far from every policy, whose means are within 1
    ddpg.update(memory.draws(3, 8))
    assert np.array_equal(_vector(ddpg.state(), "critic"), state_before)
    memory.mean[:] = memory.drawn[:] = ddpg.policy(memory.observation)
    ddpg.update(memory.draws(1, 8))
    assert not np.array_equal(_vector(ddpg.state(), "critic"), state_before)
    assert ddpg.divergence()[0, 1] < 1.0


def _vector(state: State, name: str) -> NDArray[np.float64]:
    """Parameters of a network of the first trial."""
    parts = [
        np.asarray(values, np.float64)[0].reshape(-1) for key, values in state.items() if key.startswith(f"{name}/")
    ]
    return np.concatenate(parts)


def _network(ddpg: ReferDdpg, name: str, vector: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Linear outputs after softsign units, from a plain vector of parameters."""
    sizes, start = (ddpg._actor if name == "actor" else ddpg._critic).sizes, 0
    for layer, (inputs, outputs) in enumerate(sizes):
        block = vector[start : start + (inputs + 1) * outputs].view(-1, outputs)
        x, start = x @ block[:-1] + block[-1], start + block.numel()
        x = x if layer == len(sizes) - 1 else x / (1.0 + x.abs())
    return x


def test_the_actors_gradient_mixes_those_of_the_value_and_of_the_divergence() -> None:
    memory, beta, variance = RandomMemory(1), 0.4, 0.2**2
    ddpg = _ddpg(memory, {"standardise": False}, batch=CAPACITY, critic_lr=1e-2)
    memory.mean[:] = ddpg.policy(memory.observation) + 0.3 * memory.mean
    memory.drawn[:] = memory.mean + 0.2 * np.random.default_rng(0).standard_normal(memory.drawn.shape)
    ddpg.update(memory.draws(20, CAPACITY))
    assert ddpg._refer is not None
    ddpg._refer.beta[:] = beta
    state_before = ddpg.state()
    ddpg.update(memory.draws(1, CAPACITY))
    actor = torch.tensor(_vector(state_before, "actor"), requires_grad=True)
    first_gradient, second_gradient = (
        np.asarray(state["adam/actor"], np.float64)[0, 0, : len(actor)] for state in (state_before, ddpg.state())
    )

    s, drawn_action, mean_behaviour = (
        torch.tensor(c[0]).double() for c in (memory.observation, memory.drawn, memory.mean)
    )
    critic = torch.tensor(_vector(state_before, "critic"))
    mean = _network(ddpg, "actor", actor, s).tanh()
    value = _network(ddpg, "critic", critic, torch.cat((s, mean), dim=1))[:, 0]
    divergence = (mean_behaviour - mean).square().sum(dim=1) / (2.0 * variance)
    ratio = (
        ((drawn_action - mean_behaviour).square() - (drawn_action - mean).square()).sum(dim=1) / (2.0 * variance)
    ).exp()
    is_near = (ratio > 0.2) & (ratio < 5.0)
    assert 10 < is_near.sum() < CAPACITY
    value_gradient, divergence_gradient = (
        torch.autograd.grad(part.mean(), actor, retain_graph=True)[0].numpy() for part in (is_near * value, divergence)
    )
    expected = -beta * value_gradient + (1.0 - beta) * divergence_gradient
    np.testing.assert_allclose((second_gradient - 0.9 * first_gradient) / 0.1, expected, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("rules", ["both", 2, "none"])
def test_it_learns_the_best_action_and_stays_near_if_configured(rules: str | int) -> None:
    memory = RandomMemory(1, m=1)
    memory.terminated[:] = True
    memory.mean[:], memory.std[:] = 0.0, 0.2
    memory.drawn[:] = 0.2 * np.random.default_rng(0).standard_normal(memory.drawn.shape)
    memory.reward[:] = -4.0 * (memory.drawn[..., 0] - 0.3) ** 2
    refer = {"rules": rules, "standardise": False}
    ddpg = _ddpg(memory, refer, batch=16, actor_lr=1e-2, critic_lr=1e-2, critic_decay=0.0, tau=0.1)
    ddpg.update(memory.draws(150, 16))
    mean, kl = float(ddpg.policy(memory.observation).mean()), ddpg.divergence()[0, 0]
    if rules == "none":
        assert mean > 0.25
        assert kl > 1.0
    else:
        assert 0.02 < mean < 0.3
        assert kl < 1.0
