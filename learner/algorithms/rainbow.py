"""Rainbow in its data-efficient form, on vectors or images (Hessel et al. 2018; van Hasselt et al. 2019).

It combines return distributions on fixed atoms, dueling streams, double selection, n-step returns, and exploration by
noisy layers; the sampler adds prioritised replay (``PropPER`` on the loss).  All convolutions and hidden layers except
the last are shared and noise-free; the last hidden layer and the outputs form two noisy streams, one for the value and
one for the advantages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithm_settings import RainbowConfig
from onrig.learner.algorithms import DiscreteActions, Minibatches, Signals, level_values
from onrig.learner.algorithms.dqn import nearest_level
from onrig.learner.algorithms.image_inputs import Inputs
from onrig.learner.algorithms.traced import MinibatchRecords, TracedAlgorithm
from onrig.learner.export import export_discrete_policy
from onrig.learner.tape.array import Array
from onrig.learner.tape.convolutions import Convolutions, ReadFrames
from onrig.learner.tape.elementary import clip, dense, equal, exp, log_softmax, project, relu, softmax
from onrig.learner.tape.networks import fan_in_uniform
from onrig.learner.tape.optimiser import Adam, descend, polyak_average
from onrig.learner.tape.spaces import Group, Layout
from onrig.learner.tape.trace import Tape
from onrig.runtime.policy.contract import DETERMINISTIC, PolicyContract

_COPY_SECTION: Final = 1
"""Section of the tape that copies the network to its target, after every ``target_every``-th update."""


class LayerSize(NamedTuple):
    """Number of inputs and outputs of a layer."""

    inputs: int
    outputs: int


class Rainbow(TracedAlgorithm):
    """Networks of S trials, with the update that trains them."""

    behaviour: Final = DETERMINISTIC

    def __init__(
        self,
        config: RainbowConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Initialise one trial from each of ``streams``, in the order network, update noise; only one action dimension
        is supported.

        Raises ValueError if ``n_observations`` does not match the configured images.
        """
        self._inputs: Final = Inputs(config.image, n_observations, dtype)
        state, n, B, levels, atoms = Layout(), self._inputs.width, config.batch, config.levels, config.atoms
        *shared_widths, hidden = config.hidden
        self._convolutions = None if config.images is None else Convolutions(config.images)
        filters, last_width = [], n
        if self._convolutions is not None:
            filters, last_width = self._convolutions.filters, self._convolutions.outputs
        self._shared_sizes = [
            LayerSize(*pair) for pair in (*filters, *itertools.pairwise((last_width, *shared_widths)))
        ]
        """Sizes of the convolutions' filters, followed by those of the other shared layers."""
        last_width = (last_width, *shared_widths)[-1]
        self._noisy_sizes = [
            LayerSize(*pair) for out in (atoms, levels * atoms) for pair in ((last_width, hidden), (hidden, out))
        ]
        """Sizes of the hidden layer and of the outputs, first for the value, then for the advantages."""
        self._network, self._target = (state.group(name, self._shapes()) for name in ("network", "target_network"))
        self._z, self._level_numbers = state.add("atoms", 1, atoms), state.add("levels", 1, levels)
        self._adam = Adam(state, self._network, lr=config.lr, eps=config.adam_eps)
        super().__init__(state, streams, dtype)
        self.config = config
        z = np.linspace(*config.returns, atoms, dtype=self.rows.dtype)
        for row, stream in zip(self.rows, streams, strict=True):
            self._draw(row, stream)
            row[self._target.flat_field.slice] = row[self._network.flat_field.slice]
            row[self._z.slice], row[self._level_numbers.slice] = z, np.arange(levels)

        self.discrete: Final = DiscreteActions(levels, ((1.0, 0.0),))
        self.noise_width: Final = sum(layer.inputs + layer.outputs for layer in self._noisy_sizes)
        self._values = self.forward(
            lambda tape, s, _: self._level_means(self._logits(self._network, s, None)), n, levels
        )
        self._noisy_values = self.forward(
            lambda tape, s, f: self._level_means(self._logits(self._network, s, f)), n, levels, self.noise_width
        )
        outputs = {"loss": (B, 1), "td": (B, 1), "target": (B, 1)}
        factors = {"factors": (1, self.noise_width), "target_factors": (1, self.noise_width)}
        self._records = MinibatchRecords(B, n, 1, {"chosen": (B, levels)} | factors | outputs)
        tape = Tape(state, self._records.layout)
        self._update(tape, **self._records.read(tape))
        self._run = self.bind_update(tape)

    def _shapes(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of a network's fields: the shared layers, then the noisy layers with their noise scales."""
        shapes: dict[str, tuple[int, int]] = {}
        for i, layer in enumerate(self._shared_sizes):
            shapes |= {f"weight{i}": layer, f"bias{i}": (1, layer.outputs)}
        for i, layer in enumerate(self._noisy_sizes):
            for kind in ("", "_scale"):
                shapes |= {f"noisy_weight{i}{kind}": layer, f"noisy_bias{i}{kind}": (1, layer.outputs)}
        return shapes

    def _draw(self, row: NDArray[np.floating], stream: np.random.Generator) -> None:
        fields = iter(self._network.fields)
        for layer in (*self._shared_sizes, *(layer for layer in self._noisy_sizes for _ in range(2))):
            for values in fan_in_uniform(stream, *layer, False):
                field = next(fields)
                scale = self.config.sigma / np.sqrt(layer.inputs)
                row[field.slice] = scale if field.name.endswith("_scale") else values.reshape(-1)

    def _logits(self, network: Group, x: Array, factors: Array | None) -> Array:
        """Return the logits (B, levels * atoms), level by level, under noise with ``factors`` (1 or B, noise_width) if
        given."""
        value, advantages = self._dueling_outputs(network, x, factors)
        offset = value - self._mean_of_levels(advantages)
        return advantages + offset.tile(self.config.levels)

    def _mean_of_levels(self, advantages: Array) -> Array:
        return advantages.fold(self.config.atoms) * (1.0 / self.config.levels)

    def _dueling_outputs(self, network: Group, x: Array, factors: Array | None) -> tuple[Array, Array]:
        tape, fields = x.tape, iter(network.fields)
        if self._convolutions is not None:
            x = self._convolutions(x, fields)
        for _ in self._shared_sizes[0 if self._convolutions is None else len(self._convolutions.filters) :]:
            x = dense(x, tape.read(next(fields)), tape.read(next(fields)), relu=True)
        outputs, n_used_factors = list[Array](), 0
        for i, layer in enumerate(self._noisy_sizes):
            weight, bias, weight_scale, bias_scale = (tape.read(next(fields)) for _ in range(4))
            y = x if i % 2 == 0 else relu(outputs.pop())
            if factors is None:
                out = dense(y, weight, bias)
            else:
                # Factorised noise (Fortunato et al. 2018, §3): the noise of a weight is the product of its input's and
                # its output's.
                input_factors = factors.columns(n_used_factors, n_used_factors + layer.inputs)
                output_factors = factors.columns(
                    n_used_factors + layer.inputs, n_used_factors + layer.inputs + layer.outputs
                )
                if factors.shape[0] == 1:
                    noise = weight_scale * input_factors.reshape(layer.inputs, 1) * output_factors
                    out = dense(y, weight + noise, bias + bias_scale * output_factors)
                else:
                    out = dense(y, weight, bias) + dense(y * input_factors, weight_scale, bias_scale) * output_factors
            n_used_factors += layer.inputs + layer.outputs
            outputs.append(out)
        return outputs[0], outputs[1]

    def _distributions(self, logits: Array) -> Array:
        """Return the distributions of all levels, (B * levels, atoms)."""
        return softmax(logits.reshape(logits.shape[0] * self.config.levels, self.config.atoms))

    def _level_means(self, logits: Array) -> Array:
        """Return the values of the levels, (B, levels)."""
        z = logits.tape.read(self._z)
        return (self._distributions(logits) * z).row_sums().reshape(logits.shape[0], self.config.levels)

    def _pick_level(self, distributions: Array, level_mask: Array) -> Array:
        """Select the level that is marked by 1 in each row of ``level_mask`` (B, levels): (B, levels * atoms) to
        (B, atoms)."""
        (B, _), levels, atoms = distributions.shape, self.config.levels, self.config.atoms
        masked_distributions = distributions.reshape(B * levels, atoms) * level_mask.reshape(B * levels, 1)
        return masked_distributions.reshape(B, levels * atoms).fold(atoms)

    def _update(self, tape: Tape, **inputs: Array) -> None:
        config, fields = self.config, self._records.fields
        s, s_next, r, discount = (inputs[name] for name in ("observation", "next_observation", "reward", "discount"))
        z, (low, high), B = tape.read(self._z), config.returns, config.batch
        best_level = self._level_means(self._logits(self._network, s_next, inputs["factors"])).row_argmaxima()
        probabilities = self._distributions(self._logits(self._target, s_next, inputs["target_factors"]))
        p = self._pick_level(
            probabilities.reshape(B, config.levels * config.atoms), equal(tape.read(self._level_numbers), best_level)
        )
        projected_distribution = project(p, r, discount, low, high)
        target = (p * clip(r + discount * z, low, high)).row_sums()

        value, advantages = self._dueling_outputs(self._network, s, inputs["factors"])
        logits = value + self._pick_level(advantages, inputs["chosen"]) - self._mean_of_levels(advantages)
        log_p = log_softmax(logits)
        loss = -(projected_distribution * log_p).row_sums()
        tape.output(fields["loss"], loss)
        tape.output(fields["td"], target - (exp(log_p) * z).row_sums())
        tape.output(fields["target"], target)
        descend(tape, (inputs["weight"] * loss).mean(), [self._adam], max_norm=config.max_norm)
        with tape.section(_COPY_SECTION):
            polyak_average(tape, self._target, self._network, 1.0)

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act with the mean weights: normalised observations (S, E, n) to the values of the best levels (S, E, 1)."""
        return self._greedy_actions(self._values(self._inputs(observation)))

    def sample(self, observation: NDArray[np.floating], noise: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act with weights perturbed by N(0, 1) ``noise`` (S, E, noise_width), separately for each state: (S, E, 1)."""
        return self._greedy_actions(self._noisy_values(self._inputs(observation), noise_factors(noise)))

    def bind_frames(self, read_frames: ReadFrames) -> None:
        self._inputs.bind_frames(read_frames)

    def _greedy_actions(self, values: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the values of the best levels (S, E, 1): the lowest on a tie, NaN where the network has diverged."""
        levels = level_values(self.config.levels)
        best_values = np.where(np.isnan(values).any(axis=2), np.nan, levels[values.argmax(axis=2)])
        actions: NDArray[np.floating] = best_values.astype(values.dtype)[:, :, None]
        return actions

    def update(self, batches: Minibatches) -> Signals:
        """Train on K minibatches in turn; raise ValueError if their shape does not fit.

        Experiences are ranked by their loss, the cross entropy; Rainbow's priority is its square root
        (an exponent of 0.5).
        """
        return self._inputs.update(batches, self._update_networks)

    def _update_networks(self, batches: Minibatches) -> Signals:
        config, records = self.config, self._records
        reward, lengths = batches.reward, np.ones(batches.reward.shape, np.int64)
        if batches.rewards is not None and batches.lengths is not None:
            reward, lengths = batches.rewards @ (config.gamma ** np.arange(config.n_steps)), batches.lengths
        rows = records.pack(self, replace(batches, reward=reward), config.gamma**lengths, config.reward_scale)
        records.set("chosen", np.eye(config.levels)[nearest_level(batches.action[..., 0], config.levels)])
        K = rows.shape[1]
        factors, target_factors = noise_factors(self.normals(K, 2, 1, self.noise_width)).transpose(2, 1, 0, 3, 4)
        records.set("factors", factors)
        records.set("target_factors", target_factors)
        self._run(self.rows, rows, self.sections_due(K, _COPY_SECTION, config.target_every))
        self.updates += K
        return Signals(records.get("td"), records.get("loss"), records.get("target"))

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy out one trial's mean weights as a plain network whose outputs are the logits, level by level."""
        row = self.rows[trial]
        parameters = [
            row[f.slice].reshape(f.shape).copy() for f in self._network.fields if not f.name.endswith("_scale")
        ]
        layers = [(weight, bias[0]) for weight, bias in zip(parameters[::2], parameters[1::2], strict=True)]
        *shared_layers, (v1, v1_bias), (v2, v2_bias), (a1, a1_bias), (a2, a2_bias) = layers
        levels = self.config.levels

        def subtract_level_means(x: NDArray[np.floating]) -> NDArray[np.floating]:
            by_level = x.reshape(-1, levels, self.config.atoms)
            result: NDArray[np.floating] = (by_level - by_level.mean(axis=1, keepdims=True)).reshape(len(x), -1)
            return result

        hidden = (np.concatenate((v1, a1), axis=1), np.concatenate((v1_bias, a1_bias)))
        logits = np.concatenate((np.tile(v2, levels), subtract_level_means(a2)))
        return [*shared_layers, hidden, (logits, np.tile(v2_bias, levels) + subtract_level_means(a2_bias[None])[0])]

    def policy_graph(self, trial: int, contract: PolicyContract) -> bytes:
        layers, z = self.actor_layers(trial), self.rows[trial, self._z.slice]
        return export_discrete_policy(layers, level_values(self.config.levels), contract, z, image=self.config.image)


def noise_factors(noise: NDArray[np.floating]) -> NDArray[np.floating]:
    """Transform N(0, 1) noise into factors: sign(x) sqrt|x| (Fortunato et al. 2018, eq. 11)."""
    factors: NDArray[np.floating] = np.sign(noise) * np.sqrt(np.abs(noise))
    return factors
