"""Plain DDPG and DQN by autograd, after de Bruin et al. 2018 (§3.2, App. B): references for the hand-written ones."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.algorithm_settings import NETWORK_SIZES, DdpgConfig
from onrig.learner.algorithms import Minibatches, State
from onrig.learner.algorithms.ddpg import Ddpg
from onrig.learner.algorithms.dqn import Dqn

Vector = NDArray[np.floating]


class ReferenceUpdate(NamedTuple):
    """Results of one minibatch for one trial."""

    td: Vector
    actor_gradient: Vector
    critic_gradient: Vector


Sizes = list[tuple[int, int]]
"""Inputs and outputs of each layer."""


def layouts(config: DdpgConfig, n: int, m: int) -> tuple[Sizes, Sizes]:
    """Layers of actor and critic, whose second layer also takes the action."""
    size = NETWORK_SIZES[config.network]
    actor, critic = (list(itertools.pairwise(widths)) for widths in ((n, *size.actor, m), (n, *size.critic, 1)))
    critic[1] = critic[1][0] + m, critic[1][1]
    return actor, critic


def minibatches(
    rng: np.random.Generator, shape: tuple[int, int, int], n: int, m: int, *, weighted: bool = True
) -> Minibatches:
    """Random minibatches of shape (K, S, B), a fifth of them terminated."""
    return Minibatches(
        observation=rng.uniform(-1, 1, (*shape, n)),
        action=rng.uniform(-1, 1, (*shape, m)),
        reward=rng.uniform(-10, 0, shape),
        next_observation=rng.uniform(-1, 1, (*shape, n)),
        terminated=rng.random(shape) < 0.2,
        weights=rng.uniform(0.2, 2.0, shape) if weighted else None,
    )


def _part(batches: Minibatches, index: tuple[slice, ...]) -> Minibatches:
    return Minibatches(
        batches.observation[index],
        batches.action[index],
        batches.reward[index],
        batches.next_observation[index],
        batches.terminated[index],
        *(None if part is None else part[index] for part in (batches.weights, batches.rewards, batches.lengths)),  # type: ignore[arg-type]
    )


def select_trial(batches: Minibatches, trial: int) -> Minibatches:
    """The same minibatches for a single trial."""
    return _part(batches, (slice(None), slice(trial, trial + 1)))


def select_minibatch(batches: Minibatches, k: int) -> Minibatches:
    """Only the k-th minibatch, for all trials."""
    return _part(batches, (slice(k, k + 1),))


def vectors(state: Mapping[str, NDArray[np.generic]], group: str) -> Vector:
    """Parameters of a network of a state as plain vectors, (S, P)."""
    parts = [np.asarray(v, np.float64) for name, v in state.items() if name.rpartition("/")[0] == group]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def replace_vectors(state: State, group: str, vector: Vector) -> State:
    """The same state with other parameters (S, P) of a network."""
    new_state, start = dict(state), 0
    for name, values in state.items():
        if name.rpartition("/")[0] == group:
            end = start + values[0].size
            new_state[name] = vector[:, start:end].reshape(values.shape)
            start = end
    return new_state


def gradients(algorithm: Ddpg | Dqn, batches: Minibatches) -> dict[str, Vector]:
    """Gradients (S, P) by network for one minibatch (K = 1), recovered from the change of Adam's means."""
    state_before = algorithm.state()
    algorithm.update(batches)
    state_after = algorithm.state()
    algorithm.restore(state_before)
    gradient_by_name: dict[str, Vector] = {}
    for name in (name for name in state_before if name.startswith("adam/")):
        size = state_before[name].shape[-1] // 2
        moment_means = (np.asarray(state[name][:, 0, :size], np.float64) for state in (state_before, state_after))
        means_before, means_after = moment_means
        gradient_by_name[name.removeprefix("adam/")] = (means_after - 0.9 * means_before) / (1.0 - 0.9)
    return gradient_by_name


def _network(sizes: Sizes, vector: torch.Tensor, x: torch.Tensor, action: torch.Tensor | None) -> torch.Tensor:
    start = 0
    for i, (inputs, outputs) in enumerate(sizes):
        if i == 1 and action is not None:
            x = torch.cat((x, action), dim=1)
        weight = vector[start : start + inputs * outputs].view(inputs, outputs)
        start += inputs * outputs
        x = x @ weight + vector[start : start + outputs]
        start += outputs
        if i < len(sizes) - 1:
            x = torch.relu(x)
    return x


def reference_update(
    ddpg: Ddpg, config: DdpgConfig, n: int, m: int, batches: Minibatches, trial: int
) -> ReferenceUpdate:
    """TD errors and gradients of one trial on one minibatch (K = 1) by autograd in float64."""
    actor, critic = layouts(config, n, m)
    state = {
        name: torch.tensor(vectors(ddpg.state(), name)[trial])
        for name in ("actor", "critic", "target_actor", "target_critic")
    }
    policy, value = state["actor"].requires_grad_(), state["critic"].requires_grad_()
    s, a, r, next_state = (
        torch.tensor(np.asarray(x[0, trial], dtype=np.float64))
        for x in (batches.observation, batches.action, batches.reward, batches.next_observation)
    )
    alive = torch.tensor(1.0 - batches.terminated[0, trial].astype(np.float64))
    weights = torch.ones_like(r) if batches.weights is None else torch.tensor(batches.weights[0, trial])
    with torch.no_grad():
        next_action = torch.tanh(_network(actor, state["target_actor"], next_state, None))
        next_value = _network(critic, state["target_critic"], next_state, next_action)[:, 0]
        y = config.reward_scale * r + config.gamma * alive * next_value
    delta = y - _network(critic, value, s, a)[:, 0]
    (critic_gradient,) = torch.autograd.grad((weights * delta**2).mean(), value)
    q = _network(critic, value, s, torch.tanh(_network(actor, policy, s, None)))
    (actor_gradient,) = torch.autograd.grad(-q.mean(), policy)
    return ReferenceUpdate(delta.detach().numpy(), actor_gradient.numpy(), critic_gradient.numpy())


def reference_dqn_update(dqn: Dqn, n: int, batches: Minibatches, trial: int) -> tuple[Vector, Vector]:
    """TD errors and gradient of one trial on one minibatch (K = 1) by autograd in float64."""
    config = dqn.config
    layout = list(itertools.pairwise((n, *NETWORK_SIZES[config.network].critic, config.levels)))
    online_vector, target = (torch.tensor(vectors(dqn.state(), k)[trial]) for k in ("network", "target_network"))
    online_vector.requires_grad_()
    s, a, r, next_state = (
        torch.tensor(np.asarray(x[0, trial], dtype=np.float64))
        for x in (batches.observation, batches.action, batches.reward, batches.next_observation)
    )
    alive = torch.tensor(1.0 - batches.terminated[0, trial].astype(np.float64))
    weights = torch.ones_like(r) if batches.weights is None else torch.tensor(batches.weights[0, trial])
    action_indices = torch.argmin((a - torch.linspace(-1, 1, config.levels, dtype=torch.float64)).abs(), dim=1)
    with torch.no_grad():
        best = _network(layout, target, next_state, None).max(dim=1).values
    q = _network(layout, online_vector, s, None)[torch.arange(len(r)), action_indices]
    delta = config.reward_scale * r + config.gamma * alive * best - q
    (gradient,) = torch.autograd.grad((weights * delta**2).mean(), online_vector)
    return delta.detach().numpy(), gradient.numpy()


def numpy_policy(layers: Sequence[tuple[Vector, Vector]], observation: Vector) -> Vector:
    """The actor in float64 numpy: normalised observations (..., n) to normalised actions (..., m)."""
    x = np.asarray(observation, dtype=np.float64)
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight.astype(np.float64) + bias
        x = np.tanh(x) if i == len(layers) - 1 else np.maximum(x, 0.0)
    return x
