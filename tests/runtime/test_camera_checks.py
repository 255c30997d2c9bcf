"""Sources of a rig's camera images: exactly one for each camera in use."""

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

WITH_CAMERA = load_run("pendulum-camera")
WITHOUT_CAMERA = load_run("pendulum")
OPENCV = OpenCv(source=0)


def with_port(config: RunConfig, **changes: Any) -> RunConfig:
    device = {"twin": None, "port": Port("/dev/ttyACM0"), "pace": "realtime", **changes}
    return msgspec.structs.replace(config, device=msgspec.structs.replace(config.device, **device))


def problems_by_path(config: RunConfig) -> dict[str, str]:
    return {".".join(map(str, path)): message for path, message in findings(config)}


def test_a_twin_renders_and_a_real_camera_has_a_source() -> None:
    assert problems_by_path(WITH_CAMERA) == {}
    assert problems_by_path(with_port(WITH_CAMERA, cameras={"front": OPENCV})) == {}
    assert problems_by_path(with_port(WITHOUT_CAMERA)) == {}, "no camera in use"


def test_a_camera_that_the_task_does_not_use_may_have_a_source() -> None:
    rig = msgspec.structs.replace(WITHOUT_CAMERA.rig, cameras=(Camera("front", 8, 8),))
    assert (
        problems_by_path(with_port(msgspec.structs.replace(WITHOUT_CAMERA, rig=rig), cameras={"front": OPENCV})) == {}
    )


@pytest.mark.parametrize(
    ("config", "path", "message"),
    [
        (
            with_port(WITH_CAMERA),
            "device.cameras",
            "the task uses camera 'front': add its source, such as {front: {kind:",
        ),
        (
            with_port(WITH_CAMERA, cameras={"frnt": OPENCV}),
            "device.cameras.frnt",
            "no camera 'frnt' (did you mean 'front'?)",
        ),
        (
            with_port(WITHOUT_CAMERA, cameras={"front": OPENCV}),
            "device.cameras.front",
            "no camera 'front' (it has none)",
        ),
        (
            with_port(WITH_CAMERA, cameras={"front": OPENCV}, pace="lockstep"),
            "device.pace",
            "in real time: expected realtime",
        ),
        (
            msgspec.structs.replace(
                WITH_CAMERA, device=msgspec.structs.replace(WITH_CAMERA.device, cameras={"front": OPENCV})
            ),
            "device.cameras",
            "the twin renders the images of its cameras",
        ),
    ],
)
def test_each_mistake_is_reported_in_one_line(config: RunConfig, path: str, message: str) -> None:
    problems = problems_by_path(config)
    assert list(problems) == [path]
    assert message in problems[path]


@pytest.mark.parametrize("name", ["angle", "previous_voltage", "goal"])
def test_each_camera_has_a_unique_name(name: str) -> None:
    goal_observation = Observation("goal", "rad", -1.0, 1.0)
    rig = msgspec.structs.replace(WITHOUT_CAMERA.rig, previous_command=True, cameras=(Camera(name, 8, 8),))
    problems = dict(rig_problems(with_targets(rig, (goal_observation,))))
    assert problems["cameras[0].name"] == f"'{name}' is used twice: give distinct names"


def test_the_names_of_large_images_are_accepted() -> None:
    rig = msgspec.structs.replace(WITHOUT_CAMERA.rig, cameras=(Camera("front", 128, 128),))
    inputs = tuple(PolicyInput("front", lag=lag) for lag in range(MAX_LAG + 1))
    assert input_problems(inputs, rig) == []
