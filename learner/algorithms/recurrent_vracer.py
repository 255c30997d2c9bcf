"""V-RACER with LSTM cells in place of hidden layers, for policies that remember (Novati and Koumoutsakos 2019, §5.4).

A drawn experience is learned from with the steps that lead to it in its episode, as far as they are stored and the
window reaches.  The window starts from the hidden state before its first step, which is found when that experience is
new, along its episode and with the network of then, and stored beside it (Kapturowski et al. 2019, stored state).
Acting carries the state on from the episode's start, so the policies that learn are those that act.  They are not where
windows start from zero, as in the paper (docs/methods.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from msgspec import UNSET
from numpy.typing import NDArray
from torch.nn.functional import pad

from onrig.learner.algorithms import Minibatches, Stored, Window
from onrig.learner.algorithms.vracer import Vracer
from onrig.learner.autograd import Blocks
from onrig.learner.lstm import hidden_width, lstm_layout, lstm_vectors, over_window, step, window_states
from onrig.learner.networks import Layout, padded, split_layers
from onrig.runtime.replay.memory.layout import Slots


class RecurrentVracer(Vracer):
    """Recurrent networks of S trials, and the update that trains them."""

    hidden_width: int

    def attend(self, stored: Stored) -> None:
        """Learn from this memory; once, before the first update."""
        super().attend(stored)
        self._before = stored.notes.column("before", 0.0, shape=(self.hidden_width,))
        """(S, capacity, h): the hidden state before each experience."""

    def _initial(self, outputs: int, streams: Sequence[np.random.Generator]) -> tuple[Layout, NDArray[np.float64]]:
        recurrent = self._vracer.recurrent
        assert recurrent is not UNSET
        layout = lstm_layout(self._n, outputs, recurrent.units)
        self.hidden_width, self._start = hidden_width(layout), recurrent.start
        return layout, lstm_vectors(layout, streams)

    def _inputs(self, observation: NDArray[np.floating]) -> torch.Tensor:
        return pad(super()._inputs(observation), (0, self.hidden_width))[None]

    def _around(self, taken: Minibatches, at: int | slice = slice(None)) -> tuple[torch.Tensor, torch.Tensor]:
        window = _window_of(taken)
        slots, observation, present = window.slots[at], window.observation[at], window.present[at]
        trial = np.arange(self.trials)[:, None]
        led_to = taken.next_observation[at][..., None, :]
        after = np.concatenate((led_to, observation[..., :-1, :]), axis=-2)
        there = np.concatenate((np.ones_like(present[..., :1]), present[..., :-1]), axis=-1)
        centre, spread = self._centre[:, :, None], self._spread[:, :, None]
        here, ahead = (
            window_states((seen - centre) / spread, stored, self._before[trial, first])
            for seen, stored, first in ((observation, present, slots[..., -1]), (after, there, slots[..., -2]))
        )
        return here, ahead

    def _arrived(self, fresh: Sequence[Slots]) -> None:
        """Note the hidden states before new experiences, along each episode from the earliest that is new."""
        assert self._stored is not None
        if self._start == "zero":
            return
        after = self._stored.after
        front = [np.setdiff1d(slots, after[s, slots]) for s, slots in enumerate(fresh)]
        while any(map(len, front)):
            for at, which, taken in self._pieces(front):
                self._before[at] = self._carried(taken)[which]
            reached = [after[s, slots] for s, slots in enumerate(front)]
            front = [slots[(slots >= 0) & ~self._known[s, slots]] for s, slots in enumerate(reached)]

    def _carried(self, taken: Minibatches) -> NDArray[np.float32]:
        """Hidden states (S, B, h) before experiences (S, B), from those before the steps that lead to them."""
        window = _window_of(taken)
        slots, observation, present = window.slots[..., 1], window.observation[..., 1, :], window.present[..., 1]
        blocks = self._network.frozen[:-1]
        with torch.no_grad():
            before = torch.from_numpy(self._before[np.arange(self.trials)[:, None], slots])
            _, after = step(self._body, blocks, super()._inputs(observation), before)
        carried: NDArray[np.float32] = np.where(present[..., None], after.numpy(), np.float32(0.0))
        return carried

    def _linear(self, blocks: Blocks, x: torch.Tensor) -> torch.Tensor:
        return over_window(self._body, blocks[:-1], x)

    def remembering(
        self, observation: NDArray[np.floating], hidden: NDArray[np.float32]
    ) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.float32]]:
        """Mean and standard deviation (S, E, m) at observations (S, E, n), and the hidden states (S, E, h) after them.

        ``hidden``: those after the step before, 0 at an episode's start.
        """
        blocks, E = self._network.frozen, observation.shape[1]
        before = torch.zeros((self.trials, padded(E), self.hidden_width))
        before[:, :E] = torch.from_numpy(hidden)
        with torch.no_grad():
            outputs, after = step(self._body, blocks[:-1], super()._inputs(observation), before)
            out = self._named(blocks, outputs)
            std = out.std.expand_as(out.mean)
        return out.mean[:, :E].numpy(), std[:, :E].numpy(), after[:, :E].numpy()

    def actor_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        """Copy one trial's cells and its linear mean out, standardisation included (``onrig.learner.lstm``)."""
        layout, vectors, first = self._mean_layers()
        (weight, bias), *cells, (last_weight, last_bias) = split_layers(layout, vectors[trial])
        scaled = weight.astype(np.float64)
        scaled[: self._n] /= self._spread[trial].T
        means = slice(first, first + self._m)
        inner = (scaled, bias - self._centre[trial, 0] @ scaled[: self._n])
        return [inner, *cells, (last_weight[:, means], last_bias[means])]


def _window_of(taken: Minibatches) -> Window:
    if taken.window is None:
        raise ValueError("expected experiences with the steps before them")
    return taken.window
