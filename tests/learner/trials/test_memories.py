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


class _Offered:
    """A resynthesiser that answers with what was prepared for the episode."""

    offer: ResynthesisedBatch

    def __call__(self, measured: Transitions) -> ResynthesisedBatch:
        return self.offer


def _transitions(
    rng: np.random.Generator, flags: np.ndarray[tuple[int], np.dtype[np.uint32]], episode: int = 0
) -> Transitions:
    nothing = np.zeros(STEPS, np.uint32)
    floats = rng.random((STEPS, 7)).astype(np.float32)
    pairs, none = floats[:, 4:6], floats[:, :0]
    wholes = flags, nothing, floats[:, 6], nothing + np.uint32(episode), nothing
    return Transitions(floats[:, 0:2], floats[:, 2:3], floats[:, 3], pairs, *wholes, none)


def _rows(t: Transitions) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    columns = [t.observation, t.action, t.next_observation, t.reward[:, None], t.exploration[:, None]]
    return np.concatenate(columns, axis=1)


@pytest.mark.parametrize("strategy", STRATEGIES + BY_EPISODE)
@pytest.mark.parametrize("synthetic", [False, True])
def test_they_keep_the_same_experiences_in_the_same_slots(strategy: str, synthetic: bool) -> None:
    config = load("pendulum", ["episodes=8", f"seed={SEED}"])
    capacity = None if strategy.startswith("FULL") else CAPACITY
    selection = msgspec.structs.replace(config.selection, strategy=strategy, capacity=capacity)
    config = msgspec.structs.replace(config, selection=selection)
    settings = msgspec.convert(config.learner, LearnerSettings)
    # The trial looked at is the second of two; the first is offered other experiences.
    ours = Memories(contents_for(config, settings, is_noisy=False), [SEED + 1, SEED])
    offered = _Offered()
    theirs = Memory(config, offered if synthetic else None)
    rng = np.random.default_rng(0)
    for episode in range(8):
        none = np.zeros(STEPS, np.uint32)
        measured, other = _transitions(rng, none, episode), _transitions(rng, none)
        made = rng.random(STEPS) < 0.4
        changed = _transitions(rng, made.astype(np.uint32) * np.uint32(Flag.SYNTHETIC), episode)
        may_overwrite = rng.random(STEPS) < 0.6
        offered.offer = ResynthesisedBatch(changed, may_overwrite)
        theirs.insert(measured)
        altered = None
        if synthetic:
            altered = AlteredEpisode(
                np.stack([_rows(other), _rows(changed)]),
                np.stack([made, made]),
                np.stack([may_overwrite, may_overwrite]),
            )
        ours.insert(np.stack([_rows(other), _rows(measured)]), altered)
        ours.on_episode_end(np.zeros(2), np.ones(2, np.bool_))
        minibatches, _ = ours.draw(5)
        td = rng.standard_normal((5, 2, 16)).astype(np.float32)
        signals = Signals(td, far=np.abs(td).round().clip(0, 1), kl=td**2)
        slots = ours.slots[:, 1].reshape(-1)
        assert (minibatches.reward[:, 1].reshape(-1) == theirs.storage.reward[slots]).all()
        ours.on_update(signals)
        for signal in FEEDBACK.values():
            theirs.keeper.on_feedback(
                signal, slots, signals.feedback_values(signal)[:, 1].reshape(-1).astype(np.float32)
            )
    stored = theirs.storage.stored
    floats = theirs.storage.words.view(np.float32)[:stored, : theirs.storage.layout.episode]
    assert (ours.rows[1, :stored] == floats).all()
    assert (ours._created_at_step[1, :stored] // STEPS == theirs.storage.episode[:stored]).all()
    assert stored == (8 * STEPS if strategy.startswith("FULL") else CAPACITY)


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
def test_windows_are_those_of_a_rig_s_mirror(retention: str, recurrent: bool) -> None:
    config = load("pendulum", [f"selection.strategy={retention}[Uniform]", f"selection.capacity={CAPACITY}"])
    section: dict[str, object] = {"algorithm": "rainbow", "rainbow": {"n_steps": 4}}
    if recurrent:
        section = {"algorithm": "vracer", "vracer": {"recurrent": {"window": 4}, "batch": 16}}
    settings = msgspec.convert(section, LearnerSettings)
    ours = Memories(contents_for(config, settings, is_noisy=False), [SEED + 9, SEED])
    config = msgspec.structs.replace(config, seed=SEED)
    theirs, rng = Memory(config), np.random.default_rng(1)
    mirror = Mirror(
        CAPACITY,
        theirs.storage.layout,
        cyclic=theirs.storage.cyclic,
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
        theirs.insert(measured)
        seen = mirror.storage.inserted
        rows = theirs.storage.rows(theirs.storage.changed_since(seen))
        mirror.apply(rows.astype("<u4").tobytes(), theirs.storage.inserted)
        ours.insert(np.stack([_rows(measured)] * 2), None)
        ours.on_episode_end(np.zeros(2), np.ones(2, np.bool_))
    drawn, _ = ours.draw(3)
    wanted, _ = mirror.gather(Draw(ours.slots[:, 1], None))
    if recurrent:
        assert drawn.window is not None
        assert wanted.window is not None
        for ours_of, theirs_of in zip(drawn.window, wanted.window, strict=True):
            assert np.array_equal(ours_of[:, [1]], theirs_of)
        assert len(np.unique(drawn.window.is_present.sum(axis=-1))) > 1
        return
    for name in ("rewards", "lengths", "next_observation", "terminated"):
        assert (getattr(drawn, name)[:, [1]] == getattr(wanted, name)).all(), name
    assert drawn.lengths is not None
    assert len(np.unique(drawn.lengths)) > 1


@pytest.mark.parametrize("strategy", ["FIFO[Prior(0.5)[Uniform]]", "TDE(1.0)[Prior(0.25)[PropPER]]", "Resv[Uniform]"])
def test_memories_that_begin_with_prior_experiences_are_as_a_rig_s(strategy: str) -> None:
    config = load("pendulum", [f"seed={SEED}"])
    seeds = SeedFrom("an earlier run", STEPS)
    selection = msgspec.structs.replace(config.selection, strategy=strategy, capacity=CAPACITY, seed_from=seeds)
    config = msgspec.structs.replace(config, selection=selection)
    settings = msgspec.convert(config.learner, LearnerSettings)
    rng, none = np.random.default_rng(0), np.zeros(STEPS, np.uint32)
    prior = _transitions(rng, none, FIRST_EPISODE)
    ours = Memories(contents_for(config, settings, is_noisy=False)._replace(prior=prior), [SEED + 1, SEED])
    theirs = Memory(config)
    theirs.seed(prior)
    mirror = Mirror(CAPACITY, theirs.storage.layout, cyclic=theirs.storage.cyclic)
    agent = Agent(config, settings, mirror)
    for episode in range(4):
        measured, other = _transitions(rng, none, episode), _transitions(rng, none)
        theirs.insert(measured)
        ours.insert(np.stack([_rows(other), _rows(measured)]))
        ours.on_episode_end(np.zeros(2), np.ones(2, np.bool_))
        storage = theirs.storage
        rows = storage.rows(storage.changed_since(mirror.storage.inserted)).astype("<u4").tobytes()
        agent.on_write(mirror.apply(rows, storage.inserted))
        stored_slots = np.arange(storage.stored)
        of_seeds = storage.episode[stored_slots] == FIRST_EPISODE
        assert (agent._age(stored_slots)[of_seeds] == 0.0).all()
        assert (ours._age(np.tile(stored_slots, (2, 1)))[1, of_seeds] == 0.0).all()
        ours.draw(1)
        drawn, td = agent._sampler.draw(16).slots, rng.standard_normal((1, 2, 16)).astype(np.float32)
        assert ours.slots[:, 1].tolist() == drawn.tolist()
        ours.on_update(Signals(td))
        agent._sampler.on_update(drawn[0], Signals(td[0, 1]))
        for signal in FEEDBACK.values():
            if signal in theirs.strategy.keeper.required_signals:
                theirs.keeper.on_feedback(signal, drawn[0], np.abs(td[0, 1]))
    stored = theirs.storage.stored
    floats = theirs.storage.words.view(np.float32)[:stored, : theirs.storage.layout.episode]
    assert (ours.rows[1, :stored] == floats).all()
    assert (theirs.storage.episode[:stored] == FIRST_EPISODE)[:STEPS].all() == strategy.startswith(("FIFO", "TDE"))
    assert stored == CAPACITY
