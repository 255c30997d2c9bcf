from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.learner.algorithm_config import algorithm_names, default_section
from onrig.learner.algorithms import (
    Behaviour,
    Exportable,
    MemoryAccess,
    Minibatches,
    Signals,
    UsesWholeMemory,
    algorithm_for,
)
from onrig.learner.notes import Notes
from onrig.learner.settings import LearnerSettings, rig_problems
from onrig.learner.trajectories import Trajectories


@pytest.mark.parametrize("name", algorithm_names())
def test_every_settings_section_builds_its_algorithm_and_a_rig_refuses_what_it_cannot_export(
    name: str,
) -> None:
    settings = msgspec.convert({"algorithm": name}, LearnerSettings)
    algorithm = algorithm_for(settings, 2, 1, [np.random.default_rng(0)])
    assert (
        type(algorithm).__name__
        == settings.algorithm_config.home_of(with_refer=settings.effective_refer is not None).partition(":")[2]
    )
    assert isinstance(algorithm, Exportable) is not bool(rig_problems(settings, 1))


@pytest.mark.parametrize("name", algorithm_names())
def test_each_algorithm_declares_the_trials_and_action_dimensions_it_supports(name: str) -> None:
    settings = msgspec.convert({"algorithm": name}, LearnerSettings)
    with pytest.raises(ValueError, match="one random stream per trial"):
        algorithm_for(settings, 2, 1, [])
    if settings.algorithm_config.single_action:
        with pytest.raises(ValueError, match=f"{name} supports one action dimension, got 4"):
            algorithm_for(settings, 2, 4, [np.random.default_rng(0)])


@pytest.mark.parametrize("name", [name for name in algorithm_names() if default_section(name).home_under_refer])
def test_the_notes_with_an_experience_are_those_of_its_section(name: str) -> None:
    settings = msgspec.convert({"algorithm": name, "refer": {"rules": "none"}}, LearnerSettings)
    _assert_notes(settings)
    if name == "vracer":
        _assert_notes(msgspec.convert({"algorithm": name, name: {"recurrent": {}}, "refer": {}}, LearnerSettings))


def _assert_notes(settings: LearnerSettings) -> None:
    algorithm, notes = algorithm_for(settings, 2, 1, [np.random.default_rng(0)]), Notes(1, 100)
    assert isinstance(algorithm, UsesWholeMemory)
    links = Trajectories(1, 100, lambda trial, first, second: first >= 0)
    algorithm.bind_memory(
        MemoryAccess(notes, lambda slots: pytest.fail("nothing is stored"), links.next_slots, links.segments_around)
    )
    columns = {key: column for key, column in notes.state().items() if key != "stored"}
    assert sum(column.nbytes for column in columns.values()) == 100 * settings.note_bytes


@pytest.mark.parametrize("name", [name for name in algorithm_names() if default_section(name).provides_targets])
def test_the_target_is_reported_with_the_error(name: str) -> None:
    settings = msgspec.convert({"algorithm": name, name: {"batch": 5}}, LearnerSettings)
    rng = np.random.default_rng(1)
    observation, action, next_observation = (
        rng.standard_normal((1, 2, 5, width)).astype(np.float32) for width in (2, 1, 2)
    )
    reward, is_terminal = rng.standard_normal((1, 2, 5)), rng.random((1, 2, 5)) < 0.5

    def learn_once(terminated: NDArray[np.bool_]) -> Signals:
        streams = [np.random.default_rng(seed) for seed in (3, 4)]
        algorithm, notes = algorithm_for(settings, 2, 1, streams), Notes(2, 5)
        batches = Minibatches(observation, np.tanh(action), reward, next_observation, terminated)
        no_links = Trajectories(2, 5, lambda trial, first, second: first >= 0)
        if isinstance(algorithm, UsesWholeMemory):
            algorithm.bind_memory(
                MemoryAccess(notes, lambda slots: batches, no_links.next_slots, no_links.segments_around)
            )
            behaviour = Behaviour(0.0 * action, np.ones_like(action), action, np.zeros_like(terminated))
            batches = replace(batches, slots=np.tile(np.arange(5), (1, 2, 1)), behaviour=behaviour)
        learned = algorithm.update(batches)
        assert settings.algorithm_config.provides_targets is (learned.target is not None)
        return learned

    continued_signals, terminated_signals = learn_once(is_terminal), learn_once(np.ones_like(is_terminal))
    assert continued_signals.target is not None
    assert terminated_signals.target is not None
    scaled_reward = (settings.algorithm_config.reward_scale * reward).astype(np.float32)
    np.testing.assert_allclose(terminated_signals.target, scaled_reward, rtol=1e-6)
    np.testing.assert_allclose(continued_signals.target[is_terminal], scaled_reward[is_terminal], rtol=1e-6)
    assert np.abs(continued_signals.target - scaled_reward)[~is_terminal].min() > 1e-6
    # The remainder is the value of the action, which does not depend on the successor.
    np.testing.assert_allclose(
        continued_signals.target - continued_signals.td,
        terminated_signals.target - terminated_signals.td,
        rtol=1e-4,
        atol=1e-6,
    )
    single_target = continued_signals.of_trial(1).target
    assert single_target is not None
    assert single_target.tolist() == continued_signals.target[0, 1].tolist()
