"""V-RACER (Novati and Koumoutsakos 2019, §2, Alg. 2 and 3): an off-policy actor and a value in one network.

Beside every slot stand its value and its importance ratio as of the last replay; from these Q^ret is computed along
the episodes (``onrig.learner.algorithms.returns``), for a new episode at once, for all of them every few updates.
With a head the advantage is a function of the action (App. E), learned beside the policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from onrig.learner.algorithms import Minibatches, Stored
from onrig.learner.algorithms.heads import HEADS
from onrig.learner.algorithms.host import (
    Host,
    MinibatchTensors,
    common_std,
    initial_vectors,
    with_common_std,
)
from onrig.learner.algorithms.refer import Index, Refer
from onrig.learner.algorithms.returns import retrace
from onrig.learner.autograd import Blocks, Nets, softsign_outputs
from onrig.learner.networks import Layout, mlp_layout
from onrig.learner.refer_settings import ReferSettings, VracerConfig
from onrig.runtime.replay.memory.layout import Slots

_AT_ONCE: Final = 16
"""Experiences valued at once, whatever the number: a trial's rounding must not depend on the others."""


class _Out(NamedTuple):
    """Outputs of the networks at states (S, rows)."""

    value: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor
    """(S, 1, m)"""
    head: torch.Tensor


class Vracer(Host):
    """Networks of S trials, and the update that trains them."""

    def __init__(
        self,
        config: VracerConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        refer: ReferSettings,
    ) -> None:
        """Initialise one trial from each of ``streams``."""
        super().__init__(config, refer, n_observations, n_actions, len(streams))
        self._vracer = config
        self._head = HEADS.get(config.advantage)
        outputs = 0 if self._head is None else self._head.outputs(n_actions)
        self._body, body_vectors = self._initial(1 + n_actions + outputs, streams)
        layout, vectors = with_common_std(self._body, body_vectors, config.std, n_actions)
        self._network = Nets(layout, vectors, lr=config.lr, dtype=torch.float32, targets=False)

    def _initial(self, outputs: int, streams: Sequence[np.random.Generator]) -> tuple[Layout, NDArray[np.float64]]:
        """Layout of the network without the standard deviation, and first parameters (S, 1, P)."""
        layout = mlp_layout(self._n, outputs, self._vracer.hidden)
        return layout, initial_vectors(layout, streams)

    def attend(self, stored: Stored) -> None:
        """Learn from this memory; once, before the first update."""
        super().attend(stored)
        column = stored.notes.column
        self._known = column("known", False, np.bool_)
        self._value, self._end_value = column("value", 0.0), column("end_value", 0.0)
        self._advantages, self._rewards = column("advantage", 0.0), column("reward", 0.0)
        self._q_ret = column("q_ret", 0.0)

    @property
    def _nets(self) -> dict[str, Nets]:
        return {"network": self._network}

    def _linear(self, blocks: Blocks, x: torch.Tensor) -> torch.Tensor:
        """Linear outputs (S, rows, cols) at prepared states."""
        return softsign_outputs(self._body, blocks[:-1], x)

    def _out(self, blocks: Blocks, x: torch.Tensor) -> _Out:
        return self._named(blocks, self._linear(blocks, x))

    def _named(self, blocks: Blocks, out: torch.Tensor) -> _Out:
        m = self._m
        std = common_std(blocks, m)
        return _Out(out[..., 0], out[..., 1 : 1 + m], std, out[..., 1 + m : self._body.layers[-1].outputs])

    def _present(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self._out(self._network.frozen, x)
        return out.mean, out.std.expand_as(out.mean)

    def _advantage_of(self, action: torch.Tensor, out: _Out) -> torch.Tensor:
        """A(s, a) (S, B), 0 without a head; gradients reach the head's outputs alone."""
        if self._head is None:
            return torch.zeros_like(out.value)
        mean, std = out.mean.detach(), out.std.detach().expand_as(out.mean)
        return self._head.advantage(action, mean, std, out.head)

    def _drawn(self, batches: Minibatches, k: int) -> MinibatchTensors:
        assert self._refer is not None
        self._enter(self._refer)  # what is drawn may be new, and cells start from what is noted of it
        return super()._drawn(batches, k)

    def _update(self, drawn: MinibatchTensors, refer: Refer) -> tuple[torch.Tensor, torch.Tensor]:
        B, slots, trial = self._config.batch, drawn.slots, np.arange(self.trials)[:, None]
        out = self._out(self._network.online, drawn.x)
        out = _Out(out.value[:, :B], out.mean[:, :B], out.std, out.head[:, :B])
        apart, weights = self._judged(drawn, (out.mean, out.std.expand_as(out.mean)), refer)
        advantage = self._advantage_of(drawn.drawn, out)
        q_ret = torch.from_numpy(self._q_ret[trial, slots])
        ahead = q_ret - out.value.detach()
        error = ahead - advantage.detach()
        rho, known = apart.rho, apart.rho.detach()
        # Gradients: -rho (Q^ret - V) of ln pi, -min(1, rho) error of V, -rho error of A (docs/methods.md, "V-RACER").
        loss = -rho * ahead - known.clamp(max=1.0) * error * out.value - known * error * advantage
        self._network.descend(weights.mixed(drawn.weight * loss, apart.kl).sum() / B)

        self._value[trial, slots] = out.value.detach().numpy()
        self._advantages[trial, slots] = advantage.detach().numpy()
        self._value_ends(slots)
        if (self.updates + 1) % self._vracer.retrace_every == 0:
            for s in range(self.trials):
                self._retrace(s, refer)
        return error, q_ret

    def _enter(self, refer: Refer) -> None:
        """Value new experiences; their ratio is 1 until they are replayed."""
        assert self._stored is not None
        fresh = [np.flatnonzero(~self._known[s, :n]) for s, n in enumerate(self._stored.notes.stored.tolist())]
        self._arrived(fresh)
        for at, which, taken in self._pieces(fresh):
            assert taken.behaviour is not None
            drawn = torch.tensor(taken.behaviour.drawn, dtype=torch.float32)
            with torch.no_grad():
                out = self._out(self._network.frozen, torch.cat(self._around(taken), dim=-2))
                here = _Out(out.value[:, :_AT_ONCE], out.mean[:, :_AT_ONCE], out.std, out.head[:, :_AT_ONCE])
                advantage = self._advantage_of(drawn, here)
            ends = np.where(taken.terminated, 0.0, out.value[:, _AT_ONCE:].numpy())
            for column, values in (
                (self._value, here.value.numpy()),
                (self._end_value, ends),
                (self._advantages, advantage.numpy()),
                (self._rewards, taken.reward),
                (self._q_ret, taken.reward * self._reward_scale + self._config.gamma * ends),
            ):
                column[at] = values[which]
            self._known[at] = True
        for s, slots in enumerate(fresh):
            if len(slots) > 1:
                self._retrace(s, refer)

    def _arrived(self, fresh: Sequence[Slots]) -> None:
        """Prepare for new experiences in slots of each trial, before they are valued."""

    def _value_ends(self, slots: Slots) -> None:
        """Value anew where drawn experiences lead that nothing follows, unless the task terminated there."""
        assert self._stored is not None
        after = self._stored.after
        last = [of_trial[after[s, of_trial] < 0] for s, of_trial in enumerate(slots)]
        for at, which, taken in self._pieces(last):
            with torch.no_grad():
                out = self._out(self._network.frozen, self._around(taken)[1])
            self._end_value[at] = np.where(taken.terminated, 0.0, out.value[:, :_AT_ONCE].numpy())[which]

    def _pieces(self, slots: Sequence[Slots]) -> Iterator[tuple[Index, Index, Minibatches]]:
        """Gather slots of each trial, some at once: where they are in the columns, and among those gathered."""
        assert self._stored is not None
        for start in range(0, max(map(len, slots)), _AT_ONCE):
            padded = np.zeros((self.trials, _AT_ONCE), np.int64)
            real = np.zeros(padded.shape, np.bool_)
            for s, of_trial in enumerate(slots):
                piece = of_trial[start : start + _AT_ONCE]
                padded[s, : len(piece)], real[s, : len(piece)] = piece, True
            trial, place = (at.astype(np.int64) for at in np.nonzero(real))
            yield (trial, padded[trial, place]), (trial, place), self._stored.gather(padded)

    def _retrace(self, s: int, refer: Refer) -> None:
        assert self._stored is not None
        n = int(self._stored.notes.stored[s])
        self._q_ret[s, :n] = retrace(
            self._rewards[s, :n] * self._reward_scale[s],
            self._value[s, :n],
            refer.rho[s, :n],
            self._end_value[s, :n],
            self._stored.after[s, :n],
            self._config.gamma,
            None if self._head is None else self._advantages[s, :n],
        )

    def _mean_layers(self) -> tuple[Layout, NDArray[np.floating], int]:
        return self._body, self._network.vectors()[:, 0, : self._body.n_parameters], 1
