import gc
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.policy.session import PolicySession
from tests.runtime.policy import models


@pytest.mark.parametrize("batch", [1, "batch"])
def test_computes_the_outputs_of_the_network(batch: int | str) -> None:
    model = models.policy()
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("observation", 1, [batch, 2]))
    session = PolicySession(models.serialized(model))
    observations = np.random.default_rng(3).uniform(-20, 20, (50, 2)).astype(np.float32)
    actions = np.empty((50, 1))
    for observation, action in zip(observations, actions, strict=True):
        session.observation[0] = observation
        session.run()
        action[:] = session.action[0]
    np.testing.assert_allclose(actions, models.reference(model, observations), rtol=1e-4, atol=1e-5)


def test_keeps_its_buffers_for_its_lifetime() -> None:
    session = PolicySession(models.serialized(models.policy()))
    observation, action = session.observation, session.action
    previous_action = action.copy()
    session.warm_up(3)
    assert session.observation is observation
    assert session.action is action
    assert not np.array_equal(action, previous_action)
    assert [(a.shape, str(a.dtype)) for a in (observation, action)] == [((1, 2), "float32"), ((1, 1), "float32")]


def test_two_sessions_do_not_share_buffers() -> None:
    first, second = (PolicySession(models.serialized(models.policy(scale))) for scale in (1.0, 2.0))
    first.run()
    second.run()
    np.testing.assert_allclose(2 * first.action, second.action)


def test_running_leaks_no_memory() -> None:
    session = PolicySession(models.serialized(models.policy()))
    session.warm_up(10)
    gc.collect()
    gc.disable()
    try:
        # Another thread of the test runner may also allocate; a real leak shows every time.
        growth = []
        for _ in range(5):
            n_blocks, n_tracked = sys.getallocatedblocks(), gc.get_count()[0]
            for _ in range(1000):
                session.run()
            growth.append((abs(sys.getallocatedblocks() - n_blocks), abs(gc.get_count()[0] - n_tracked)))
        assert min(n_blocks for n_blocks, _ in growth) < 20
        assert min(n_tracked for _, n_tracked in growth) < 20
    finally:
        gc.enable()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_starts_no_threads() -> None:
    PolicySession(models.serialized(models.policy())).run()
    n_threads = len(os.listdir("/proc/self/task"))
    sessions = [PolicySession(models.serialized(models.policy())) for _ in range(3)]
    for session in sessions:
        session.run()
    assert len(os.listdir("/proc/self/task")) == n_threads


@pytest.mark.parametrize("data", [b"", b"\x08", b"not a model", bytes(100), b"....ORTM" + bytes(100)])
def test_refuses_models_that_onnxruntime_rejects(data: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelRefused) as error:
        PolicySession(data)
    assert error.value.stage == "format"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "kind", "shape"),
    [
        ("state", 1, [1, 2]),
        ("observation", 11, [1, 2]),
        ("observation", 1, [2, 2]),
        ("observation", 1, [2]),
        ("observation", 1, ["batch", "width"]),
        ("observation", 1, [1, 1 << 30]),
    ],
)
def test_refuses_ports_it_cannot_bind(name: str, kind: int, shape: list[int | str]) -> None:
    graph = helper.make_graph(
        [models.node("Identity", [name], ["action"])],
        "g",
        [helper.make_tensor_value_info(name, kind, shape)],
        [helper.make_tensor_value_info("action", kind, shape)],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(ModelRefused) as error:
        PolicySession(models.serialized(model))
    assert error.value.stage == "shapes"


def test_refuses_a_model_with_a_second_input() -> None:
    model = models.linear()
    model.graph.input.append(onnx.ValueInfoProto(name="more", type=model.graph.input[0].type))
    with pytest.raises(
        ModelRefused, match=r"inputs are observation \(1, 2\), more \(1, 2\); they must be observation \(1, 2\)"
    ):
        PolicySession(models.serialized(model))


def test_the_answer_equals_its_output_arrays() -> None:
    plain, stochastic = (PolicySession(models.serialized(m)) for m in (models.policy(), models.stochastic()))
    assert plain.act((0.3, -2.0)) == tuple(plain.action[0].tolist())
    assert plain.observation[0].tolist() == np.array((0.3, -2.0), np.float32).tolist()
    answer = stochastic.act((0.3, -2.0, 0.7))
    assert stochastic.noise is not None
    assert stochastic.noise[0, 0] == np.float32(0.7)
    ports = (stochastic.action, stochastic.mean, stochastic.std, stochastic.drawn)
    assert answer == tuple(float(port[0, 0]) for port in ports)


@pytest.mark.parametrize("observation", [(0.3,), (0.3, -2.0, 0.7)])
def test_an_input_of_another_length_is_refused(observation: tuple[float, ...]) -> None:
    with pytest.raises(struct.error):
        PolicySession(models.serialized(models.policy())).act(observation)


def test_values_beyond_float32_are_passed_as_infinity() -> None:
    session = PolicySession(models.serialized(models.policy()))
    session.act((0.3, -1e39))
    assert session.observation[0, 1] == -np.inf


def test_onnxruntime_sends_no_telemetry(tmp_path: Path) -> None:
    """Otherwise it would keep a database in the user's cache, and send it."""
    environment = {k: v for k, v in os.environ.items() if k not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")}
    command = [sys.executable, "-c", "import onrig.runtime.policy.session"]
    subprocess.run(command, env=environment | {"HOME": str(tmp_path)}, check=True)
    assert list(tmp_path.iterdir()) == []
