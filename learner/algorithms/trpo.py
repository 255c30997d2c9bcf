"""TRPO: natural gradient steps within a bound on the KL divergence (Schulman et al. 2015), as in OpenAI's baselines.

By autograd, for S trials at once (``onrig.learner.autograd``); conjugate gradients and line search are plain functions
of parameter vectors, a row for each trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms import State
from onrig.learner.algorithms.actor_critic import (
    MEAN_GAIN,
    ActorCritic,
    Frozen,
    flattened,
    gathered,
    initial_vector,
    policy_layout,
    value_layout,
)
from onrig.learner.algorithms.densities import kl_divergence, likelihood_ratio, log_density
from onrig.learner.algorithms.on_policy import Beat, PolicyBatch, silently
from onrig.learner.autograd import TANH_CONSTANT, Blocks, Nets, tanh_outputs
from onrig.learner.networks import WIDTH
from onrig.learner.on_policy_settings import TrpoConfig

Vectors = NDArray[np.float64]
"""(S, P)"""
_NEGLIGIBLE: Final = 1e-10
"""Squared residual at which conjugate gradients stop (OpenAI's baselines)."""
KL_SLACK: Final = 1.5
"""How far an accepted step may exceed ``max_kl``, as a factor."""


def conjugate_gradients(product: Callable[[Vectors], Vectors], b: Vectors, steps: int) -> Vectors:
    """Solve H x = b for each row, by ``steps`` products v -> H v."""
    x, residual, direction = np.zeros_like(b), b.copy(), b.copy()
    square = np.square(residual).sum(axis=1, keepdims=True)
    for _ in range(steps):
        going = square > _NEGLIGIBLE
        along = product(direction)
        curvature = (direction * along).sum(axis=1, keepdims=True)
        step = np.where(going, square / np.where(going, curvature, 1.0), 0.0)
        x += step * direction
        residual -= step * along
        after = np.square(residual).sum(axis=1, keepdims=True)
        direction = np.where(going, residual + after / np.where(going, square, 1.0) * direction, direction)
        square = np.where(going, after, square)
    return x


def step_of_divergence(product: Callable[[Vectors], Vectors], direction: Vectors, max_kl: float) -> Vectors:
    """The step x along each row with x' H x / 2 = ``max_kl``; 0 along no direction."""
    curvature = (direction * product(direction)).sum(axis=1, keepdims=True)
    return np.sqrt(2.0 * max_kl / np.where(curvature > 0.0, curvature, np.inf)) * direction


class Trpo(ActorCritic):
    """Policies and values of S trials, and what trains them."""

    def __init__(
        self,
        config: TrpoConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Initialise one trial from each of ``streams`` (policy, value, then the order of minibatches)."""
        super().__init__(config, n_observations, n_actions, streams, dtype)
        self.config: Final = config
        layouts = policy_layout(n_observations, n_actions, config.hidden), value_layout(n_observations, config.hidden)
        initial = config.initial
        vectors = [
            (
                initial_vector(layouts[0], s, initial=initial, last_gain=MEAN_GAIN, log_std=config.log_std),
                initial_vector(layouts[1], s, initial=initial, last_gain=1.0),
            )
            for s in streams
        ]
        self._layout = layouts[0]
        self._actor, self._critic = (
            Nets(
                layout,
                np.array(drawn)[:, None],
                lr=config.value_lr,
                dtype=dtype,
                targets=False,
                constant=TANH_CONSTANT,
            )
            for layout, drawn in zip(layouts, zip(*vectors, strict=True), strict=True)
        )

    @property
    def _policy_blocks(self) -> Blocks:
        return self._actor.frozen

    @property
    def _value_blocks(self) -> Blocks:
        return self._critic.frozen

    def _policy_vectors(self) -> NDArray[np.floating]:
        return self._actor.vectors()[:, 0]

    def learn(self, batch: PolicyBatch, left: float, beat: Beat = silently) -> None:
        """Take one step of the policies, then the epochs of the values; nothing depends on ``left``."""
        frozen = flattened(self._freeze(batch))
        x = self._inputs(frozen.observation)
        self._step_policies(x, frozen)
        self._fit_values(x, frozen.target, beat)
        self.updates += 1

    def _step_policies(self, x: torch.Tensor, batch: Frozen) -> None:
        """Follow the natural gradient as far as the divergence is within its bound and the objective does not fall."""
        config, S = self.config, len(x)
        drawn, log_pi, advantage = (
            torch.from_numpy(field).to(self._dtype) for field in (batch.drawn, batch.log_pi, batch.advantage)
        )

        def gains(blocks: Blocks) -> torch.Tensor:
            """R A of each experience, (S, N)."""
            ratio = likelihood_ratio(log_density(drawn, *self._distribution(blocks, x)), log_pi)
            return ratio * advantage

        N = log_pi.shape[1]
        present = gains(self._actor.online)
        before = present.detach().double().numpy().mean(axis=1)
        gradient = self._vectors(torch.autograd.grad(present.sum() / N, self._actor.online))
        few = x[:, :: config.fisher_every]
        product = self.fisher_product(few[:, : few.shape[1] // WIDTH * WIDTH])
        full = step_of_divergence(product, conjugate_gradients(product, gradient, config.cg_steps), config.max_kl)

        with torch.no_grad():
            old = self._distribution(self._actor.frozen, x)
        start = self._actor.vectors()[:, 0].astype(np.float64)
        taken, waiting = start.copy(), np.ones(S, np.bool_)
        for halving in range(config.halvings):
            tried = start + 0.5**halving * full
            self._write(tried)
            with torch.no_grad():
                gain = gains(self._actor.frozen).double().numpy().mean(axis=1)
                divergence = kl_divergence(*old, *self._distribution(self._actor.frozen, x))
            accepted = waiting & (gain >= before)
            accepted &= divergence.double().numpy().mean(axis=1) <= KL_SLACK * config.max_kl
            taken[accepted] = tried[accepted]
            waiting &= ~accepted
            if not waiting.any():
                break
        self._write(taken)

    def fisher_product(self, x: torch.Tensor) -> Callable[[Vectors], Vectors]:
        """Products v -> (F + damping) v of parameter vectors; F is the Hessian of the mean KL divergence at ``x``."""
        leaves = self._actor.online
        present = self._distribution(leaves, x)
        mean, std = (part.detach() for part in present)
        divergence = kl_divergence(mean, std, *present).sum() / x.shape[1]
        slope = torch.autograd.grad(divergence, leaves, create_graph=True)

        def product(v: Vectors) -> Vectors:
            flat = torch.zeros_like(self._actor.flat)
            self._layout.write(flat, v, len(v), constant=0.0)
            along = torch.autograd.grad(slope, leaves, self._layout.blocks(flat, len(v)), retain_graph=True)
            return self._vectors(along) + self.config.damping * v

        return product

    def _vectors(self, blocks: Sequence[torch.Tensor]) -> Vectors:
        """Plain vectors (S, P) of blocks such as the policy's."""
        S, flat = len(self._streams), torch.zeros_like(self._actor.flat)
        for part, block in zip(self._layout.blocks(flat, S), blocks, strict=True):
            part.copy_(block)
        return self._layout.read(flat, S).astype(np.float64)

    def _write(self, vectors: Vectors) -> None:
        self._layout.write(self._actor.flat, vectors, len(vectors), constant=TANH_CONSTANT)

    def _fit_values(self, x: torch.Tensor, target: NDArray[np.float32], beat: Beat = silently) -> None:
        config, N = self.config, target.shape[1]
        aims = torch.from_numpy(target).to(self._dtype)
        for _ in range(config.value_epochs):
            slots = np.stack([s.permutation(N).reshape(-1, config.batch) for s in self._streams], axis=1)
            for states, aim in zip(gathered(x, slots), gathered(aims, slots), strict=True):
                error = tanh_outputs(self._critic.online, states)[..., 0] - aim
                self._critic.descend(error.square().sum() / config.batch)
            beat()

    def state(self) -> State:
        """Copy of everything needed to resume training."""
        return super().state() | self._actor.state("policy") | self._critic.state("value")

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``, bit for bit; raises KeyError or ValueError if it does not fit."""
        super().restore(state)
        self._actor.restore(state, "policy")
        self._critic.restore(state, "value")
