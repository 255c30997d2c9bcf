"""Rainbow in its data-efficient form, on vectors (Hessel et al. 2018; van Hasselt et al. 2019).

Distributions of the return on fixed atoms, dueling streams, double selection, n-step returns, and exploration by noisy
layers; prioritised replay is the memory's (``PropPER`` on the loss).  The hidden layers but the last are common and
without noise; the last one and the outputs are two noisy streams, of the value and of the advantages.

By autograd, for S trials at once (``onrig.learner.autograd``): trial s of S gives bit for bit what it gives alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.algorithm_settings import RainbowConfig
from onrig.learner.algorithms import DiscreteActions, Minibatches, Signals, State, level_values
from onrig.learner.algorithms.buffers import Record
from onrig.learner.algorithms.dqn import nearest_level
from onrig.learner.autograd import Blocks, Nets, drawn_vectors, states, torso
from onrig.learner.networks import Layer, Layout, padded, split_layers
from onrig.runtime.replay.memory.order.uniforms import restore_streams, words_of_streams


def project(p: torch.Tensor, reward: torch.Tensor, discount: torch.Tensor, atoms: torch.Tensor) -> torch.Tensor:
    """Project distributions ``p`` (S, B, atoms) of reward + discount z onto the atoms z (Bellemare et al. 2017).

    ``reward`` and ``discount`` are (S, B, 1); mass beyond the atoms goes to the outermost ones.
    """
    low, high = atoms[0], atoms[-1]
    place = ((reward + discount * atoms).clamp(low, high) - low) / ((high - low) / (len(atoms) - 1))
    # NaN in a diverged trial, whose parameters are NaN anyway.
    below = place.floor().nan_to_num(0.0).clamp_(0, len(atoms) - 2)
    share = place - below
    index = below.to(torch.int64)
    projected = torch.zeros_like(p).scatter_add_(-1, index, p * (1.0 - share))
    return projected.scatter_add_(-1, index + 1, p * share)


class Rainbow:
    """Networks of S trials, their targets and optimiser, and the update that trains them."""

    def __init__(
        self,
        config: RainbowConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Initialise one trial from each of ``streams`` (network, then noise of updates); one action dimension."""
        self.config = config
        self.updates = 0
        self._dtype, self._streams = dtype, tuple(streams)
        self._atoms = torch.linspace(*config.returns, config.atoms, dtype=dtype)
        self.discrete: Final = DiscreteActions(config.levels, ((1.0, 0.0),), self._atoms.numpy())
        *common, hidden = config.hidden
        sizes = [n_observations, *common]
        self._common = [Layer(inputs, outputs) for inputs, outputs in zip(sizes, common, strict=False)]
        self._noisy = [
            Layer(inputs, outputs, last=last)
            for logits in (config.atoms, config.levels * config.atoms)
            for inputs, outputs, last in ((sizes[-1], hidden, False), (hidden, logits, True))
        ]
        """Hidden layer and outputs of the value, then of the advantages; each is followed by its noise's scale."""
        scaled = [part for layer in self._noisy for part in (layer, layer._replace(last=True))]
        self._layout = Layout((*self._common, *scaled))
        self.noises: Final = sum(layer.inputs + layer.outputs for layer in self._noisy)
        vectors = drawn_vectors(self._layout, streams)
        for trial in vectors[:, 0]:
            layers = split_layers(self._layout, trial)[len(self._common) :]
            for weight, bias in layers[1::2]:
                weight[:] = bias[:] = config.sigma / np.sqrt(len(weight))
        self._nets = Nets(self._layout, vectors, lr=config.lr, dtype=dtype, eps=config.adam_eps)
        self._record = Record(len(streams), config.batch, n_observations, 1, dtype)

    def _logits(self, blocks: Blocks, x: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        """Logits (S, B, levels, atoms) at padded states, under N(0, 1) ``noise`` (S, 1 or B, noises), if any."""
        S, B, _ = x.shape
        units = torso(blocks[: len(self._common)], x)
        streams = []
        at, used = len(self._common), 0
        for first in (0, 2):
            y = units
            for layer in self._noisy[first : first + 2]:
                mean, scale = blocks[at : at + 2]
                product = torch.bmm(y, mean)
                if noise is not None:
                    cut = noise[..., used : used + layer.inputs + layer.outputs]
                    product = product + _noise_term(layer, y, scale, cut, product.shape[-1])
                y = product if layer.last else product.relu()
                at, used = at + 2, used + layer.inputs + layer.outputs
            streams.append(y)
        atoms, levels = self.config.atoms, self.config.levels
        value = streams[0][..., :atoms].reshape(S, B, 1, atoms)
        advantages = streams[1][..., : levels * atoms].reshape(S, B, levels, atoms)
        return value + advantages - advantages.mean(dim=2, keepdim=True)

    def _greedy(self, logits: torch.Tensor) -> NDArray[np.floating]:
        """Best levels' values (S, B, 1); NaN where the network has diverged, of equal ones the lowest."""
        values = (logits.softmax(dim=-1) * self._atoms).sum(dim=-1).numpy()
        levels = level_values(self.config.levels)
        best = np.where(np.isnan(values).any(axis=2), np.nan, levels[values.argmax(axis=2)])
        greedy: NDArray[np.floating] = best.astype(self._atoms.numpy().dtype)[:, :, None]
        return greedy

    def policy(self, observation: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act with the mean weights: normalised observations (S, E, n) to the values of the best levels (S, E, 1)."""
        return self._act(observation, None)

    def sample(self, observation: NDArray[np.floating], noise: NDArray[np.floating]) -> NDArray[np.floating]:
        """Act with weights that N(0, 1) ``noise`` (S, E, noises) perturbs, each state with its own: (S, E, 1)."""
        rows = torch.zeros((*states(observation, self._dtype).shape[:2], self.noises), dtype=self._dtype)
        rows[:, : noise.shape[1]] = torch.from_numpy(noise)
        return self._act(observation, rows)

    def _act(self, observation: NDArray[np.floating], noise: torch.Tensor | None) -> NDArray[np.floating]:
        with torch.no_grad():
            logits = self._logits(self._nets.frozen, states(observation, self._dtype), noise)
            return self._greedy(logits)[:, : observation.shape[1]]

    def update(self, batches: Minibatches) -> Signals:
        """Train on K minibatches in turn; raises ValueError when they are of another shape.

        Experiences rank by the loss, the cross entropy; Rainbow's priority is its root (an exponent of 0.5).
        """
        records, indices = self._packed(batches)
        shape = (len(records), 2, 1, self.noises)
        drawn = np.stack([stream.standard_normal(shape) for stream in self._streams], axis=2)
        noise = torch.from_numpy(drawn).to(self._dtype)
        told = []
        for record, index, online_and_target in zip(records, indices, noise, strict=True):
            self._record.memory.copy_(record)
            told.append(self._update(index, *online_and_target))
            self.updates += 1
            if self.updates % self.config.target_every == 0:
                self._nets.follow(1.0)
        loss, td, target = torch.stack(told).numpy()[..., : self.config.batch].swapaxes(0, 1)
        return Signals(td, loss, target)

    def _packed(self, batches: Minibatches) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        config = self.config
        reward, lengths = batches.reward, np.ones(batches.reward.shape, np.int64)
        if batches.rewards is not None and batches.lengths is not None:
            reward, lengths = batches.rewards @ (config.gamma ** np.arange(config.n_steps)), batches.lengths
        records = self._record.pack(replace(batches, reward=reward), config.gamma**lengths, config.reward_scale)
        indices = np.zeros((*reward.shape[:2], padded(config.batch)), np.int64)
        indices[..., : config.batch] = nearest_level(batches.action[..., 0], config.levels)
        return records, torch.from_numpy(indices)

    def _update(self, index: torch.Tensor, online_noise: torch.Tensor, target_noise: torch.Tensor) -> torch.Tensor:
        """Train on the minibatch in the record; returns losses, TD errors and targets, (3, S, rows)."""
        nets, atoms = self._nets, self._atoms
        s, s_next = self._record.x.chunk(2)
        with torch.no_grad():
            p = self._logits(nets.frozen, s_next, online_noise).softmax(dim=-1)
            best = (p * atoms).sum(dim=-1).argmax(dim=-1)
            p = _picked(self._logits(nets.target, s_next, target_noise).softmax(dim=-1), best)
            wanted = project(p, self._record.reward, self._record.discount, atoms)
            target = (p * (self._record.reward + self._record.discount * atoms).clamp(atoms[0], atoms[-1])).sum(dim=-1)
        log_p = _picked(self._logits(nets.online, s, online_noise).log_softmax(dim=-1), index)
        loss = -(wanted * log_p).sum(dim=-1)
        # A record's weight is -2 w / B.
        nets.descend(-0.5 * (self._record.weight[..., 0] * loss).sum(), self.config.max_norm)
        return torch.stack((loss, target - (log_p.exp() * atoms).sum(dim=-1), target)).detach()

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy one trial's mean weights out as one plain network to the logits, level by level."""
        layers = split_layers(self._layout, self._nets.vectors()[trial, 0])
        common, ((v1, v1_bias), (v2, v2_bias), (a1, a1_bias), (a2, a2_bias)) = (
            layers[: len(self._common)],
            layers[len(self._common) :: 2],
        )
        levels = self.config.levels

        def centred(x: NDArray[np.floating]) -> NDArray[np.floating]:
            by_level = x.reshape(-1, levels, self.config.atoms)
            centred: NDArray[np.floating] = (by_level - by_level.mean(axis=1, keepdims=True)).reshape(len(x), -1)
            return centred

        hidden = (np.concatenate((v1, a1), axis=1), np.concatenate((v1_bias, a1_bias)))
        logits = np.concatenate((np.tile(v2, levels), centred(a2)))
        return [*common, hidden, (logits, np.tile(v2_bias, levels) + centred(a2_bias[None])[0])]

    def state(self) -> State:
        """Copy of everything needed to resume training: plain vectors (S, 1, P), Adam's moments, streams."""
        return {
            "updates": np.array(self.updates, dtype=np.int64),
            **self._nets.state("network"),
            "streams": words_of_streams(self._streams),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``, bit for bit; raises KeyError or ValueError if it does not fit."""
        self._nets.restore(state, "network")
        restore_streams(self._streams, state["streams"])
        self.updates = int(state["updates"])


def _noise_term(layer: Layer, x: torch.Tensor, scale: torch.Tensor, noise: torch.Tensor, cols: int) -> torch.Tensor:
    """What factorised noise (S, 1 or B, inputs + outputs) adds to the layer's products (Fortunato et al. 2018, §3)."""
    factors = noise.sign() * noise.abs().sqrt()
    of_inputs = torch.ones((*noise.shape[:-1], layer.rows), dtype=x.dtype)  # 1 for the bias
    of_inputs[..., : layer.inputs] = factors[..., : layer.inputs]
    of_outputs = torch.zeros((*noise.shape[:-1], scale.shape[-1]), dtype=x.dtype)
    of_outputs[..., : layer.outputs] = factors[..., layer.inputs :]
    term = torch.bmm(x * of_inputs, scale) * of_outputs
    return torch.nn.functional.pad(term, (0, cols - term.shape[-1]))


def _picked(of_levels: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
    """Of (S, B, levels, atoms), those of one level each (S, B): (S, B, atoms)."""
    at = level[..., None, None].expand(*level.shape, 1, of_levels.shape[-1])
    return of_levels.gather(2, at).squeeze(2)
