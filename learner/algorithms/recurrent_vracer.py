"""V-RACER with LSTM cells in place of hidden layers, for policies that remember (Novati and Koumoutsakos 2019, §5.4).

A drawn experience is learned from with the steps that lead to it in its episode, as far as they are stored and the
window reaches; the hidden state is zero before the first of them.  Nothing recurrent is stored.  Acting carries the
state on from the episode's start, so that value and policy in the memory are those of a shorter past.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from msgspec import UNSET
from numpy.typing import NDArray

from onrig.learner.algorithms import Minibatches
from onrig.learner.algorithms.vracer import Vracer
from onrig.learner.autograd import Blocks
from onrig.learner.lstm import hidden_width, lstm_layout, lstm_vectors, over_window, step, window_states
from onrig.learner.networks import Layout, padded, split_layers


class RecurrentVracer(Vracer):
    """Recurrent networks of S trials, and the update that trains them."""

    hidden_width: int

    def _initial(self, outputs: int, streams: Sequence[np.random.Generator]) -> tuple[Layout, NDArray[np.float64]]:
        recurrent = self._vracer.recurrent
        assert recurrent is not UNSET
        layout = lstm_layout(self._n, outputs, recurrent.units)
        self.hidden_width = hidden_width(layout)
        return layout, lstm_vectors(layout, streams)

    def _inputs(self, observation: NDArray[np.floating]) -> torch.Tensor:
        return super()._inputs(observation)[None]

    def _around(self, taken: Minibatches, at: int | slice = slice(None)) -> tuple[torch.Tensor, torch.Tensor]:
        if taken.window is None:
            raise ValueError("expected experiences with the steps before them")
        observation, present = taken.window.observation[at], taken.window.present[at]
        led_to = taken.next_observation[at][..., None, :]
        after = np.concatenate((led_to, observation[..., :-1, :]), axis=-2)
        there = np.concatenate((np.ones_like(present[..., :1]), present[..., :-1]), axis=-1)
        centre, spread = self._centre[:, :, None], self._spread[:, :, None]
        here, ahead = (
            window_states((seen - centre) / spread, stored) for seen, stored in ((observation, present), (after, there))
        )
        return here, ahead

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
