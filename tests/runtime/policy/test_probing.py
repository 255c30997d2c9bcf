from __future__ import annotations

import msgspec
import numpy as np
import onnx
import pytest

from onrig.runtime.policy.admission import AdmissionLimits, Admitted, Refused, admit
from onrig.runtime.policy.contract import GAUSSIAN, PolicyContract
from onrig.runtime.policy.probing import probe_states
from onrig.runtime.policy.session import PolicySession
from tests.runtime.policy import models
from tests.runtime.policy.models import CONTRACT, STOCHASTIC, node

PROBES = probe_states(CONTRACT, 64, seed=0)
PLAIN_GAUSSIAN = msgspec.structs.replace(STOCHASTIC, behaviour=GAUSSIAN)


def verdict(model: onnx.ModelProto, required: PolicyContract = CONTRACT) -> Admitted | Refused:
    return admit(models.serialized(model), required, PROBES, AdmissionLimits(latency_is_advisory=True))


def refusal_of(model: onnx.ModelProto, required: PolicyContract = CONTRACT) -> tuple[str, str]:
    result = verdict(model, required)
    assert isinstance(result, Refused)
    return result.stage, result.reason


@pytest.mark.parametrize("contract", [STOCHASTIC, PLAIN_GAUSSIAN], ids=["squashed", "clipped"])
def test_a_rig_without_its_own_noise_admits_a_stochastic_policy(contract: PolicyContract) -> None:
    model = models.stochastic(contract)
    result = verdict(model, STOCHASTIC)
    assert isinstance(result, Admitted)
    assert result.ports.inputs == {"observation": 2, "noise": 1}
    assert refusal_of(model)[0] == "contract"


def test_a_deterministic_policy_is_not_accepted_as_stochastic() -> None:
    assert refusal_of(models.policy(), STOCHASTIC) == (
        "contract",
        "behaviour is 'deterministic', but the rig explores with the policy's own noise (process: own)",
    )


@pytest.mark.parametrize(
    ("contract", "port"),
    [
        (msgspec.structs.replace(CONTRACT, format=2), "2 inputs ['observation', 'noise']; expected exactly 1"),
        (CONTRACT, "2 inputs ['observation', 'noise']; expected exactly 1: 'observation'"),
    ],
    ids=["deterministic", "format 1"],
)
def test_ports_without_a_contract_entry_are_refused(contract: PolicyContract, port: str) -> None:
    stage, reason = refusal_of(models.stochastic(contract))
    assert (stage, port in reason) == ("shapes", True)


def test_a_missing_output_is_named() -> None:
    model = models.stochastic()
    del model.graph.output[2]
    assert "'action' and 'mean' and 'std' and 'drawn'" in refusal_of(model, STOCHASTIC)[1]


@pytest.mark.parametrize(
    ("replacements", "stage", "reason"),
    [
        ({"drawn": node("Sub", ["mean", "spread"], ["drawn"])}, "ports", "output 'drawn' is"),
        ({"unit": node("Tanh", ["mean"], ["unit"])}, "ports", "output 'action', normalised, is"),
        ({"std": node("Identity", ["log_std"], ["std"])}, "ports", "output 'std' is -5; it must not be negative"),
        ({"std": node("Sqrt", ["log_std"], ["std"])}, "finite", "output 'std' is nan with noise 0"),
    ],
    ids=["another draw", "the mean instead of the draw", "a negative spread", "not a number"],
)
def test_contradictory_ports_are_refused(replacements: dict[str, onnx.NodeProto], stage: str, reason: str) -> None:
    result = refusal_of(models.stochastic(**replacements), STOCHASTIC)
    assert result[0] == stage
    assert result[1].startswith(reason)


def test_a_distribution_that_depends_on_the_noise_is_refused() -> None:
    nodes = {
        "still": node("MatMul", ["observation", "to_mean"], ["still"]),
        "mean": node("Add", ["still", "noise"], ["mean"]),
    }
    stage, reason = refusal_of(models.stochastic(**nodes), STOCHASTIC)
    assert stage == "ports"
    assert "'mean' with noise is" in reason


def test_noise_that_drives_an_action_out_of_its_range_is_refused() -> None:
    model = models.stochastic(unit=node("Identity", ["drawn"], ["unit"]))
    assert refusal_of(model, STOCHASTIC)[0] == "bounds"


def test_a_recurrent_policy_is_run_for_two_hundred_steps() -> None:
    assert isinstance(verdict(models.recurrent(decay=0.9)), Admitted)
    # Finite for the 64 probes, beyond float32 at step 128.
    stage, reason = refusal_of(models.recurrent(decay=2.0))
    assert stage == "finite"
    assert "'hidden_out' is" in reason


def test_a_recurrent_policy_must_have_format_2() -> None:
    assert (
        "2 inputs ['observation', 'hidden']; expected exactly 1" in refusal_of(models.recurrent(contract=CONTRACT))[1]
    )


@pytest.mark.parametrize("shape", [["batch", "h"], [1], [1, 0], [1, 5000]])
def test_a_state_without_a_fixed_width_is_refused(shape: list[int | str]) -> None:
    model = models.recurrent()
    model.graph.input[1].CopyFrom(onnx.helper.make_tensor_value_info("hidden", 1, shape))
    stage, reason = refusal_of(model)
    assert (stage, "'hidden' has shape" in reason) == ("shapes", True)


def test_a_session_has_a_buffer_for_each_port() -> None:
    session = PolicySession(models.serialized(models.stochastic()))
    assert session.noise is not None
    assert session.hidden is None
    assert (session.has_basic_ports, session.squashes) == (False, True)
    session.observation[0], session.noise[0] = (1.0, 10.0), 2.0
    session.run()
    assert session.mean[0, 0] == pytest.approx(0.3)
    assert session.std[0, 0] == pytest.approx(1.0)
    assert session.drawn[0, 0] == pytest.approx(2.3)
    assert session.action[0, 0] == pytest.approx(3 * np.tanh(2.3))
    basic_session = PolicySession(models.serialized(models.policy()))
    assert basic_session.has_basic_ports
    assert basic_session.noise is None
