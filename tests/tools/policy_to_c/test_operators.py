"""Each form that the algorithms export, and the operators that admission allows, as C against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from onrig.learner.algorithm_config import algorithm_names, default_section
from onrig.learner.algorithms import Exportable, algorithm_for
from onrig.learner.settings import LearnerSettings
from onrig.runtime.policy.contract import ModelRefused, contract_for
from onrig.tools.load import load
from onrig.tools.policy_to_c.source import source_of
from tests.runtime.policy.models import CONTRACT, linear, node, policy, proto, serialized, stochastic, wide_policy
from tests.tools.policy_to_c.compiled import max_deviation


def trained_size_weights(key: str, value: NDArray[np.generic]) -> NDArray[np.generic]:
    """Weights of a network as large as after training; other parts of the state are unchanged."""
    if "/weight" not in key:
        return value
    samples = np.random.default_rng(2).standard_normal(value.shape) * 2.5 / np.sqrt(value.shape[-2])
    weights: NDArray[np.generic] = samples.astype(value.dtype)
    return weights


ALGORITHM_CASES = [*((name, False) for name in algorithm_names()), ("ddpg", True)]


@pytest.mark.parametrize(
    ("name", "uses_refer"), ALGORITHM_CASES, ids=[f"{name}{'-refer' * r}" for name, r in ALGORITHM_CASES]
)
def test_exported_algorithms_act_in_c_as_in_onnxruntime(name: str, uses_refer: bool, tmp_path: Path) -> None:
    """10 000 states up to a hundred times the observations' ranges."""
    small_network = {"hidden": [30, 20]} if hasattr(default_section(name), "hidden") else {}
    section = {"algorithm": name, name: small_network, **({"refer": {}} if uses_refer else {})}
    settings = msgspec.convert(section, LearnerSettings)
    config = load("pendulum" if settings.algorithm_config.single_action else "magman", [])
    n, m = len(config.signals), len(config.rig.actuators)
    algorithm = algorithm_for(settings, n, m, [np.random.default_rng(1)])
    if not isinstance(algorithm, Exportable):
        pytest.skip("a rig cannot run its policies")
    algorithm.restore({key: trained_size_weights(key, value) for key, value in algorithm.state().items()})
    contract = contract_for(
        config.rig, 50.0, policy_id=7, parent_run="", training_step=0, behaviour=algorithm.behaviour
    )
    assert max_deviation(algorithm.policy_graph(0, contract), tmp_path, 10_000) <= 1e-5


def convert_to_float32(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose statistics are float64, in float32."""
    nodes = list(model.graph.node)
    for onnx_node in nodes:
        for attribute in onnx_node.attribute:
            if attribute.name == "to":
                attribute.i = onnx.TensorProto.FLOAT
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.DOUBLE:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return model


def test_operators_that_only_move_elements_change_only_indices(tmp_path: Path) -> None:
    assert max_deviation(serialized(convert_to_float32(wide_policy())), tmp_path, 1000) <= 1e-5


ACTIVATIONS = [
    *("Neg", "Abs", "Relu", "Exp", "Sigmoid", "Softsign", "Softplus", "Erf", "Sin", "Cos", "LeakyRelu"),
    *("Elu", "Selu", "HardSwish", "Mish", "Gelu", "Tanh", "Identity", "Softmax"),
]


def activation_model() -> onnx.ModelProto:
    """All activations of the same sums, added up; a few of them with attributes."""
    constants: dict[str, npt.ArrayLike] = {"to_one": np.ones((3, 1), np.float32)}
    constants |= {"w": np.array([[0.3, -0.2, 0.7], [0.01, 0.08, -0.05]], np.float32)}
    nodes, parts = [node("MatMul", ["observation", "w"], ["wild"]), node("Tanh", ["wild"], ["s"])], []
    node_kinds: list[tuple[str, dict[str, Any]]] = [(kind, {}) for kind in ACTIVATIONS]
    node_kinds += [("LeakyRelu", {"alpha": 0.3}), ("Elu", {"alpha": 0.7}), ("Gelu", {"approximate": "tanh"})]
    for i, (kind, attributes) in enumerate(node_kinds):
        nodes.append(node(kind, ["s"], [f"a{i}"], **attributes))
        parts.append(f"a{i}")
    nodes += [node("Concat", parts, ["joined"], axis=0), node("Transpose", ["joined"], ["columns"], perm=[1, 0])]
    nodes += [node("LayerNormalization", ["columns", "scale", "shift"], ["normal"], axis=1, epsilon=1e-3)]
    nodes += [node("Gather", ["normal", "first"], ["picked"], axis=1)]
    nodes += [node("Min", ["picked", "half", "by_row"], ["low"])]
    nodes += [node("Gemm", ["low", "to_one", "bias"], ["sum"], transA=1, alpha=0.5, beta=2.0)]
    nodes += [node("Tanh", ["sum"], ["action"])]
    n = len(parts)
    constants |= {"scale": np.linspace(0.5, 1, n, dtype="f4"), "shift": np.linspace(-1, 1, n, dtype="f4")}
    constants |= {"first": np.array([0], np.int64), "half": np.float32(0.5), "bias": np.array([[0.1]], np.float32)}
    constants |= {"by_row": np.array([[0.4], [2.0], [0.3]], np.float32)}
    return proto(nodes, constants, opset=20)


def test_activations_and_their_attributes(tmp_path: Path) -> None:
    assert max_deviation(serialized(activation_model()), tmp_path, 1000) <= 1e-5


def test_the_best_of_computed_values_is_gathered(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["observation", "w"], ["values"]),
        node("ArgMax", ["values"], ["best"], axis=1, keepdims=0),
        node("Gather", ["values", "best"], ["both"], axis=1),
        node("Gather", ["levels", "best"], ["level"]),
        node("Sub", ["level", "both"], ["off"]),
        node("Tanh", ["off"], ["action"]),
    ]
    constants = {"w": np.array([[0.3, -0.2, 0.7, 0.1], [0.01, 0.08, -0.05, 0.1]], np.float32)}
    constants |= {"levels": np.array([[-1.0], [0.3], [0.5], [2.0]], np.float32)}
    assert max_deviation(serialized(proto(nodes, constants)), tmp_path, 1000) <= 1e-5


def test_for_a_stochastic_policy_the_action_is_computed_without_noise(tmp_path: Path) -> None:
    model = serialized(stochastic())
    assert max_deviation(model, tmp_path, 1000, max_width=2.0) <= 1e-5
    assert "expf" not in source_of(model, "policy").text  # the spread is not computed


def test_values_share_memory_if_they_are_not_needed_at_the_same_time() -> None:
    source = source_of(serialized(policy(hidden=50)), "policy")
    assert source.work_bytes == 4 * 100  # one layer and the next
    assert source.constant_bytes == 4 * (2 * 50 + 50 + 50 * 50 + 50 + 50)


def test_operators_unsupported_in_c_are_refused() -> None:
    cube: dict[str, npt.ArrayLike] = {"cube": np.ones((1, 2, 2), np.float32), "axes": np.array([0], np.int64)}
    nodes = [
        node("MatMul", ["observation", "cube"], ["m"]),
        node("Squeeze", ["m", "axes"], ["n"]),
        node("MatMul", ["n", "w"], ["o"]),
        node("Tanh", ["o"], ["action"]),
    ]
    with pytest.raises(ModelRefused, match="operators: MatMul -> 'm' multiplies arrays of more than two dimensions"):
        source_of(serialized(proto(nodes, {**cube, "w": np.ones((2, 1), np.float32)})), "policy")
    with pytest.raises(ModelRefused, match="operators: Cast -> 'o0' has 64-bit floats; export the policy as float32"):
        source_of(serialized(wide_policy()), "policy")


def test_values_unnecessary_for_the_action_are_left_out() -> None:
    plain_source = source_of(serialized(linear()), "policy")
    extra = [helper.make_node("Cast", ["observation"], ["unused"], to=11)]
    assert source_of(serialized(linear(extra)), "policy").constant_bytes == plain_source.constant_bytes
    assert CONTRACT.rig in plain_source.text
