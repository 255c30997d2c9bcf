"""LSTM networks against torch's own, over windows of a memory, and as policies of a rig."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from onrig.learner.autograd import Nets, drawn_vectors, states
from onrig.learner.export import export_recurrent_policy
from onrig.learner.lstm import hidden_width, lstm_layout, over_window, step, window_states, zero_memory
from onrig.learner.networks import Layout, split_layers
from onrig.learner.trajectories import Trajectories
from onrig.runtime.explore.settings import OwnNoise
from onrig.runtime.policy.admission import Admitted
from onrig.runtime.policy.contract import GAUSSIAN, contract_for
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.run_loading import load_run
from onrig.tools.evaluate import judge

UNITS = (8, 12)
N, M, B, W = 3, 2, 5, 16
Floats = NDArray[np.float64]


def _nets(layout: Layout, seeds: list[int], dtype: torch.dtype = torch.float64) -> tuple[Nets, Floats]:
    vectors = drawn_vectors(layout, [np.random.default_rng(seed) for seed in seeds])
    return Nets(layout, vectors, lr=1e-3, dtype=dtype, targets=False), vectors


def _torch_lstm(layout: Layout, vector: Floats) -> tuple[list[torch.nn.LSTM], torch.Tensor, torch.Tensor]:
    """The same weights in cells of torch; ours have one bias where these have two."""
    *cells, (weight, bias) = split_layers(layout, vector)
    made, inputs = [], N
    for (w, b), units in zip(cells, UNITS, strict=True):
        lstm = torch.nn.LSTM(inputs, units, batch_first=True, dtype=torch.float64)
        parts = {"weight_ih_l0": w[:inputs].T, "weight_hh_l0": w[inputs:].T, "bias_ih_l0": b, "bias_hh_l0": 0.0 * b}
        lstm.load_state_dict({name: torch.tensor(part.copy()) for name, part in parts.items()})
        made.append(lstm)
        inputs = units
    return made, torch.tensor(weight), torch.tensor(bias)


def test_outputs_and_gradients_are_those_of_torch_s_lstm() -> None:
    layout = lstm_layout(N, M, UNITS)
    nets, vectors = _nets(layout, [1, 2])
    rng = np.random.default_rng(0)
    window, before = rng.standard_normal((2, B, W, N)), rng.standard_normal((2, B, hidden_width(layout)))
    x = window_states(window, np.ones((2, B, W), np.bool_), before, torch.float64)
    outputs = over_window(layout, nets.online, x)
    nets.clear()
    outputs[:, :B, :M].square().sum().backward()  # type: ignore[no-untyped-call]
    gradients = [block.grad for block in nets.online]
    for trial in range(2):
        cells, weight, bias = _torch_lstm(layout, vectors[trial, 0])
        x = torch.tensor(window[trial, :, ::-1].copy())
        remembered = torch.tensor(before[trial][None]).tensor_split((8, 16, 28), dim=-1)
        for lstm, output, state in zip(cells, remembered[::2], remembered[1::2], strict=True):
            x, _ = lstm(x, (output.contiguous(), state.contiguous()))
        wanted = x[:, -1] @ weight + bias
        np.testing.assert_allclose(outputs[trial, :B, :M].detach(), wanted.detach(), rtol=1e-12)
        wanted.square().sum().backward()  # type: ignore[no-untyped-call]
        for lstm, layer, gradient in zip(cells, layout.layers, gradients, strict=False):
            assert gradient is not None
            named = dict(lstm.named_parameters())
            parts = [named[name].grad for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0")]
            rows = torch.cat([part.T if part.ndim == 2 else part[None] for part in parts if part is not None])
            np.testing.assert_allclose(gradient[trial, layer.row_order], rows, rtol=1e-9, atol=1e-12)


def test_one_trial_of_many_gives_what_it_gives_alone() -> None:
    layout = lstm_layout(N, M, (32, 32))
    window = np.random.default_rng(0).standard_normal((3, 64, W, N)).astype(np.float32)
    present, before = np.ones((3, 64, W), np.bool_), np.full((3, 64, 128), 0.25, np.float32)
    states_of, nets = (
        window_states(window, present, before),
        [_nets(layout, s, torch.float32)[0] for s in ([1, 2, 3], [2])],
    )
    together, alone = (
        over_window(layout, nets[0].frozen, states_of),
        over_window(layout, nets[1].frozen, states_of[:, 1:2]),
    )
    assert torch.equal(together[1], alone[0])


def test_a_window_begins_with_what_is_stored_of_the_episode_and_remembers_what_it_is_told_of_before() -> None:
    layout = lstm_layout(N, M, UNITS)
    nets, _ = _nets(layout, [4])
    stored = np.random.default_rng(1).standard_normal((40, N))
    trajectories = Trajectories(1, 40, lambda trial, first, second: np.ones(len(first), np.bool_))
    keys = np.concatenate((np.arange(30), 100 + np.arange(10)))  # two episodes
    keys[5] = -1  # overwritten since by something else
    slots = np.random.default_rng(2).permutation(40)
    trajectories.written(0, slots, keys)
    drawn = slots[[[0, 4, 6, 29, 30, 39]]]
    chain = trajectories.before(drawn, W)
    assert chain.present.sum(axis=-1).tolist() == [[1, 5, 1, 16, 1, 10]]
    before = np.random.default_rng(3).standard_normal((1, 6, hidden_width(layout)))
    before[:, 0] = 0.0
    x = window_states(stored[chain.slots], chain.present, before, torch.float64)
    outputs = over_window(layout, nets.frozen, x)
    for i, (first, last) in enumerate([(0, 0), (0, 4), (6, 6), (14, 29), (30, 30), (30, 39)]):
        memory = zero_memory(layout, nets.frozen, 4) + torch.from_numpy(before[:, [i]])
        for k in range(first, last + 1):
            wanted, memory = step(layout, nets.frozen, states(stored[None, None, slots[k]], torch.float64), memory)
        np.testing.assert_allclose(outputs[0, i, :M], wanted[0, 0, :M], rtol=1e-12)


def test_a_rig_s_session_equals_the_network_over_two_hundred_ticks_and_episodes_do_not_leak() -> None:
    config = load_run("pendulum-hidden")
    n = len(config.signals)
    layout = lstm_layout(n, 1, (32, 32))
    vectors = drawn_vectors(layout, [np.random.default_rng(5)]) * 3.0
    nets = Nets(layout, vectors, lr=1e-3, dtype=torch.float32, targets=False)
    contract = contract_for(
        config.rig,
        config.rate_hz,
        policy_id=1,
        parent_run="run",
        training_step=0,
        signals=config.signals,
        behaviour=GAUSSIAN,
    )
    model = export_recurrent_policy(split_layers(layout, vectors[0, 0]), np.array([0.5]), contract)
    session = PolicySession(model)
    assert session.hidden is not None
    assert session.noise is not None
    session.noise.fill(0.6)
    assert session.hidden.shape == (1, 128)
    centre, half = (np.array([f(s.low, s.high) for s in contract.observations]) for f in (_middle, _half))
    observation = np.random.default_rng(6).uniform(-1, 1, (200, n)).astype(np.float32)
    told = []
    for _ in range(2):
        memory = zero_memory(layout, nets.frozen, 4)
        session.hidden.fill(0.0)
        answers = []
        for seen in observation:
            x = states(((seen - centre) / half)[None, None], torch.float32)
            outputs, memory = step(layout, nets.frozen, x, memory)
            session.observation[0] = seen
            session.run()
            session.hidden[:] = session.hidden_out
            answers.append(session.action[0].tolist())
            drawn = outputs[0, 0, :1] + 0.5 * 0.6
            np.testing.assert_allclose(session.action[0], 3.0 * drawn.clamp(-1.0, 1.0), atol=1e-5)
            np.testing.assert_allclose(session.hidden_out[0], memory[0, 0], atol=1e-5)
        told.append(answers)
    assert told[0] == told[1]
    assert np.std(told[0]) > 0.1
    own = msgspec.structs.replace(config, exploration=OwnNoise())
    assert isinstance(judge(model, own), Admitted)


def _middle(low: float, high: float) -> float:
    return 0.5 * (low + high)


def _half(low: float, high: float) -> float:
    return 0.5 * (high - low)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="a multiple of 4 units"):
        lstm_layout(2, 1, (30,))
    config = load_run("pendulum")
    contract = contract_for(config.rig, 50.0, policy_id=1, parent_run="", training_step=0)
    layout = lstm_layout(3, 1, (8,))
    vector = drawn_vectors(layout, [np.random.default_rng(0)])[0, 0]
    with pytest.raises(ValueError, match="no cells between observations and actions"):
        export_recurrent_policy(split_layers(layout, vector), np.ones(1), contract)
