from __future__ import annotations

import numpy as np
import pytest

from onrig.learner.samplers.build import sampler_for
from onrig.runtime.replay.memory.strategy import SAMPLINGS, Strategy


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_known_sampling_draws(sampling: str) -> None:
    sampler = sampler_for(Strategy("FIFO", sampling), 100, np.random.default_rng(0), episodes=10, batch=16)
    sampler.begin_episode(1)
    sampler.written(np.arange(50))
    draw = sampler.draw(16)
    assert draw.slots.shape == (1, 16)
    assert (draw.weights is None) == ("+" not in sampling)
    sampler.updated(draw.slots[0], np.ones(16))
    assert sampler.feedback == ("PER" in sampling)


@pytest.mark.parametrize("sampling", ["PER", "PER+IS", "PER+FIS"])
def test_the_exponent_of_rank_based_sampling_is_passed_on(sampling: str) -> None:
    def drawn(**exponent: float) -> list[int]:
        sampler = sampler_for(
            Strategy("FIFO", sampling), 100, np.random.default_rng(0), episodes=10, batch=16, **exponent
        )
        sampler.begin_episode(1)
        sampler.written(np.arange(100))
        sampler.updated(np.arange(100), np.arange(100.0))
        slots: list[int] = sampler.draw(16, 20).slots.reshape(-1).tolist()
        return slots

    assert drawn() == drawn(per_alpha=0.7)
    # Rank 1 is slot 99: the larger the exponent, the larger the errors drawn.
    means = [np.mean(drawn(per_alpha=alpha)) for alpha in (0.0, 0.7, 1.5)]
    assert means[0] < 55 < 60 < means[1] < means[2]


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown sampling 'NERS'"):
        sampler_for(Strategy("FIFO", "NERS"), 100, np.random.default_rng(0), episodes=10, batch=16)
    with pytest.raises(ValueError, match="a memory of 10 experiences gives no minibatch of 16"):
        sampler_for(Strategy("FIFO", "Uniform"), 10, np.random.default_rng(0), episodes=10, batch=16)
