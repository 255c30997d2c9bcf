from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.learner.export import export_policy
from onrig.runtime.explore.explorer import Explorer, perturbed_session
from onrig.runtime.explore.noise import (
    AdaptiveScale,
    adapt_scale,
    episode_noise,
    ornstein_uhlenbeck,
    perturbed_model,
    signal_width,
    unit_signal,
)
from onrig.runtime.explore.settings import (
    EpsilonGreedy,
    Exploration,
    Gaussian,
    NoExploration,
    OrnsteinUhlenbeck,
    OwnNoise,
    ParameterNoise,
    Quiet,
)
from onrig.runtime.policy.contract import ModelRefused, PolicyContract, Signal
from onrig.runtime.policy.onnx_wire import read_model
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.random_streams import Role, stream
from onrig.runtime.record import Kind
from tests.runtime.policy.models import CONTRACT, node, policy, proto
from tests.runtime.samples import PENDULUM

CENTRE, HALF_RANGE = np.array([1.0, -2.0]), np.array([3.0, 20.0])
UNIT_RANGE = np.zeros(2), np.ones(2)
Layers = list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]


def layers(seed: int = 0) -> Layers:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((a, b)) / 4, rng.standard_normal(b) / 4) for a, b in ((2, 8), (8, 8), (8, 1))]


def contract() -> PolicyContract:
    signals = tuple(
        Signal(name, "1", float(c - h), float(c + h)) for name, c, h in zip(("a", "b"), CENTRE, HALF_RANGE, strict=True)
    )
    return msgspec.structs.replace(CONTRACT, observations=signals)


def test_random_levels_are_equally_likely() -> None:
    process = EpsilonGreedy(levels=5)
    signal = np.array(unit_signal(process, stream(3, Role.EXPLORATION, 7), 4000, 1))
    assert signal.shape == (4000, signal_width(process, 1)) == (4000, 2)
    values, counts = np.unique(signal[:, 1], return_counts=True)
    assert values.tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert counts.min() > 700
    with pytest.raises(ValueError, match="replace the policy"):
        episode_noise(process, stream(3, Role.EXPLORATION, 7), 7, 4000, ["a"])


def act(model: bytes, observation: list[float]) -> float:
    session = PolicySession(model)
    session.observation[0] = observation
    session.run()
    return float(session.action[0, 0])


@settings(max_examples=20)
@given(st.integers(0, 1000), st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=2))
def test_the_noise_is_that_of_the_network_on_normalised_inputs(seed: int, x: list[float]) -> None:
    """The exporter folds the normalisation into the first layer: the same noise must have the same effect there."""
    weights = layers(seed)
    perturbed = perturbed_model(
        export_policy(weights, contract()), np.random.default_rng(seed), 0.1, CENTRE, HALF_RANGE
    )
    rng = np.random.default_rng(seed)
    value = np.array(x)
    for i, (weight, bias) in enumerate(weights):
        noise, shift = 0.1 * rng.standard_normal(weight.shape), 0.1 * rng.standard_normal(bias.shape)
        value = value @ (weight + noise) + bias + shift
        value = np.tanh(value) if i == 2 else np.maximum(value, 0.0)
    assert act(perturbed, (CENTRE + HALF_RANGE * np.array(x)).tolist()) == pytest.approx(3.0 * value[0], abs=1e-4)


def test_the_same_stream_gives_the_same_bytes_and_only_weights_and_biases_change() -> None:
    model = policy().SerializeToString()
    first, repeated, other = (perturbed_model(model, np.random.default_rng(s), 0.2, *UNIT_RANGE) for s in (1, 1, 2))
    assert first == repeated != other
    assert len(first) == len(model)
    before, after = read_model(model), read_model(first)
    assert (after.nodes, after.metadata) == (before.nodes, before.metadata)
    for name, array in before.initializers.items():
        change = after.initializers[name].astype(float) - array.astype(float)
        if name == "scale":
            assert not change.any()
        elif change.size > 2000:
            assert change.std() == pytest.approx(0.2, rel=0.1)
        else:
            assert change.all()


def test_a_matmul_with_an_added_bias_and_a_transposed_gemm_are_also_dense_layers() -> None:
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((2, 5)).astype(np.float32),
        "b": np.zeros(5, np.float32),
        "v": rng.standard_normal((1, 5)).astype(np.float32),
    }
    nodes = [
        node("MatMul", ["observation", "w"], ["p"]),
        node("Add", ["b", "p"], ["q"]),
        node("Gemm", ["q", "v"], ["action"], transB=1),
    ]
    model = proto(nodes, constants).SerializeToString()
    initializers = read_model(perturbed_model(model, np.random.default_rng(0), 0.1, *UNIT_RANGE)).initializers
    assert all((initializers[name] != constants[name]).all() for name in constants)


def test_a_first_layer_that_is_stored_transposed_is_scaled_along_its_inputs() -> None:
    constants = {"w": np.zeros((1, 2), np.float32), "b": np.zeros(1, np.float32)}
    nodes = [node("Gemm", ["observation", "w", "b"], ["action"], transB=1)]
    model = proto(nodes, constants).SerializeToString()
    rng = np.random.default_rng(5)
    noise, shift = 0.1 * rng.standard_normal((1, 2)), 0.1 * rng.standard_normal(1)
    initializers = read_model(perturbed_model(model, np.random.default_rng(5), 0.1, CENTRE, HALF_RANGE)).initializers
    np.testing.assert_allclose(initializers["w"].astype(float), noise / HALF_RANGE, rtol=1e-6)
    np.testing.assert_allclose(initializers["b"].astype(float), shift - CENTRE @ (noise / HALF_RANGE).T, rtol=1e-5)


def test_a_model_without_its_own_weights_is_refused() -> None:
    model = proto([node("Slice", ["observation", "s", "e", "a"], ["action"])], {"s": [0], "e": [1], "a": [1]})
    with pytest.raises(ModelRefused, match="found no Gemm or MatMul"):
        perturbed_model(model.SerializeToString(), np.random.default_rng(0), 0.1, *UNIT_RANGE)


NOISE = ParameterNoise(target_std=0.2, adapt_every=3, adaption=1.1)


@given(st.lists(st.lists(st.floats(-2, 2), min_size=2, max_size=2), min_size=3, max_size=3))
def test_every_n_steps_the_scale_follows_the_distance(distances: list[list[float]]) -> None:
    scale = AdaptiveScale(0.5)
    for k, step_distances in enumerate(distances, start=1):
        assert (scale.std, scale.steps) == (0.5, k - 1)
        scale = adapt_scale(NOISE, scale, step_distances)
    is_near = np.sqrt(np.mean(np.square(distances))) <= 0.2
    assert scale == AdaptiveScale(pytest.approx(0.5 * 1.1 if is_near else 0.5 / 1.1))  # type: ignore[arg-type]


def test_the_scale_settles_at_the_target_distance_of_the_action() -> None:
    noise, scale = ParameterNoise(adapt_every=10, adaption=1.05), AdaptiveScale(0.2)
    model, rng = export_policy(layers(), contract()), np.random.default_rng(0)
    distances = []
    for episode in range(150):
        stream = np.random.default_rng(episode)
        sessions = [PolicySession(m) for m in (model, perturbed_model(model, stream, scale.std, CENTRE, HALF_RANGE))]
        squares = []
        for _ in range(20):
            x = CENTRE + HALF_RANGE * rng.uniform(-1, 1, 2)
            for s in sessions:
                s.observation[0] = x
                s.run()
            distance = float(sessions[1].action[0, 0] - sessions[0].action[0, 0]) / 3.0
            scale = adapt_scale(noise, scale, [distance])
            squares.append(distance**2)
        distances.append(np.sqrt(np.mean(squares)))
    assert np.median(distances[-100:]) == pytest.approx(0.2, abs=0.05), "as many above it as below"


def test_the_loop_gets_a_second_session_in_training_episodes_that_are_not_quiet() -> None:
    e = Explorer(msgspec.structs.replace(PENDULUM, exploration=ParameterNoise(quiet=Quiet(every=2))))
    acting = PolicySession(policy().SerializeToString())
    assert e.perturbs_weights
    sessions = []
    for episode, kind in ((1, Kind.TRAIN), (1, Kind.EVAL), (2, Kind.TRAIN), (3, Kind.TRAIN)):
        assert e.signal(kind, episode) == []
        sessions.append(perturbed_session(e, acting, kind, episode))
        assert perturbed_session(e, None, kind, episode) is None
    assert [session is not None for session in sessions] == [True, False, False, True]
    assert len({session.model for session in sessions if session is not None}) == 2
    assert acting.model == policy().SerializeToString()


def test_a_policy_that_cannot_be_perturbed_is_reported_and_the_episode_has_no_noise(
    capfd: pytest.CaptureFixture[str],
) -> None:
    e = Explorer(msgspec.structs.replace(PENDULUM, exploration=ParameterNoise()))
    unperturbable = proto([node("Slice", ["observation", "s", "e", "a"], ["action"])], {"s": [0], "e": [1], "a": [1]})
    assert perturbed_session(e, PolicySession(unperturbable.SerializeToString()), Kind.TRAIN, 1) is None
    assert "cannot be perturbed" in capfd.readouterr().out


DIMENSIONS = ("a", "b", "c", "d")


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_the_process_obeys_its_equation_starting_at_zero() -> None:
    u = ornstein_uhlenbeck(rng().standard_normal((50, 2)), gain=5.14, friction=0.3)
    noise = rng().standard_normal((50, 2))
    assert u[0].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(u[1:], u[:-1] + 5.14 * noise[:-1] - 0.3 * u[:-1], atol=1e-12)


def test_its_statistics_match_the_literal_reading() -> None:
    """Literal reading (docs/methods.md): std 7.2, 89 % of |u| above 1, lag-1 correlation 0.7, about 0.5 if clipped."""
    u = ornstein_uhlenbeck(rng().standard_normal((4000, 60)), gain=5.14, friction=0.3)[100:]
    clipped = np.clip(u, -1, 1)

    def lag_1(x: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
        return float((x[1:] * x[:-1]).mean() / x.var())

    assert u.std() == pytest.approx(7.2, abs=0.1)
    assert np.mean(np.abs(u) > 1) == pytest.approx(0.89, abs=0.005)
    assert lag_1(u) == pytest.approx(0.7, abs=0.01)
    assert lag_1(clipped) == pytest.approx(0.5, abs=0.03)
    assert abs(np.corrcoef(u[:, 0], u[:, 1])[0, 1]) < 0.1, "each dimension on its own"


def test_persistent_policy_noise_is_standard_normal_in_every_step() -> None:
    white, correlated = (
        np.array([unit_signal(process, stream(1, Role.EXPLORATION, i), 5, 2) for i in range(2000)])
        for process in (OwnNoise(), OwnNoise(friction=0.2))
    )
    assert (correlated[:, 0] == white[:, 0]).all()
    np.testing.assert_allclose(correlated.mean(axis=(0, 2)), 0.0, atol=0.06)
    np.testing.assert_allclose(correlated.var(axis=(0, 2)), 1.0, atol=0.08)
    assert np.corrcoef(correlated[:, 3, 0], correlated[:, 4, 0])[0, 1] == pytest.approx(0.8, abs=0.03)
    assert abs(np.corrcoef(white[:, 3, 0], white[:, 4, 0])[0, 1]) < 0.08
    assert abs(np.corrcoef(correlated[:, 4, 0], correlated[:, 4, 1])[0, 1]) < 0.08, "each dimension on its own"


@pytest.mark.parametrize(("episode", "amplitude"), [(1, 1.0), (250, 0.5509), (500, 0.1), (2000, 0.1)])
def test_the_amplitude_multiplies_the_clipped_noise(episode: int, amplitude: float) -> None:
    """If scaled before the clip, 89 % of it would have full size whatever the amplitude (docs/methods.md)."""
    noise = np.array(episode_noise(OrnsteinUhlenbeck(), rng(), episode, 3000, DIMENSIONS))
    unscaled = np.array(episode_noise(OrnsteinUhlenbeck(), rng(), 1, 3000, DIMENSIONS))
    assert np.abs(noise).max() == pytest.approx(amplitude, abs=1e-4)
    np.testing.assert_allclose(noise, noise.max() * unscaled, atol=1e-12)
    assert np.mean(np.abs(unscaled) == 1.0) == pytest.approx(0.89, abs=0.02)


def test_an_episode_has_the_noise_of_its_own_stream_regardless_of_earlier_draws() -> None:
    ou = OrnsteinUhlenbeck()
    first = episode_noise(ou, stream(1, Role.EXPLORATION, 9), 9, 20, DIMENSIONS[:2])
    episode_noise(ou, stream(1, Role.EXPLORATION, 8), 8, 20, DIMENSIONS[:2])
    assert episode_noise(ou, stream(1, Role.EXPLORATION, 9), 9, 20, DIMENSIONS[:2]) == first
    assert (len(first), len(first[0])) == (20, 2)


def test_without_exploration_the_noise_is_zero() -> None:
    assert episode_noise(NoExploration(), rng(), 1, 3, DIMENSIONS[:2]) == [(0.0, 0.0)] * 3


@pytest.mark.parametrize("episode", [1, 7, 500])
def test_the_streams_of_the_ou_process_are_unchanged(episode: int) -> None:
    """Written out here, so that no change of the code can alter them: recorded runs replay bit for bit."""
    draws = 5.14 * np.random.default_rng(np.random.SeedSequence(3, spawn_key=(1, episode))).standard_normal((200, 2))
    u, expected = np.zeros(2), []
    amplitude = 1.0 if episode == 1 else 1.0 + (0.1 - 1.0) * (episode - 1) / (500 - 1)
    for k in range(200):
        expected.append(tuple((amplitude * np.clip(u, -1.0, 1.0)).tolist()))
        u = (1.0 - 0.3) * u + draws[k]
    assert (
        episode_noise(OrnsteinUhlenbeck(), stream(3, Role.EXPLORATION, episode), episode, 200, DIMENSIONS[:2])
        == expected
    )


def test_gaussian_noise_has_its_std_and_no_memory() -> None:
    u = np.array(unit_signal(Gaussian(std=0.2), rng(), 20_000, 2))
    assert u.std() == pytest.approx(0.2, abs=0.005)
    assert abs((u[1:] * u[:-1]).mean()) < 0.002
    assert abs(np.corrcoef(u.T)[0, 1]) < 0.03


@pytest.mark.parametrize("process", [OrnsteinUhlenbeck(), Gaussian(std=3.0)])
def test_the_signal_is_clipped(process: Exploration) -> None:
    assert np.abs(unit_signal(process, rng(), 200, 3)).max() == 1.0


def test_each_actuator_has_the_amplitude_of_its_own_schedule() -> None:
    process = OrnsteinUhlenbeck(amplitude={"b": ((1, 0.25),), "a": ((1, 1.0), (3, 0.0))})
    noise = np.abs(episode_noise(process, rng(), 2, 500, DIMENSIONS[:2])).max(axis=0)
    assert noise.tolist() == [0.5, 0.25]


def test_a_quiet_episode_has_no_noise_and_does_not_shift_other_episodes() -> None:
    always_noisy, quiet = OrnsteinUhlenbeck(), OrnsteinUhlenbeck(quiet=Quiet(every=3))
    assert episode_noise(quiet, rng(), 3, 5, DIMENSIONS[:1]) == [(0.0,)] * 5
    assert episode_noise(quiet, rng(), 4, 5, DIMENSIONS[:1]) == episode_noise(always_noisy, rng(), 4, 5, DIMENSIONS[:1])


def test_parameter_noise_is_not_a_signal() -> None:
    assert unit_signal(ParameterNoise(), rng(), 5, 1) == []
    with pytest.raises(ValueError, match="depends on the policy"):
        episode_noise(ParameterNoise(), rng(), 1, 5, DIMENSIONS[:1])
