"""NERS (Oh et al. 2021): experiences drawn by the scores of a network that is rewarded for gains in return.

The score of an experience depends on its minibatch: a local network looks at each experience, a global one averages
over the minibatch, and a third one scores both together.  After every training episode REINFORCE makes the replayed
experiences likelier if the return has grown, less likely if it has fallen (eqs. 6, 7).  Equations that contradict one
another are settled in docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.autograd import Nets, action_value_layout, drawn_vectors, outputs
from onrig.learner.networks import WIDTH, Layout, mlp_layout, padded
from onrig.learner.sampler_settings import NersSettings
from onrig.learner.samplers import Draw, Setting, State, within
from onrig.learner.samplers.features import Features
from onrig.learner.samplers.importance import Scale
from onrig.learner.samplers.joint import Joint
from onrig.learner.samplers.proportional_per import ProportionalPer
from onrig.runtime.replay.memory.keepers.keeper import Signal
from onrig.runtime.replay.memory.order.uniforms import restore_streams, words_of_streams

LEAST: Final = 1e-6
"""Added to a score in its logarithm (eq. 7); scores below it count as this one, so that all can be drawn."""


class ScoreNets:
    """The networks f of S trials: minibatches of experiences to a score in (0, 1) each."""

    def __init__(
        self,
        settings: NersSettings,
        width: int,
        streams: Sequence[np.random.Generator],
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Initialise one trial from each of ``streams``, for ``width`` features."""
        *hidden, embedding = settings.hidden
        self._width, self._embedding, self._trials, self._dtype = width, embedding, len(streams), dtype
        self._sees_others: Final = settings.ablation != "local"
        embed = mlp_layout(width, embedding, hidden)
        score = action_value_layout(embedding, embedding, settings.score)
        self.n_parameters: Final = 2 * embed.n_parameters + score.n_parameters
        """Of one trial."""

        def nets(layout: Layout, copies: int) -> Nets:
            vectors = drawn_vectors(layout, streams, copies)
            return Nets(layout, vectors, lr=settings.lr, dtype=dtype, targets=False, by_trial=True)

        self._embed: Final = nets(embed, 2)
        """Local network, global network."""
        self._score: Final = nets(score, 1)

    def scores(self, features: NDArray[np.floating]) -> NDArray[np.float64]:
        """Score minibatches (S, B, width): (S, B)."""
        S, B, _ = features.shape
        with torch.no_grad():
            found = self._scores(features, np.ones((S, B), np.bool_))
        scores: NDArray[np.float64] = found[:, :B].double().numpy()
        return scores

    def _scores(self, features: NDArray[np.floating], valid: NDArray[np.bool_]) -> torch.Tensor:
        """Score the ``valid`` (S, B) experiences of minibatches: (S, rows), rows padded."""
        S, B, width = features.shape
        rows, embedding = padded(B), self._embedding
        x = torch.zeros((S, rows, padded(width + 1)), dtype=self._dtype)
        x[:, :B, :width] = torch.from_numpy(np.where(valid[..., None], features, 0.0))
        x[:, :, width] = 1.0
        local, others = outputs(self._embed.online, x.repeat(2, 1, 1)).view(2, S, rows, -1)
        # The mean over the minibatch as a product: a trial's bits must not depend on how many there are.
        share = torch.zeros((S, WIDTH, rows), dtype=self._dtype)
        if self._sees_others:
            share[:, 0, :B] = torch.from_numpy(valid / np.maximum(valid.sum(axis=1, keepdims=True), 1))
        first = torch.zeros((S, rows, WIDTH), dtype=self._dtype)
        first[..., 0] = 1.0
        constant = torch.zeros((S, rows, padded(embedding + 1) - embedding), dtype=self._dtype)
        constant[..., 0] = 1.0
        joined = torch.cat((local[..., :embedding], constant, torch.bmm(first, torch.bmm(share, others))), dim=-1)
        return torch.sigmoid(outputs(self._score.online, joined)[..., 0])

    def gradients(
        self, features: NDArray[np.floating], valid: NDArray[np.bool_], gain: NDArray[np.float64]
    ) -> torch.Tensor:
        """Set the gradients of eq. 7, to descend: -gain times the sum of ln(score + 1e-6) over the valid rows.

        ``features`` (S, B, width), ``valid`` (S, B), ``gain`` (S,); returns the loss, summed over trials.
        """
        self._embed.clear()
        self._score.clear()
        found = self._scores(features, valid)
        weight = torch.zeros_like(found)
        weight[:, : valid.shape[1]] = torch.from_numpy(np.where(valid, -gain[:, None], 0.0))
        loss = (weight * torch.log(found + LEAST)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self, trials: NDArray[np.int64]) -> None:
        """Take one step of Adam with these trials down their gradients; the others stay, moments included."""
        self._embed.step(trials)
        self._score.step(trials)

    def state(self) -> State:
        """Copy of parameters and moments."""
        return self._embed.state("embed") | self._score.state("score")

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``; raises KeyError or ValueError if it does not fit."""
        self._embed.restore(state, "embed")
        self._score.restore(state, "score")


class Ners(Joint):
    """Draws proportionally to score^alpha, 1.0 for an experience never replayed, with importance weights (eqs. 1, 5).

    Only the drawn experiences are scored again, with the TD error and target that their update has just found.
    """

    looks_at: ClassVar[frozenset[Signal]] = frozenset({Signal.TD_ERROR, Signal.TARGET, Signal.RETURN})

    def __init__(self, setting: Setting, streams: Sequence[np.random.Generator]) -> None:
        """Sampler of one trial for each of ``streams`` (PCG64)."""
        super().__init__(setting, streams)
        settings = setting.options.ners_settings
        self._settings: Final = settings
        spawned = [stream.spawn(3) for stream in streams]
        self._choices: Final = [stream for _, stream, _ in spawned]
        self._laws: Final = [
            ProportionalPer.with_beta(
                setting, law, settings.beta, over_updates=True, alpha=settings.alpha, epsilon=0.0, scale=Scale.NONE
            )
            for law, _, _ in spawned
        ]
        self._features: Final = Features(self._look, self._trials, setting.capacity)
        self._few: Final = settings.ablation == "few"
        width = 3 if self._few else self._features.width
        self._nets: Final = ScoreNets(settings, width, [stream for _, _, stream in spawned])
        self._replayed: Final[NDArray[np.bool_]] = np.zeros((self._trials, setting.capacity), np.bool_)
        """(S, capacity): slots replayed in this episode, the paper's J; those rewritten since are left out."""

    def begin_episode(self, episode: int) -> None:
        """Set the training episode whose updates come next."""
        for law in self._laws:
            law.begin_episode(episode)

    def written(self, slots: Sequence[NDArray[np.int64]]) -> None:
        """Give new experiences the score 1.0."""
        self._features.written(slots)
        for law, replayed, own in zip(self._laws, self._replayed, slots, strict=True):
            law.written(own)
            replayed[own] = False

    def draw(self, updates: int) -> Draw:
        """Draw one minibatch of each trial, slots and weights (1, S, batch).

        Raises ValueError for more, and while fewer than a minibatch are stored.
        """
        if updates != 1:
            raise ValueError(f"a draw that depends on the update before it cannot be one of {updates}")
        draws = [law.draw(self._batch) for law in self._laws]
        weights = [draw.weights for draw in draws if draw.weights is not None]
        return Draw(np.stack([draw.slots for draw in draws], axis=1), np.stack(weights, axis=1))

    def updated(self, slots: NDArray[np.int64], signals: Signals) -> None:
        """Score the experiences of an update again; ValueError from an algorithm that tells no targets."""
        if signals.target is None:
            raise ValueError("the algorithm tells no targets")
        (drawn,) = slots
        self._features.updated(drawn, signals)
        scores = self._nets.scores(self._of(drawn))
        for law, replayed, own, found in zip(self._laws, self._replayed, drawn, scores, strict=True):
            law.prioritise(own, np.maximum(found, LEAST))
            replayed[own] = True

    def _of(self, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._features.few(slots) if self._few else self._features.of(slots)

    def _learn(self, gain: NDArray[np.float64], who: NDArray[np.bool_]) -> None:
        size = self._settings.sample
        slots = np.zeros((self._trials, size), np.int64)
        valid = np.zeros((self._trials, size), np.bool_)
        for trial in np.flatnonzero(who).tolist():
            chosen = self._choices[trial].permutation(np.flatnonzero(self._replayed[trial]))[:size]
            slots[trial, : len(chosen)] = chosen
            valid[trial, : len(chosen)] = True
        trials = np.flatnonzero(valid.any(axis=1))
        if len(trials):
            self._nets.gradients(self._of(slots), valid, gain)
            self._nets.step(trials)

    def _begin(self, ended: NDArray[np.bool_]) -> None:
        self._replayed[ended] = False
        self._features.standardise(ended)

    def state(self) -> State:
        """Copy of scores, features, networks, streams and this episode's replays."""
        state = super().state() | {f"features/{k}": v for k, v in self._features.state().items()}
        state |= self.learned()
        for trial, law in enumerate(self._laws):
            state |= {f"law{trial}/{k}": v for k, v in law.state().items()}
        state["replayed"] = self._replayed.copy()
        state["choices"] = words_of_streams(self._choices)
        return state

    def learned(self) -> State:
        """Copy of the networks."""
        return {f"nets/{k}": v for k, v in self._nets.state().items()}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state of ``state()``: under the same policy the next draws are the same."""
        super().restore(state)
        if state["replayed"].shape != self._replayed.shape:
            raise ValueError(f"replays of {state['replayed'].shape} slots, expected {self._replayed.shape}")
        self._features.restore(within(state, "features/"))
        self._nets.restore(within(state, "nets/"))
        for trial, law in enumerate(self._laws):
            law.restore(within(state, f"law{trial}/"))
        self._replayed[...] = state["replayed"]
        restore_streams(self._choices, state["choices"])
