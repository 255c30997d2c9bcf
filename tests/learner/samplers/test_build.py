from __future__ import annotations

import numpy as np
import pytest

from learner.samplers.build import sampler_for
from runtime.replay.strategy import SAMPLINGS, Strategy


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


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown sampling 'NERS'"):
        sampler_for(Strategy("FIFO", "NERS"), 100, np.random.default_rng(0), episodes=10, batch=16)
    with pytest.raises(ValueError, match="a memory of 10 experiences gives no minibatch of 16"):
        sampler_for(Strategy("FIFO", "Uniform"), 10, np.random.default_rng(0), episodes=10, batch=16)
