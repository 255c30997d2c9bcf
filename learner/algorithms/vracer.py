"""V-RACER (Novati and Koumoutsakos 2019, §2, Alg. 2 and 3): an off-policy actor and a value in one network.

The notes of each slot hold its value and its importance ratio at the last replay.  From these, Q^ret is computed along
the episodes (``onrig.learner.algorithms.returns``): immediately for new experiences, and at intervals for all episodes.
With a head, the advantage is a function of the action (App. E), which is learned together with the policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithms import MemoryAccess, Minibatches
from onrig.learner.algorithms.heads import HEADS
from onrig.learner.algorithms.refer import Index, Refer, Rules
from onrig.learner.algorithms.refer_algorithm import (
    ReferMinibatchAlgorithm,
    common_std,
    initial_layer,
    inverse_softplus,
)
from onrig.learner.algorithms.returns import retrace
from onrig.learner.algorithms.traced import Values
from onrig.learner.lstm import Lstm
from onrig.learner.refer_settings import ReferSettings, VracerConfig
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import clip, concatenate, softplus, softsign
from onrig.learner.tape.networks import Mlp
from onrig.learner.tape.optimiser import Adam, descend
from onrig.learner.tape.spaces import Layout
from onrig.learner.tape.trace import Tape
from onrig.runtime.memory.layout import Slots

_CHUNK_SIZE: Final = 16
"""Number of experiences per forward pass; constant, so that the rounding of a trial does not depend on the others."""


class _Outputs(NamedTuple):
    """Network outputs at states, one row each."""

    value: Array
    mean: Array
    std: Array
    """(1, m)"""
    head: Array | None


class Vracer(ReferMinibatchAlgorithm):
    """Networks of S trials, with the update that trains them."""

    _state_field: ClassVar[str] = "observation"
    """Record field that holds the states at which the network is evaluated."""
    _extra_fields: Mapping[str, tuple[int, int]] = MappingProxyType({})

    def __init__(
        self,
        config: VracerConfig,
        n_observations: int,
        n_actions: int,
        streams: Sequence[np.random.Generator],
        refer: ReferSettings,
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        """Initialise one trial from each of ``streams``."""
        state, n, m, B = Layout(), n_observations, n_actions, config.batch
        self._vracer_config = config
        self._head = HEADS.get(config.advantage)
        self._network = self._lay_out(state, n, 1 + m + (0 if self._head is None else self._head.outputs(m)))
        self._std = common_std(state, m)
        self._adams = [Adam(state, group, lr=config.lr) for group in (self._network.group, self._std)]
        super().__init__(config, refer, n, m, state, streams, dtype)
        for row, stream in zip(self.rows, streams, strict=True):
            self._draw(row, stream)
            row[self._std.flat_field.slice] = inverse_softplus(config.std)
        w = self._width
        self._trace(q_ret=(B, 1), value=(B, 1), advantage=(B, 1), **self._extra_fields)
        self._values = self.forward(lambda tape, x, _: self._compute_outputs(x).value, w, 1)
        self._entries = self.forward(lambda tape, x, _: self._trace_entry(tape, x), 2 * w + m, 3)

    def _lay_out(self, state: Layout, n: int, outputs: int) -> Mlp | Lstm:
        """Lay out the network without the standard deviation."""
        self._mlp = Mlp(state, "network", (n, *self._vracer_config.hidden, outputs), activation=softsign)
        return self._mlp

    def _draw(self, row: Values, stream: np.random.Generator) -> None:
        self._mlp.draw(row, stream, initial_layer)

    @property
    def _width(self) -> int:
        """Size of a network input."""
        return self._n

    def _states(self, experiences: Minibatches, index: int | slice = slice(None)) -> Values:
        """Return the states (S, B, width) of experiences, or of one minibatch's experiences."""
        return experiences.observation[index]

    def _next_states(self, experiences: Minibatches, index: int | slice = slice(None)) -> Values:
        """Return the next states (S, B, width)."""
        return experiences.next_observation[index]

    def _linear_outputs(self, x: Array) -> Array:
        """Return the linear outputs at states (rows, width)."""
        return self._mlp(self._inputs(x))

    def _compute_outputs(self, x: Array) -> _Outputs:
        return self._split_outputs(self._linear_outputs(x))

    def _split_outputs(self, out: Array) -> _Outputs:
        m, cols = self._m, out.shape[1]
        std = softplus(out.tape.read(self._std.fields[0]))
        head = out.columns(1 + m, cols) if cols > 1 + m else None
        return _Outputs(out.columns(0, 1), out.columns(1, 1 + m), std, head)

    def _current_policy(self, x: Array) -> tuple[Array, Array]:
        return self._split_outputs(self._mlp(x))[1:3]

    def _compute_advantage(self, action: Array, out: _Outputs) -> Array:
        """Return A(s, a) (B, 1), which is 0 without a head; gradients reach only the head's outputs."""
        if self._head is None or out.head is None:
            return action.tape.filled((action.shape[0], 1), 0.0)
        return self._head.advantage(action, out.mean.detach(), out.std.detach(), out.head)

    def _update(self, tape: Tape, rules: Rules, **fields: Array) -> dict[str, Array]:
        out, drawn, q_ret = self._compute_outputs(fields[self._state_field]), fields["drawn"], fields["q_ret"]
        distance = self._policy_distance(out.mean, out.std, **fields)
        advantage = self._compute_advantage(drawn, out)
        gain = q_ret - out.value.detach()
        error = gain - advantage.detach()
        rho, detached_rho = distance.rho, distance.rho.detach()
        # Gradients: -rho (Q^ret - V) for ln pi, -min(1, rho) error for V, -rho error for A (docs/methods.md,
        # "V-RACER").
        loss = -rho * gain - clip(detached_rho, 0.0, 1.0) * error * out.value
        if self._head is not None:
            loss = loss - detached_rho * error * advantage
        mixed_loss = rules.mix(fields["weight"] * loss, distance).mean()
        descend(tape, mixed_loss, self._adams, factor=rules.annealing)
        outputs = {"td": error, "target": q_ret, "rho": rho, "kl": distance.kl}
        return outputs | {"value": out.value, "advantage": advantage}

    def bind_memory(self, memory: MemoryAccess) -> None:
        super().bind_memory(memory)
        column = memory.notes.add_column
        self._is_evaluated = column("known", False, np.bool_)
        self._value, self._end_value = column("value", 0.0), column("end_value", 0.0)
        self._advantages, self._rewards = column("advantage", 0.0), column("reward", 0.0)
        self._q_ret = column("q_ret", 0.0)
        self._evaluated_changes = -1

    def _prepare(self, record: Values, batches: Minibatches, k: int) -> None:
        assert batches.slots is not None
        self._evaluate_new()
        index = np.arange(self.trials)[:, None], batches.slots[k]
        record[:, 0, self._records.fields["q_ret"].slice] = self._q_ret[index]

    def _step(self, batches: Minibatches, k: int, refer: Refer) -> Sequence[Values]:
        outputs = super()._step(batches, k, refer)
        assert batches.slots is not None
        slots, record = batches.slots[k], self._records.view_of_update(k)
        index = np.arange(self.trials)[:, None], slots
        self._value[index] = record[:, 0, self._records.fields["value"].slice]
        if self._head is not None:
            self._advantages[index] = record[:, 0, self._records.fields["advantage"].slice]
        self._evaluate_ends(batches, k, slots)
        if (self.updates + 1) % self._vracer_config.retrace_every == 0:
            for s in range(self.trials):
                self._retrace(s)
        return outputs

    def _evaluate_new(self) -> None:
        """Compute the values of new experiences; their importance ratio is 1 until they are replayed."""
        assert self._memory is not None
        notes = self._memory.notes
        if self._evaluated_changes == notes.changes:
            return
        self._evaluated_changes = notes.changes
        new_slots = [np.flatnonzero(~self._is_evaluated[s, :n]) for s, n in enumerate(notes.stored.tolist())]
        self._prepare_new(new_slots)
        for index, rows, experiences in self._chunks(new_slots):
            assert experiences.behaviour is not None
            entries = np.concatenate(
                (self._states(experiences), self._next_states(experiences), experiences.behaviour.drawn), axis=-1
            )
            value, advantage, next_value = np.moveaxis(self._entries(entries), 2, 0)
            end_values = np.where(experiences.terminated, 0.0, next_value)
            for column, values in (
                (self._value, value),
                (self._end_value, end_values),
                (self._advantages, advantage),
                (self._rewards, experiences.reward),
                (self._q_ret, experiences.reward * self._reward_scale[:, 0] + self._config.gamma * end_values),
            ):
                column[index] = values[rows]
            self._is_evaluated[index] = True
        for s, slots in enumerate(new_slots):
            if len(slots) > 1:
                self._retrace(s)

    def _trace_entry(self, tape: Tape, x: Array) -> Array:
        """Trace value, advantage and next state's value, (rows, 3), of the states, next states and actions in ``x``."""
        w = self._width
        out = self._compute_outputs(x.columns(0, w))
        advantage = self._compute_advantage(x.columns(2 * w, x.shape[1]), out)
        return concatenate(out.value, advantage, self._compute_outputs(x.columns(w, 2 * w)).value)

    def _prepare_new(self, new_slots: Sequence[Slots]) -> None:
        """Prepare for new experiences in slots of each trial, before their values are computed."""

    def _evaluate_ends(self, batches: Minibatches, k: int, slots: Slots) -> None:
        """Update the end values of drawn experiences without a successor, unless the task terminated there."""
        assert self._memory is not None
        trial = np.arange(self.trials)[:, None]
        is_last = (self._memory.next_slots[trial, slots] < 0) & ~batches.terminated[k]
        counts = np.count_nonzero(is_last, axis=1)
        if not counts.any():
            return
        first, states = np.argsort(~is_last, axis=1, kind="stable"), self._next_states(batches, k)
        for start in range(0, int(counts.max()), _CHUNK_SIZE):
            index = first[:, start : start + _CHUNK_SIZE]
            x = np.zeros((self.trials, _CHUNK_SIZE, states.shape[-1]), states.dtype)
            x[:, : index.shape[1]] = states[trial, index]
            s, row = np.nonzero(np.take_along_axis(is_last, index, axis=1))
            self._end_value[s, slots[s, index[s, row]]] = self._values(x)[s, row, 0]

    def _chunks(self, slots: Sequence[Slots]) -> Iterator[tuple[Index, Index, Minibatches]]:
        """Gather each trial's slots in chunks; yield a chunk's indices in the columns and in the gathered batch, and
        the batch."""
        assert self._memory is not None
        for start in range(0, max(map(len, slots)), _CHUNK_SIZE):
            padded_slots = np.zeros((self.trials, _CHUNK_SIZE), np.int64)
            is_slot = np.zeros(padded_slots.shape, np.bool_)
            for s, trial_slots in enumerate(slots):
                chunk = trial_slots[start : start + _CHUNK_SIZE]
                padded_slots[s, : len(chunk)], is_slot[s, : len(chunk)] = chunk, True
            trial, column = (index.astype(np.int64) for index in np.nonzero(is_slot))
            yield (trial, padded_slots[trial, column]), (trial, column), self._memory.gather(padded_slots)

    def _retrace(self, s: int) -> None:
        assert self._memory is not None
        assert self._refer is not None
        n = int(self._memory.notes.stored[s])
        self._q_ret[s, :n] = retrace(
            self._rewards[s, :n] * np.float64(self._reward_scale[s, 0, 0]),
            self._value[s, :n],
            self._refer.rho[s, :n],
            self._end_value[s, :n],
            self._memory.next_slots[s, :n],
            self._config.gamma,
            None if self._head is None else self._advantages[s, :n],
        )

    def _mean_layers(self, trial: int) -> list[tuple[NDArray[np.floating], NDArray[np.floating]]]:
        *hidden, (weight, bias) = self._network.layers(self.rows[trial])
        means = slice(1, 1 + self._m)
        return [*hidden, (weight[:, means], bias[means])]
