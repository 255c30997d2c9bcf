from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

from onrig.runtime.policy.admission import AdmissionLimits, Admitted, Refused, admit
from onrig.runtime.policy.contract import METADATA_KEY, PolicyContract, Signal
from onrig.runtime.policy.probing import probe_states
from tests.runtime.policy import models
from tests.runtime.policy.models import CONTRACT, node

PROBES = probe_states(CONTRACT, 64, seed=0)


def make_clock(step_us: float) -> Callable[[], int]:
    """Make a clock on which every call is ``step_us`` later than the previous one."""
    return itertools.count(0, int(step_us * 1000)).__next__


def verdict(
    model: onnx.ModelProto | bytes, limits: AdmissionLimits | None = None, run_us: float = 5.0
) -> Admitted | Refused:
    data = model if isinstance(model, bytes) else models.serialized(model)
    return admit(data, CONTRACT, PROBES, limits, make_clock(run_us))


def refusal_of(
    model: onnx.ModelProto | bytes, limits: AdmissionLimits | None = None, run_us: float = 5.0
) -> tuple[str, str]:
    result = verdict(model, limits, run_us)
    assert isinstance(result, Refused)
    return result.stage, result.reason


@pytest.mark.parametrize(
    "model", [models.policy(), models.wide_policy(), models.linear()], ids=["plain", "wide", "linear"]
)
def test_admits_a_sound_policy(model: onnx.ModelProto) -> None:
    result = verdict(model)
    assert isinstance(result, Admitted)
    assert result.contract == CONTRACT
    assert (result.latency_p50_us, result.latency_p99_us) == (5.0, 5.0)
    assert result.warnings == ()


def test_a_hundred_megabytes_are_refused_unread() -> None:
    assert refusal_of(bytes(100 << 20)) == ("size", "104857600 bytes; at most 4194304 allowed")


@pytest.mark.parametrize("data", [b"", b"garbage from the line", models.serialized(models.policy())[:-100]])
def test_garbage_and_truncated_bytes_are_refused(data: bytes) -> None:
    assert refusal_of(data)[0] == "format"


def test_external_data_is_refused() -> None:
    model = models.policy()
    model.graph.initializer[0].ClearField("raw_data")
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    stage, reason = refusal_of(model)
    assert stage == "format"
    assert "external data" in reason


def test_a_subgraph_is_refused() -> None:
    subgraph = helper.make_graph([], "then", [], [])
    model = models.linear([node("If", ["observation"], ["x"], then_branch=subgraph, else_branch=subgraph)])
    assert refusal_of(model) == ("format", "attribute has a subgraph, which policies may not use")


def test_an_operator_that_is_not_allowed_is_refused() -> None:
    stage, reason = refusal_of(models.linear([node("RandomUniform", [], ["x"], shape=[1])]))
    assert stage == "operators"
    assert "'RandomUniform'" in reason


def test_a_policy_without_metadata_is_refused() -> None:
    assert refusal_of(models.policy(contract=None)) == ("contract", "no metadata under the key 'onrig.contract'")


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", '{"rig": 3}', "[" * 20_000, '{"x":' * 10_000, "\x00"])
def test_metadata_without_a_valid_contract_are_refused(text: str) -> None:
    model = models.policy(contract=None)
    helper.set_model_props(model, {METADATA_KEY: text})
    assert refusal_of(model)[0] == "contract"


def altered_contract(**changes: object) -> PolicyContract:
    return msgspec.structs.replace(CONTRACT, **changes)


@pytest.mark.parametrize(
    ("contract", "reason"),
    [
        (altered_contract(rig="magman"), "rig is 'magman'; the rig has 'pendulum'"),
        (altered_contract(rate_hz=100.0), "rate is 100.0 Hz; the rig runs at 50.0 Hz"),
        (altered_contract(format=3), "format is 3; supported: (1, 2)"),
        (altered_contract(behaviour="beta"), "behaviour is 'beta'; known: "),
        (altered_contract(behaviour="gaussian"), "behaviour is 'gaussian', which needs format 2"),
        (altered_contract(behaviour="gaussian", format=2), "the rig adds its own exploration"),
        (altered_contract(actions=(Signal("voltage", "V", -10.0, 10.0),)), "actions 'voltage' is [-10.0, 10.0] V"),
        (altered_contract(observations=CONTRACT.observations[::-1]), "observations are ['omega', 'theta']"),
        (altered_contract(policy_id=1 << 63), "policy_id exceeds 64 bits"),
        (altered_contract(policy_id=-(1 << 63) - 1), "policy_id is -9223372036854775809"),
        (altered_contract(training_step=-1), "training_step is -1"),
    ],
)
def test_a_contract_for_another_rig_is_refused(contract: PolicyContract, reason: str) -> None:
    stage, message = refusal_of(models.policy(contract=contract))
    assert stage == "contract"
    assert reason in message


def test_a_deterministic_policy_may_have_either_format() -> None:
    assert isinstance(verdict(models.policy(contract=altered_contract(format=2))), Admitted)


def test_a_policy_trained_for_less_delay_is_admitted_with_a_warning() -> None:
    result = verdict(models.policy(contract=altered_contract(delay_periods=0.0)))
    assert isinstance(result, Admitted)
    assert result.warnings == ("trained for 0.0 periods of delay; the rig has 1.0 periods",)


@pytest.mark.parametrize("port", ["input", "output"])
def test_other_shapes_are_refused(port: str) -> None:
    model = models.policy()
    name = "observation" if port == "input" else "action"
    getattr(model.graph, port)[0].CopyFrom(helper.make_tensor_value_info(name, 1, [1, 3]))
    stage, reason = refusal_of(model)
    assert stage == "shapes"
    assert f"'{name}' has shape [1, 3]" in reason


def test_too_many_parameters_or_operations_are_refused() -> None:
    assert refusal_of(models.policy(), AdmissionLimits(max_parameters=100)) == ("size", "more than 100 parameters")
    assert refusal_of(models.policy(), AdmissionLimits(max_operations=100))[0] == "size"


def test_nan_weights_are_refused_even_where_relu_hides_them() -> None:
    model = models.policy()
    tensor = next(t for t in model.graph.initializer if t.name == "w0")
    weights = numpy_helper.to_array(tensor).copy()
    weights[0, 0] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(weights, "w0"))
    assert refusal_of(model) == ("finite", "constant 'w0' has 1 non-finite elements")


@pytest.mark.parametrize("op", ["Sqrt", "Div"])
def test_non_finite_outputs_anywhere_are_refused(op: str) -> None:
    """sqrt of a negative state; zero by zero at the centre."""
    extra = node("Sqrt", ["h"], ["x"]) if op == "Sqrt" else node("Div", ["h", "h"], ["x"])
    nodes = [node("MatMul", ["observation", "w"], ["h"]), extra, node("Clip", ["x", "low", "high"], ["action"])]
    constants: dict[str, npt.ArrayLike] = {"w": np.full((2, 1), 0.1, np.float32)}
    constants |= {"low": np.float32(-3), "high": np.float32(3)}
    stage, reason = refusal_of(models.proto(nodes, constants))
    assert stage == "finite"
    assert reason.startswith("action 'voltage' is nan at theta ")


def test_outputs_beyond_the_limits_are_refused_with_the_worst_one() -> None:
    stage, reason = refusal_of(models.policy(scale=3.1))
    assert stage == "bounds"
    assert "action 'voltage' is" in reason
    assert "allowed: [-3, 3] V" in reason


@pytest.mark.parametrize(("scale", "is_admitted"), [(3.0, True), (3.0002, True), (3.0004, False)])
def test_limits_have_a_tolerance_of_a_ten_thousandth_of_the_half_range(scale: float, is_admitted: bool) -> None:
    nodes = [node("Sub", ["first", "first"], ["zero"]), node("Add", ["zero", "c"], ["action"])]
    slice_node = node("Slice", ["observation", "i0", "i1", "i1"], ["first"])
    constants = {"i0": np.array([0]), "i1": np.array([1]), "c": np.array([[scale]], np.float32)}
    assert isinstance(verdict(models.proto([slice_node, *nodes], constants)), Admitted) is is_admitted


def test_a_policy_that_fails_only_on_a_recorded_state_is_refused() -> None:
    """Relu(theta - 100) is 0 on every probe of the range, and not at theta = 200."""
    slope = np.array([[1.0], [0.0]], np.float32)
    nodes = [node("Gemm", ["observation", "w", "b"], ["s"]), node("Relu", ["s"], ["action"])]
    data = models.serialized(models.proto(nodes, {"w": slope, "b": np.array([-100], np.float32)}))
    assert isinstance(admit(data, CONTRACT, PROBES), Admitted)
    states = np.concatenate([PROBES, np.array([[200, 0]], np.float32)])
    result = admit(data, CONTRACT, states)
    assert isinstance(result, Refused)
    assert result.reason.startswith("action 'voltage' is 100 at theta 200, omega 0; allowed: [-3, 3] V; 1 of 65")


def test_non_finite_probe_states_are_left_out() -> None:
    states = np.concatenate([PROBES, np.array([[np.nan, 0], [0, np.inf]], np.float32)])
    result = admit(models.serialized(models.policy()), CONTRACT, states, clock_ns=make_clock(5))
    assert isinstance(result, Admitted)
    assert result.warnings == ("2 of 66 probe states are non-finite and were ignored",)


def test_probe_states_of_another_width_are_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"probes have shape \(4, 3\), but the rig has 2"):
        admit(b"", CONTRACT, np.zeros((4, 3), np.float32))


def test_a_slow_policy_is_refused() -> None:
    limits = AdmissionLimits(latency_budget_us=50)
    assert refusal_of(models.policy(), limits, run_us=60) == (
        "latency",
        "p50 60.0 us, p99 60.0 us of 100 runs; 50 us allowed",
    )
    assert isinstance(verdict(models.policy(), limits, run_us=40), Admitted)


def test_a_hopelessly_slow_policy_is_refused_after_three_runs() -> None:
    n_reads = 0

    def clock() -> int:
        nonlocal n_reads
        n_reads += 1
        return n_reads * 2_000_000

    result = admit(models.serialized(models.policy()), CONTRACT, PROBES, AdmissionLimits(latency_budget_us=50), clock)
    assert result == Refused("latency", "a run takes 2000 us; 50 us allowed")
    assert n_reads == 6


@pytest.mark.parametrize("run_us", [60, 2000])
def test_an_advisory_latency_limit_only_warns(run_us: float) -> None:
    result = verdict(models.policy(), AdmissionLimits(latency_budget_us=50, latency_is_advisory=True), run_us)
    assert isinstance(result, Admitted)
    assert result.warnings == (f"p50 {run_us:.1f} us, p99 {run_us:.1f} us of 100 runs; 50 us allowed",)


def test_rare_slow_runs_only_warn() -> None:
    calls = itertools.count()
    now_ns = 0

    def clock() -> int:
        nonlocal now_ns
        now_ns += 500_000 if next(calls) % 40 == 1 else 5_000
        return now_ns

    result = admit(models.serialized(models.policy()), CONTRACT, PROBES, AdmissionLimits(latency_budget_us=50), clock)
    assert isinstance(result, Admitted)
    assert result.latency_p50_us == 5.0
    assert len(result.warnings) == 1


def test_a_refusal_by_onnxruntime_is_reported_with_its_reason() -> None:
    """There is no float64 kernel for Elu."""
    nodes = [node("Cast", ["observation"], ["d"], to=11), node("Elu", ["d"], ["e"]), node("Cast", ["e"], ["x"], to=1)]
    stage, reason = refusal_of(models.linear(nodes))
    assert stage == "format"
    assert reason.startswith("onnxruntime rejects it: ")


def test_the_verdict_is_reproducible() -> None:
    assert verdict(models.policy()) == verdict(models.policy())


def test_probes_include_the_centre_and_all_corners_of_both_boxes() -> None:
    states = probe_states(CONTRACT, 64, seed=0)
    assert states.dtype == np.float32
    rows = {tuple(map(float, row)) for row in states}
    assert (0.0, 0.0) in rows
    for factor in (1.0, 2.0):
        assert {(s * factor * 3.0, t * factor * 20.0) for s in (-1, 1) for t in (-1, 1)} <= rows


@pytest.mark.parametrize("n", [1, 2, 7, 64, 300])
@pytest.mark.parametrize("width", [1, 2, 17, 40])
def test_probes_have_the_requested_number_of_rows_within_the_widened_range(n: int, width: int) -> None:
    signals = tuple(Signal(f"x{i}", "m", 1.0 + i, 3.0 + i) for i in range(width))
    contract = msgspec.structs.replace(CONTRACT, observations=signals)
    states = probe_states(contract, n, seed=1)
    assert states.shape == (n, width)
    centre = 2.0 + np.arange(width)
    assert (np.abs(states - centre) <= 2.0 + 1e-5).all()
    if n >= 300:
        assert (np.abs(states - centre) > 1.0).any(axis=0).all()


def test_probes_are_the_same_only_for_the_same_seed() -> None:
    np.testing.assert_array_equal(probe_states(CONTRACT, 50, 1), probe_states(CONTRACT, 50, 1))
    assert not np.array_equal(probe_states(CONTRACT, 50, 1), probe_states(CONTRACT, 50, 2))
