"""``identified: FILE`` in a run's configuration."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import msgspec
import pytest

from onrig.runtime.config.document import find_config
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.run_loading import load_resolved, load_run, save_resolved
from onrig.runtime.safety.pendulum import PendulumBox
from onrig.runtime.supervise.run_folder import write_run_folder

IDENTIFIED = """\
rig: pendulum
twin: {plant: {kind: pendulum, mass: 0.06, dry_friction: 0.4}, sensor_noise: 0.002}
predicted: {gravity_per_s2: 26.3, damping_per_s: 0.33, gain_per_v_s2: 6.1, spread: 0.08}
samples: []
"""


@pytest.fixture
def identified_path(tmp_path: Path) -> Path:
    path = tmp_path / "identified.yaml"
    path.write_text(IDENTIFIED)
    return path


def test_the_identified_plant_replaces_those_of_the_twin_and_the_shield(identified_path: Path) -> None:
    config = load_run("pendulum", [f"identified={identified_path}"])
    assert config.device.twin is not None
    assert config.device.twin["plant"] == {"kind": "pendulum", "mass": 0.06, "dry_friction": 0.4}
    assert config.device.twin["sensor_noise"] == 0.002
    box = config.limits.predicted
    assert box is not None
    assert box.nominal == {"gravity_per_s2": 26.3, "damping_per_s": 0.33, "gain_per_v_s2": 6.1}
    assert box.spread == 0.08
    assert box.velocity == "velocity"


def test_the_file_is_found_next_to_the_configuration_or_in_the_working_directory(
    identified_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text(find_config("pendulum").read_text() + "identified: identified.yaml\n")
    assert load_run(str(tmp_path / "mine.yaml")).identified
    monkeypatch.chdir(tmp_path)
    assert load_run("pendulum", ["identified=identified.yaml"]).identified


def test_errors_of_one_sensor_leave_those_of_another_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "off.yaml"
    path.write_text(IDENTIFIED.replace("spread: 0.08", "spread: 0.08, sensor_error: {angle: 0.03}"))
    for before, after in (
        ("{}", {"angle": 0.03}),
        ("{velocity: 1.2}", {"velocity": 1.2, "angle": 0.03}),
        ("{velocity: 1.2, angle: 0.01}", {"velocity": 1.2, "angle": 0.03}),
    ):
        run = tmp_path / "run.yaml"
        text = (
            find_config("pendulum")
            .read_text()
            .replace("    spread: 0.3\n", f"    spread: 0.3\n    sensor_error: {before}\n")
        )
        run.write_text(f"{text}identified: off.yaml\n")
        box = load_run(str(run)).limits.predicted
        assert isinstance(box, PendulumBox)
        assert box.sensor_error == after


def test_other_overrides_take_precedence(identified_path: Path) -> None:
    config = load_run("pendulum", ["limits.predicted.spread=0.2", f"identified={identified_path}"])
    assert config.limits.predicted is not None
    assert config.limits.predicted.spread == 0.2


def test_a_real_device_uses_only_the_shields_part(identified_path: Path) -> None:
    config = load_run("pendulum", ["device={port: {path: /dev/null}}", f"identified={identified_path}"])
    assert config.device.twin is None
    assert config.limits.predicted is not None
    assert config.limits.predicted.spread == 0.08


def test_its_hash_is_recorded_with_the_run(identified_path: Path, tmp_path: Path) -> None:
    config = load_run("pendulum", [f"identified={identified_path}"])
    digest = f"sha256:{hashlib.sha256(IDENTIFIED.encode()).hexdigest()}"
    assert config.identified == digest
    save_resolved(config, tmp_path / "resolved.yaml")
    identified_path.unlink()
    assert load_resolved(tmp_path / "resolved.yaml") == config
    write_run_folder(tmp_path / "run", config)
    assert msgspec.json.decode((tmp_path / "run" / "meta.json").read_bytes())["identified"] == digest


def test_a_run_without_an_identification_does_not_mention_it(tmp_path: Path) -> None:
    config = load_run("pendulum")
    save_resolved(config, tmp_path / "resolved.yaml")
    assert "identified" not in (tmp_path / "resolved.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no file"),
        ("rig: magman\ntwin: {}\npredicted: {}\n", "identified on rig 'magman', not 'pendulum'"),
        ("rig: pendulum\n", "as written by `onrig identify`"),
    ],
)
def test_a_mismatched_identification_is_refused_in_one_line(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_run("pendulum", [f"identified={path}"])
    (problem,) = error.value.problems
    assert message in problem.message


@pytest.mark.parametrize(
    ("channels", "expected"),
    [
        (
            "angle: {unit: rad, resolution: 0.5}",
            "was identified in rad with a resolution of 0.5; the rig has angle in rad",
        ),
        ("angle: {unit: deg, resolution: 0.0001}", "was identified in deg"),
        ("arm: {unit: rad, resolution: 0.0001}", "was identified without 'angle'; the rig has angle in rad"),
    ],
)
def test_another_unit_resolution_or_channel_is_refused_with_both_values(
    identified_path: Path, channels: str, expected: str
) -> None:
    identified_path.write_text(IDENTIFIED + f"channels: {{{channels}}}\n")
    with pytest.raises(ConfigError, match=re.escape(expected)):
        load_run("pendulum", [f"identified={identified_path}"])


def test_an_override_of_the_resolution_is_refused_like_an_edited_rig(identified_path: Path) -> None:
    rig = load_run("pendulum").rig
    channels = {c.name: {"unit": c.unit, "resolution": c.resolution} for c in rig.channels}
    identified_path.write_text(IDENTIFIED + f"channels: {json.dumps(channels)}\n")
    assert load_run("pendulum", [f"identified={identified_path}"]).identified
    sensors = [{**s, "resolution": 2 * s["resolution"]} for s in msgspec.to_builtins(rig.sensors)]
    with pytest.raises(ConfigError, match="identify it again"):
        load_run("pendulum", [f"identified={identified_path}", f"rig.sensors={json.dumps(sensors)}"])
