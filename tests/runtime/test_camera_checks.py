"""Where the images of a rig's cameras come from: exactly one source for each camera in use."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from onrig.hw.cameras.opencv import OpenCv
from onrig.hw.rig import Camera, Observation, rig_problems, with_targets
from onrig.runtime.inputs import MAX_LAG, PolicyInput, input_problems
from onrig.runtime.run_checks import findings
from onrig.runtime.run_config import Port, RunConfig
from onrig.runtime.run_loading import load_run

SEEN = load_run("pendulum-camera")
BLIND = load_run("pendulum")
OPENCV = OpenCv(source=0)


def on_a_port(config: RunConfig, **changes: Any) -> RunConfig:
    device = {"twin": None, "port": Port("/dev/ttyACM0"), "pace": "realtime", **changes}
    return msgspec.structs.replace(config, device=msgspec.structs.replace(config.device, **device))


def found(config: RunConfig) -> dict[str, str]:
    return {".".join(map(str, path)): message for path, message in findings(config)}


def test_a_twin_renders_and_a_real_camera_has_a_source() -> None:
    assert found(SEEN) == {}
    assert found(on_a_port(SEEN, cameras={"front": OPENCV})) == {}
    assert found(on_a_port(BLIND)) == {}, "no camera in use"


def test_a_camera_that_the_task_does_not_use_may_have_a_source() -> None:
    rig = msgspec.structs.replace(BLIND.rig, cameras=(Camera("front", 8, 8),))
    assert found(on_a_port(msgspec.structs.replace(BLIND, rig=rig), cameras={"front": OPENCV})) == {}


@pytest.mark.parametrize(
    ("config", "path", "said"),
    [
        (on_a_port(SEEN), "device.cameras", "the task uses camera 'front': add its source, such as {front: {kind:"),
        (on_a_port(SEEN, cameras={"frnt": OPENCV}), "device.cameras.frnt", "no camera 'frnt' (did you mean 'front'?)"),
        (on_a_port(BLIND, cameras={"front": OPENCV}), "device.cameras.front", "no camera 'front' (it has none)"),
        (on_a_port(SEEN, cameras={"front": OPENCV}, pace="lockstep"), "device.pace", "in real time: expected realtime"),
        (
            msgspec.structs.replace(SEEN, device=msgspec.structs.replace(SEEN.device, cameras={"front": OPENCV})),
            "device.cameras",
            "the twin renders the images of its cameras",
        ),
    ],
)
def test_each_mistake_is_one_line(config: RunConfig, path: str, said: str) -> None:
    problems = found(config)
    assert list(problems) == [path]
    assert said in problems[path]


@pytest.mark.parametrize("name", ["angle", "previous_voltage", "goal"])
def test_a_camera_has_a_name_of_its_own(name: str) -> None:
    goal = Observation("goal", "rad", -1.0, 1.0)
    rig = msgspec.structs.replace(BLIND.rig, previous_command=True, cameras=(Camera(name, 8, 8),))
    problems = dict(rig_problems(with_targets(rig, (goal,))))
    assert problems["cameras[0].name"] == f"'{name}' is used twice: give distinct names"


def test_the_names_of_large_images_are_compared_at_once() -> None:
    rig = msgspec.structs.replace(BLIND.rig, cameras=(Camera("front", 128, 128),))
    inputs = tuple(PolicyInput("front", lag=lag) for lag in range(MAX_LAG + 1))
    assert input_problems(inputs, rig) == []
