"""TRPO: natural gradient steps within a bound on the KL divergence (Schulman et al. 2015), as in OpenAI's baselines.

Conjugate gradients and the scaling of steps are plain functions of parameter vectors, with one row per trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithms.actor_critic import ActorCritic, BatchStatistics, flatten_actors, gather_minibatches
from onrig.learner.algorithms.on_policy import HeartbeatCallback, PolicyBatch, ignore_heartbeat
from onrig.learner.algorithms.traced import RecordBuffer
from onrig.learner.on_policy_settings import TrpoConfig
from onrig.learner.tape.array import Array
from onrig.learner.tape.densities import kl_divergence, likelihood_ratio, log_density
from onrig.learner.tape.elementary import concatenate, dense, exp, square
from onrig.learner.tape.executor import Run
from onrig.learner.tape.optimiser import descend
from onrig.learner.tape.trace import Tape

Vectors = NDArray[np.float64]
"""(S, P)"""
_CG_TOLERANCE: Final = 1e-10
"""Squared residual at which conjugate gradients stop (OpenAI's baselines)."""
KL_SLACK: Final = 1.5
"""Factor by which the divergence of an accepted step may exceed ``max_kl``."""


def conjugate_gradients(product: Callable[[Vectors], Vectors], b: Vectors, steps: int) -> Vectors:
    """Solve H x = b approximately for each row, with ``steps`` products v -> H v."""
    x, residual, direction = np.zeros_like(b), b.copy(), b.copy()
    residual_norm = np.square(residual).sum(axis=1, keepdims=True)
    for _ in range(steps):
        is_active = residual_norm > _CG_TOLERANCE
        image = product(direction)
        curvature = (direction * image).sum(axis=1, keepdims=True)
        step = np.where(is_active, residual_norm / np.where(is_active, curvature, 1.0), 0.0)
        x += step * direction
        residual -= step * image
        new_norm = np.square(residual).sum(axis=1, keepdims=True)
        direction = np.where(
            is_active, residual + new_norm / np.where(is_active, residual_norm, 1.0) * direction, direction
        )
        residual_norm = np.where(is_active, new_norm, residual_norm)
    return x


def scale_to_divergence(product: Callable[[Vectors], Vectors], direction: Vectors, max_kl: float) -> Vectors:
    """Return the step x along each row for which x' H x / 2 = ``max_kl``; 0 for a zero direction."""
    curvature = (direction * product(direction)).sum(axis=1, keepdims=True)
    return np.sqrt(2.0 * max_kl / np.where(curvature > 0.0, curvature, np.inf)) * direction


class Trpo(ActorCritic):
    """Policies and values of S trials, with the update that trains them."""

    def __init__(
        self,
        config: TrpoConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Initialise one trial from each of ``streams``, in the order policy, value, minibatch order."""
        super().__init__(config, n_observations, n_actions, streams, dtype, value_lr=config.value_lr)
        self.config: Final = config
        N, F, n, m = config.steps, -(-config.steps // config.fisher_every), n_observations, n_actions
        self._policy: Final = (self._mean.group, self._log_std)
        size = self._mean.group.flat_field.size

        batch = {"observation": (N, n), "drawn": (N, m), "log_pi": (N, 1), "advantage": (N, 1)}
        policy_shapes = {"mean": (N, m), "log_std": (1, m), "gradient": (1, size + m)}
        self._batch = RecordBuffer(batch | policy_shapes | {"gain": (N, 1), "divergence": (N, 1)})
        self._run_gradient = self._bind_program(self._batch, self._trace_gradient)
        self._run_evaluation = self._bind_program(self._batch, self._trace_evaluation)
        self._fisher = RecordBuffer({"observation": (F, n), "along": (1, size), "product": (1, size)})
        self._run_product = self._bind_program(self._fisher, self._trace_product)
        self._minibatches = RecordBuffer({"observation": (config.batch, n), "target": (config.batch, 1)})
        self._run_value_step = self._bind_program(self._minibatches, self._trace_value_step)

    def _bind_program(self, records: RecordBuffer, trace: Callable[[Tape], None]) -> Run:
        tape = Tape(self.layout, records.layout)
        trace(tape)
        return self.bind(tape)

    def _gains(self, tape: Tape, mean: Array, std: Array) -> Array:
        """Return R A of each experience, (N, 1)."""
        fields = self._batch.read(tape)
        return likelihood_ratio(log_density(fields["drawn"], mean, std), fields["log_pi"]) * fields["advantage"]

    def _trace_gradient(self, tape: Tape) -> None:
        """Trace the gradient of the mean gain, and report it with the gains and the current policy."""
        mean, std = self._distribution(self._batch.read(tape)["observation"])
        gains = self._gains(tape, mean, std)
        gradient = concatenate(*tape.gradient(gains.mean(), self._policy))
        outputs = {"mean": mean, "log_std": tape.read(self._log_std.fields[0]), "gain": gains, "gradient": gradient}
        for name, value in outputs.items():
            tape.output(self._batch.fields[name], value)

    def _trace_evaluation(self, tape: Tape) -> None:
        """Trace and report the gains, and the divergences from the policy before the step."""
        fields = self._batch.read(tape)
        mean, std = self._distribution(fields["observation"])
        tape.output(self._batch.fields["gain"], self._gains(tape, mean, std))
        divergence = kl_divergence(fields["mean"], exp(fields["log_std"]), mean, std)
        tape.output(self._batch.fields["divergence"], divergence)

    def _trace_product(self, tape: Tape) -> None:
        """Trace and report the product of a vector with the Fisher matrix of the mean's network.

        The divergence has zero gradient at the current policy, so its Hessian is exactly J' M J, where J is the
        Jacobian of the means with respect to the parameters, and M = 1 / std^2 is the Hessian with respect to the
        means.
        """
        fields, net = self._fisher.read(tape), self._mean
        x, start, last_layer = fields["observation"], net.group.flat_field.offset, len(net.sizes) - 1
        directions = [
            fields["along"].columns(f.offset - start, f.slice.stop - start).reshape(*f.shape) for f in net.group.fields
        ]
        change = None
        for layer, weight in enumerate(net.weights):
            linear_change = dense(x, *directions[2 * layer : 2 * layer + 2])
            if change is not None:
                linear_change = linear_change + dense(change, tape.read(weight), tape.filled((1, weight.shape[1]), 0.0))
            x = net.layer(layer, x, is_last=layer == last_layer)
            change = linear_change if layer == last_layer else linear_change * (1.0 - square(x))  # tanh' = 1 - tanh^2
        assert change is not None
        weighted_change = (change / square(exp(tape.read(self._log_std.fields[0])))).detach()
        (product,) = tape.gradient((x * weighted_change).row_sums().mean(), [net.group])
        tape.output(self._fisher.fields["product"], product)

    def _trace_value_step(self, tape: Tape) -> None:
        fields = self._minibatches.read(tape)
        descend(tape, square(self._value(fields["observation"]) - fields["target"]).mean(), self._adams)

    def learn(
        self, batch: PolicyBatch, remaining_fraction: float, heartbeat: HeartbeatCallback = ignore_heartbeat
    ) -> None:
        """Take one policy step, then the value epochs; ``remaining_fraction`` is ignored."""
        statistics = flatten_actors(self._compute_statistics(batch))
        x = self._inputs(statistics.observation).astype(self.executor.dtype)
        self._step_policies(x, statistics)
        self._fit_values(x, statistics.target, heartbeat)
        self.updates += 1

    def _step_policies(self, x: NDArray[np.floating], batch: BatchStatistics) -> None:
        """Step along the natural gradient, within the bound on the divergence and without decreasing the objective."""
        config, S, records = self.config, len(x), self._batch
        rows = records.allocate(self, 1)
        fields = {"observation": x, "drawn": batch.drawn, "log_pi": batch.log_pi, "advantage": batch.advantage}
        for name, field in fields.items():
            records.set(name, field[None])
        self._run_gradient(self.rows, rows, None)
        gradient = records.get("gradient")[0, :, 0].astype(np.float64)
        previous_gain = records.get("gain")[0].mean(axis=1, dtype=np.float64)
        product = self.fisher_product(x[:, :: config.fisher_every])
        direction = conjugate_gradients(product, gradient, config.cg_steps)
        full_step = scale_to_divergence(product, direction, config.max_kl)

        start = self._policy_vectors().astype(np.float64)
        accepted_vectors, is_searching = start.copy(), np.ones(S, np.bool_)
        for halving in range(config.halvings):
            trial_vectors = start + 0.5**halving * full_step
            self._write_policies(trial_vectors)
            self._run_evaluation(self.rows, rows, None)
            gain, divergence = (records.get(name)[0].mean(axis=1, dtype=np.float64) for name in ("gain", "divergence"))
            is_accepted = is_searching & (gain >= previous_gain) & (divergence <= KL_SLACK * config.max_kl)
            accepted_vectors[is_accepted] = trial_vectors[is_accepted]
            is_searching &= ~is_accepted
            if not is_searching.any():
                break
        self._write_policies(accepted_vectors)

    def fisher_product(self, x: NDArray[np.floating]) -> Callable[[Vectors], Vectors]:
        """Return the product v -> (F + damping) v for parameter vectors; F is the Hessian of the mean KL divergence at
        ``x``."""
        fisher, size = self._fisher, self._mean.group.flat_field.size
        rows = fisher.allocate(self, 1)
        fisher.set("observation", x[None])

        def product(v: Vectors) -> Vectors:
            fisher.set("along", v[None, :, :size])
            self._run_product(self.rows, rows, None)
            # The Hessian with respect to ln std is 2 in all states.
            products = np.concatenate((fisher.get("product")[0, :, 0], 2.0 * v[:, size:]), axis=1)
            return products.astype(np.float64) + self.config.damping * v

        return product

    def _policy_vectors(self) -> NDArray[np.floating]:
        """Return the parameters of the mean and of the standard deviation, (S, P)."""
        return np.concatenate([self.rows[:, group.flat_field.slice] for group in self._policy], axis=1)

    def _write_policies(self, vectors: NDArray[np.floating]) -> None:
        split_indices = np.cumsum([group.flat_field.size for group in self._policy])[:-1]
        for group, values in zip(self._policy, np.split(vectors, split_indices, axis=1), strict=True):
            self.rows[:, group.flat_field.slice] = values

    def _fit_values(
        self, x: NDArray[np.floating], target: NDArray[np.float32], heartbeat: HeartbeatCallback = ignore_heartbeat
    ) -> None:
        config, N = self.config, target.shape[1]
        rows = self._minibatches.allocate(self, N // config.batch)
        for _ in range(config.value_epochs):
            slots = np.stack([s.permutation(N).reshape(-1, config.batch) for s in self._streams], axis=1)
            self._minibatches.set("observation", gather_minibatches(x, slots))
            self._minibatches.set("target", gather_minibatches(target, slots))
            self._run_value_step(self.rows, rows, None)
            heartbeat()
