"""LSTM networks against torch's own, over windows of a memory, and as policies of a rig."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onrig.learner.export import export_recurrent_policy
from onrig.learner.lstm import Lstm
from onrig.learner.tape.elementary import square
from onrig.learner.tape.executors import executor_for
from onrig.learner.tape.program import finish_program
from onrig.learner.tape.spaces import Layout, allocate_rows
from onrig.learner.tape.trace import Tape
from onrig.learner.trajectories import Trajectories
from onrig.runtime.explore.settings import OwnNoise
from onrig.runtime.policy.admission import Admitted
from onrig.runtime.policy.contract import GAUSSIAN, contract_for
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.run_loading import load_run
from onrig.tools.evaluate import admission_verdict

UNITS = (8, 12)
N, M, B, W = 3, 2, 5, 16
Floats = NDArray[np.floating]


class Nets:
    """Cells of some trials, each drawn from its seed."""

    def __init__(self, seeds: list[int], n: int = N, m: int = M, units: tuple[int, ...] = UNITS) -> None:
        self.state = Layout()
        self.lstm = Lstm(self.state, "cells", n, units, m)
        self.rows = allocate_rows(len(seeds), self.state, np.dtype(np.float64))
        for row, seed in zip(self.rows, seeds, strict=True):
            rng = np.random.default_rng(seed)
            self.lstm.draw(row, rng)
            row[self.lstm.group.flat_field.slice] += 0.3 * rng.standard_normal(self.lstm.group.flat_field.size)

    def over_window(self, window: Floats, present: NDArray[np.bool_], before: Floats) -> tuple[Floats, Floats]:
        """Outputs (S, B, m) over windows (S, B, W, n), and gradients (S, P) of the sum of their squares."""
        S, rows, W, n = window.shape
        record = Layout()
        x, there = record.add("x", rows, W * n), record.add("there", rows, W)
        start, y = record.add("before", rows, self.lstm.hidden_width), record.add("y", rows, self.lstm.sizes[-1][1])
        gradient = record.add("gradient", 1, self.lstm.group.flat_field.size)
        tape = Tape(self.state, record)
        seen = tape.read(x)
        steps = [seen.columns(at * n, (at + 1) * n) for at in range(W)]
        outputs = self.lstm.over_window(steps, tape.read(there), tape.read(start))
        tape.output(y, outputs)
        tape.output(gradient, tape.gradient(square(outputs).sum(), [self.lstm.group])[0])
        executor = executor_for(np.float64)
        records = allocate_rows(S, record, executor.dtype)
        for field, values in ((x, window), (there, present), (start, before)):
            records[:, field.slice] = values.reshape(S, -1)
        executor.bind(finish_program(tape))(self.rows, records[:, None], None)
        found = records.astype(np.float64)
        return found[:, y.slice].reshape(S, *y.shape), found[:, gradient.slice]

    def stepped(self, states: Floats, hidden: Floats) -> tuple[Floats, Floats]:
        """Outputs (m,) of the first trial after states (T, n) from a hidden state (h,), and the last hidden state."""
        *cells, (weight, bias) = self.lstm.layers(self.rows[0])
        for x in states:
            kept = []
            for (w, b), units in zip(cells, self.lstm.units, strict=True):
                output, state, hidden = np.split(hidden, (units, 2 * units))
                let_in, keep, candidate, let_out = np.split(np.concatenate((x, output)) @ w + b, 4)
                state = _sigmoid(keep) * state + _sigmoid(let_in) * np.tanh(candidate)
                x = _sigmoid(let_out) * np.tanh(state)
                kept += [x, state]
            hidden = np.concatenate(kept)
        return x @ weight + bias, hidden


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _torch_lstm(layers: list[tuple[Floats, Floats]]) -> tuple[list[torch.nn.LSTM], torch.Tensor, torch.Tensor]:
    """The same weights in cells of torch; ours have one bias where these have two."""
    *cells, (weight, bias) = layers
    made, inputs = [], N
    for (w, b), units in zip(cells, UNITS, strict=True):
        lstm = torch.nn.LSTM(inputs, units, batch_first=True, dtype=torch.float64)
        parts = {"weight_ih_l0": w[:inputs].T, "weight_hh_l0": w[inputs:].T, "bias_ih_l0": b, "bias_hh_l0": 0.0 * b}
        lstm.load_state_dict({name: torch.tensor(part.copy()) for name, part in parts.items()})
        made.append(lstm)
        inputs = units
    return made, torch.tensor(weight), torch.tensor(bias)


def test_outputs_and_gradients_are_those_of_torch_s_lstm() -> None:
    nets, rng = Nets([1, 2]), np.random.default_rng(0)
    window, before = rng.standard_normal((2, B, W, N)), rng.standard_normal((2, B, nets.lstm.hidden_width))
    outputs, gradients = nets.over_window(window, np.ones((2, B, W), np.bool_), before)
    for trial in range(2):
        cells, weight, bias = _torch_lstm(nets.lstm.layers(nets.rows[trial].astype(np.float64)))
        x = torch.tensor(window[trial, :, ::-1].copy())
        split_hidden = torch.tensor(before[trial][None]).tensor_split((8, 16, 28), dim=-1)
        for lstm, output, state in zip(cells, split_hidden[::2], split_hidden[1::2], strict=True):
            x, _ = lstm(x, (output.contiguous(), state.contiguous()))
        wanted = x[:, -1] @ weight + bias
        np.testing.assert_allclose(outputs[trial], wanted.detach(), rtol=1e-12)
        wanted.square().sum().backward()  # type: ignore[no-untyped-call]
        parts = []
        for lstm in cells:
            named = dict(lstm.named_parameters())
            of_cell = [named[name].grad for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0")]
            parts += [np.asarray(part).T.reshape(-1) for part in of_cell]
        of_cells = np.concatenate(parts)
        np.testing.assert_allclose(gradients[trial, : len(of_cells)], of_cells, rtol=1e-9, atol=1e-12)


def test_one_trial_of_many_gives_what_it_gives_alone() -> None:
    window = np.random.default_rng(0).standard_normal((3, 64, W, N))
    present, before = np.ones((3, 64, W), np.bool_), np.full((3, 64, 128), 0.25)
    nets = Nets([1, 2, 3], units=(32, 32)), Nets([2], units=(32, 32))
    together = nets[0].over_window(window, present, before)
    alone = nets[1].over_window(window[1:2], present[1:2], before[1:2])
    for both, one in zip(together, alone, strict=True):
        assert np.array_equal(both[1], one[0])


def test_a_window_begins_with_what_is_stored_of_the_episode_and_remembers_what_it_is_told_of_before() -> None:
    nets = Nets([4])
    stored = np.random.default_rng(1).standard_normal((40, N))
    trajectories = Trajectories(1, 40, lambda trial, first, second: np.ones(len(first), np.bool_))
    keys = np.concatenate((np.arange(30), 100 + np.arange(10)))  # two episodes
    keys[5] = -1  # overwritten since by something else
    slots = np.random.default_rng(2).permutation(40)
    trajectories.on_write(0, slots, keys)
    drawn = slots[[[0, 4, 6, 29, 30, 39]]]
    chain = trajectories.with_predecessors(drawn, W)
    assert chain.is_present.sum(axis=-1).tolist() == [[1, 5, 1, 16, 1, 10]]
    before = np.random.default_rng(3).standard_normal((1, 6, nets.lstm.hidden_width))
    before[:, 0] = 0.0
    outputs, _ = nets.over_window(stored[chain.slots], chain.is_present, before)
    for i, (first, last) in enumerate([(0, 0), (0, 4), (6, 6), (14, 29), (30, 30), (30, 39)]):
        wanted, _ = nets.stepped(stored[slots[first : last + 1]], before[0, i])
        np.testing.assert_allclose(outputs[0, i], wanted, rtol=1e-12)


def test_a_rig_s_session_equals_the_network_over_two_hundred_ticks_and_episodes_do_not_leak() -> None:
    config = load_run("pendulum-hidden")
    n = len(config.signals)
    nets = Nets([5], n, 1, (32, 32))
    contract = contract_for(
        config.rig,
        config.rate_hz,
        policy_id=1,
        parent_run="run",
        training_step=0,
        signals=config.signals,
        behaviour=GAUSSIAN,
    )
    model = export_recurrent_policy(nets.lstm.layers(nets.rows[0]), np.array([0.5]), contract)
    session = PolicySession(model)
    assert session.hidden is not None
    assert session.noise is not None
    session.noise.fill(0.6)
    assert session.hidden.shape == (1, 128)
    centre, half = (np.array([f(s.low, s.high) for s in contract.observations]) for f in (_middle, _half))
    observation = np.random.default_rng(6).uniform(-1, 1, (200, n)).astype(np.float32)
    told = []
    for _ in range(2):
        memory: NDArray[np.floating] = np.zeros(128)
        session.hidden.fill(0.0)
        answers = []
        for seen in observation:
            outputs, memory = nets.stepped(((seen - centre) / half)[None], memory)
            session.observation[0] = seen
            session.run()
            session.hidden[:] = session.hidden_out
            answers.append(session.action[0].tolist())
            drawn = outputs + 0.5 * 0.6
            np.testing.assert_allclose(session.action[0], 3.0 * np.clip(drawn, -1.0, 1.0), atol=1e-5)
            np.testing.assert_allclose(session.hidden_out[0], memory, atol=1e-5)
        told.append(answers)
    assert told[0] == told[1]
    assert np.std(told[0]) > 0.1
    own = msgspec.structs.replace(config, exploration=OwnNoise())
    assert isinstance(admission_verdict(model, own), Admitted)


def _middle(low: float, high: float) -> float:
    return 0.5 * (low + high)


def _half(low: float, high: float) -> float:
    return 0.5 * (high - low)


def test_what_does_not_fit_is_refused() -> None:
    config = load_run("pendulum")
    contract = contract_for(config.rig, 50.0, policy_id=1, parent_run="", training_step=0)
    nets = Nets([0], 3, 1, (8,))
    with pytest.raises(ValueError, match="do not fit observations, cells and actions"):
        export_recurrent_policy(nets.lstm.layers(nets.rows[0]), np.ones(1), contract)
