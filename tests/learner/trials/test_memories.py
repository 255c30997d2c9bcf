"""Trials keep the same experiences as the rig's memory."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from onrig.learner.agent import Agent
from onrig.learner.algorithms import Signals
from onrig.learner.mirror import Mirror
from onrig.learner.samplers import Draw
from onrig.learner.settings import LearnerSettings
from onrig.learner.trials.memories import Memories
from onrig.learner.trials.rows import AlteredEpisode, contents_for
from onrig.runtime.memory.keepers.keeper import FEEDBACK
from onrig.runtime.memory.layout import Flag
from onrig.runtime.memory.settings import SeedFrom
from onrig.runtime.memory.transitions import ResynthesisedBatch, Transitions
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.replay.seeds import FIRST_EPISODE
from onrig.tools.load import load

STEPS, CAPACITY, SEED = 30, 70, 3
STRATEGIES = ("FIFO[Uniform]", "FULL[Uniform]", "Resv[Uniform]", "Expl(1.0)[Uniform]", "TDE(1.0)[Uniform]")
BY_EPISODE = ("FarPolFrac[Uniform]", "MaxKLDiv[Uniform]", "MinError[Uniform]")


class _ScriptedResynthesis:
    """A resynthesiser that returns what was prepared for the episode."""

    batch: ResynthesisedBatch

    def __call__(self, measured: Transitions) -> ResynthesisedBatch:
        return self.batch


def _transitions(
    rng: np.random.Generator, flags: np.ndarray[tuple[int], np.dtype[np.uint32]], episode: int = 0
) -> Transitions:
    zeros = np.zeros(STEPS, np.uint32)
    float_words = rng.random((STEPS, 7)).astype(np.float32)
    pairs, no_behaviour = float_words[:, 4:6], float_words[:, :0]
    integer_columns = flags, zeros, float_words[:, 6], zeros + np.uint32(episode), zeros
    return Transitions(
        float_words[:, 0:2], float_words[:, 2:3], float_words[:, 3], pairs, *integer_columns, no_behaviour
    )


def _rows(t: Transitions) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    columns = [t.observation, t.action, t.next_observation, t.reward[:, None], t.exploration[:, None]]
    return np.concatenate(columns, axis=1)


@pytest.mark.parametrize("strategy", STRATEGIES + BY_EPISODE)
@pytest.mark.parametrize("synthetic", [False, True])
def test_trials_and_rigs_keep_the_same_experiences_in_the_same_slots(strategy: str, synthetic: bool) -> None:
    config = load("pendulum", ["episodes=8", f"seed={SEED}"])
    capacity = None if strategy.startswith("FULL") else CAPACITY
    selection = msgspec.structs.replace(config.selection, strategy=strategy, capacity=capacity)
    config = msgspec.structs.replace(config, selection=selection)
    settings = msgspec.convert(config.learner, LearnerSettings)
    # The examined trial is the second of two; the first is offered other experiences.
    memories = Memories(contents_for(config, settings, is_noisy=False), [SEED + 1, SEED])
    resynthesis = _ScriptedResynthesis()
    reference = Memory(config, resynthesis if synthetic else None)
    rng = np.random.default_rng(0)
    for episode in range(8):
        no_flags = np.zeros(STEPS, np.uint32)
        measured, other = _transitions(rng, no_flags, episode), _transitions(rng, no_flags)
        is_synthetic = rng.random(STEPS) < 0.4
        synthetic_transitions = _transitions(rng, is_synthetic.astype(np.uint32) * np.uint32(Flag.SYNTHETIC), episode)
        may_overwrite = rng.random(STEPS) < 0.6
        resynthesis.batch = ResynthesisedBatch(synthetic_transitions, may_overwrite)
        reference.insert(measured)
        altered_slots = None
        if synthetic:
            altered_slots = AlteredEpisode(
                np.stack([_rows(other), _rows(synthetic_transitions)]),
                np.stack([is_synthetic, is_synthetic]),
                np.stack([may_overwrite, may_overwrite]),
            )
        memories.insert(np.stack([_rows(other), _rows(measured)]), altered_slots)
        memories.on_episode_end(np.zeros(2), np.ones(2, np.bool_))
        minibatches, _ = memories.draw(5)
        td = rng.standard_normal((5, 2, 16)).astype(np.float32)
        signals = Signals(td, far=np.abs(td).round().clip(0, 1), kl=td**2)
        slots = memories.slots[:, 1].reshape(-1)
        assert (minibatches.reward[:, 1].reshape(-1) == reference.storage.reward[slots]).all()
        memories.on_update(signals)
        for signal in FEEDBACK.values():
            reference.keeper.on_feedback(
                signal, slots, signals.feedback_values(signal)[:, 1].reshape(-1).astype(np.float32)
            )
    n_stored = reference.storage.stored
    float_words = reference.storage.words.view(np.float32)[:n_stored, : reference.storage.layout.episode]
    assert (memories.rows[1, :n_stored] == float_words).all()
    assert (memories._created_at_step[1, :n_stored] // STEPS == reference.storage.episode[:n_stored]).all()
    assert n_stored == (8 * STEPS if strategy.startswith("FULL") else CAPACITY)


@pytest.mark.parametrize(("probability", "steps"), [(1.0, 16), (0.25, 416)])
def test_learning_waits_until_every_memory_has_a_minibatch(probability: float, steps: int) -> None:
    overrides = [f"selection.write_probability={probability}", "selection.strategy=FIFO[Uniform]"]
    config = load("pendulum", overrides)
    settings = msgspec.convert(config.learner, LearnerSettings)
    memories = Memories(contents_for(config, settings, is_noisy=False), range(20))
    rows = np.zeros((20, steps - 1, memories.width), np.float32)
    memories.insert(rows, None)
    assert not memories.have_minibatches
    memories.insert(rows[:, :1], None)
    assert memories.have_minibatches
    minibatches, _ = memories.draw(3)
    assert minibatches.reward.shape == (3, 20, 16)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("retention", ["FIFO", "Resv"])
def test_windows_equal_those_of_a_rigs_mirror(retention: str, recurrent: bool) -> None:
    config = load("pendulum", [f"selection.strategy={retention}[Uniform]", f"selection.capacity={CAPACITY}"])
    section: dict[str, object] = {"algorithm": "rainbow", "rainbow": {"n_steps": 4}}
    if recurrent:
        section = {"algorithm": "vracer", "vracer": {"recurrent": {"window": 4}, "batch": 16}}
    settings = msgspec.convert(section, LearnerSettings)
    memories = Memories(contents_for(config, settings, is_noisy=False), [SEED + 9, SEED])
    config = msgspec.structs.replace(config, seed=SEED)
    reference, rng = Memory(config), np.random.default_rng(1)
    mirror = Mirror(
        CAPACITY,
        reference.storage.layout,
        cyclic=reference.storage.cyclic,
        successors=1 if recurrent else 4,
        window=4 if recurrent else 1,
    )
    for episode in range(5):
        states = rng.random((STEPS + 1, 2)).astype(np.float32)
        measured = _transitions(rng, np.zeros(STEPS, np.uint32))._replace(
            observation=states[:-1],
            next_observation=states[1:],
            episode=np.full(STEPS, episode, np.uint32),
            step=np.arange(STEPS, dtype=np.uint32),
        )
        reference.insert(measured)
        n_mirrored = mirror.storage.inserted
        rows = reference.storage.rows(reference.storage.changed_since(n_mirrored))
        mirror.apply(rows.astype("<u4").tobytes(), reference.storage.inserted)
        memories.insert(np.stack([_rows(measured)] * 2), None)
        memories.on_episode_end(np.zeros(2), np.ones(2, np.bool_))
    minibatches, _ = memories.draw(3)
    expected, _ = mirror.gather(Draw(memories.slots[:, 1], None))
    if recurrent:
        assert minibatches.window is not None
        assert expected.window is not None
        for window_field, expected_field in zip(minibatches.window, expected.window, strict=True):
            assert np.array_equal(window_field[:, [1]], expected_field)
        assert len(np.unique(minibatches.window.is_present.sum(axis=-1))) > 1
        return
    for name in ("rewards", "lengths", "next_observation", "terminated"):
        assert (getattr(minibatches, name)[:, [1]] == getattr(expected, name)).all(), name
    assert minibatches.lengths is not None
    assert len(np.unique(minibatches.lengths)) > 1


@pytest.mark.parametrize("strategy", ["FIFO[Prior(0.5)[Uniform]]", "TDE(1.0)[Prior(0.25)[PropPER]]", "Resv[Uniform]"])
def test_memories_that_start_with_prior_experiences_equal_a_rigs(strategy: str) -> None:
    config = load("pendulum", [f"seed={SEED}"])
    seeds = SeedFrom("an earlier run", STEPS)
    selection = msgspec.structs.replace(config.selection, strategy=strategy, capacity=CAPACITY, seed_from=seeds)
    config = msgspec.structs.replace(config, selection=selection)
    settings = msgspec.convert(config.learner, LearnerSettings)
    rng, no_flags = np.random.default_rng(0), np.zeros(STEPS, np.uint32)
    prior = _transitions(rng, no_flags, FIRST_EPISODE)
    memories = Memories(contents_for(config, settings, is_noisy=False)._replace(prior=prior), [SEED + 1, SEED])
    reference = Memory(config)
    reference.seed(prior)
    mirror = Mirror(CAPACITY, reference.storage.layout, cyclic=reference.storage.cyclic)
    agent = Agent(config, settings, mirror)
    for episode in range(4):
        measured, other = _transitions(rng, no_flags, episode), _transitions(rng, no_flags)
        reference.insert(measured)
        memories.insert(np.stack([_rows(other), _rows(measured)]))
        memories.on_episode_end(np.zeros(2), np.ones(2, np.bool_))
        storage = reference.storage
        rows = storage.rows(storage.changed_since(mirror.storage.inserted)).astype("<u4").tobytes()
        agent.on_write(mirror.apply(rows, storage.inserted))
        stored_slots = np.arange(storage.stored)
        is_seed = storage.episode[stored_slots] == FIRST_EPISODE
        assert (agent._age(stored_slots)[is_seed] == 0.0).all()
        assert (memories._age(np.tile(stored_slots, (2, 1)))[1, is_seed] == 0.0).all()
        memories.draw(1)
        slots_drawn, td = agent._sampler.draw(16).slots, rng.standard_normal((1, 2, 16)).astype(np.float32)
        assert memories.slots[:, 1].tolist() == slots_drawn.tolist()
        memories.on_update(Signals(td))
        agent._sampler.on_update(slots_drawn[0], Signals(td[0, 1]))
        for signal in FEEDBACK.values():
            if signal in reference.strategy.keeper.required_signals:
                reference.keeper.on_feedback(signal, slots_drawn[0], np.abs(td[0, 1]))
    n_stored = reference.storage.stored
    float_words = reference.storage.words.view(np.float32)[:n_stored, : reference.storage.layout.episode]
    assert (memories.rows[1, :n_stored] == float_words).all()
    assert (reference.storage.episode[:n_stored] == FIRST_EPISODE)[:STEPS].all() == strategy.startswith(("FIFO", "TDE"))
    assert n_stored == CAPACITY
