"""Networks evaluated by the C library, compared with onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onrig.hw.native import library
from onrig.runtime.policy import onnx_wire, probing, session
from onrig.runtime.policy.admission import AdmissionLimits, Admitted, admit
from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.network import Network, compile_network
from onrig.runtime.policy.onnx_wire import OnnxModel, read_model
from onrig.runtime.policy.probing import probe_states
from onrig.runtime.policy.protobuf_wire import Fields, Message, decode
from onrig.runtime.policy.session import PolicySession, evaluator_of
from tests.runtime.policy import models

needs_library = pytest.mark.skipif(library() is None, reason="needs the C library")
ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "Exp", "Softsign", "Neg", "Abs", "Identity")
Floats = npt.NDArray[np.float32]


def chain(
    widths: Sequence[int],
    units: Sequence[str],
    rng: np.random.Generator,
    *,
    gemm: bool = True,
    transposed: bool = False,
) -> bytes:
    """Normalisation, dense layers with units behind each, a clip and a scale; ports as a policy's."""
    tensors: dict[str, Floats] = {
        "centre": rng.normal(size=widths[0]).astype(np.float32),
        "low": np.array(-5.0, np.float32),
        "high": np.array(5.0, np.float32),
        "scale": np.array([[2.5]], np.float32),
    }
    nodes = [helper.make_node("Sub", ["observation", "centre"], ["x0"])]
    for k, (n, m) in enumerate(pairwise(widths)):
        weight = rng.normal(0.0, n**-0.5, (n, m)).astype(np.float32)
        tensors |= {
            f"w{k}": weight.T.copy() if transposed and gemm else weight,
            f"b{k}": rng.normal(size=m).astype(np.float32),
        }
        if gemm:
            nodes.append(helper.make_node("Gemm", [f"x{k}", f"w{k}", f"b{k}"], [f"s{k}"], transB=int(transposed)))
        else:
            nodes.append(helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"p{k}"]))
            nodes.append(helper.make_node("Add", [f"p{k}", f"b{k}"], [f"s{k}"]))
        nodes.append(helper.make_node(units[k], [f"s{k}"], [f"x{k + 1}"]))
    output_name = f"x{len(widths) - 1}"
    nodes.append(helper.make_node("Clip", [output_name, "low", "high"], ["clipped"]))
    nodes.append(helper.make_node("Mul", ["clipped", "scale"], ["action"]))
    ports = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width])]
        for name, width in (("observation", widths[0]), ("action", widths[-1]))
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "policy", ports[0], ports[1], constants)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


@needs_library
@settings(max_examples=120)
@given(
    st.lists(st.integers(1, 70), min_size=2, max_size=4),
    st.lists(st.sampled_from(ACTIVATIONS), min_size=3, max_size=3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1 << 30),
)
def test_it_agrees_with_onnxruntime_within_rounding(
    widths: list[int], units: list[str], gemm: bool, transposed: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    model = chain(widths, units, rng, gemm=gemm, transposed=transposed)
    native_session, onnx_session = PolicySession(model, native=True), PolicySession(model)
    for _ in range(4):
        observation = rng.normal(0.0, 2.0, widths[0]).tolist()
        native_answer, other = native_session.act(observation), onnx_session.act(observation)
        if "Softsign" in units and np.isnan(native_answer).any():
            continue  # of an infinity: onnxruntime computes NaN on x86-64 and the limit on aarch64
        np.testing.assert_allclose(native_answer, other, rtol=1e-4, atol=1e-4)


@needs_library
def test_a_network_repeats_its_bits_and_has_no_history() -> None:
    rng = np.random.default_rng(1)
    model = chain([3, 50, 20, 2], ["Relu", "Tanh", "Tanh"], rng)
    first, second = PolicySession(model, native=True), PolicySession(model, native=True)
    observations = rng.normal(size=(50, 3)).tolist()
    expected = [first.act(observation) for observation in observations]
    assert [second.act(observation) for observation in reversed(observations)][::-1] == expected


@needs_library
@pytest.mark.parametrize("unit", ACTIVATIONS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, 1e-40])
def test_extreme_values_end_as_in_onnxruntime(unit: str, value: float) -> None:
    model = chain([2, 1], [unit], np.random.default_rng(0))
    native_session, onnx_session = (
        PolicySession(model, native=is_native).act((value, 0.5)) for is_native in (True, False)
    )
    if np.isnan(value) or (unit == "Softsign" and np.isinf(value)):  # inf / inf: no action, so the fallback acts
        assert np.isnan(native_session).all()
    elif not np.isnan(onnx_session).any():  # onnxruntime clips NaN to a bound in some versions
        np.testing.assert_allclose(native_session, onnx_session, rtol=1e-5)


@needs_library
@pytest.mark.parametrize("model", [models.stochastic(), models.recurrent()])
def test_the_heads_and_states_of_our_own_policies_are_covered(model: onnx.ModelProto) -> None:
    data = models.serialized(model)
    native_session, onnx_session = PolicySession(data, native=True), PolicySession(data)
    for policy_session in (native_session, onnx_session):
        policy_session.observation[:] = np.random.default_rng(2).normal(size=policy_session.observation.shape)
        if policy_session.noise is not None:
            policy_session.noise.fill(0.7)
        policy_session.run()
    for port in ("action", "mean", "std", "drawn", "hidden_out"):
        np.testing.assert_allclose(getattr(native_session, port), getattr(onnx_session, port), rtol=1e-5, atol=1e-5)


def test_an_uncovered_operator_leaves_the_graph_to_onnxruntime() -> None:
    model = chain([2, 3], ["Softplus"], np.random.default_rng(0))
    assert compile_network(read_model(model), ("observation",), ("action",)) is None
    with pytest.raises(ModelRefused, match="does not evaluate this graph"):
        PolicySession(model, native=True)


@needs_library
@pytest.mark.parametrize("column", range(6))
@pytest.mark.parametrize("value", [-1, 1 << 20, (1 << 31) - 1])
def test_a_step_beyond_its_array_is_not_run(column: int, value: int) -> None:
    network = compile_network(
        read_model(chain([2, 8, 1], ["Relu", "Tanh"], np.random.default_rng(0))), ("observation",), ("action",)
    )
    assert network is not None
    steps = network.steps.copy()
    dense_index = next(i for i, step in enumerate(steps) if step[0] == 0)
    steps[dense_index, column] = value
    assert network.bind() is not None
    assert network._replace(steps=steps).bind() is None


def admit_model(**limits: object) -> Admitted:
    contract = models.CONTRACT
    result = admit(
        models.serialized(models.policy()),
        contract,
        probe_states(contract, 64, 0),
        AdmissionLimits(**limits),  # type: ignore[arg-type]
    )
    assert isinstance(result, Admitted)
    return result


def test_admission_selects_the_library_where_it_may() -> None:
    assert admit_model(latency_is_advisory=True).native is (library() is not None)
    assert not admit_model(latency_is_advisory=True, evaluator="onnxruntime").native


@needs_library
@pytest.mark.parametrize("relative_error", [1e-2, np.inf, np.nan])
def test_admission_keeps_onnxruntime_and_reports_it_if_the_library_differs(
    relative_error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_wrong_network(model: OnnxModel, inputs: Sequence[str], outputs: Sequence[str]) -> Network | None:
        network = compile_network(model, inputs, outputs)
        assert network is not None
        *_, dense_step = (step for step in network.steps if step[0] == 0)
        network.values[dense_step[2] + dense_step[4] * dense_step[5]] += relative_error  # the bias of the last layer
        return network

    monkeypatch.setattr(session, "compile_network", build_wrong_network)
    verdict = admit_model(latency_is_advisory=True)
    assert not verdict.native
    [warning] = [text for text in verdict.warnings if "onnxruntime" in text]  # a busy machine also warns of latency
    assert warning.startswith("evaluated by onnxruntime, because the C library's 'action' differs by ")
    assert warning.endswith(", more than rounding (1e-05)")


@needs_library
def test_admission_parses_a_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []

    def count_and_parse(data: bytes, message: Message) -> Fields:
        parsed.append(len(data))
        return decode(data, message)

    monkeypatch.setattr(onnx_wire, "decode", count_and_parse)
    assert admit_model(latency_is_advisory=True).native
    assert len(parsed) == 1


@needs_library
@pytest.mark.parametrize("probe_index", [0, 1, 2, 65])
def test_one_differing_probe_is_enough(probe_index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.serialized(models.policy())
    probes = np.concatenate([probe_states(models.CONTRACT, 64, 0), np.full((2, 2), 0.25, np.float32)])
    sessions = PolicySession(model), PolicySession(model, native=True)
    expected = [probing._probe_outputs(session, probes, 0.0) for session in sessions]
    assert (
        probing.verify_native(sessions[0], read_model(model), expected[:1], probes, models.CONTRACT).session is not None
    )
    expected[0].outputs["action"][probe_index] += 4e-5 * models.CONTRACT.actions[0].high
    native = probing.verify_native(sessions[0], read_model(model), expected[:1], probes, models.CONTRACT)
    assert native.session is None
    assert "differs by 4e-05" in native.warning


def test_an_uncovered_graph_is_not_a_warning() -> None:
    model = chain([2, 3], ["Softplus"], np.random.default_rng(0))
    probes = np.zeros((1, 2), np.float32)
    assert probing.verify_native(PolicySession(model), read_model(model), [], probes, models.CONTRACT) == (None, "")


def test_the_evaluator_has_a_name() -> None:
    assert evaluator_of(native=False) == "onnxruntime"
    assert evaluator_of(native=True).startswith("C ")
