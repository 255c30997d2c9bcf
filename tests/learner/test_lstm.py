"""LSTM networks compared with torch's, over windows of a memory, and as policies of a rig."""

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
from onrig.sim.evaluation import admission_verdict

UNITS = (8, 12)
N, M, B, W = 3, 2, 5, 16
Floats = NDArray[np.floating]


class CellNets:
    """Cells of some trials, each initialised from its seed."""

    def __init__(self, seeds: list[int], n: int = N, m: int = M, units: tuple[int, ...] = UNITS) -> None:
        self.state = Layout()
        self.lstm = Lstm(self.state, "cells", n, units, m)
        self.rows = allocate_rows(len(seeds), self.state, np.dtype(np.float64))
        for row, seed in zip(self.rows, seeds, strict=True):
            rng = np.random.default_rng(seed)
            self.lstm.draw(row, rng)
            row[self.lstm.group.flat_field.slice] += 0.3 * rng.standard_normal(self.lstm.group.flat_field.size)

    def run_window(self, window: Floats, is_present: NDArray[np.bool_], initial_state: Floats) -> tuple[Floats, Floats]:
        """Outputs (S, B, m) over windows (S, B, W, n), and gradients (S, P) of the sum of their squares."""
        S, rows, W, n = window.shape
        record = Layout()
        x, presence_field = record.add("x", rows, W * n), record.add("there", rows, W)
        start, y = record.add("before", rows, self.lstm.hidden_width), record.add("y", rows, self.lstm.sizes[-1][1])
        gradient = record.add("gradient", 1, self.lstm.group.flat_field.size)
        tape = Tape(self.state, record)
        window_field = tape.read(x)
        steps = [window_field.columns(step_index * n, (step_index + 1) * n) for step_index in range(W)]
        outputs = self.lstm.over_window(steps, tape.read(presence_field), tape.read(start))
        tape.output(y, outputs)
        tape.output(gradient, tape.gradient(square(outputs).sum(), [self.lstm.group])[0])
        executor = executor_for(np.float64)
        records = allocate_rows(S, record, executor.dtype)
        for field, values in ((x, window), (presence_field, is_present), (start, initial_state)):
            records[:, field.slice] = values.reshape(S, -1)
        executor.bind(finish_program(tape))(self.rows, records[:, None], None)
        outputs_read = records.astype(np.float64)
        return outputs_read[:, y.slice].reshape(S, *y.shape), outputs_read[:, gradient.slice]

    def run_steps(self, states: Floats, hidden: Floats) -> tuple[Floats, Floats]:
        """Outputs (m,) of the first trial after states (T, n) from a hidden state (h,), and the last hidden state."""
        *cells, (weight, bias) = self.lstm.layers(self.rows[0])
        for x in states:
            new_states = []
            for (w, b), units in zip(cells, self.lstm.units, strict=True):
                output, state, hidden = np.split(hidden, (units, 2 * units))
                input_gate, forget_gate, candidate, output_gate = np.split(np.concatenate((x, output)) @ w + b, 4)
                state = _sigmoid(forget_gate) * state + _sigmoid(input_gate) * np.tanh(candidate)
                x = _sigmoid(output_gate) * np.tanh(state)
                new_states += [x, state]
            hidden = np.concatenate(new_states)
        return x @ weight + bias, hidden


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _torch_lstm(layers: list[tuple[Floats, Floats]]) -> tuple[list[torch.nn.LSTM], torch.Tensor, torch.Tensor]:
    """The same weights in torch cells; ours have one bias where these have two."""
    *cells, (weight, bias) = layers
    torch_cells, inputs = [], N
    for (w, b), units in zip(cells, UNITS, strict=True):
        lstm = torch.nn.LSTM(inputs, units, batch_first=True, dtype=torch.float64)
        parts = {"weight_ih_l0": w[:inputs].T, "weight_hh_l0": w[inputs:].T, "bias_ih_l0": b, "bias_hh_l0": 0.0 * b}
        lstm.load_state_dict({name: torch.tensor(part.copy()) for name, part in parts.items()})
        torch_cells.append(lstm)
        inputs = units
    return torch_cells, torch.tensor(weight), torch.tensor(bias)


def test_outputs_and_gradients_equal_those_of_torchs_lstm() -> None:
    nets, rng = CellNets([1, 2]), np.random.default_rng(0)
    window, initial_state = rng.standard_normal((2, B, W, N)), rng.standard_normal((2, B, nets.lstm.hidden_width))
    outputs, gradients = nets.run_window(window, np.ones((2, B, W), np.bool_), initial_state)
    for trial in range(2):
        cells, weight, bias = _torch_lstm(nets.lstm.layers(nets.rows[trial].astype(np.float64)))
        x = torch.tensor(window[trial, :, ::-1].copy())
        split_states = torch.tensor(initial_state[trial][None]).tensor_split((8, 16, 28), dim=-1)
        for lstm, output, state in zip(cells, split_states[::2], split_states[1::2], strict=True):
            x, _ = lstm(x, (output.contiguous(), state.contiguous()))
        expected = x[:, -1] @ weight + bias
        np.testing.assert_allclose(outputs[trial], expected.detach(), rtol=1e-12)
        expected.square().sum().backward()  # type: ignore[no-untyped-call]
        parts = []
        for lstm in cells:
            parameters = dict(lstm.named_parameters())
            cell_gradients = [parameters[name].grad for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0")]
            parts += [np.asarray(part).T.reshape(-1) for part in cell_gradients]
        gradients_of_cells = np.concatenate(parts)
        np.testing.assert_allclose(
            gradients[trial, : len(gradients_of_cells)], gradients_of_cells, rtol=1e-9, atol=1e-12
        )


def test_one_trial_of_many_equals_the_trial_alone() -> None:
    window = np.random.default_rng(0).standard_normal((3, 64, W, N))
    is_present, initial_state = np.ones((3, 64, W), np.bool_), np.full((3, 64, 128), 0.25)
    nets = CellNets([1, 2, 3], units=(32, 32)), CellNets([2], units=(32, 32))
    joint = nets[0].run_window(window, is_present, initial_state)
    single = nets[1].run_window(window[1:2], is_present[1:2], initial_state[1:2])
    for joint_values, single_values in zip(joint, single, strict=True):
        assert np.array_equal(joint_values[1], single_values[0])


def test_a_window_starts_within_the_stored_episode_and_from_the_given_state() -> None:
    nets = CellNets([4])
    stored = np.random.default_rng(1).standard_normal((40, N))
    trajectories = Trajectories(1, 40, lambda trial, first_slot, second: np.ones(len(first_slot), np.bool_))
    keys = np.concatenate((np.arange(30), 100 + np.arange(10)))  # two episodes
    keys[5] = -1  # overwritten since by something else
    slots = np.random.default_rng(2).permutation(40)
    trajectories.on_write(0, slots, keys)
    expected_draw = slots[[[0, 4, 6, 29, 30, 39]]]
    chain = trajectories.with_predecessors(expected_draw, W)
    assert chain.is_present.sum(axis=-1).tolist() == [[1, 5, 1, 16, 1, 10]]
    initial_state = np.random.default_rng(3).standard_normal((1, 6, nets.lstm.hidden_width))
    initial_state[:, 0] = 0.0
    outputs, _ = nets.run_window(stored[chain.slots], chain.is_present, initial_state)
    for i, (first_slot, last_slot) in enumerate([(0, 0), (0, 4), (6, 6), (14, 29), (30, 30), (30, 39)]):
        expected, _ = nets.run_steps(stored[slots[first_slot : last_slot + 1]], initial_state[0, i])
        np.testing.assert_allclose(outputs[0, i], expected, rtol=1e-12)


def test_a_rigs_session_equals_the_network_over_two_hundred_ticks_and_episodes_do_not_leak() -> None:
    config = load_run("pendulum-hidden")
    n = len(config.signals)
    nets = CellNets([5], n, 1, (32, 32))
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
    centre, half_range = (
        np.array([f(s.low, s.high) for s in contract.observations]) for f in (_range_middle, _half_range)
    )
    observation = np.random.default_rng(6).uniform(-1, 1, (200, n)).astype(np.float32)
    actions = []
    for _ in range(2):
        memory: NDArray[np.floating] = np.zeros(128)
        session.hidden.fill(0.0)
        answers = []
        for state in observation:
            outputs, memory = nets.run_steps(((state - centre) / half_range)[None], memory)
            session.observation[0] = state
            session.run()
            session.hidden[:] = session.hidden_out
            answers.append(session.action[0].tolist())
            expected_draw = outputs + 0.5 * 0.6
            np.testing.assert_allclose(session.action[0], 3.0 * np.clip(expected_draw, -1.0, 1.0), atol=1e-5)
            np.testing.assert_allclose(session.hidden_out[0], memory, atol=1e-5)
        actions.append(answers)
    assert actions[0] == actions[1]
    assert np.std(actions[0]) > 0.1
    own_noise = msgspec.structs.replace(config, exploration=OwnNoise())
    assert isinstance(admission_verdict(model, own_noise), Admitted)


def _range_middle(low: float, high: float) -> float:
    return 0.5 * (low + high)


def _half_range(low: float, high: float) -> float:
    return 0.5 * (high - low)


def test_mismatched_inputs_are_refused() -> None:
    config = load_run("pendulum")
    contract = contract_for(config.rig, 50.0, policy_id=1, parent_run="", training_step=0)
    nets = CellNets([0], 3, 1, (8,))
    with pytest.raises(ValueError, match="do not fit observations, cells and actions"):
        export_recurrent_policy(nets.lstm.layers(nets.rows[0]), np.ones(1), contract)
