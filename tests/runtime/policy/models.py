"""Small ONNX models for the tests of this folder, good and bad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from onrig.runtime.policy.contract import METADATA_KEY, SQUASHED_GAUSSIAN, PolicyContract, Signal, encode_contract

CONTRACT = PolicyContract(
    rig="pendulum",
    observations=(Signal("theta", "rad", -3.0, 3.0), Signal("omega", "rad/s", -20.0, 20.0)),
    actions=(Signal("voltage", "V", -3.0, 3.0),),
    rate_hz=50.0,
    policy_id=7,
    parent_run="run",
    training_step=100,
)

STOCHASTIC = msgspec.structs.replace(CONTRACT, behaviour=SQUASHED_GAUSSIAN, format=2)

Arrays = Mapping[str, npt.ArrayLike]
OBSERVATION = helper.make_tensor_value_info("observation", onnx.TensorProto.FLOAT, [1, 2])
ACTION = helper.make_tensor_value_info("action", onnx.TensorProto.FLOAT, [1, 1])
node = helper.make_node


def proto(
    nodes: Sequence[onnx.NodeProto],
    constants: Arrays,
    *,
    opset: int = 17,
    contract: PolicyContract | None = CONTRACT,
    inputs: Sequence[onnx.ValueInfoProto] = (OBSERVATION,),
    outputs: Sequence[onnx.ValueInfoProto] = (ACTION,),
) -> onnx.ModelProto:
    """Put nodes and constants into a model with a contract."""
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "policy", list(inputs), list(outputs), initializers)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    if contract is not None:
        helper.set_model_props(model, {METADATA_KEY: encode_contract(contract)})
    return model


def policy(scale: float = 3.0, contract: PolicyContract | None = CONTRACT, hidden: int = 50) -> onnx.ModelProto:
    """Make a 2-h-h-1 network with relu, and a tanh times ``scale`` at its end."""
    rng = np.random.default_rng(0)
    widths = (2, hidden, hidden, 1)
    nodes, constants, value = [], {"scale": np.array([scale], np.float32)}, "observation"
    for i in range(3):
        constants[f"w{i}"] = (rng.standard_normal(widths[i : i + 2]) / 4).astype(np.float32)
        constants[f"b{i}"] = rng.standard_normal(widths[i + 1]).astype(np.float32)
        nodes.append(node("Gemm", [value, f"w{i}", f"b{i}"], [f"s{i}"]))
        value = f"h{i}"
        nodes.append(node("Tanh" if i == 2 else "Relu", [f"s{i}"], [value]))
    nodes.append(node("Mul", [value, "scale"], ["action"]))
    return proto(nodes, constants, contract=contract)


def reference(model: onnx.ModelProto, observations: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Evaluate ``policy(...)`` in numpy, float64; (k, 2) to (k, 1)."""
    c = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    h = np.maximum(observations @ c["w0"] + c["b0"], 0)
    h = np.maximum(h @ c["w1"] + c["b1"], 0)
    return np.asarray(np.tanh(h @ c["w2"] + c["b2"]) * c["scale"])


def wide_policy(opset: int = 20) -> onnx.ModelProto:
    """Make a policy that uses most of the allowed operators, float64 statistics and a named batch dimension."""
    ones = np.ones(8, np.float32)
    rng = np.random.default_rng(1)
    constants: dict[str, npt.ArrayLike] = {
        "mean": np.zeros(2),
        "std": np.ones(2),
        **{f"i{v}": np.array([v], np.int64) for v in (0, 1, 2)},
        "sizes": np.array([3, 5], np.int64),
        "shape": np.array([1, -1], np.int64),
        "w": rng.standard_normal((4, 8)).astype(np.float32),
        "one": ones,
        "w2": rng.standard_normal((8, 8)).astype(np.float32),
        "w3": rng.standard_normal((8, 1)).astype(np.float32),
        "low": np.float32(-1),
        "high": np.float32(1),
    }
    nodes = [
        node("Cast", ["observation"], ["o0"], to=11),
        node("Sub", ["o0", "mean"], ["o1"]),
        node("Div", ["o1", "std"], ["o2"]),
        node("Cast", ["o2"], ["o3"], to=1),
        node("Slice", ["o3", "i0", "i1", "i1"], ["theta"]),
        node("Slice", ["o3", "i1", "i2", "i1"], ["omega"]),
        node("Sin", ["theta"], ["sin"]),
        node("Cos", ["theta"], ["cos"]),
        node("Constant", [], ["half"], value=numpy_helper.from_array(np.array([[0.5]], np.float32))),
        node("Concat", ["sin", "cos", "omega", "half"], ["x"], axis=1),
        node("Gemm", ["x", "w", "one"], ["h0"], alpha=1.0),
        node("LayerNormalization", ["h0", "one", "one"], ["h1"], axis=-1),
        node("Gelu", ["h1"], ["h2"]),
        node("MatMul", ["h2", "w2"], ["h3"]),
        node("Elu", ["h3"], ["h4"], alpha=1.0),
        node("Split", ["h4", "sizes"], ["a", "b"], axis=1),
        node("Concat", ["b", "a"], ["h5"], axis=-1),
        node("Unsqueeze", ["h5", "i1"], ["h6"]),
        node("Transpose", ["h6"], ["h7"], perm=[1, 0, 2]),
        node("Squeeze", ["h7", "i1"], ["h8"]),
        node("Reshape", ["h8", "shape"], ["h9"]),
        node("Max", ["h9", "low"], ["h10"]),
        node("Min", ["h10", "high"], ["h11"]),
        node("Clip", ["h11", "low", "high"], ["h12"]),
        node("MatMul", ["h12", "w3"], ["h13"]),
        node("Tanh", ["h13"], ["h14"]),
        node("Gather", ["h14", "i0"], ["h15"], axis=1),
        node("Flatten", ["h15"], ["h16"], axis=0),
        node("Identity", ["h16"], ["action"]),
    ]
    batch = [helper.make_tensor_value_info(n, 1, ["batch", w]) for n, w in (("observation", 2), ("action", 1))]
    model = proto(nodes, constants, opset=opset, inputs=batch[:1], outputs=batch[1:])
    model.graph.value_info.append(helper.make_tensor_value_info("h5", 1, ["batch", 8]))
    onnx.checker.check_model(model, full_check=True)
    return model


def convolving() -> onnx.ModelProto:
    """Make a policy that reshapes its input to two images of 6 by 5 integers and convolves them, at first with
    padding."""
    rng = np.random.default_rng(2)
    constants: dict[str, npt.ArrayLike] = {
        "spread": rng.standard_normal((2, 60)).astype(np.float32),
        "shape": np.array([1, 2, 6, 5], np.int64),
        "f0": rng.standard_normal((3, 2, 3, 2)).astype(np.float32),
        "b0": np.ones(3, np.float32),
        "f1": rng.standard_normal((4, 3, 2, 2)).astype(np.float32) / 4,
        "w": rng.standard_normal((16, 1)).astype(np.float32) / 4,
        "volts": np.array([3.0], np.float32),
    }
    nodes = [
        node("Gemm", ["observation", "spread"], ["spread_out"]),
        node("Floor", ["spread_out"], ["whole"]),
        node("Reshape", ["whole", "shape"], ["images"]),
        node("Conv", ["images", "f0", "b0"], ["c0"], pads=[1, 0, 2, 1], kernel_shape=[3, 2], dilations=[1, 1], group=1),
        node("Relu", ["c0"], ["u0"]),
        node("Conv", ["u0", "f1"], ["c1"], strides=[3, 2]),
        node("Relu", ["c1"], ["u1"]),
        node("Flatten", ["u1"], ["features"]),
        node("Gemm", ["features", "w"], ["s"]),
        node("Tanh", ["s"], ["unit"]),
        node("Mul", ["unit", "volts"], ["action"]),
    ]
    model = proto(nodes, constants)
    onnx.checker.check_model(model, full_check=True)
    return model


def linear(
    extra: Sequence[onnx.NodeProto] = (), constants: Arrays | None = None, *, opset: int = 17
) -> onnx.ModelProto:
    """Make ``action = tanh(observation @ w)``, with preceding nodes whose values it ignores."""
    nodes = [*extra, node("MatMul", ["observation", "w"], ["s"]), node("Tanh", ["s"], ["action"])]
    return proto(nodes, {"w": np.full((2, 1), 0.1, np.float32), **(constants or {})}, opset=opset)


def serialized(model: onnx.ModelProto) -> bytes:
    """Serialise the model."""
    return bytes(model.SerializeToString(deterministic=True))


def nan_near(
    centre: Sequence[float], radius: Sequence[float], contract: PolicyContract | None = CONTRACT, hidden: int = 50
) -> onnx.ModelProto:
    """Make ``policy(...)`` with NaN where the sum of |observation - centre| / radius is below 1, and only there."""
    model = policy(contract=contract, hidden=hidden)
    model.graph.node[-1].output[0] = "sane"
    constants = {
        "centre": np.array([centre], np.float32),
        "narrow": 1.0 / np.array([radius], np.float32),
        "all": np.ones((len(centre), 1), np.float32),
        "one": np.array([1], np.float32),
    }
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    model.graph.node.extend(
        [
            node("Sub", ["observation", "centre"], ["off"]),
            node("Abs", ["off"], ["away"]),
            node("Mul", ["away", "narrow"], ["scaled"]),
            node("MatMul", ["scaled", "all"], ["distance"]),
            node("Sub", ["one", "distance"], ["inside"]),
            node("Relu", ["inside"], ["depth"]),
            node("Neg", ["depth"], ["negative"]),
            node("Sqrt", ["negative"], ["trap"]),  # 0 outside; the root of a negative number inside
            node("Add", ["sane", "trap"], ["action"]),
        ]
    )
    return model


def _ports(**widths: int) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, width]) for name, width in widths.items()]


def stochastic(contract: PolicyContract = STOCHASTIC, **replacements: onnx.NodeProto) -> onnx.ModelProto:
    """Make mean = 0.3 theta, std = exp(0.1 omega - 1), action = 3 tanh(mean + std noise), or clipped for a Gaussian.

    ``replacements``: nodes to substitute, by output.
    """
    squash_node = node("Tanh", ["drawn"], ["unit"])
    if contract.behaviour != SQUASHED_GAUSSIAN:
        squash_node = node("Clip", ["drawn", "least", "most"], ["unit"])
    nodes = {  # in the order in which they are computed
        "mean": node("MatMul", ["observation", "to_mean"], ["mean"]),
        "power": node("MatMul", ["observation", "to_std"], ["power"]),
        "log_std": node("Sub", ["power", "most"], ["log_std"]),
        "std": node("Exp", ["log_std"], ["std"]),
        "spread": node("Mul", ["std", "noise"], ["spread"]),
        "drawn": node("Add", ["mean", "spread"], ["drawn"]),
        "unit": squash_node,
        "action": node("Mul", ["unit", "volts"], ["action"]),
    }
    constants: dict[str, npt.ArrayLike] = {
        "to_mean": np.array([[0.3], [0.0]], np.float32),
        "to_std": np.array([[0.0], [0.1]], np.float32),
        "volts": np.array([3.0], np.float32),
        "least": np.float32(-1.0),
        "most": np.float32(1.0),
    }
    replaced_first = [replacements[name] for name in replacements if name not in nodes]
    return proto(
        [*replaced_first, *(replacements.get(name, nodes[name]) for name in nodes)],
        constants,
        contract=contract,
        inputs=_ports(observation=2, noise=1),
        outputs=_ports(action=1, mean=1, std=1, drawn=1),
    )


def recurrent(decay: float = 0.5, contract: PolicyContract | None = None) -> onnx.ModelProto:
    """Make h' = leak h + theta and action = 3 tanh(h'): three hidden units, all alike."""
    nodes = [
        node("MatMul", ["observation", "spread"], ["seen"]),
        node("Mul", ["hidden", "leak"], ["left"]),
        node("Add", ["left", "seen"], ["hidden_out"]),
        node("MatMul", ["hidden_out", "third"], ["sum"]),
        node("Tanh", ["sum"], ["unit"]),
        node("Mul", ["unit", "volts"], ["action"]),
    ]
    constants = {
        "spread": np.array([[1.0] * 3, [0.0] * 3], np.float32),
        "leak": np.array([decay], np.float32),
        "third": np.full((3, 1), 1 / 3, np.float32),
        "volts": np.array([3.0], np.float32),
    }
    return proto(
        nodes,
        constants,
        contract=msgspec.structs.replace(CONTRACT, format=2) if contract is None else contract,
        inputs=_ports(observation=2, hidden=3),
        outputs=_ports(action=1, hidden_out=3),
    )
