"""A policy with image inputs: killed and resumed it ends like the undisturbed run; replay and evaluation agree."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import onrig
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.images import unpack_images
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Flag
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.view.run_view import read_episodes
from onrig.sim.evaluation import evaluate
from onrig.sim.twin.main import twin_options
from onrig.sim.twin.rendering import TwinCameras
from onrig.tools import cli
from tests.lab.rig.run import Run
from tests.processes.power_cut import complete_run, last_episode, outcome_of

EPISODES = 4
SETTINGS = (
    "task.episode_s=0.4",
    "rig.cameras=[{name: front, rows: 8, columns: 9}]",
    "learner.td3={images: {size: [8, 9], frames: 2, convolutions: [[2, 3, 2]]}, hidden: [8], batch: 8}",
    "learner.updates_per_episode=4",
    "checkpoint_s=0.8",
    "selection={strategy: 'FIFO[Uniform]', capacity: 60}",
    f"episodes={EPISODES}",
)


@pytest.fixture(scope="module")
def undisturbed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the undisturbed run."""
    return complete_run(tmp_path_factory.mktemp("camera") / "whole", "pendulum-camera", *SETTINGS)


def test_a_killed_run_ends_like_the_undisturbed_one(undisturbed_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    with Run(folder, "pendulum-camera", *SETTINGS) as run:
        run.until(lambda: last_episode(folder) >= 2, "the kill")
        run.cut()
    complete_run(folder, "pendulum-camera", resume=True)
    assert outcome_of(folder) == outcome_of(undisturbed_run)


def test_the_run_replays_without_differences(undisturbed_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", str(undisturbed_run)]) == ExitCode.OK
    assert re.search(r"ticks that differ +0\n", capsys.readouterr().out)


def test_each_record_holds_the_image_at_its_sample(undisturbed_run: Path) -> None:
    run = onrig.open_run(undisturbed_run)
    images, angles = run.images("front"), run.records["observation"][:, 0]
    plant, cameras = twin_options(run.config).plant, TwinCameras(run.config.cameras)
    for image, angle in zip(images, angles.tolist(), strict=True):
        expected = np.frombuffer(cameras.render(plant, (angle, 0.0))[0], np.uint8).reshape(8, 9)
        assert np.abs(image.astype(int) - expected).max() <= 1  # the angle is a reading, the camera sees the plant
    inputs, firsts = run.records["input"], run.records["flags"] & Flag.FIRST > 0
    previous = unpack_images(inputs[:, 24:], 72).reshape(-1, 8, 9)
    np.testing.assert_array_equal(previous[firsts], images[firsts])
    np.testing.assert_array_equal(previous[1:][~firsts[1:]], images[:-1][~firsts[1:]])


def test_the_memory_holds_the_images_exactly(undisturbed_run: Path) -> None:
    run = onrig.open_run(undisturbed_run)
    stored = run.observations.to_si(run.experiences["observation"]).astype(np.float32)
    recorded = {row.tobytes() for row in run.records["input"].astype(np.float32)}
    assert {row.tobytes() for row in stored} <= recorded


def test_an_evaluation_in_this_process_has_the_same_rows_as_the_run(undisturbed_run: Path) -> None:
    config = load_resolved(undisturbed_run / "config.yaml")
    rows = [row for row in read_episodes(undisturbed_run) if row.kind == "eval"]
    last = rows[-1]
    session = PolicySession((undisturbed_run / "policies" / f"{last.policy_id}.onnx").read_bytes())
    *_, again = evaluate(config, session, last.policy_id, last.episode, config.seed)
    assert again._replace(t_mono_ns=0) == last._replace(t_mono_ns=0)


def test_invalid_cameras_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for settings, message in (
        (["device.twin.plant={kind: linear, a: [[0, 1], [0, 0]], b: [[0], [1]], states: [angle, velocity]}"], "plant"),
        (["learner.td3.images.frames=3"], "frames"),
        (["learner.algorithm=ddpg"], "images"),
        (["task.inputs=[{observation: side}]"], "side"),
    ):
        assert cli.main(["check", "pendulum-camera", *(w for s in settings for w in ("--set", s))]) == 2
        assert message in capsys.readouterr().err
