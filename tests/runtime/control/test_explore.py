from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.config.schema import NoExploration, OrnsteinUhlenbeck
from runtime.control.explore import episode_noise, interpolate, ornstein_uhlenbeck
from runtime.random_streams import Role, stream

POINTS = st.lists(
    st.tuples(st.integers(-1000, 1000), st.floats(0, 1)), min_size=1, max_size=6, unique_by=lambda p: p[0]
)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@given(POINTS, st.floats(-2000, 2000))
def test_a_schedule_meets_its_points_and_is_linear_between_them(points: list[tuple[float, float]], x: float) -> None:
    points = sorted(points)
    assert [interpolate(points, at) for at, _ in points] == pytest.approx([y for _, y in points])
    value = interpolate(points, x)
    assert min(y for _, y in points) - 1e-12 <= value <= max(y for _, y in points) + 1e-12
    if x <= points[0][0]:
        assert value == points[0][1]
    if x >= points[-1][0]:
        assert value == points[-1][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= x <= x1:
            assert value == pytest.approx(y0 + (x - x0) / (x1 - x0) * (y1 - y0), abs=1e-9)


def test_the_schedule_of_the_paper_goes_from_1_at_episode_1_to_a_tenth_at_500() -> None:
    amplitude = OrnsteinUhlenbeck().amplitude
    assert [interpolate(amplitude, e) for e in (1, 500, 501, 3000)] == pytest.approx([1.0, 0.1, 0.1, 0.1])
    assert interpolate(amplitude, 250.5) == pytest.approx(0.55)


def test_the_process_obeys_its_equation_from_zero_on() -> None:
    u = ornstein_uhlenbeck(rng(), 50, 2, gain=5.14, friction=0.3)
    noise = rng().standard_normal((50, 2))
    assert u[0].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(u[1:], u[:-1] + 5.14 * noise[:-1] - 0.3 * u[:-1], atol=1e-12)


def test_its_statistics_are_those_of_the_literal_reading() -> None:
    """METHODS C4: std 7.2, 89 % of |u| above 1, lag-1 correlation 0.7, about 0.5 once clipped."""
    u = ornstein_uhlenbeck(rng(), 4000, 60, gain=5.14, friction=0.3)[100:]
    clipped = np.clip(u, -1, 1)

    def lag_1(x: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
        return float((x[1:] * x[:-1]).mean() / x.var())

    assert u.std() == pytest.approx(7.2, abs=0.1)
    assert np.mean(np.abs(u) > 1) == pytest.approx(0.89, abs=0.005)
    assert lag_1(u) == pytest.approx(0.7, abs=0.01)
    assert lag_1(clipped) == pytest.approx(0.5, abs=0.03)
    assert abs(np.corrcoef(u[:, 0], u[:, 1])[0, 1]) < 0.1, "each dimension on its own"


@pytest.mark.parametrize(("episode", "amplitude"), [(1, 1.0), (250, 0.5509), (500, 0.1), (2000, 0.1)])
def test_the_amplitude_multiplies_the_clipped_noise(episode: int, amplitude: float) -> None:
    """METHODS S4: scaled before the clip, 89 % of it would stay at full size whatever the amplitude."""
    noise = np.array(episode_noise(OrnsteinUhlenbeck(), rng(), episode, 3000, 4))
    full = np.array(episode_noise(OrnsteinUhlenbeck(), rng(), 1, 3000, 4))
    assert np.abs(noise).max() == pytest.approx(amplitude, abs=1e-4)
    np.testing.assert_allclose(noise, noise.max() * full, atol=1e-12)
    assert np.mean(np.abs(full) == 1.0) == pytest.approx(0.89, abs=0.02)


def test_an_episode_has_the_noise_of_its_own_stream_whoever_drew_before() -> None:
    ou = OrnsteinUhlenbeck()
    first = episode_noise(ou, stream(1, Role.EXPLORATION, 9), 9, 20, 2)
    episode_noise(ou, stream(1, Role.EXPLORATION, 8), 8, 20, 2)
    assert episode_noise(ou, stream(1, Role.EXPLORATION, 9), 9, 20, 2) == first
    assert (len(first), len(first[0])) == (20, 2)


def test_without_exploration_the_noise_is_zero() -> None:
    assert episode_noise(NoExploration(), rng(), 1, 3, 2) == [(0.0, 0.0)] * 3
