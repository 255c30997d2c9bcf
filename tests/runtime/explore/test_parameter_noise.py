from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.learner.export import export_policy
from onrig.runtime.explore.explorer import Explorer, perturbed_session
from onrig.runtime.explore.parameter_noise import Scale, measured, perturbed_model
from onrig.runtime.explore.settings import ParameterNoise, Quiet
from onrig.runtime.policy.contract import ModelRefused, PolicyContract, Signal
from onrig.runtime.policy.onnx_wire import read_model
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Kind
from tests.runtime.policy.models import CONTRACT, node, policy, proto
from tests.runtime.samples import PENDULUM

CENTRE, HALF = np.array([1.0, -2.0]), np.array([3.0, 20.0])
WHOLE = np.zeros(2), np.ones(2)
Layers = list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]


def layers(seed: int = 0) -> Layers:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((a, b)) / 4, rng.standard_normal(b) / 4) for a, b in ((2, 8), (8, 8), (8, 1))]


def contract() -> PolicyContract:
    signals = tuple(
        Signal(name, "1", float(c - h), float(c + h)) for name, c, h in zip(("a", "b"), CENTRE, HALF, strict=True)
    )
    return msgspec.structs.replace(CONTRACT, observations=signals)


def act(model: bytes, observation: list[float]) -> float:
    session = PolicySession(model)
    session.observation[0] = observation
    session.run()
    return float(session.action[0, 0])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=2))
def test_the_noise_is_that_of_the_network_on_normalised_inputs(seed: int, x: list[float]) -> None:
    """The exporter folds the normalisation into the first layer: there, the same noise must mean the same."""
    weights = layers(seed)
    perturbed = perturbed_model(export_policy(weights, contract()), np.random.default_rng(seed), 0.1, CENTRE, HALF)
    rng = np.random.default_rng(seed)
    value = np.array(x)
    for i, (weight, bias) in enumerate(weights):
        noise, shift = 0.1 * rng.standard_normal(weight.shape), 0.1 * rng.standard_normal(bias.shape)
        value = value @ (weight + noise) + bias + shift
        value = np.tanh(value) if i == 2 else np.maximum(value, 0.0)
    assert act(perturbed, (CENTRE + HALF * np.array(x)).tolist()) == pytest.approx(3.0 * value[0], abs=1e-4)


def test_the_same_stream_gives_the_same_bytes_and_only_weights_and_biases_change() -> None:
    model = policy().SerializeToString()
    first, again, other = (perturbed_model(model, np.random.default_rng(s), 0.2, *WHOLE) for s in (1, 1, 2))
    assert first == again != other
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


def test_a_matmul_with_an_added_bias_and_a_transposed_gemm_are_dense_layers_too() -> None:
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
    changed = read_model(perturbed_model(model, np.random.default_rng(0), 0.1, *WHOLE)).initializers
    assert all((changed[name] != constants[name]).all() for name in constants)


def test_a_first_layer_that_is_stored_transposed_is_scaled_along_its_inputs() -> None:
    constants = {"w": np.zeros((1, 2), np.float32), "b": np.zeros(1, np.float32)}
    nodes = [node("Gemm", ["observation", "w", "b"], ["action"], transB=1)]
    model = proto(nodes, constants).SerializeToString()
    rng = np.random.default_rng(5)
    noise, shift = 0.1 * rng.standard_normal((1, 2)), 0.1 * rng.standard_normal(1)
    changed = read_model(perturbed_model(model, np.random.default_rng(5), 0.1, CENTRE, HALF)).initializers
    np.testing.assert_allclose(changed["w"].astype(float), noise / HALF, rtol=1e-6)
    np.testing.assert_allclose(changed["b"].astype(float), shift - CENTRE @ (noise / HALF).T, rtol=1e-5)


def test_a_model_without_weights_of_its_own_is_refused() -> None:
    model = proto([node("Slice", ["observation", "s", "e", "a"], ["action"])], {"s": [0], "e": [1], "a": [1]})
    with pytest.raises(ModelRefused, match="finds no Gemm or MatMul"):
        perturbed_model(model.SerializeToString(), np.random.default_rng(0), 0.1, *WHOLE)


NOISE = ParameterNoise(target_std=0.2, adapt_every=3, adaption=1.1)


@given(st.lists(st.lists(st.floats(-2, 2), min_size=2, max_size=2), min_size=3, max_size=3))
def test_every_n_steps_the_scale_follows_the_distance(distances: list[list[float]]) -> None:
    scale = Scale(0.5)
    for k, deviation in enumerate(distances, start=1):
        assert (scale.std, scale.steps) == (0.5, k - 1)
        scale = measured(NOISE, scale, deviation)
    near = np.sqrt(np.mean(np.square(distances))) <= 0.2
    assert scale == Scale(pytest.approx(0.5 * 1.1 if near else 0.5 / 1.1))  # type: ignore[arg-type]


def test_the_scale_settles_where_the_action_is_as_far_off_as_wished() -> None:
    noise, scale = ParameterNoise(adapt_every=10, adaption=1.05), Scale(0.2)
    model, rng = export_policy(layers(), contract()), np.random.default_rng(0)
    distances = []
    for episode in range(150):
        stream = np.random.default_rng(episode)
        sessions = [PolicySession(m) for m in (model, perturbed_model(model, stream, scale.std, CENTRE, HALF))]
        squares = []
        for _ in range(20):
            x = CENTRE + HALF * rng.uniform(-1, 1, 2)
            for s in sessions:
                s.observation[0] = x
                s.run()
            distance = float(sessions[1].action[0, 0] - sessions[0].action[0, 0]) / 3.0
            scale = measured(noise, scale, [distance])
            squares.append(distance**2)
        distances.append(np.sqrt(np.mean(squares)))
    assert np.median(distances[-100:]) == pytest.approx(0.2, abs=0.05), "as many above it as below"


def test_the_loop_gets_a_second_session_in_training_episodes_that_are_not_quiet() -> None:
    e = Explorer(msgspec.structs.replace(PENDULUM, exploration=ParameterNoise(quiet=Quiet(every=2))))
    acting = PolicySession(policy().SerializeToString())
    assert e.perturbs
    got = []
    for episode, kind in ((1, Kind.TRAIN), (1, Kind.EVAL), (2, Kind.TRAIN), (3, Kind.TRAIN)):
        assert e.begin_episode(kind, episode) == []
        got.append(perturbed_session(e, acting))
        assert perturbed_session(e, None) is None
    assert [session is not None for session in got] == [True, False, False, True]
    assert len({session.model for session in got if session is not None}) == 2
    assert acting.model == policy().SerializeToString()


def test_a_policy_that_cannot_be_perturbed_is_told_of_and_the_episode_goes_without(
    capfd: pytest.CaptureFixture[str],
) -> None:
    e = Explorer(msgspec.structs.replace(PENDULUM, exploration=ParameterNoise()))
    e.begin_episode(Kind.TRAIN, 1)
    plain = proto([node("Slice", ["observation", "s", "e", "a"], ["action"])], {"s": [0], "e": [1], "a": [1]})
    assert perturbed_session(e, PolicySession(plain.SerializeToString())) is None
    assert "cannot be explored with" in capfd.readouterr().out
