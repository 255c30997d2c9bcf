from __future__ import annotations

import numpy as np
import pytest

from onrig.runtime.explore.processes import episode_noise, ornstein_uhlenbeck, unit_signal
from onrig.runtime.explore.settings import (
    Exploration,
    Gaussian,
    NoExploration,
    OrnsteinUhlenbeck,
    ParameterNoise,
    Quiet,
)
from onrig.runtime.random_streams import Role, stream

FOUR = ("a", "b", "c", "d")


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_the_process_obeys_its_equation_from_zero_on() -> None:
    u = ornstein_uhlenbeck(rng(), 50, 2, gain=5.14, friction=0.3)
    noise = rng().standard_normal((50, 2))
    assert u[0].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(u[1:], u[:-1] + 5.14 * noise[:-1] - 0.3 * u[:-1], atol=1e-12)


def test_its_statistics_are_those_of_the_literal_reading() -> None:
    """Read literally (docs/methods.md): std 7.2, 89 % of |u| above 1, lag-1 correlation 0.7, about 0.5 once clipped."""
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
    """Scaled before the clip, 89 % of it would stay at full size whatever the amplitude (docs/methods.md)."""
    noise = np.array(episode_noise(OrnsteinUhlenbeck(), rng(), episode, 3000, FOUR))
    full = np.array(episode_noise(OrnsteinUhlenbeck(), rng(), 1, 3000, FOUR))
    assert np.abs(noise).max() == pytest.approx(amplitude, abs=1e-4)
    np.testing.assert_allclose(noise, noise.max() * full, atol=1e-12)
    assert np.mean(np.abs(full) == 1.0) == pytest.approx(0.89, abs=0.02)


def test_an_episode_has_the_noise_of_its_own_stream_whoever_drew_before() -> None:
    ou = OrnsteinUhlenbeck()
    first = episode_noise(ou, stream(1, Role.EXPLORATION, 9), 9, 20, FOUR[:2])
    episode_noise(ou, stream(1, Role.EXPLORATION, 8), 8, 20, FOUR[:2])
    assert episode_noise(ou, stream(1, Role.EXPLORATION, 9), 9, 20, FOUR[:2]) == first
    assert (len(first), len(first[0])) == (20, 2)


def test_without_exploration_the_noise_is_zero() -> None:
    assert episode_noise(NoExploration(), rng(), 1, 3, FOUR[:2]) == [(0.0, 0.0)] * 3


@pytest.mark.parametrize("episode", [1, 7, 500])
def test_the_streams_of_the_ou_process_are_what_they_have_always_been(episode: int) -> None:
    """Spelled out here, so that no change of the code can move them: recorded runs replay bit for bit."""
    draws = 5.14 * np.random.default_rng(np.random.SeedSequence(3, spawn_key=(1, episode))).standard_normal((200, 2))
    u, expected = np.zeros(2), []
    amplitude = 1.0 if episode == 1 else 1.0 + (0.1 - 1.0) * (episode - 1) / (500 - 1)
    for k in range(200):
        expected.append(tuple((amplitude * np.clip(u, -1.0, 1.0)).tolist()))
        u = (1.0 - 0.3) * u + draws[k]
    assert episode_noise(OrnsteinUhlenbeck(), stream(3, Role.EXPLORATION, episode), episode, 200, FOUR[:2]) == expected


def test_gaussian_noise_has_its_std_and_no_memory() -> None:
    u = np.array(unit_signal(Gaussian(std=0.2), rng(), 20_000, 2))
    assert u.std() == pytest.approx(0.2, abs=0.005)
    assert abs((u[1:] * u[:-1]).mean()) < 0.002
    assert abs(np.corrcoef(u.T)[0, 1]) < 0.03


@pytest.mark.parametrize("process", [OrnsteinUhlenbeck(), Gaussian(std=3.0)])
def test_the_signal_is_clipped(process: Exploration) -> None:
    assert np.abs(unit_signal(process, rng(), 200, 3)).max() == 1.0


def test_each_actuator_has_the_amplitude_of_its_own_schedule() -> None:
    own = OrnsteinUhlenbeck(amplitude={"b": ((1, 0.25),), "a": ((1, 1.0), (3, 0.0))})
    noise = np.abs(episode_noise(own, rng(), 2, 500, FOUR[:2])).max(axis=0)
    assert noise.tolist() == [0.5, 0.25]


def test_a_quiet_episode_has_no_noise_and_moves_nobody_elses() -> None:
    loud, quiet = OrnsteinUhlenbeck(), OrnsteinUhlenbeck(quiet=Quiet(every=3))
    assert episode_noise(quiet, rng(), 3, 5, FOUR[:1]) == [(0.0,)] * 5
    assert episode_noise(quiet, rng(), 4, 5, FOUR[:1]) == episode_noise(loud, rng(), 4, 5, FOUR[:1])


def test_parameter_noise_is_no_signal() -> None:
    assert unit_signal(ParameterNoise(), rng(), 5, 1) == []
    with pytest.raises(ValueError, match="depends on the policy"):
        episode_noise(ParameterNoise(), rng(), 1, 5, FOUR[:1])
