from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onrig.runtime.run_config import Device, Port, RunConfig
from onrig.runtime.run_loading import load_run
from onrig.runtime.safety.fallback import SafeOutput
from onrig.runtime.safety.limits import Limits
from onrig.tools.drawings import drawing_of
from onrig.tools.web.about import about, schedule
from tests.runtime.samples import MAGMAN, PENDULUM

COILS = [0.025, 0.05, 0.075, 0.1]


def without_plant_settings(config: RunConfig, *, reset: bool = False) -> RunConfig:
    """Without what the limits (and the task) state about the plant, on a port."""
    task = config.task if reset else msgspec.structs.replace(config.task, reset=None)
    limits = Limits(fallback=SafeOutput())
    return msgspec.structs.replace(config, limits=limits, task=task, device=Device(port=Port("/dev/null")))


def magnet_positions(config: RunConfig) -> list[float]:
    drawing = drawing_of(config)
    assert drawing["kind"] == "track"
    track = drawing["track"]
    assert isinstance(track, dict)
    return [m["at"] for m in track["magnets"]]


def test_the_shipped_rigs_are_drawn_as_what_they_are() -> None:
    assert drawing_of(PENDULUM)["kind"] == "pendulum"
    assert drawing_of(load_run("pendulum-hardware"))["kind"] == "pendulum"
    assert magnet_positions(MAGMAN) == COILS


def test_coils_are_found_in_the_fallback_the_reset_or_the_twin() -> None:
    fallback_only = msgspec.structs.replace(MAGMAN, limits=msgspec.structs.replace(MAGMAN.limits, predicted=None))
    assert magnet_positions(fallback_only) == COILS
    assert magnet_positions(without_plant_settings(MAGMAN, reset=True)) == COILS
    twin_only = msgspec.structs.replace(without_plant_settings(MAGMAN), device=MAGMAN.device)
    assert magnet_positions(twin_only) == pytest.approx(COILS)


def test_a_wrapping_angle_is_not_a_pendulum_unless_declared() -> None:
    assert drawing_of(without_plant_settings(PENDULUM)) == {"kind": "bars"}
    assert drawing_of(without_plant_settings(MAGMAN)) == {"kind": "bars"}
    drawing_settings = {"drawing": {"kind": "pendulum", "angle": "angle", "actuator": "voltage"}}
    assert (
        drawing_of(msgspec.structs.replace(without_plant_settings(PENDULUM), view=drawing_settings))["kind"]
        == "pendulum"
    )


def test_the_walls_are_those_of_the_task() -> None:
    track = drawing_of(MAGMAN)["track"]
    assert isinstance(track, dict)
    assert (track["low"], track["high"], track["walls"], track["target"]) == (-0.035, 0.105, True, 0.035)


@pytest.mark.parametrize("config", [PENDULUM, MAGMAN])
def test_the_description_of_a_run_for_a_page_is_plain_data(config: RunConfig, tmp_path: object) -> None:
    facts = about(config, Path("a run"))
    assert msgspec.json.decode(msgspec.json.encode(facts)) is not None
    assert facts["lockstep"] is True


def test_the_schedule_runs_over_all_episodes() -> None:
    points = schedule(PENDULUM)
    assert (points["episode"][0], points["episode"][-1]) == (1, 500)
    assert (points["amplitude"][0], points["amplitude"][-1]) == (1.0, 0.1)


def test_the_page_is_informed_which_signal_follows_which_target() -> None:
    assert about(PENDULUM, Path("a run"))["followed"] == {}
    targets = "task.targets={ref: {kind: drawn, low: 0, high: 1, observation: velocity}}"
    config = load_run("pendulum", [targets])
    facts = about(config, Path("a run"))
    assert facts["followed"] == {"velocity": "ref"}
    assert [axis["name"] for axis in facts["observations"]] == ["angle", "velocity", "ref"]  # type: ignore[attr-defined]
