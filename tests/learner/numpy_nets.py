"""Networks, gradients and Adam in float64 NumPy, and updates of TD3 and SAC built from them, without torch.

Networks are plain vectors, layer by layer weights (in, out), then the bias (``onrig.learner.networks``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.algorithm_settings import Td3Config
from onrig.learner.algorithms import Minibatches
from onrig.learner.sac_settings import SacConfig

Vector = NDArray[np.float64]
State = dict[str, Vector]


class ForwardPass(NamedTuple):
    """Inputs of each layer, and the output of the last."""

    inputs: list[Vector]
    output: Vector


class Mlp:
    """Layers of the given widths, relu between them, linear at the end."""

    def __init__(self, vector: Vector, widths: Sequence[int]) -> None:
        self.weights, self.biases, start = [], [], 0
        for fan_in, fan_out in itertools.pairwise(widths):
            block = vector[start : start + (fan_in + 1) * fan_out].reshape(fan_in + 1, fan_out)
            self.weights.append(block[:-1])
            self.biases.append(block[-1])
            start += block.size
        assert start == len(vector)

    def forward(self, x: Vector) -> ForwardPass:
        inputs = []
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            inputs.append(x if i == 0 else np.maximum(x, 0.0))
            x = inputs[-1] @ weight + bias
        return ForwardPass(inputs, x)

    def backward(self, forward_pass: ForwardPass, d: Vector) -> tuple[Vector, Vector]:
        """Gradients by parameters, as a plain vector, and by inputs, of a loss with gradient ``d`` by the output."""
        parts = []
        for i in reversed(range(len(self.weights))):
            parts.append(np.concatenate((forward_pass.inputs[i].T @ d, d.sum(axis=0, keepdims=True))).reshape(-1))
            d = d @ self.weights[i].T
            if i:
                d = d * (forward_pass.inputs[i] > 0.0)
        return np.concatenate(parts[::-1]), d


def adam_step(state: State, name: str, gradient: Vector, lr: float) -> None:
    """Kingma and Ba 2015, Algorithm 1, on one trial's vectors of ``name`` in ``state``."""
    state[f"adam_step_{name}"] = t = state[f"adam_step_{name}"] + 1.0
    m = state[f"adam_mean_{name}"] = 0.9 * state[f"adam_mean_{name}"] + 0.1 * gradient
    v = state[f"adam_square_{name}"] = 0.999 * state[f"adam_square_{name}"] + 0.001 * gradient**2
    state[f"online_{name}"] = state[f"online_{name}"] - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)


def polyak_update(state: State, name: str, tau: float) -> None:
    state[f"target_{name}"] = (1 - tau) * state[f"target_{name}"] + tau * state[f"online_{name}"]


def trial_state(state: Mapping[str, NDArray[np.generic]], trial: int) -> State:
    """One trial's state in float64 as plain vectors: ``online_X``, ``target_X``, Adam's ``adam_mean_X`` and so on,
    (copies, P); numbered networks (``critic1``, ``critic2``) are copies of one."""
    copies_by_name: dict[str, list[Vector]] = {}
    vectors: dict[str, list[Vector]] = {}
    for key, values in state.items():
        if key in ("streams", "updates"):
            continue
        trial_values = np.asarray(values[trial], np.float64).reshape(-1)
        group, _, field = key.rpartition("/")
        if group == "adam":
            size, name = len(trial_values) // 2, field.rstrip("12")
            parts = {"mean": trial_values[:size], "square": trial_values[size:-1], "step": trial_values[-1:]}
            for part, vector in parts.items():
                copies_by_name.setdefault(f"adam_{part}_{name}", []).append(vector)
        else:
            vectors.setdefault(group, []).append(trial_values)
    for group, group_vectors in vectors.items():
        kind, name = ("target", group.removeprefix("target_")) if group.startswith("target") else ("online", group)
        copies_by_name.setdefault(f"{kind}_{name.rstrip('12')}", []).append(np.concatenate(group_vectors))
    stacked = {key: np.array(copies) for key, copies in copies_by_name.items()}
    return {key: copies[0, 0] if "_step_" in key else copies for key, copies in stacked.items()} | {
        "updates": np.asarray(state["updates"], np.float64)
    }


class Data(NamedTuple):
    """One minibatch of one trial."""

    s: Vector
    a: Vector
    r: Vector
    s_next: Vector
    alive: Vector
    w: Vector


def minibatch_data(batches: Minibatches, k: int, trial: int) -> Data:
    index = k, trial
    fields = batches.observation, batches.action, batches.reward, batches.next_observation
    weights = np.ones_like(batches.reward) if batches.weights is None else batches.weights
    return Data(*(np.asarray(f[index], np.float64) for f in (*fields, ~batches.terminated, weights)))


def critic_step(state: State, widths: Sequence[int], data: Data, targets: Vector, lr: float) -> Vector:
    """One step of both critics down the sum of mean w (Q - y)^2; returns y - Q before it, (2, B)."""
    x, gradients, errors = np.concatenate((data.s, data.a), axis=1), [], []
    for vector in state["online_critic"]:
        critic = Mlp(vector, widths)
        forward_pass = critic.forward(x)
        errors.append(targets - forward_pass.output[:, 0])
        gradients.append(critic.backward(forward_pass, (-2.0 * data.w * errors[-1] / len(targets))[:, None])[0])
    adam_step(state, "critic", np.stack(gradients), lr)
    return np.stack(errors)


def evaluate_critic(vector: Vector, widths: Sequence[int], s: Vector, a: Vector) -> Vector:
    return Mlp(vector, widths).forward(np.concatenate((s, a), axis=1)).output[:, 0]


def td3_update(state: State, config: Td3Config, data: Data, normal: Vector) -> Vector:
    """Fujimoto et al. 2018, Algorithm 1, lines 8 to 15, on ``state`` in place; returns both critics' errors (2, B)."""
    (B, n), m = data.s.shape, data.a.shape[1]
    actor_widths, widths = (n, *config.hidden, m), (n + m, *config.hidden, 1)
    noise = np.clip(config.target_noise * normal, -config.noise_clip, config.noise_clip)
    next_action = np.clip(
        np.tanh(Mlp(state["target_actor"][0], actor_widths).forward(data.s_next).output) + noise, -1, 1
    )
    q_next = np.min(
        [evaluate_critic(vector, widths, data.s_next, next_action) for vector in state["target_critic"]], axis=0
    )
    targets = config.reward_scale * data.r + config.gamma * data.alive * q_next
    errors = critic_step(state, widths, data, targets, config.lr)
    state["updates"] = state["updates"] + 1
    updates_actor = state["updates"] % config.delay == 0
    if updates_actor:
        actor, critic = Mlp(state["online_actor"][0], actor_widths), Mlp(state["online_critic"][0], widths)
        actor_pass = actor.forward(data.s)
        a = np.tanh(actor_pass.output)
        critic_pass = critic.forward(np.concatenate((data.s, a), axis=1))
        action_gradient = critic.backward(critic_pass, np.full((B, 1), -1.0 / B))[1][:, n:]
        adam_step(state, "actor", actor.backward(actor_pass, action_gradient * (1 - a**2))[0][None], config.lr)
    if updates_actor or config.targets == "every":
        polyak_update(state, "actor", config.tau)
        polyak_update(state, "critic", config.tau)
    return errors


class BehaviourSample(NamedTuple):
    """A squashed Gaussian action and its log-probability, with the intermediate values for backpropagation."""

    action: Vector
    log_pi: Vector
    forward_pass: ForwardPass
    units: Vector
    log_std: Vector


class GaussianActor:
    """Hidden layers, relu, then mean and log standard deviation."""

    def __init__(self, vector: Vector, n: int, m: int, config: SacConfig) -> None:
        size, self._bounds = (config.hidden[-1] + 1) * 2 * m, config.log_std
        self._hidden_layers = Mlp(vector[:-size], (n, *config.hidden))
        self._mean, self._log_std = np.split(vector[-size:].reshape(-1, 2 * m), 2, axis=1)

    def act(self, s: Vector, eps: Vector) -> BehaviourSample:
        forward_pass = self._hidden_layers.forward(s)
        units = np.concatenate((np.maximum(forward_pass.output, 0.0), np.ones((len(s), 1))), axis=1)
        log_std = np.clip(units @ self._log_std, *self._bounds)
        u = units @ self._mean + np.exp(log_std) * eps
        action = np.tanh(u)
        density = -0.5 * eps**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - action**2 + 1e-6)
        return BehaviourSample(action, density.sum(axis=1), forward_pass, units, log_std)

    def backward(self, sample: BehaviourSample, eps: Vector, d_action: Vector, d_log_pi: float) -> Vector:
        """Gradient of a loss with these gradients by each action and by each log-probability."""
        squash_slope = 1 - sample.action**2
        d_u = (d_action + d_log_pi * 2 * sample.action / (squash_slope + 1e-6)) * squash_slope
        is_inside = (sample.log_std > self._bounds[0]) & (sample.log_std < self._bounds[1])
        d_log_std = (d_u * np.exp(sample.log_std) * eps - d_log_pi) * is_inside
        d_units = (d_u @ self._mean.T + d_log_std @ self._log_std.T)[:, :-1] * (sample.forward_pass.output > 0.0)
        head_gradients = sample.units.T @ np.concatenate((d_u, d_log_std), axis=1)
        return np.concatenate(
            (self._hidden_layers.backward(sample.forward_pass, d_units)[0], head_gradients.reshape(-1))
        )


def sac_update(state: State, config: SacConfig, data: Data, normal: Vector) -> Vector:
    """Haarnoja et al. 2018b, Algorithm 1, on ``state`` in place; ``normal`` (2, B, m).  Returns the errors (2, B)."""
    (B, n), m = data.s.shape, data.a.shape[1]
    widths = (n + m, *config.hidden, 1)
    alpha = float(np.exp(state["online_temperature"][0, 0]))
    next_sample = GaussianActor(state["online_actor"][0], n, m, config).act(data.s_next, normal[0])
    q_next = np.min(
        [evaluate_critic(vector, widths, data.s_next, next_sample.action) for vector in state["target_critic"]], axis=0
    )
    targets = config.reward_scale * data.r + config.gamma * data.alive * (q_next - alpha * next_sample.log_pi)
    errors = critic_step(state, widths, data, targets, config.lr)

    actor = GaussianActor(state["online_actor"][0], n, m, config)
    sample = actor.act(data.s, normal[1])
    pair = np.concatenate((data.s, sample.action), axis=1)
    critics = [Mlp(vector, widths) for vector in state["online_critic"]]
    forward_passes = [critic.forward(pair) for critic in critics]
    first_is_least = forward_passes[0].output < forward_passes[1].output
    d_action = np.zeros_like(sample.action)
    for critic, forward_pass, is_least in zip(critics, forward_passes, (first_is_least, ~first_is_least), strict=True):
        d_action += critic.backward(forward_pass, -1.0 * is_least / B)[1][:, n:]
    adam_step(state, "actor", actor.backward(sample, normal[1], d_action, alpha / B)[None], config.lr)

    adam_step(state, "temperature", np.full((1, 1), m - sample.log_pi.mean()), config.lr)
    polyak_update(state, "critic", config.tau)
    state["updates"] = state["updates"] + 1
    return errors
