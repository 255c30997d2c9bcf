"""An update of SAC and its descendants in plain torch, float64: REDQ (Chen et al. 2021, Algorithm 1), DroQ (Hiraoka et
al. 2022, Algorithm 2), CrossQ (Bhatt et al. 2024, Figure 2)."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import batch_norm, layer_norm

from onrig.learner.sac_settings import SacConfig
from onrig.learner.tape.numpy_kernels import dropout_mask
from tests.learner.numpy_nets import Data
from tests.learner.torch_nets import Tensors


class CriticRandomness(NamedTuple):
    """Random numbers of an update."""

    noise: NDArray[np.float64]
    """(2, B, m): for the next action, and for the actor's."""
    subset: Sequence[int]
    """Critics in the target."""
    seed: float = 0.0
    """Masks of the dropout."""


class TorchSac:
    """One trial, starting from our state."""

    def __init__(self, state: Mapping[str, NDArray[np.generic]], trial: int, config: SacConfig) -> None:
        self.config, self.updates = config, int(state["updates"])
        values = {k: torch.tensor(np.asarray(v[trial], np.float64)) for k, v in state.items() if k != "updates"}
        values.pop("streams")
        self.moments = {k.removeprefix("adam/"): values.pop(k)[0] for k in list(values) if k.startswith("adam/")}
        self.p: Tensors = values

    def update(self, data: Data, randomness: CriticRandomness) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """TD errors (N, B) and target (B,) before the update."""
        config, p = self.config, self.p
        s, a, r, s_next, alive, weight = (torch.tensor(field) for field in data)
        noise = torch.tensor(randomness.noise)
        self.updates += 1
        self._seed, self._dropout_counter = randomness.seed, itertools.count()
        critics = [f"critic{i + 1}" for i in range(config.resolved_options.critics)]
        alpha = p["temperature/log_alpha"].exp()[0, 0]
        with torch.no_grad():
            next_action, next_log_pi = self._act(s_next, noise[0])
            pair = torch.cat((s_next, next_action), 1)
            if config.resolved_options.targets == "averaged":
                target_values = [self._net(f"target_{name}", pair) for name in critics]
            else:  # with the current pairs; the second pass, below, has the same masks
                stacked_pairs, dropout_counter = (
                    torch.cat((torch.cat((s, a), 1), pair)),
                    copy.copy(self._dropout_counter),
                )
                target_values = [self._net(name, stacked_pairs, is_training=True)[len(s) :] for name in critics]
                self._dropout_counter = dropout_counter
            value = reduce(torch.minimum, [target_values[i] for i in randomness.subset])
            y = config.reward_scale * r + config.gamma * alive * (value - alpha * next_log_pi)
        leaves = self._leaves(critics)
        if config.resolved_options.targets == "averaged":
            q = torch.stack([self._net(name, torch.cat((s, a), 1)) for name in critics])
        else:
            q = torch.stack(
                [
                    self._net(name, stacked_pairs, is_training=True, updates_statistics=True)[: len(s)]
                    for name in critics
                ]
            )
        errors = y - q
        self._adam_step((weight * errors.square()).mean(1).sum(), leaves)

        if self.updates % config.resolved_options.delay == 0:
            self._update_actor(s, a.shape[1], noise[1], critics, alpha)
        for name in p:
            if name.startswith("target_"):
                p[name] = p[name] + config.tau * (p[name.removeprefix("target_")] - p[name])
        return errors.detach().numpy(), y.numpy()

    def _update_actor(
        self, s: torch.Tensor, m: int, noise: torch.Tensor, critics: Sequence[str], alpha: torch.Tensor
    ) -> None:
        """Update actor and temperature."""
        leaves = self._leaves(["actor"])
        pi, log_pi = self._act(s, noise, is_training=True)
        values = torch.stack([self._net(name, torch.cat((s, pi), 1)) for name in critics])
        value = values.mean(0) if self.config.resolved_options.actor_value == "mean" else values.amin(0)
        self._adam_step((alpha * log_pi - value).mean(), leaves)
        leaves = self._leaves(["temperature"])
        log_alpha = self.p["temperature/log_alpha"]
        self._adam_step(-(log_alpha * (log_pi.detach() - m)).mean(), leaves)

    def _act(
        self, s: torch.Tensor, noise: torch.Tensor, *, is_training: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self._layers("actor", s, is_training=is_training, updates_statistics=is_training).chunk(2, 1)
        log_std = log_std.clamp(*self.config.log_std)
        a = torch.tanh(mean + log_std.exp() * noise)
        density = -0.5 * noise**2 - log_std - 0.5 * math.log(2.0 * math.pi) - torch.log(1.0 - a**2 + 1e-6)
        return a, density.sum(1)

    def _net(
        self, net: str, x: torch.Tensor, *, is_training: bool = False, updates_statistics: bool = False
    ) -> torch.Tensor:
        return self._layers(
            net, x, self.config.resolved_options.dropout, is_training=is_training, updates_statistics=updates_statistics
        )[:, 0]

    def _normalised(
        self, net: str, layer: int, x: torch.Tensor, is_training: bool, updates_statistics: bool
    ) -> torch.Tensor:
        """Batch normalisation, which ``updates_statistics`` the running statistics."""
        names = [f"{net}_statistics/{kind}{layer}" for kind in ("mean", "variance")]
        scale, shift = self.p[f"{net}/scale{layer}"][0], self.p[f"{net}/shift{layer}"][0]
        mean, variance = (self.p[name][0] for name in names)
        if updates_statistics:
            batch_moments = x.detach().mean(0), x.detach().var(0, unbiased=False)
            for name, value in zip(names, batch_moments, strict=True):
                self.p[name] = 0.99 * self.p[name] + 0.01 * value[None]
        return batch_norm(
            x, None if is_training else mean, None if is_training else variance, scale, shift, is_training, eps=1e-3
        )

    def _layers(
        self,
        net: str,
        x: torch.Tensor,
        dropout: float = 0.0,
        *,
        is_training: bool = False,
        updates_statistics: bool = False,
    ) -> torch.Tensor:
        p, last_layer = self.p, len(self.config.hidden)
        batch = self.config.resolved_options.normalization == "batch"
        for layer in range(last_layer + 1):
            x = self._normalised(net, layer, x, is_training, updates_statistics) if batch else x
            x = x @ p[f"{net}/weight{layer}"] + p[f"{net}/bias{layer}"]
            if layer == last_layer:
                return x
            if dropout:
                keep_mask = dropout_mask((x.shape[0], x.shape[1]), dropout, next(self._dropout_counter), self._seed)
                x = x * torch.tensor(keep_mask) / (1.0 - dropout)
            if f"{net}/scale{layer}" in p and not batch:
                x = layer_norm(x, x.shape[1:], p[f"{net}/scale{layer}"][0], p[f"{net}/shift{layer}"][0])
            x = torch.relu(x)
        raise AssertionError

    def _leaves(self, nets: Sequence[str]) -> Tensors:
        names = [name for name in self.p if name.partition("/")[0] in nets]
        for name in names:
            self.p[name] = self.p[name].detach().requires_grad_()
        return {name: self.p[name] for name in names}

    def _adam_step(self, loss: torch.Tensor, leaves: Tensors) -> None:
        """One step of Adam (Kingma and Ba 2015) for each group of leaves."""
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        gradients_by_net: dict[str, list[tuple[str, torch.Tensor]]] = {}
        for name, g in zip(leaves, gradients, strict=True):
            gradients_by_net.setdefault(name.partition("/")[0], []).append((name, g))
        for net, named_gradients in gradients_by_net.items():
            flat_gradient = torch.cat([g.reshape(-1) for _, g in named_gradients])
            n, moments = len(flat_gradient), self.moments[net]
            b1, b2 = self.config.resolved_options.beta1, 0.999
            first_moment, second_moment = (
                b1 * moments[:n] + (1 - b1) * flat_gradient,
                b2 * moments[n:-1] + (1 - b2) * flat_gradient**2,
            )
            t = moments[-1:] + 1.0
            self.moments[net] = torch.cat((first_moment, second_moment, t))
            step = self.config.lr * (first_moment / (1 - b1**t)) / ((second_moment / (1 - b2**t)).sqrt() + 1e-8)
            start = 0
            for name, g in named_gradients:
                part, start = step[start : start + g.numel()], start + g.numel()
                self.p[name] = (self.p[name] - part.reshape(g.shape)).detach()
