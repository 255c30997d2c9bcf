from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from onrig.hw.rig import Actuator, Observation, Rig, Sensor
from onrig.learner.algorithm_settings import DdpgConfig, DqnConfig, RainbowConfig
from onrig.learner.algorithms import level_values
from onrig.learner.algorithms.ddpg import Ddpg
from onrig.learner.algorithms.dqn import Dqn
from onrig.learner.algorithms.rainbow import Rainbow
from onrig.learner.algorithms.sac import Sac
from onrig.learner.export import export_discrete_policy, export_policy
from onrig.learner.onnx_writer import IR_VERSION, OPSET
from onrig.learner.sac_settings import CrossqConfig, SacConfig
from onrig.runtime.policy.admission import AdmissionLimits, Admitted, admit
from onrig.runtime.policy.contract import METADATA_KEY, SQUASHED_GAUSSIAN, PolicyContract, contract_for, decode_contract
from onrig.runtime.policy.probing import probe_states
from onrig.runtime.policy.session import PolicySession
from tests.learner.reference import minibatches, numpy_policy, replace_vectors, vectors

Layers = list[tuple[NDArray[np.floating], NDArray[np.floating]]]


def _rig(observations: list[tuple[float, float]], actions: list[tuple[float, float]]) -> Rig:
    return Rig(
        name="bench",
        sensors=tuple(Sensor(f"o{i}", "m", 1e-3) for i in range(len(observations))),
        actuators=tuple(Actuator(f"a{i}", "V", 1e-3, low, high) for i, (low, high) in enumerate(actions)),
        observations=tuple(Observation(f"o{i}", "m", low, high) for i, (low, high) in enumerate(observations)),
    )


PENDULUM = _rig([(-np.pi, np.pi), (-30.0, 30.0)], [(-3.0, 3.0)])
MAGMAN = _rig([(-0.035, 0.105), (-0.4, 0.4)], [(0.0, 0.6)] * 4)
UNIT = _rig([(-1.0, 1.0)], [(-1.0, 1.0)])


def _contract(rig: Rig) -> PolicyContract:
    return contract_for(rig, 50.0, policy_id=7, parent_run="run-3", training_step=1200)


def _scale_last_layer(algorithm: Ddpg | Dqn, name: str) -> None:
    """Scale the last layer's weights of a network as after training."""
    state = algorithm.state()
    last_layer = max(field for field in state if field.startswith(f"{name}/weight"))
    algorithm.restore({**state, last_layer: np.asarray(state[last_layer], np.float32) * 1000.0})


def _ddpg(rig: Rig) -> Ddpg:
    """An actor as after training: outputs over the complete range, some of them saturated."""
    n, m = len(rig.observations), len(rig.actuators)
    ddpg = Ddpg(DdpgConfig(), n, m, [np.random.default_rng(1)])
    _scale_last_layer(ddpg, "actor")
    return ddpg


def _run(model: bytes, observations: NDArray[np.floating]) -> NDArray[np.float32]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    rows = [session.run(["action"], {"observation": row[None]})[0][0] for row in observations.astype(np.float32)]
    return np.array(rows, dtype=np.float32)


@pytest.mark.parametrize("rig", [PENDULUM, MAGMAN, UNIT])
def test_the_model_equals_the_torch_actor(rig: Rig) -> None:
    ddpg = _ddpg(rig)
    model = export_policy(ddpg.actor_layers(0), _contract(rig))
    low, high = (np.array([getattr(o, end) for o in rig.observations]) for end in ("low", "high"))
    # Also beyond the range: normalised observations are not clipped.
    observations = np.random.default_rng(2).uniform(1.5 * low - 0.5 * high, 1.5 * high - 0.5 * low, (400, len(low)))
    observations = observations.astype(np.float32).astype(np.float64)
    normalised_states = (observations - 0.5 * (low + high)) / (0.5 * (high - low))
    centre, half_range = (np.array([getattr(a, x) for a in rig.actuators]) for x in ("centre", "half_range"))
    expected = np.concatenate([ddpg.policy(row[None, None])[0] for row in normalised_states])
    assert np.ptp(expected) > 0.5
    actions = (_run(model, observations).astype(np.float64) - centre) / half_range
    assert np.abs(actions - expected).max() < 1e-6
    assert np.abs(actions - numpy_policy(ddpg.actor_layers(0), normalised_states)).max() < 1e-6


def test_the_contract_is_stored_in_the_metadata() -> None:
    contract = _contract(MAGMAN)
    model = onnx.load_from_string(export_policy(_ddpg(MAGMAN).actor_layers(0), contract))
    assert {p.key for p in model.metadata_props} == {METADATA_KEY}
    assert decode_contract(model.metadata_props[0].value) == contract


def test_shapes_names_and_versions_are_accepted_by_an_old_runtime() -> None:
    model = onnx.load_from_string(export_policy(_ddpg(MAGMAN).actor_layers(0), _contract(MAGMAN)))
    (observation,), (action,) = model.graph.input, model.graph.output
    shapes = [[d.dim_value for d in x.type.tensor_type.shape.dim] for x in (observation, action)]
    assert (observation.name, action.name, shapes) == ("observation", "action", [[1, 2], [1, 4]])
    assert (model.ir_version, model.opset_import[0].version) == (IR_VERSION, OPSET)
    assert (IR_VERSION, OPSET) <= (10, 21)
    assert {n.op_type for n in model.graph.node} <= {"Gemm", "Relu", "Tanh", "Mul", "Add"}


def test_ranges_that_need_no_kernel_get_none() -> None:
    def operator_types(rig: Rig) -> list[str]:
        model = onnx.load_from_string(export_policy(_ddpg(rig).actor_layers(0), _contract(rig)))
        return [n.op_type for n in model.graph.node]

    assert operator_types(UNIT)[-1:] == ["Tanh"]
    assert operator_types(PENDULUM)[-2:] == ["Tanh", "Mul"]
    assert operator_types(MAGMAN)[-3:] == ["Tanh", "Mul", "Add"]


def test_the_same_policy_gives_the_same_bytes() -> None:
    layers = _ddpg(PENDULUM).actor_layers(0)
    assert export_policy(layers, _contract(PENDULUM)) == export_policy(layers, _contract(PENDULUM))


@pytest.mark.parametrize("kind", [SacConfig, CrossqConfig])
@pytest.mark.parametrize("rig", [PENDULUM, MAGMAN])
def test_a_squashed_gaussian_equals_the_torch_actor_with_and_without_noise(rig: Rig, kind: type[SacConfig]) -> None:
    n, m = len(rig.observations), len(rig.actuators)
    sac = Sac(kind(hidden=(24, 17), batch=16, log_std=(-3.0, 0.5)), n, m, [np.random.default_rng(3)])
    sac.update(minibatches(np.random.default_rng(4), (30, 1, 16), n, m))  # changes the statistics of batches
    contract = contract_for(rig, 50.0, policy_id=7, parent_run="", training_step=0, behaviour=SQUASHED_GAUSSIAN)
    model = sac.policy_graph(0, contract)
    rng = np.random.default_rng(2)
    normalised_states = rng.uniform(-1.5, 1.5, (200, n))
    low, high = (np.array([getattr(o, end) for o in rig.observations]) for end in ("low", "high"))
    observations = (0.5 * (low + high) + 0.5 * (high - low) * normalised_states).astype(np.float32)
    noise = np.clip(rng.standard_normal((200, m)), -3, 3).astype(np.float32)
    noise[:50] = 0.0
    session = PolicySession(model)
    assert session.noise is not None
    actions = np.empty((200, m))
    for k in range(200):
        session.observation[0], session.noise[0] = observations[k], noise[k]
        session.run()
        actions[k] = session.action[0]
    centre, half_range = (np.array([getattr(a, x) for a in rig.actuators]) for x in ("centre", "half_range"))
    normalised_states = (observations - 0.5 * (low + high)) / (0.5 * (high - low))
    np.testing.assert_allclose(
        (actions - centre) / half_range, sac.sample(normalised_states[None], noise[None])[0], atol=1e-5
    )
    np.testing.assert_allclose(
        (actions[:50] - centre) / half_range, sac.policy(normalised_states[None, :50])[0], atol=1e-5
    )
    probes = probe_states(contract, 64, seed=0)
    assert isinstance(admit(model, contract, probes, AdmissionLimits(latency_is_advisory=True)), Admitted)


def test_a_spread_requires_a_contract_with_a_behaviour() -> None:
    sac = Sac(SacConfig(hidden=(8,)), 2, 1, [np.random.default_rng(3)])
    with pytest.raises(ValueError, match="behaviour, 'deterministic'"):
        sac.policy_graph(0, _contract(PENDULUM))


def test_layers_that_do_not_fit_the_contract_are_refused() -> None:
    layers = Ddpg(DdpgConfig(), 2, 1, [np.random.default_rng(0)]).actor_layers(0)
    for bad_layers, rig in ((layers, MAGMAN), (layers, UNIT), (layers[::-1], PENDULUM), ([], PENDULUM)):
        with pytest.raises(ValueError, match="do not map"):
            export_policy(bad_layers, _contract(rig))


def _dqn(levels: int = 15) -> Dqn:
    dqn = Dqn(DqnConfig(levels=levels), 2, 1, [np.random.default_rng(0)])
    _scale_last_layer(dqn, "network")
    return dqn


def test_a_discrete_policy_takes_the_same_level_as_dqn() -> None:
    dqn = _dqn()
    model = dqn.policy_graph(0, _contract(PENDULUM))
    normalised_states = np.random.default_rng(2).uniform(-1.5, 1.5, (400, 2))
    actions = _run(model, normalised_states * [np.pi, 30.0])
    expected = 3.0 * dqn.policy(normalised_states[None])[0]
    assert len(np.unique(expected)) > 2
    # In another precision two values may be equal.
    assert (np.abs(actions - expected) < 1e-6).mean() > 0.99
    assert set(np.unique(actions)) <= set((3.0 * level_values(15)).astype(np.float32))
    verdict = admit(
        model, _contract(PENDULUM), normalised_states.astype(np.float32), AdmissionLimits(latency_is_advisory=True)
    )
    assert isinstance(verdict, Admitted)


@pytest.mark.parametrize("scale", [3.0, 30.0])
def test_return_distributions_give_the_same_level_as_rainbow(scale: float) -> None:
    rainbow = Rainbow(RainbowConfig(hidden=(20, 9), levels=5, lr=0.5), 2, 1, [np.random.default_rng(0)])
    rainbow.restore(replace_vectors(rainbow.state(), "network", vectors(rainbow.state(), "network") * scale))
    model = rainbow.policy_graph(0, _contract(PENDULUM))
    normalised_states = np.random.default_rng(2).uniform(-1.5, 1.5, (400, 2))
    expected = 3.0 * rainbow.policy(normalised_states[None])[0]
    assert len(np.unique(expected)) > 2
    assert (np.abs(_run(model, normalised_states * [np.pi, 30.0]) - expected) < 1e-6).mean() > 0.99


def test_a_diverged_discrete_policy_has_no_action() -> None:
    layers = _dqn().actor_layers(0)
    layers[-1][0][0, 7] = np.nan
    model = export_discrete_policy(layers, level_values(15), _contract(PENDULUM))
    assert np.isnan(_run(model, np.ones((1, 2)))).all()


def test_discrete_policies_have_one_action() -> None:
    with pytest.raises(ValueError, match="the contract has 4"):
        export_discrete_policy(_dqn().actor_layers(0), level_values(15), _contract(MAGMAN))
