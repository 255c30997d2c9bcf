from __future__ import annotations

import tracemalloc

import msgspec
import numpy as np
import pytest

from onrig.learner.algorithms import Signals
from onrig.learner.sampler_settings import NersSettings
from onrig.learner.samplers import SamplerContext, sampler_for
from onrig.learner.settings import LearnerSettings
from onrig.runtime.memory.strategy import Strategy, parse_sampling, sampling_names
from onrig.runtime.run_loading import load_run
from tests.learner.samplers.looks import random_view


def context(capacity: int) -> SamplerContext:
    actions = np.random.default_rng(1).standard_normal((capacity, 2))
    options = LearnerSettings(ners=NersSettings(hidden=(8, 8), score=(8,)))
    return SamplerContext(capacity, 16, 10, learner=options, view=random_view(actions[None]))


@pytest.mark.parametrize("sampling", sampling_names())
def test_every_known_sampling_draws(sampling: str) -> None:
    sampler = sampler_for(Strategy("FIFO", sampling), np.random.default_rng(0), context(100))
    sampler.begin_episode(1)
    sampler.on_write(np.arange(50))
    draw = sampler.draw(16)
    assert draw.slots.shape == (1, 16)
    assert (draw.weights is None) == ("+" not in sampling and sampling != "NERS")
    sampler.on_update(draw.slots[0], Signals(np.ones(16), target=np.ones(16)))
    sampler.on_episode_end(1.0)
    assert bool(sampler.required_signals) == ("Uniform" not in sampling)


@pytest.mark.parametrize("sampling", ["PER", "PER+IS", "PER+FIS"])
def test_the_exponent_of_rank_based_sampling_is_passed_on(sampling: str) -> None:
    def draw_slots(per_alpha: float | None = None) -> list[int]:
        context = SamplerContext(100, 16, 10)
        context_with_learner = (
            context if per_alpha is None else context._replace(learner=LearnerSettings(per_alpha=per_alpha))
        )
        sampler = sampler_for(Strategy("FIFO", sampling), np.random.default_rng(0), context_with_learner)
        sampler.begin_episode(1)
        sampler.on_write(np.arange(100))
        sampler.on_update(np.arange(100), Signals(np.arange(100.0)))
        slots: list[int] = sampler.draw(16, 20).slots.reshape(-1).tolist()
        return slots

    assert draw_slots() == draw_slots(per_alpha=0.7)
    # Rank 1 is slot 99: the larger the exponent, the larger the errors drawn.
    mean_slots = [np.mean(draw_slots(per_alpha=alpha)) for alpha in (0.0, 0.7, 1.5)]
    assert mean_slots[0] < 55 < 60 < mean_slots[1] < mean_slots[2]


@pytest.mark.parametrize(
    ("overrides", "expected_replays"),
    [
        pytest.param([], 8.0, id="the paper's duty"),
        pytest.param(["rate_hz=200"], 2.0, id="four times the rate"),
        pytest.param(["selection.write_probability=0.25"], 32.0, id="a quarter is written"),
        pytest.param(["learner={updates_per_transition: 0.5}", "device.pace=realtime"], 8.0, id="by transition"),
        pytest.param(
            ["learner={updates_per_transition: 0.5}", "device.pace=realtime", "selection.write_probability=0.25"],
            8.0,
            id="by transition, a quarter is written",
        ),
    ],
)
def test_full_importance_sampling_expects_the_replays_of_the_run(overrides: list[str], expected_replays: float) -> None:
    config = load_run("pendulum", overrides)
    options = msgspec.convert(config.learner, LearnerSettings)
    assert SamplerContext.of_run(config, options, 1000).replays == expected_replays
    assert SamplerContext(1000, 16, 10).replays == 8.0


def test_an_invalid_sampling_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown sampling 'PERS'"):
        sampler_for(Strategy("FIFO", "PERS"), np.random.default_rng(0), SamplerContext(100, 16, 10))
    with pytest.raises(ValueError, match="a memory of 10 experiences is too small for a minibatch of 16"):
        sampler_for(Strategy("FIFO", "Uniform"), np.random.default_rng(0), SamplerContext(10, 16, 10))


@pytest.mark.parametrize("name", sampling_names())
def test_samplers_stay_within_their_stated_bytes(name: str) -> None:
    capacity, rng = 100_000, np.random.default_rng(0)
    fixed = context(capacity)
    tracemalloc.start()
    sampler = sampler_for(Strategy("FIFO", name), np.random.default_rng(0), fixed)
    for first in range(0, capacity, 20_000):
        slots = np.arange(first, first + 20_000)
        sampler.on_write(slots)
        sampler.on_update(slots[::40], Signals(rng.random(500), target=rng.random(500)))
    peak_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert peak_bytes <= capacity * parse_sampling(name).bytes_per_slot + 1_000_000
