from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onrig.learner.algorithms.returns import retrace
from onrig.learner.algorithms.vracer import Vracer
from onrig.runtime.memory.layout import Slots
from tests.learner.algorithms.refer_algorithms import CAPACITY, RandomMemory, make_algorithm


def _vracer(memory: RandomMemory, refer: dict[str, Any] | None = None, **section: Any) -> Vracer:
    algorithm = make_algorithm(memory, {"algorithm": "vracer", "hidden": [9, 7], **section}, refer)
    assert isinstance(algorithm, Vracer)
    return algorithm


def _values(vracer: Vracer, observation: np.ndarray) -> np.ndarray:
    E = observation.shape[1]
    padded = np.zeros((vracer.trials, -(-E // 16) * 16, observation.shape[2]))
    padded[:, :E] = observation
    return vracer._values(padded)[:, :E, 0].copy()


def _column(memory: RandomMemory, name: str) -> np.ndarray:
    return np.asarray(memory.notes.state()[name])


def test_new_experiences_are_valued_and_traced_along_their_episode_at_once() -> None:
    memory = RandomMemory(1)
    vracer = _vracer(memory, gamma=0.9, lr=1e-12)
    values, next_values = (_values(vracer, states) for states in (memory.observation, memory.next_observation))
    vracer.update(memory.draws(1, 8))
    slots_drawn = memory.draws(1, 8).slots
    assert slots_drawn is not None
    np.testing.assert_allclose(_column(memory, "value"), values, atol=1e-6)
    np.testing.assert_allclose(_column(memory, "end_value"), np.where(memory.terminated, 0.0, next_values), atol=1e-6)
    ratio, end = np.ones(CAPACITY), np.where(memory.terminated[0], 0.0, next_values[0])
    expected = retrace(memory.reward[0], values[0], ratio, end, memory.next_slots[0], 0.9)
    np.testing.assert_allclose(_column(memory, "q_ret")[0], expected, rtol=1e-4, atol=1e-4)
    other_slots = np.setdiff1d(np.arange(CAPACITY), slots_drawn)
    assert (_column(memory, "rho")[0, other_slots] == 1.0).all()


def test_a_new_experience_uses_the_value_of_its_end_until_its_episode_is_traced_again() -> None:
    memory = RandomMemory(1, has_terminations=False)
    vracer = _vracer(memory, gamma=0.9, lr=1e-12, retrace_every=3)
    slots: Slots = np.arange(8)[None, None]
    batches = memory.gather(slots)
    vracer.update(batches)
    returns_before = _column(memory, "q_ret")
    memory.reward[0, 29] = 50.0
    memory.notes.on_write(0, np.array([29]))
    vracer.update(batches)
    end = _values(vracer, memory.next_observation)[0, 29]
    q_ret = _column(memory, "q_ret")[0]
    assert q_ret[29] == pytest.approx(50.0 + 0.9 * end, rel=1e-5)
    assert q_ret[28] == returns_before[0, 28]
    vracer.update(batches)
    assert _column(memory, "q_ret")[0, 28] > returns_before[0, 28] + 20.0


def test_without_distance_the_error_is_that_of_the_value() -> None:
    memory = RandomMemory(1)
    vracer = _vracer(memory, lr=1e-12)
    batches = memory.draws(1, 8)
    td = vracer.update(batches).td[0, 0]
    assert batches.slots is not None
    slots = batches.slots[0, 0]
    expected = _column(memory, "q_ret")[0, slots] - _column(memory, "value")[0, slots]
    np.testing.assert_allclose(td, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("advantage", ["none", "quadratic", "gaussian"])
def test_it_learns_the_best_action_and_its_value(advantage: str) -> None:
    memory = RandomMemory(1, m=1)
    memory.terminated[:] = True
    memory.observation[:] = 0.5
    memory.mean[:], memory.std[:] = 0.0, 0.45
    memory.drawn[:] = 0.45 * np.random.default_rng(0).standard_normal(memory.drawn.shape)
    memory.reward[:] = -((memory.drawn[..., 0] - 0.5) ** 2)
    refer = {"standardise": False, "far_share": 0.3}
    vracer = _vracer(memory, refer, lr=1e-2, batch=16, advantage=advantage)
    vracer.update(memory.draws(200, 16))
    mean, std = vracer.distribution(memory.observation)
    assert 0.2 < float(mean.mean()) < 0.8
    assert (std < 0.447).all()  # less spread is rewarded here
    kl, is_far = vracer.divergence()[0]
    assert 0.0 < kl < 5.0
    assert is_far < 0.5


def test_the_standard_deviation_is_the_same_in_all_states_and_starts_as_configured() -> None:
    memory = RandomMemory(2)
    vracer = _vracer(memory)
    _, std = vracer.distribution(memory.observation)
    np.testing.assert_allclose(std, 0.2**0.5, rtol=1e-6)
    np.testing.assert_allclose(vracer.actor_std(1), 0.2**0.5, rtol=1e-6)
    np.testing.assert_allclose(_vracer(RandomMemory(1), std=0.6).actor_std(0), 0.6, rtol=1e-6)


def test_gradients_are_those_of_the_paper() -> None:
    """For the biases of value and mean and the standard deviation, computed from the notes of the slots."""
    memory = RandomMemory(1)
    vracer = _vracer(memory, {"standardise": False}, lr=1e-3)
    vracer.update(memory.draws(15, 8))
    assert vracer._refer is not None
    vracer._refer.beta[:] = beta = 0.4
    batches = memory.draws(1, 8)
    assert batches.slots is not None
    slots, state_before = batches.slots[0, 0], vracer.state()
    value, q_ret = (
        np.asarray(column, np.float64)[0, slots]
        for column in (_values(vracer, memory.observation), _column(memory, "q_ret"))
    )
    mean, std = (np.asarray(part[0, slots], np.float64) for part in vracer.distribution(memory.observation))
    mean_behaviour, std_behaviour, drawn_action = (
        np.asarray(part[0, slots], np.float64) for part in (memory.mean, memory.std, memory.drawn)
    )
    vracer.update(batches)
    end = vracer._network.group.flat_field.size
    moments = [
        np.concatenate([np.asarray(state[f"adam/{name}"], np.float64)[0, 0, slots] for name, slots in parts])
        for parts in [(("network", slice(end - 3, end)), ("std", slice(0, 2)))]
        for state in (state_before, vracer.state())
    ]
    actual = (moments[1] - 0.9 * moments[0]) / 0.1

    log_ratio = -0.5 * (
        ((drawn_action - mean) / std) ** 2 - ((drawn_action - mean_behaviour) / std_behaviour) ** 2
    ) - np.log(std / std_behaviour)
    rho = np.exp(np.clip(log_ratio.sum(axis=1), -7.0, 7.0))
    bound = 1.0 + 4.0 / (1.0 + 5e-7 * 15)
    is_near = (1.0 / bound < rho) & (rho < bound)
    assert 0 < is_near.sum() < 8
    advantage = is_near * (q_ret - value)
    value_gradient = -beta * np.minimum(1.0, rho) * advantage
    pull = (-beta * rho * advantage)[:, None]
    mean_gradient = pull * (drawn_action - mean) / std**2 + (1.0 - beta) * (mean - mean_behaviour) / std**2
    policy_distance = std_behaviour**2 + (mean_behaviour - mean) ** 2
    std_gradient = pull * ((drawn_action - mean) ** 2 / std**2 - 1.0) / std + (1.0 - beta) * (
        1.0 / std - policy_distance / std**3
    )
    slope = 1.0 - np.exp(-std[0])  # the derivative of the softplus
    expected = [value_gradient.mean(), *mean_gradient.mean(axis=0), *(slope * std_gradient.mean(axis=0))]
    np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-4)
