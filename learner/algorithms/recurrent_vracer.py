"""V-RACER with LSTM cells in place of hidden layers, for policies with memory (Novati and Koumoutsakos 2019, §5.4).

The update for a drawn experience runs through the preceding steps of its episode that are stored and within the window.
The window starts from the hidden state before its first step.  That state is computed when the step's experience is
new, along its episode and with the current network, and is stored in the notes (Kapturowski et al. 2019, stored state).
While acting, the hidden state is carried over from the start of the episode.  If windows started from zero, as in the
paper, the policies that learn would differ from those that act (docs/methods.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from onrig.learner.algorithms import MemoryAccess, Minibatches, Window
from onrig.learner.algorithms.traced import Forward, Values
from onrig.learner.algorithms.vracer import Vracer
from onrig.learner.export import export_recurrent_policy
from onrig.learner.lstm import HiddenState, Lstm
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import concatenate
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape
from onrig.runtime.memory.layout import Slots
from onrig.runtime.policy.contract import PolicyContract


class RecurrentVracer(Vracer):
    """Recurrent networks of S trials, with the update that trains them."""

    _state_field = "window"
    hidden_width: int

    def _lay_out(self, state: Layout, n: int, outputs: int) -> Lstm:
        recurrent_settings = self._vracer_config.recurrent
        assert recurrent_settings is not UNSET
        self._window_start, self._window = recurrent_settings.start, recurrent_settings.window
        self._cells = Lstm(state, "network", n, recurrent_settings.units, outputs)
        self.hidden_width, self._n = self._cells.hidden_width, n
        self._extra_fields = {"window": (self._vracer_config.batch, self._width)}
        return self._cells

    def _draw(self, row: Values, stream: np.random.Generator) -> None:
        self._cells.draw(row, stream)

    @property
    def _width(self) -> int:
        return self._window * (self._n + 1) + self.hidden_width

    def bind_memory(self, memory: MemoryAccess) -> None:
        super().bind_memory(memory)
        self._previous_hidden = memory.notes.add_column("before", 0.0, shape=(self.hidden_width,))
        """(S, capacity, h): the hidden state before each experience."""

    def _pack(self, batches: Minibatches) -> None:
        _window_of(batches)
        super()._pack(batches)

    def _prepare(self, record: Values, batches: Minibatches, k: int) -> None:
        super()._prepare(record, batches, k)
        states = self._states(batches, k)
        record[:, 0, self._records.fields["window"].slice] = states.reshape(self.trials, -1)

    def _states(self, experiences: Minibatches, index: int | slice = slice(None)) -> Values:
        window = _window_of(experiences)
        slots, observation, is_present = window.slots[index], window.observation[index], window.is_present[index]
        return self._windows(observation, is_present, slots[..., -1])

    def _next_states(self, experiences: Minibatches, index: int | slice = slice(None)) -> Values:
        window = _window_of(experiences)
        slots, observation, is_present = window.slots[index], window.observation[index], window.is_present[index]
        next_observation = np.concatenate(
            (experiences.next_observation[index][..., None, :], observation[..., :-1, :]), axis=-2
        )
        next_is_present = np.concatenate((np.ones_like(is_present[..., :1]), is_present[..., :-1]), axis=-1)
        return self._windows(next_observation, next_is_present, slots[..., -2])

    def _windows(self, observation: Values, is_present: NDArray[np.bool_], earliest_slots: Slots) -> Values:
        """Assemble window states (S, B, width): observations, presence masks, and hidden states before the steps in
        ``earliest_slots``."""
        hidden = self._previous_hidden[np.arange(self.trials)[:, None], earliest_slots]
        return np.concatenate((observation.reshape(*earliest_slots.shape, -1), is_present, hidden), axis=-1)

    def _linear_outputs(self, x: Array) -> Array:
        n, W = self._n, self._window
        steps = [self._inputs(x.columns(index * n, (index + 1) * n)) for index in range(W)]
        return self._cells.over_window(
            steps, x.columns(W * n, W * (n + 1)), x.columns(W * (n + 1), W * (n + 1) + self.hidden_width)
        )

    def _current_policy(self, x: Array) -> tuple[Array, Array]:
        zeros = x.tape.filled((x.shape[0], self.hidden_width), 0.0)
        output, _ = self._cells.step(x, self._cells.split_hidden(zeros))
        out = self._split_outputs(self._cells.outputs(output))
        return out.mean, out.std

    def _bind_distribution(self) -> Forward:
        n, h = self._n, self.hidden_width
        self._act_step = self.forward(lambda tape, x, _: self._act(tape, x), n + h, 2 * self._m + h)
        self._next_hidden = self.forward(lambda tape, x, _: concatenate(*_flatten(self._cell_step(x)[1])), n + h, h)
        return super()._bind_distribution()

    def _cell_step(self, x: Array) -> tuple[Array, HiddenState]:
        """Run one step of the cells on observations with hidden states, (rows, n + h)."""
        n = self._n
        return self._cells.step(self._inputs(x.columns(0, n)), self._cells.split_hidden(x.columns(n, x.shape[1])))

    def _act(self, tape: Tape, x: Array) -> Array:
        output, hidden = self._cell_step(x)
        out = self._split_outputs(self._cells.outputs(output))
        return self._concatenate_outputs(tape, out.mean, out.std, *_flatten(hidden))

    def recurrent_distribution(
        self, observation: NDArray[np.floating], hidden: NDArray[np.float32]
    ) -> tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.float32]]:
        """Return the mean and standard deviation (S, E, m) at observations (S, E, n), and the hidden states (S, E, h)
        after them.

        ``hidden``: hidden states after the previous step; 0 at the start of an episode.
        """
        outputs, m = self._act_step(np.concatenate((observation, hidden), axis=-1)).copy(), self._m
        return outputs[..., :m], outputs[..., m : 2 * m], outputs[..., 2 * m :]

    def _prepare_new(self, new_slots: Sequence[Slots]) -> None:
        """Compute and store the hidden states before new experiences, along each episode from its earliest new
        experience."""
        assert self._memory is not None
        if self._window_start == "zero":
            return
        next_slots = self._memory.next_slots
        pending_slots = [np.setdiff1d(slots, next_slots[s, slots]) for s, slots in enumerate(new_slots)]
        while any(map(len, pending_slots)):
            for index, rows, experiences in self._chunks(pending_slots):
                self._previous_hidden[index] = self._carry_hidden(experiences)[rows]
            successors = [next_slots[s, slots] for s, slots in enumerate(pending_slots)]
            pending_slots = [slots[(slots >= 0) & ~self._is_evaluated[s, slots]] for s, slots in enumerate(successors)]

    def _carry_hidden(self, experiences: Minibatches) -> Values:
        """Compute the hidden states (S, B, h) before experiences (S, B) from the hidden states before the preceding
        steps."""
        window = _window_of(experiences)
        slots, observation, is_present = window.slots[..., 1], window.observation[..., 1, :], window.is_present[..., 1]
        hidden = self._previous_hidden[np.arange(self.trials)[:, None], slots]
        next_hidden = self._next_hidden(np.concatenate((observation, hidden), axis=-1))
        return np.where(is_present[..., None], next_hidden, 0.0)

    def policy_graph(self, trial: int, contract: PolicyContract) -> bytes:
        return export_recurrent_policy(self.actor_layers(trial), self.actor_std(trial), contract)


def _flatten(hidden: HiddenState) -> list[Array]:
    return [part for cell in hidden for part in cell]


def _window_of(experiences: Minibatches) -> Window:
    if experiences.window is None:
        raise ValueError("expected experiences with the preceding steps of their episodes")
    return experiences.window
