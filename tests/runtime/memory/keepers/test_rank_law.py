from __future__ import annotations

import numpy as np
import pytest

from onrig.runtime.memory.keepers.ranked import RankDistribution
from onrig.runtime.memory.order.uniforms import Uniforms
from tests.runtime.replay.chi_square import follows_distribution


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0, 1.0 + 1e-9, 1.2, 3.0])
@pytest.mark.parametrize("n", [2, 7, 1000, 10_000])
def test_ranks_follow_the_distribution(n: int, alpha: float) -> None:
    distribution = RankDistribution(n, alpha)
    uniform = Uniforms(np.random.default_rng([n, int(10 * alpha)])).next
    ranks = np.array([distribution.draw(uniform) for _ in range(20_000)])
    assert ranks.min() >= 1
    assert ranks.max() <= n
    assert follows_distribution(np.bincount(ranks, minlength=n + 1)[1:], np.arange(1.0, n + 1) ** -alpha)


def test_the_ends_of_the_unit_interval_give_ranks() -> None:
    for n in (1, 2, 1_000_000):
        for alpha in (0.0, 0.5, 1.0, 2.0, 50.0):
            for u in (0.0, 1.0 - 2.0**-53):
                # An end that is rejected is followed by the middle.
                assert 1 <= RankDistribution(n, alpha).draw(iter([u] + [0.5] * 50).__next__) <= n


@pytest.mark.parametrize(("n", "alpha"), [(0, 1.0), (5, -0.1), (5, float("nan")), (5, float("inf"))])
def test_an_invalid_distribution_is_refused(n: int, alpha: float) -> None:
    with pytest.raises(ValueError, match="expected at least one rank and a finite exponent"):
        RankDistribution(n, alpha)
