"""Draws for S trials at once equal those of the rig's samplers for each."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from onrig.learner.algorithms import Signals
from onrig.learner.sampler_settings import EroSettings, NersSettings, ProportionalSettings
from onrig.learner.samplers import SamplerContext, sampler_for
from onrig.learner.settings import LearnerSettings
from onrig.learner.trials.sampling import Sampling, sampling_for
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.random_streams import Role, stream
from tests.learner.samplers.looks import random_view

SAMPLINGS = ("Uniform", "Uniform+FIS", "PER", "PER+IS", "PER+FIS", "PropPER", "PropPER+IS", "KLPER(4)", "NERS", "ERO")
BATCH, EPISODES, CAPACITY = 8, 20, 150
OPTIONS = LearnerSettings(
    prop_per=ProportionalSettings("oh2021"),
    ners=NersSettings(hidden=(12, 10, 6), score=(7,), lr=1e-2),
    ero=EroSettings(hidden=(9,), lr=1e-2),
)


def _sampling(sampling: str, seeds: list[int], batch: int = BATCH, capacity: int = CAPACITY) -> Sampling:
    strategy = parse_strategy(f"FIFO[{sampling}]")
    actions = np.stack([_actions(seed) for seed in seeds])
    context = SamplerContext(capacity, batch, EPISODES, 15 * EPISODES, 900, OPTIONS, random_view(actions))
    return sampling_for(strategy, seeds, context)


def _actions(seed: int) -> NDArray[np.float64]:
    """Actions of a trial's experiences."""
    return np.random.default_rng(seed).standard_normal((1500, 2))


def _single_context(seed: int) -> SamplerContext:
    return SamplerContext(CAPACITY, BATCH, EPISODES, 15 * EPISODES, 900, OPTIONS, random_view(_actions(seed)[None]))


def _errors(rng: np.random.Generator) -> NDArray[np.float32]:
    """TD errors of a minibatch: occasionally with ties, infinities and NaN."""
    if rng.random() < 0.3:
        return rng.choice([1.0, -1.0, 2.0, 0.0, np.inf, np.nan], BATCH).astype(np.float32)
    return rng.standard_normal(BATCH).astype(np.float32)


def _draw_written_slots(rng: np.random.Generator, n_stored: int) -> NDArray[np.int64]:
    """Slots of an episode: a different number each time, finally slots already held, some of them twice."""
    count = int(rng.integers(BATCH, 40))
    if n_stored + count <= CAPACITY:
        return np.arange(n_stored, n_stored + count)
    return rng.integers(0, n_stored, count)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("seeds", [[3], [7, 7, 0, 12, 5]])
def test_every_trial_draws_like_its_own_sampler(sampling: str, seeds: list[int]) -> None:
    joint_sampling = _sampling(sampling, seeds)
    strategy = parse_strategy(f"FIFO[{sampling}]")
    samplers = [sampler_for(strategy, stream(seed, Role.SAMPLER), _single_context(seed)) for seed in seeds]
    assert joint_sampling.required_signals == samplers[0].required_signals
    rng = np.random.default_rng(1)
    n_stored = [0] * len(seeds)
    for episode in range(1, (10 if sampling in ("NERS", "ERO") else EPISODES) + 1):
        slots_written = [_draw_written_slots(rng, n) for n in n_stored]
        n_stored = [max(n, int(slots.max()) + 1) for n, slots in zip(n_stored, slots_written, strict=True)]
        joint_sampling.on_write(slots_written)
        has_ended, returns = rng.random(len(seeds)) < 0.8, rng.integers(0, 4, len(seeds)).astype(np.float64)
        joint_sampling.on_episode_end(returns, has_ended)
        joint_sampling.begin_episode(episode)
        for sampler, slots, total, closes_episode in zip(samplers, slots_written, returns, has_ended, strict=True):
            sampler.on_write(slots)
            if closes_episode:
                sampler.on_episode_end(float(total))
            sampler.begin_episode(episode)
        for _ in range(15):
            draw = joint_sampling.draw(1)
            errors = np.stack([_errors(rng) for _ in seeds])
            joint_sampling.on_update(draw.slots, Signals(errors[None], target=0.5 - errors[None]))
            for trial, sampler in enumerate(samplers):
                expected = sampler.draw(BATCH)
                assert (draw.slots[:, trial] == expected.slots).all()
                assert (draw.weights is None) == (expected.weights is None)
                if draw.weights is not None and expected.weights is not None:
                    assert (draw.weights[:, trial] == expected.weights).all()
                sampler.on_update(expected.slots[0], Signals(errors[trial], target=0.5 - errors[trial]))


def test_draws_continue_beyond_the_pregenerated_random_numbers() -> None:
    joint_sampling = _sampling("PER", [4], batch=16)
    reference = sampler_for(
        parse_strategy("FIFO[PER]"), stream(4, Role.SAMPLER), SamplerContext(CAPACITY, 16, EPISODES)
    )
    joint_sampling.on_write([np.arange(100)])
    reference.on_write(np.arange(100))
    for _ in range(600):
        assert (joint_sampling.draw(1).slots[0, 0] == reference.draw(16).slots[0]).all()


@pytest.mark.parametrize("sampling", ["Uniform", "PER"])
def test_too_few_experiences_and_a_memory_that_is_too_small_are_reported(sampling: str) -> None:
    with pytest.raises(ValueError, match="is smaller than a minibatch of 8"):
        _sampling(sampling, [0], capacity=7)
    joint_sampling = _sampling(sampling, [0, 1])
    joint_sampling.on_write([np.arange(7), np.arange(9)])
    joint_sampling.begin_episode(1)
    with pytest.raises(ValueError, match="from the 7 stored"):
        joint_sampling.draw(1)


def test_rank_based_draws_are_made_one_at_a_time() -> None:
    joint_sampling = _sampling("PER", [0])
    joint_sampling.on_write([np.arange(20)])
    with pytest.raises(ValueError, match="previous update"):
        joint_sampling.draw(2)
