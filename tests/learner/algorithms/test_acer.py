"""ACER against its formulas: segments, estimates, the trust region, and every gradient in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.learner.algorithms import State
from onrig.learner.algorithms.acer import Acer, project_step
from onrig.learner.algorithms.segments import lay_out
from onrig.learner.tape.elementary import concatenate
from onrig.learner.trajectories import Chain
from onrig.runtime.memory.order.uniforms import restore_stream
from onrig.runtime.random_streams import Role, stream
from tests.learner.algorithms.refer_algorithms import RandomMemory, make_algorithm
from tests.learner.tape.evaluation import evaluate

Array = NDArray[np.float64]
GAMMA, TRUNCATION, MAX_DIVERGENCE, SAMPLES = 0.9, 1.5, 0.01, 3
SECTION: dict[str, Any] = {
    "hidden": [9, 7],
    "batch": 6,
    "segment": 7,
    "gamma": GAMMA,
    "truncation": TRUNCATION,
    "divergence": MAX_DIVERGENCE,
    "samples": SAMPLES,
    "policy_lr": 1e-3,
    "tau": 0.1,
}


def _acer(memory: RandomMemory, **section: Any) -> Acer:
    algorithm = make_algorithm(
        memory, {"algorithm": "acer", **SECTION, **section}, {"rules": "none", "standardise": False}
    )
    assert isinstance(algorithm, Acer)
    return algorithm


def _out(layers: list[tuple[Array, Array]], x: Array) -> tuple[Array, Array]:
    """Outputs of a network with softsign units, and its last hidden units with a 1 appended."""
    for weight, bias in layers[:-1]:
        x = x @ weight + bias
        x = x / (1.0 + np.abs(x))
    weight, bias = layers[-1]
    return x @ weight + bias, np.concatenate((x, np.ones((*x.shape[:-1], 1))), axis=-1)


def _layers(state: State, name: str) -> list[tuple[Array, Array]]:
    """Weights and biases of a network of the first trial."""
    values = [
        np.asarray(values_of_key, np.float64)[0] for key, values_of_key in state.items() if key.startswith(f"{name}/")
    ]
    return list(zip(values[::2], values[1::2], strict=True))


def _log_density(a: Array, mean: Array, std: Array) -> Array:
    return np.asarray((-0.5 * ((a - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2.0 * np.pi)).sum(-1))


def _score(a: Array, mean: Array, std: Array) -> Array:
    """Gradient of ln pi(a) with respect to mean and standard deviation."""
    return np.concatenate(((a - mean) / std**2, ((a - mean) ** 2 / std**2 - 1.0) / std), axis=-1)


def _ratio(log_pi: Array, log_mu: Array) -> Array:
    return np.asarray(np.exp(np.clip(log_pi - log_mu, -7.0, 7.0)))


def _project_to_trust_region(g: Array, k: Array, delta: float) -> Array:
    excess = np.maximum(0.0, (k * g).sum(-1, keepdims=True) - delta) / (k**2).sum(-1, keepdims=True)
    return np.asarray(g - excess * k)


def _projected_by_tape(g: Array, k: Array, delta: float) -> Array:
    def stack(*parts: Any) -> Any:
        return concatenate(*project_step(parts[:1], parts[1:], delta))

    return evaluate(stack, g, k)[0]


def test_steps_stay_within_the_trust_region_and_smaller_ones_are_unchanged() -> None:
    rng = np.random.default_rng(0)
    g, k = rng.standard_normal((2, 500, 4))
    z = _projected_by_tape(g, k, 0.3)
    alignment = (k * g).sum(-1)
    assert 0.2 < (alignment > 0.3).mean() < 0.8
    assert ((k * z).sum(-1) <= 0.3 + 1e-12).all()
    assert np.array_equal(z[alignment <= 0.3], g[alignment <= 0.3])
    # The nearest permitted one: no other on the boundary is closer.
    alternatives = z + 0.1 * rng.standard_normal((500, 4))
    is_allowed = ((k * alternatives).sum(-1) <= 0.3) & (alignment > 0.3)
    assert (np.linalg.norm(alternatives - g, axis=-1) >= np.linalg.norm(z - g, axis=-1))[is_allowed].all()
    assert np.array_equal(_projected_by_tape(g, np.zeros_like(k), 0.3), g)


def test_segments_follow_one_another_and_each_is_weighted_regardless_of_its_length() -> None:
    slots = np.array([[[3, 4, 4], [7, 8, 9]], [[5, 5, 5], [1, 1, 1]]])
    is_present = np.array([[[1, 1, 0], [1, 1, 1]], [[1, 0, 0], [1, 0, 0]]], np.bool_)
    steps = lay_out(Chain(slots, is_present), np.array([[4, 7], [5, 1]]), np.array([[1.0, 2.0], [3.0, 1.0]]), 4)
    assert steps.slots.tolist() == [[3, 4, 7, 8, 9, 0, 0, 0], [5, 1, 0, 0, 0, 0, 0, 0]]
    assert steps.is_present.sum(axis=1).tolist() == [5, 2]
    np.testing.assert_allclose(steps.step_weight[0], [1 / 4, 1 / 4, 1 / 3, 1 / 3, 1 / 3, 0, 0, 0])
    np.testing.assert_allclose(steps.step_weight[1], [1.5, 0.5, 0, 0, 0, 0, 0, 0])
    assert (steps.last_indices.tolist(), steps.drawn_indices.tolist()) == ([[1, 4], [0, 1]], [[1, 2], [0, 1]])


@pytest.mark.parametrize("m", [1, 3])
def test_every_gradient_is_that_of_the_paper(m: int) -> None:
    """One update, with segments of several lengths, and weights."""
    memory = RandomMemory(1, m=m)
    memory.trajectories.on_write(0, np.array([3]), np.array([-1]))  # a gap: a segment of three steps, one of one
    acer = _acer(memory)
    acer.update(memory.draws(12, 6))
    batches = replace(memory.draws(1, 6), weights=np.array([[[0.5, 1.0, 2.0, 1.0, 0.7, 0.3]]]))
    assert batches.slots is not None
    assert batches.weights is not None
    state_before = acer.state()
    signals = acer.update(batches)
    state_after = acer.state()

    noise_stream = stream(0, Role.NETWORKS)
    restore_stream(noise_stream, state_before["streams"][0])
    chain = memory.trajectories.segments_around(batches.slots[0], 7)
    segments = [
        segment_slots[is_present] for segment_slots, is_present in zip(chain.slots[0], chain.is_present[0], strict=True)
    ]
    assert len({len(segment) for segment in segments}) > 1
    slots, n = np.concatenate(segments), sum(map(len, segments))
    noise = noise_stream.standard_normal((1 + SAMPLES, n, m))
    s, action, drawn_action, mean_behaviour, std_behaviour, reward, s_next = (
        np.asarray(column[0, slots], np.float64)
        for column in (
            memory.observation,
            np.clip(memory.drawn, -1.0, 1.0),
            memory.drawn,
            memory.mean,
            memory.std,
            memory.reward,
            memory.next_observation,
        )
    )

    def policy(name: str, std_name: str) -> tuple[Array, Array, Array]:
        mean, units = _out(_layers(state_before, name), s)
        output = np.asarray(state_before[f"{std_name}/output"][0], np.float64)
        return mean, np.broadcast_to(np.log1p(np.exp(output)), mean.shape), units

    def advantage(a: Array) -> tuple[Array, Array]:
        out, units = _out(_layers(state_before, "advantage"), np.concatenate((s, np.clip(a, -1.0, 1.0)), axis=-1))
        return out[:, 0], units

    (mean, std, policy_units), (average, average_std, _) = policy("policy", "std"), policy("average", "average_std")
    (value, value_units), (next_value, _) = (_out(_layers(state_before, "value"), x) for x in (s, s_next))
    value, next_value = value[:, 0], next_value[:, 0]
    sampled, *other_samples = mean + std * noise
    (advantage_of_action, units), (advantage_of_sampled, _) = advantage(action), advantage(sampled)
    advantages_of_others, units_of_others = zip(*map(advantage, other_samples), strict=True)
    q = value + advantage_of_action - np.mean(advantages_of_others, axis=0)
    rho = _ratio(_log_density(drawn_action, mean, std), _log_density(drawn_action, mean_behaviour, std_behaviour))
    q_ret, q_opc = np.zeros(n), np.zeros(n)
    i = n
    for segment in reversed(segments):
        for steps_back, slot in enumerate(reversed(segment)):
            i -= 1
            if steps_back == 0:
                q_ret[i] = q_opc[i] = reward[i] + GAMMA * (0.0 if memory.terminated[0, slot] else next_value[i])
                continue
            trace = min(1.0, rho[i + 1]) ** (1.0 / m)
            q_ret[i] = reward[i] + GAMMA * value[i + 1] + GAMMA * trace * (q_ret[i + 1] - q[i + 1])
            q_opc[i] = reward[i] + GAMMA * value[i + 1] + GAMMA * (q_opc[i + 1] - q[i + 1])
    segment_starts = np.cumsum([0, *map(len, segments)])
    positions = [
        start + segment.tolist().index(slot)
        for start, segment, slot in zip(segment_starts, segments, batches.slots[0, 0].tolist(), strict=False)
    ]
    np.testing.assert_allclose(signals.td[0, 0], (q_ret - q)[positions], rtol=1e-4, atol=1e-4)

    rho_sampled = _ratio(_log_density(sampled, mean, std), _log_density(sampled, mean_behaviour, std_behaviour))
    correction = np.maximum(0.0, 1.0 - TRUNCATION / rho_sampled) * (
        advantage_of_sampled - np.mean(advantages_of_others, axis=0)
    )
    assert 0 < (correction != 0.0).sum() < n
    g = (np.minimum(TRUNCATION, rho) * (q_opc - value))[:, None] * _score(drawn_action, mean, std)
    g = g + correction[:, None] * _score(sampled, mean, std)
    std_gradient = 1.0 / std - (average_std**2 + (average - mean) ** 2) / std**3
    k = np.concatenate(((mean - average) / std**2, std_gradient), axis=-1)
    z = _project_to_trust_region(g, k, MAX_DIVERGENCE)
    assert 0.0 < (z != g).any(axis=1).mean() < 1.0

    lengths = [len(segment) for segment in segments]
    sample_weights = np.repeat(batches.weights[0, 0] / (6 * np.array(lengths)), lengths)
    error = sample_weights * (q_ret - q)
    expected = {
        "value": -value_units.T @ (error * (1.0 + np.minimum(1.0, rho))),
        "advantage": -(units - np.mean(units_of_others, axis=0)).T @ error,
        "policy": -(policy_units.T @ (sample_weights[:, None] * z[:, :m])),
        "std": -(1.0 - np.exp(-std[0])) * (sample_weights[:, None] * z[:, m:]).sum(axis=0),
    }
    for name, gradient in expected.items():
        end = sum(
            np.size(segment_slots[0]) for key, segment_slots in state_before.items() if key.startswith(f"{name}/")
        )
        moments = [np.asarray(state[f"adam/{name}"][0, 0, :end], np.float64) for state in (state_before, state_after)]
        actual = ((moments[1] - 0.9 * moments[0]) / 0.1)[-gradient.size :]
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(actual / scale, gradient.reshape(-1) / scale, rtol=2e-3, atol=2e-4, err_msg=name)
    for target, net in (("average", "policy"), ("average_std", "std")):
        for key in (key for key in state_before if key.startswith(f"{target}/")):
            expected_average = 0.9 * np.asarray(state_before[key], np.float64) + 0.1 * np.asarray(
                state_after[key.replace(target, net)], np.float64
            )
            np.testing.assert_allclose(np.asarray(state_after[key], np.float64), expected_average, rtol=1e-5, atol=1e-7)


def test_every_experience_of_a_segment_is_noted() -> None:
    memory = RandomMemory(1)
    acer = _acer(memory, policy_lr=0.1)
    acer.update(memory.draws(1, 6))
    acer.update(memory.draws(3, 6))
    rho, slots_drawn = memory.notes.stored_column(0, "rho"), memory.draws(3, 6).slots
    assert slots_drawn is not None
    segments = memory.trajectories.segments_around(slots_drawn[2], 7)
    changed_slots = np.flatnonzero(rho != 1.0)
    assert set(np.unique(segments.slots[segments.is_present]).tolist()) <= set(changed_slots.tolist())
    kl, is_far = acer.divergence()[0]
    assert kl > 0.0
    assert is_far == np.mean((rho <= 0.2) | (rho >= 5.0))


def test_it_learns_the_best_action_and_its_value() -> None:
    memory = RandomMemory(1, m=1)
    memory.terminated[:] = True
    memory.observation[:] = 0.5
    memory.mean[:], memory.std[:] = 0.0, 0.6
    memory.drawn[:] = 0.6 * np.random.default_rng(0).standard_normal(memory.drawn.shape)
    memory.reward[:] = -4.0 * (np.clip(memory.drawn[..., 0], -1.0, 1.0) - 0.3) ** 2
    options = {"hidden": [16, 16], "batch": 16, "segment": 1, "truncation": 5.0, "divergence": 1.0}
    acer = _acer(memory, **options, lr=2e-2, policy_lr=2e-3, tau=0.01)
    acer.update(memory.draws(80, 16))
    mean, std = (float(part.mean()) for part in acer.distribution(memory.observation))
    assert 0.1 < mean < 0.4
    assert std < 0.43  # less spread is rewarded here
    value = acer._values(memory.observation).mean()
    assert abs(float(value) + 4.0 * (std**2 + (mean - 0.3) ** 2)) < 0.2
