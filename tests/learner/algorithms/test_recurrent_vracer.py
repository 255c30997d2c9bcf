"""V-RACER with cells: windows, step-by-step evaluation, and a task that requires memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.learner.algorithms import Recurrent
from onrig.learner.algorithms.recurrent_vracer import RecurrentVracer
from onrig.learner.tape.array import Array
from onrig.learner.tape.elementary import concatenate
from onrig.learner.tape.trace import Tape
from onrig.learner.trials.exploration import RecurrentPolicies
from onrig.runtime.policy.contract import GAUSSIAN, contract_for
from onrig.runtime.policy.session import PolicySession
from tests.learner.algorithms.refer_algorithms import CAPACITY, EPISODE, TEST_RIG, WINDOW, RandomMemory, make_algorithm


def _vracer(memory: RandomMemory, refer: dict[str, Any] | None = None, **section: Any) -> RecurrentVracer:
    recurrent = {"units": [8, 4], "window": WINDOW}
    algorithm = make_algorithm(memory, {"algorithm": "vracer", "recurrent": recurrent, **section}, refer)
    assert isinstance(algorithm, RecurrentVracer)
    return algorithm


def _recurrent_policies(vracer: object) -> RecurrentPolicies:
    assert isinstance(vracer, Recurrent)
    return RecurrentPolicies(vracer, (1, 1))


def _value(vracer: RecurrentVracer, states: NDArray[np.floating]) -> float:
    """Value of the last of some states (T, n), starting with empty cells."""
    h = vracer.hidden_width

    def trace_step(tape: Tape, x: Array, _: Array | None) -> Array:
        output, memory = vracer._cell_step(x)
        parts = (part for cell in memory for part in cell)
        return concatenate(vracer._split_outputs(vracer._cells.outputs(output)).value, *parts)

    step, state_reached = vracer.forward(trace_step, 3 + h, 1 + h), np.zeros((1, 1, 1 + h))
    for state in states:
        state_reached = step(np.concatenate((state[None, None], state_reached[..., 1:]), axis=-1)).copy()
    return float(state_reached[0, 0, 0])


def test_experiences_and_their_successors_are_valued_over_their_complete_episode() -> None:
    memory = RandomMemory(1, has_terminations=False)
    vracer = _vracer(memory, lr=1e-12)
    vracer.update(memory.draws(1, 8))
    columns = memory.notes.state()
    for slot in (0, 2, 9, 10, 37):
        observations = memory.observation[0, slot - slot % EPISODE : slot + 1]
        assert columns["value"][0, slot] == pytest.approx(_value(vracer, observations), abs=1e-6)
        with_successor = np.concatenate((observations, memory.next_observation[0, slot : slot + 1]))
        assert columns["end_value"][0, slot] == pytest.approx(_value(vracer, with_successor), abs=1e-6)


def test_windows_start_from_zero_if_configured_as_in_the_paper() -> None:
    memory = RandomMemory(1, has_terminations=False)
    vracer = _vracer(memory, lr=1e-12, recurrent={"units": [8, 4], "window": WINDOW, "start": "zero"})
    vracer.update(memory.draws(1, 8))
    for slot in (2, 9, 37):
        observations = memory.observation[0, max(slot - slot % EPISODE, slot - WINDOW + 1) : slot + 1]
        assert memory.notes.stored_column(0, "value")[slot] == pytest.approx(_value(vracer, observations), abs=1e-6)


def test_the_state_before_an_experience_is_kept_until_its_slot_is_rewritten() -> None:
    memory = RandomMemory(2)
    vracer = _vracer(memory, lr=1e-2)
    vracer.update(memory.draws(1, 8))
    hidden_before = memory.notes.state()["before"]
    assert hidden_before.shape == (2, CAPACITY, vracer.hidden_width)
    assert not hidden_before[:, ::EPISODE].any()
    assert np.abs(hidden_before).max(axis=-1).reshape(2, -1, EPISODE)[..., 1:].min() > 0.0
    vracer.update(memory.draws(3, 8))
    assert np.array_equal(memory.notes.state()["before"], hidden_before)
    # Slots 4 to 6 of the first trial now hold the first three steps of another episode: a gap in the old one.
    memory.trajectories.on_write(0, np.array([4, 5, 6]), 1000 + np.arange(3))
    memory.notes.on_write(0, np.array([4, 5, 6]))
    vracer.update(memory.draws(1, 8))
    hidden_after = memory.notes.state()["before"]
    has_changed = (hidden_after != hidden_before).any(axis=-1)
    assert np.flatnonzero(has_changed[0]).tolist() == [4, 5, 6]
    assert not has_changed[1].any()
    assert not hidden_after[0, 4].any()


def test_actions_of_the_current_policy_have_a_ratio_of_one_for_any_window() -> None:
    memory = RandomMemory(1)
    vracer = _vracer(memory, {"standardise": False}, lr=1e-12)
    policies = _recurrent_policies(vracer)
    for slot in range(CAPACITY):
        if slot % EPISODE == 0:
            policies.begin(np.ones((1, 1), np.bool_))
        mean, std = policies(memory.observation[:, [slot]])
        memory.mean[:, slot], memory.std[:, slot] = mean[:, 0], std[:, 0]
        memory.drawn[:, slot] = mean[:, 0] + 0.3 * std[:, 0]
    slots = np.arange(CAPACITY)[None]
    for k in range(0, CAPACITY, 8):
        vracer.update(memory.gather(slots[None, :, k : k + 8]))
    np.testing.assert_allclose(memory.notes.stored_column(0, "rho"), 1.0, atol=1e-5)
    np.testing.assert_allclose(memory.notes.stored_column(0, "kl"), 0.0, atol=1e-5)
    # Without a remembered state at the start of the window, an action would have another probability.
    vracer._previous_hidden[:] = 0.0
    late_slots = np.array([5, 6, 7, 8, 9, 17, 18, 19])
    vracer.update(memory.gather(late_slots[None, None]))
    assert np.abs(memory.notes.stored_column(0, "rho")[late_slots] - 1.0).min() > 1e-5


def test_it_learns_a_task_that_requires_memory() -> None:
    """The best action is the previous observation; the current one is always 0."""
    memory = RandomMemory(1, n=1, m=1)
    rng = np.random.default_rng(0)
    memory.observation[0, :, 0] = np.where(np.arange(CAPACITY) % 2, 0.0, rng.choice((-1.0, 1.0), CAPACITY))
    memory.mean[:], memory.std[:] = 0.0, 0.45
    memory.drawn[:] = 0.45 * rng.standard_normal(memory.drawn.shape)
    memory.terminated[:] = True
    previous_observation = memory.observation[0, :-1, 0]
    memory.reward[0, 1:] = -((memory.drawn[0, 1:, 0] - 0.6 * previous_observation) ** 2)
    vracer = _vracer(memory, {"standardise": False, "far_share": 0.4}, lr=1e-2, recurrent={"units": [8], "window": 2})
    memory.window = 2
    odd_slots = np.arange(1, CAPACITY, 2)
    slots = np.stack([np.random.default_rng(k).permutation(odd_slots)[None, :8] for k in range(150)])
    vracer.update(memory.gather(slots))
    learned_values = {}
    for signal in (-1.0, 1.0):
        policies = _recurrent_policies(vracer)
        policies(np.full((1, 1, 1), signal))
        learned_values[signal] = float(policies(np.zeros((1, 1, 1)))[0][0, 0, 0])
    assert learned_values[1.0] > 0.2 > -0.2 > learned_values[-1.0]


def test_its_exported_model_has_the_same_memory() -> None:
    memory = RandomMemory(1)
    memory.observation[:] = 0.3 + 0.5 * memory.observation
    vracer = _vracer(memory, {})
    vracer.update(memory.draws(20, 8))
    contract = contract_for(TEST_RIG, 50.0, policy_id=1, parent_run="", training_step=0, behaviour=GAUSSIAN)
    session = PolicySession(vracer.policy_graph(0, contract))
    assert session.hidden is not None
    policies = _recurrent_policies(vracer)
    for normalised in np.random.default_rng(2).uniform(-1.5, 1.5, (30, 3)):
        _, *ports = np.reshape(session.act((*(1.0 + 3.0 * normalised), 0.5, 0.5)), (4, -1))
        session.hidden[:] = session.hidden_out
        mean, std = (part[0, 0] for part in policies(normalised[None, None]))
        np.testing.assert_allclose(np.array(ports), np.array((mean, std, mean + 0.5 * std)), atol=2e-5)
    with pytest.raises(ValueError, match="the contract's behaviour, 'deterministic'"):
        vracer.policy_graph(0, contract_for(TEST_RIG, 50.0, policy_id=1, parent_run="", training_step=0))


def test_its_cells_keep_their_initial_state_and_experiences_must_include_their_past() -> None:
    memory = RandomMemory(1)
    vracer = _vracer(memory)
    biases = [bias for _, bias in vracer.actor_layers(0)[:-1]]
    for bias in biases:
        assert bias.reshape(4, -1).mean(axis=1).tolist() == [0.0, 1.0, 0.0, 0.0]
    memory.window = 0
    with pytest.raises(ValueError, match="with the preceding steps of their episodes"):
        vracer.update(memory.draws(1, 8))
    assert np.array_equal(vracer.rows, _vracer(RandomMemory(1)).rows)
