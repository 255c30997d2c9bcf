"""Common base of algorithms whose policy and update are tape programs.

The state of all trials (parameters, targets, moments) is one array with a row for each trial. A program runs for one
trial after another, so each trial's results are bit-identical for any number of trials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from onrig.learner.algorithms import Minibatches, State
from onrig.learner.tape.array import Array
from onrig.learner.tape.executor import Run
from onrig.learner.tape.executors import executor_for
from onrig.learner.tape.program import Program, finish_program
from onrig.learner.tape.spaces import Field, Layout, allocate_rows
from onrig.learner.tape.trace import Tape
from onrig.runtime.memory.order.uniforms import restore_streams, stack_stream_words

Values = NDArray[Any]


class TracedNetworks:
    """Networks of S trials with the state of their updates, and programs bound to them; a subclass defines the
    layout."""

    def __init__(self, state: Layout, trials: int, dtype: DTypeLike = np.float32) -> None:
        """Allocate the state of all trials; its layout, ``state``, must be complete."""
        self.layout: Final = state
        self.executor: Final = executor_for(dtype)
        self.rows: Final = allocate_rows(trials, state, self.executor.dtype)
        """(S, P)"""

    @property
    def trials(self) -> int:
        return len(self.rows)

    def bind(self, tape: Tape) -> Run:
        """Finish a tape and prepare its program."""
        return self.executor.bind(finish_program(tape))

    def forward(
        self, trace: Callable[[Tape, Array, Array | None], Array], inputs: int, outputs: int, noise_width: int = 0
    ) -> Forward:
        """Build a program from inputs to outputs, for any number of rows."""
        return Forward(self, trace, inputs, outputs, noise_width)

    def run_selected(self, run: Run, records: Values, trials: NDArray[np.int64]) -> None:
        """Run a program for these trials only; the other trials, including their moments, remain unchanged."""
        for trial in trials.tolist():
            run(self.rows[trial : trial + 1], records[trial : trial + 1], None)

    def values(self, field: Field) -> Values:
        """Return a view of a field of the state, (S, rows, cols)."""
        return self.rows[:, field.slice].reshape(-1, *field.shape)

    def state(self) -> State:
        """Return a copy of all fields, (S, rows, cols) by name."""
        return {name: self.values(field).copy() for name, field in self.layout.fields.items()}

    def check(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Raise KeyError or ValueError if the fields of a state do not fit."""
        for name, field in self.layout.fields.items():
            if state[name].shape != (self.trials, *field.shape):
                raise ValueError(f"{name} of shape {state[name].shape}, expected {(self.trials, *field.shape)}")

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state from ``state()``, bit for bit; raise KeyError or ValueError, and change nothing, if it does
        not fit."""
        self.check(state)
        for name, field in self.layout.fields.items():
            self.values(field)[:] = state[name]


class TracedAlgorithm(TracedNetworks):
    """Networks of an algorithm, with its random streams and its update count."""

    def __init__(self, state: Layout, streams: Sequence[np.random.Generator], dtype: DTypeLike = np.float32) -> None:
        """Allocate the state of all trials; its layout, ``state``, must be complete.  The algorithm owns the
        ``streams``, one per trial."""
        super().__init__(state, len(streams), dtype)
        self.updates = 0
        self.program: Program
        """Program of the update."""
        self._streams: Final = tuple(streams)

    def bind_update(self, tape: Tape) -> Run:
        """Finish the tape of the update and prepare its program."""
        self.program = finish_program(tape)
        return self.executor.bind(self.program)

    def normals(self, *shape: int) -> Values:
        """Draw N(0, 1) noise for updates, from one stream per trial: (S, *shape)."""
        return np.stack([stream.standard_normal(shape) for stream in self._streams])

    def draw_noise(self, updates: int, *shape: int, n_uniforms: int = 0) -> tuple[Values, Values]:
        """Draw N(0, 1) noise (S, updates, *shape) and uniform numbers in [0, 1) (S, updates, n_uniforms),
        update by update."""
        if not n_uniforms:
            return self.normals(updates, *shape), np.zeros((self.trials, updates, 0))
        draws = [
            [(stream.standard_normal(shape), stream.random(n_uniforms)) for _ in range(updates)]
            for stream in self._streams
        ]
        normals, numbers = (np.array([[draw[i] for draw in row] for row in draws]) for i in (0, 1))
        return normals, numbers

    def sections_due(self, updates: int, section: int, interval: int) -> NDArray[np.uint32]:
        """Return the sections that run in the next updates: ``section`` in every ``interval``-th one."""
        update_numbers = self.updates + 1 + np.arange(updates)
        return np.where(update_numbers % interval == 0, np.uint32(1 << section), np.uint32(0)).astype(np.uint32)

    def state(self) -> State:
        """Return a copy of everything needed to resume training: fields (S, rows, cols), random streams, update
        count."""
        algorithm_state = {
            "updates": np.array(self.updates, dtype=np.int64),
            "streams": stack_stream_words(self._streams),
        }
        return super().state() | algorithm_state

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore a state from ``state()``, bit for bit; raise KeyError or ValueError, and change nothing, if it does
        not fit."""
        self.check(state)
        updates = int(state["updates"])
        restore_streams(self._streams, state["streams"])
        super().restore(state)
        self.updates = updates


class Forward:
    """Program from inputs (S, E, n), and noise if it needs any, to outputs (S, E, m), for any E."""

    def __init__(
        self,
        networks: TracedNetworks,
        trace: Callable[[Tape, Array, Array | None], Array],
        inputs: int,
        outputs: int,
        noise_width: int,
    ) -> None:
        self._networks, self._trace, self._sizes = networks, trace, (inputs, outputs, noise_width)
        self._bound_programs: dict[int, tuple[Run, Values, Values, Values, Values]] = {}

    def __call__(self, inputs: Values, noise: Values | None = None) -> Values:
        """Return the outputs, valid until the next call with the same number of rows."""
        bound_program = self._bound_programs.get(inputs.shape[1])
        if bound_program is None:
            bound_program = self._bound_programs[inputs.shape[1]] = self._bind(inputs.shape[1])
        run, records, x, noise_view, outputs = bound_program
        x[:] = inputs
        if noise is not None:
            noise_view[:] = noise
        run(self._networks.rows, records, None)
        return outputs

    def _bind(self, rows: int) -> tuple[Run, Values, Values, Values, Values]:
        inputs, outputs, noise_width = self._sizes
        record = Layout()
        x, y = record.add("inputs", rows, inputs), record.add("outputs", rows, outputs)
        noise = record.add("noise", rows, noise_width) if noise_width else None
        tape = Tape(self._networks.layout, record)
        tape.output(y, self._trace(tape, tape.read(x), None if noise is None else tape.read(noise)))
        records = allocate_rows(self._networks.trials, record, self._networks.executor.dtype)
        views = [records[:, f.slice].reshape(-1, *f.shape) for f in (x, noise or x, y)]
        return self._networks.bind(tape), records[:, None], views[0], views[1], views[2]


class RecordBuffer:
    """Records of updates: fields by name, (S, K, rows, cols) each, in a buffer that is reused."""

    def __init__(self, shapes: Mapping[str, tuple[int, int]], *, separate_calls: bool = False) -> None:
        """``shapes``: rows and columns of each field; ``separate_calls``: whether each update runs in a separate
        call."""
        self.layout: Final = Layout()
        self._separate_calls = separate_calls
        self.fields: Final = {name: self.layout.add(name, *shape) for name, shape in shapes.items()}
        self._rows: Values = np.zeros((0, 0, 0))

    def read(self, tape: Tape) -> dict[str, Array]:
        return {name: tape.read(field) for name, field in self.fields.items()}

    def allocate(self, networks: TracedNetworks, updates: int) -> Values:
        """Return records (S, K, size) for K updates of the trials of ``networks``; they still hold their previous
        contents."""
        S, K = networks.trials, updates
        if self._rows.shape[:2] != (S, K):
            rows = allocate_rows(S * K, self.layout, networks.executor.dtype)
            # If each update runs in a separate call, its records must be contiguous.
            self._rows = rows.reshape(K, S, -1).swapaxes(0, 1) if self._separate_calls else rows.reshape(S, K, -1)
        return self._rows

    def view_of_update(self, k: int) -> Values:
        """Return a view of the records of one update, (S, 1, size)."""
        return self._rows[:, k : k + 1]

    def set(self, name: str, values: Values) -> None:
        """Write a field: (K, S, ...)."""
        K, S = values.shape[:2]
        self._rows[:, :, self.fields[name].slice] = values.reshape(K, S, -1).swapaxes(0, 1)

    def get(self, name: str) -> Values:
        """Copy out a field: (K, S, rows) if it has one column, else (K, S, rows, cols)."""
        field = self.fields[name]
        S, K, _ = self._rows.shape
        values = self._rows[:, :, field.slice].reshape(S, K, *field.shape).swapaxes(0, 1)
        values_copy: Values = (values[..., 0] if field.shape[1] == 1 else values).copy()
        return values_copy


class MinibatchRecords(RecordBuffer):
    """Records of updates from minibatches."""

    def __init__(
        self, batch: int, n: int, m: int, extra_fields: Mapping[str, tuple[int, int]], *, separate_calls: bool = False
    ) -> None:
        """Declare the fields that every minibatch of B has, and ``extra_fields`` with shapes (rows, cols).

        ``separate_calls``: whether each update runs in a separate call.
        """
        self._shape = batch, n, m
        columns = {"observation": n, "action": m, "reward": 1, "next_observation": n, "discount": 1, "weight": 1}
        super().__init__(
            {name: (batch, cols) for name, cols in columns.items()} | dict(extra_fields), separate_calls=separate_calls
        )

    def pack(
        self, networks: TracedNetworks, batches: Minibatches, gamma: float | Values, reward_scale: float
    ) -> Values:
        """Write minibatches into records (S, K, size) for the trials of ``networks``.

        The discount is 0 where the task terminated, else ``gamma``, which may be an array (K, S, B).  Raises ValueError
        if the minibatches' shape does not fit.
        """
        K, S, (B, n, m) = len(batches.reward), networks.trials, self._shape
        check_shapes(batches, S, B, n, m)
        rows = self.allocate(networks, K)
        self.set("observation", batches.observation)
        self.set("action", batches.action)
        self.set("reward", batches.reward * reward_scale)
        self.set("next_observation", batches.next_observation)
        self.set("discount", np.where(batches.terminated, 0.0, gamma))
        self.set("weight", np.ones((K, S, B)) if batches.weights is None else batches.weights)
        return rows


def check_shapes(batches: Minibatches, S: int, B: int, n: int, m: int) -> None:
    """Raise ValueError unless K minibatches hold B experiences of each of S trials."""
    K = len(batches.reward)
    shapes, expected_shapes = (batches.observation.shape, batches.action.shape), ((K, S, B, n), (K, S, B, m))
    if shapes != expected_shapes:
        raise ValueError(
            "expected observations and actions of shape {} and {}, got {} and {}".format(*expected_shapes, *shapes)
        )
