from __future__ import annotations

import itertools
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onrig.learner.algorithm_config import Convolution, Image
from onrig.learner.algorithm_settings import RainbowConfig
from onrig.learner.algorithms import Minibatches
from onrig.learner.algorithms.rainbow import Rainbow
from onrig.learner.tape.elementary import project
from onrig.learner.tape.executors import executor_for
from onrig.learner.tape.program import finish_program
from onrig.learner.tape.spaces import Layout, allocate_rows
from onrig.learner.tape.trace import Tape
from onrig.runtime.memory.order.uniforms import restore_stream
from tests.learner.reference import minibatches, replace_vectors, select_trial, vectors

Floats = NDArray[np.float64]
SMALL_CONFIG = RainbowConfig(
    hidden=(9, 7), levels=3, atoms=6, returns=(-2.0, 3.0), n_steps=4, batch=5, reward_scale=0.5, target_every=7, lr=1e-2
)


def _rainbow(
    config: RainbowConfig = SMALL_CONFIG, seeds: tuple[int, ...] = (0,), dtype: type[np.floating] = np.float32
) -> Rainbow:
    return Rainbow(config, 2, 1, [np.random.default_rng(seed) for seed in seeds], dtype=dtype)


def _data(seed: int, shape: tuple[int, int, int], config: RainbowConfig = SMALL_CONFIG) -> Minibatches:
    """Random minibatches with windows of 1 to n rewards."""
    rng = np.random.default_rng(seed)
    batches = minibatches(rng, shape, 2, 1, weighted=True)
    lengths = rng.integers(1, config.n_steps + 1, shape)
    rewards = np.where(np.arange(config.n_steps) < lengths[..., None], rng.normal(size=(*shape, config.n_steps)), 0.0)
    return replace(batches, reward=rewards[..., 0], rewards=rewards, lengths=lengths)


def _project_by_tape(p: Floats, reward: Floats, discount: Floats, support: tuple[float, float]) -> Floats:
    """Run only the projection of distributions (B, atoms)."""
    record = Layout()
    fields = [record.add(name, *a.shape) for name, a in (("p", p), ("r", reward), ("d", discount), ("out", p))]
    tape = Tape(Layout(), record)
    probabilities, reward_, discount_ = (tape.read(field) for field in fields[:3])
    tape.output(fields[3], project(probabilities, reward_, discount_, *support))
    rows = allocate_rows(1, record, np.dtype(np.float64))
    for field, values in zip(fields, (p, reward, discount), strict=False):
        rows[0, field.slice] = values.reshape(-1)
    executor_for(np.float64).bind(finish_program(tape))(
        allocate_rows(1, tape.state, np.dtype(np.float64)), rows[:, None], None
    )
    projected: Floats = rows[0, fields[3].slice].reshape(p.shape).astype(np.float64)
    return projected


# -- the projection ----------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(2, 60), st.booleans())
def test_a_projection_conserves_mass_and_unless_truncated_the_mean(seed: int, atoms: int, is_inside: bool) -> None:
    rng = np.random.default_rng(seed)
    z = np.linspace(-10.0, 10.0, atoms)
    p = rng.dirichlet(np.ones(atoms), 8)
    discount = rng.random((8, 1)) * (0.5 if is_inside else 2.0)
    reward = rng.uniform(-5.0, 5.0, (8, 1)) * (1.0 if is_inside else 4.0)
    projected = _project_by_tape(p, reward, discount, (-10.0, 10.0))
    assert projected.min() >= 0.0
    np.testing.assert_allclose(projected.sum(axis=-1), 1.0, atol=1e-12)
    expected_means = (p * np.clip(reward + discount * z, -10.0, 10.0)).sum(axis=-1)
    np.testing.assert_allclose((projected * z).sum(axis=-1), expected_means, atol=1e-9)


@pytest.mark.parametrize(
    ("reward", "expected"),
    [(0.0, [0, 0, 1, 0, 0]), (0.25, [0, 0, 0.75, 0.25, 0]), (2.0, [0, 0, 0, 0, 1]), (-7.0, [1, 0, 0, 0, 0])],
)
def test_a_terminating_transition_puts_all_mass_at_its_reward(reward: float, expected: list[float]) -> None:
    p, column = np.full((1, 5), 0.2), np.full((1, 1), reward)
    assert _project_by_tape(p, column, np.zeros((1, 1)), (-2.0, 2.0))[0].tolist() == pytest.approx(expected, abs=1e-15)


# -- the update --------------------------------------------------------------------------------------------------------


def _sizes(config: RainbowConfig) -> list[tuple[int, int]]:
    """Common layers, then each noisy one twice: means, and scales of the noise."""
    *common_widths, hidden = config.hidden
    widths, outputs = (2, *common_widths), (config.atoms, config.levels * config.atoms)
    noisy_shapes = [pair for out in outputs for pair in ((widths[-1], hidden), (hidden, out)) for _ in range(2)]
    return [*itertools.pairwise(widths), *noisy_shapes]


def _numpy_logits(config: RainbowConfig, vector: Floats, x: Floats, noise: Floats | None) -> Floats:
    """Logits (B, levels, atoms), by the papers' formulas."""
    layers, start = [], 0
    for inputs, outputs in _sizes(config):
        block = vector[start : start + (inputs + 1) * outputs].reshape(inputs + 1, outputs)
        layers.append((block[:-1], block[-1]))
        start += block.size
    common_layers, noisy_layers = layers[: len(config.hidden) - 1], layers[len(config.hidden) - 1 :]
    for weight, bias in common_layers:
        x = np.maximum(x @ weight + bias, 0.0)
    streams, offset = [], 0
    for stream in (0, 4):
        y = x
        for layer in (stream, stream + 2):
            (weight, bias), (weight_scale, bias_scale) = noisy_layers[layer : layer + 2]
            if noise is not None:
                f = np.sign(noise) * np.sqrt(np.abs(noise))
                input_noise, output_noise = (
                    f[offset : offset + len(weight)],
                    f[offset + len(weight) : offset + sum(weight.shape)],
                )
                weight = weight + weight_scale * np.outer(input_noise, output_noise)
                bias = bias + bias_scale * output_noise
                offset += sum(weight.shape)
            y = y @ weight + bias
            y = np.maximum(y, 0.0) if layer == stream else y
        streams.append(y)
    advantages = streams[1].reshape(len(x), config.levels, config.atoms)
    logits: Floats = streams[0][:, None] + advantages - advantages.mean(axis=1, keepdims=True)
    return logits


def _softmax(logits: Floats) -> Floats:
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p: Floats = e / e.sum(axis=-1, keepdims=True)
    return p


def _numpy_losses(
    config: RainbowConfig, online_vector: Floats, target: Floats, data: Minibatches, noise: Floats
) -> Floats:
    """Losses (B,) of the first trial's first minibatch."""
    assert data.rewards is not None
    assert data.lengths is not None
    z = np.linspace(*config.returns, config.atoms)
    s, s_next, a = data.observation[0, 0], data.next_observation[0, 0], data.action[0, 0, :, 0]
    reward = config.reward_scale * (data.rewards[0, 0] * config.gamma ** np.arange(config.n_steps)).sum(axis=1)
    discount = config.gamma ** data.lengths[0, 0] * ~data.terminated[0, 0]
    best = (_softmax(_numpy_logits(config, online_vector, s_next, noise[0])) * z).sum(axis=-1).argmax(axis=-1)
    next_probabilities = _softmax(_numpy_logits(config, target, s_next, noise[1]))
    p = _softmax(_numpy_logits(config, online_vector, s, noise[0]))
    losses = []
    for i in range(config.batch):
        expected = np.zeros(config.atoms)
        for j, mass in enumerate(next_probabilities[i, best[i]]):
            b = (np.clip(reward[i] + discount[i] * z[j], *config.returns) - z[0]) / (z[1] - z[0])
            low = min(int(b), config.atoms - 2)
            expected[low] += mass * (low + 1 - b)
            expected[low + 1] += mass * (b - low)
        level = round((a[i] + 1.0) / 2.0 * (config.levels - 1))
        losses.append(-(expected * np.log(p[i, level])).sum())
    return np.array(losses)


@pytest.mark.parametrize("changes", [{}, {"hidden": (8,), "max_norm": 1e-3}])
def test_losses_and_their_gradients_equal_numpys(changes: dict[str, object]) -> None:
    config = msgspec.structs.replace(SMALL_CONFIG, **changes)
    rainbow = _rainbow(config, dtype=np.float64)
    rainbow.update(_data(1, (9, 1, 5), config))  # target and online differ
    state_before = rainbow.state()
    moments = np.array(state_before["adam/network"])
    moments[..., : moments.shape[-1] // 2] = 0.0
    rainbow.restore({**state_before, "adam/network": moments})
    data = replace(_data(2, (1, 1, 5), config), terminated=np.array([[[True, False, False, True, False]]]))
    signals = rainbow.update(data)
    stream = np.random.default_rng()
    restore_stream(stream, state_before["streams"][0])
    noise = stream.standard_normal((1, 2, 1, rainbow.noise_width))[0, :, 0]
    online_vector, target = (vectors(state_before, name)[0] for name in ("network", "target_network"))
    losses = _numpy_losses(config, online_vector, target, data, noise)
    np.testing.assert_allclose(signals.priority[0, 0], losses, rtol=1e-9)
    assert data.weights is not None
    weights = data.weights[0, 0] / config.batch
    gradient = 10.0 * rainbow.state()["adam/network"][0, 0, : len(online_vector)]  # type: ignore[operator]
    expected, indices = [], range(0, len(online_vector), 11)
    for i in indices:
        step = 1e-6 * (np.arange(len(online_vector)) == i)
        loss_above, loss_below = (
            _numpy_losses(config, online_vector + sign * step, target, data, noise) @ weights for sign in (1, -1)
        )
        expected.append((loss_above - loss_below) / 2e-6)
    if config.max_norm > 1.0:
        np.testing.assert_allclose(gradient[indices], expected, rtol=1e-4, atol=1e-7)
    else:
        assert np.linalg.norm(gradient) == pytest.approx(config.max_norm)
        np.testing.assert_allclose(np.corrcoef(gradient[indices], expected)[0, 1], 1.0, rtol=1e-6)


def test_targets_are_copied_at_every_seventh_update() -> None:
    rainbow = _rainbow()
    network_vectors = vectors(rainbow.state(), "network")
    for k in range(1, 16):
        rainbow.update(_data(k, (1, 1, 5)))
        state = rainbow.state()
        assert not np.array_equal(vectors(state, "network"), network_vectors)
        if k % SMALL_CONFIG.target_every == 0:
            network_vectors = vectors(state, "network")
        assert np.array_equal(vectors(state, "target_network"), network_vectors)


def test_one_step_returns_equal_those_of_plain_transitions() -> None:
    config = msgspec.structs.replace(SMALL_CONFIG, n_steps=1)
    batches = minibatches(np.random.default_rng(3), (4, 1, 5), 2, 1)
    windows = replace(batches, rewards=batches.reward[..., None], lengths=np.ones(batches.reward.shape, np.int64))
    first, second = _rainbow(config), _rainbow(config)
    assert first.update(batches).td.tobytes() == second.update(windows).td.tobytes()


def test_a_trial_is_bit_identical_among_others_and_alone() -> None:
    config = RainbowConfig(batch=16, target_every=5)
    data = _data(0, (12, 5, 16), config)
    joint = _rainbow(config, (10, 11, 12, 13, 14))
    observation = np.random.default_rng(1).uniform(-1, 1, (5, 3, 2))
    noise = np.random.default_rng(2).standard_normal((5, 3, joint.noise_width))
    signals, sampled = joint.update(data), joint.sample(observation, noise)
    state, greedy_actions = joint.state(), joint.policy(observation)
    for trial in (0, 3):
        single = _rainbow(config, (10 + trial,))
        assert single.update(select_trial(data, trial)).td.tobytes() == signals.td[:, [trial]].tobytes()
        assert single.sample(observation[[trial]], noise[[trial]]).tobytes() == sampled[[trial]].tobytes()
        assert single.policy(observation[[trial]]).tobytes() == greedy_actions[[trial]].tobytes()
        assert np.array_equal(vectors(single.state(), "network")[0], vectors(state, "network")[trial])


def test_it_resumes_bit_for_bit() -> None:
    first, second = _rainbow(), _rainbow(seeds=(7,))
    first.update(_data(1, (9, 1, 5)))
    second.restore(first.state())
    assert first.update(_data(2, (3, 1, 5))).td.tobytes() == second.update(_data(2, (3, 1, 5))).td.tobytes()


def test_actions_are_levels_that_noise_changes_and_a_diverged_network_has_none() -> None:
    rainbow = _rainbow(msgspec.structs.replace(SMALL_CONFIG, sigma=3.0))
    states = np.random.default_rng(0).uniform(-1, 1, (1, 40, 2))
    noise = np.random.default_rng(1).standard_normal((1, 40, rainbow.noise_width))
    assert set(np.unique(rainbow.sample(states, noise))) == {-1.0, 0.0, 1.0}
    assert (rainbow.sample(states, 0.0 * noise) == rainbow.policy(states)).all()
    state = rainbow.state()
    rainbow.restore(replace_vectors(state, "network", np.nan * vectors(state, "network")))
    assert np.isnan(rainbow.policy(states)).all()


# -- images ------------------------------------------------------------------------------------------------------------


def test_images_pass_through_the_convolutions_of_torch() -> None:
    """The network of van Hasselt et al. 2019 (App. E), with the six actions of Pong: parameters and values."""
    config = RainbowConfig(
        images=Image((84, 84), 4, (Convolution(32, 5, 5), Convolution(64, 5, 5))), hidden=(256,), levels=6
    )
    rainbow = Rainbow(config, 4, 1, [np.random.default_rng(0)], dtype=np.float64)
    assert sum(field.size for name, field in rainbow.layout.fields.items() if name.startswith("network/")) == 828_842
    frames = np.random.default_rng(1).integers(0, 256, (7, 84 * 84), np.uint8)
    rainbow.bind_frames(lambda numbers: frames[numbers.astype(int)])
    numbers = np.array([[0, 1, 2, 3], [3, 4, 5, 6], [2, 2, 2, 2]], np.float64)
    x = torch.from_numpy(frames[numbers.astype(int)].reshape(3, 4, 84, 84) / 255.0)
    layers = [(torch.from_numpy(weight), torch.from_numpy(bias)) for weight, bias in rainbow.actor_layers(0)]
    for weight, bias in layers[:2]:
        filters = weight.reshape(5, 5, -1, weight.shape[1]).permute(3, 2, 0, 1)
        x = torch.relu(torch.nn.functional.conv2d(x, filters, bias, stride=5))
    x = x.permute(0, 2, 3, 1).reshape(3, -1)
    assert x.shape[1] == 576
    (hidden, hidden_bias), (logits, logits_bias) = layers[2:]
    distributions = (torch.relu(x @ hidden + hidden_bias) @ logits + logits_bias).reshape(3, 6, 51).softmax(2)
    values = (distributions * torch.linspace(-10.0, 10.0, 51, dtype=torch.float64)).sum(2).numpy()
    np.testing.assert_allclose(rainbow._values(rainbow._inputs(numbers[None]))[0], values, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(rainbow.policy(numbers[None])[0, :, 0], np.linspace(-1, 1, 6)[values.argmax(1)])
