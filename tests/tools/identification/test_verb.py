"""`onrig identify` on twins, and on the log of a run."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from onrig.hw.messages import Status
from onrig.hw.rig import Rig
from onrig.runtime.log.mcap_log import McapLog
from onrig.runtime.record import RecordLayout, Rule
from onrig.runtime.run_loading import save_resolved
from onrig.runtime.safety.rules import Ranges
from onrig.sim.evaluation import lockstep_session
from onrig.sim.identification.result import read_result
from onrig.sim.plants import Pendulum, Plant
from onrig.sim.plants.excitation import Excitation, chirp
from onrig.tools.cli import main
from onrig.tools.identification import driving
from onrig.tools.load import load

SHORT_EXPERIMENT = {
    "device.twin.plant.damping": "2e-5",
    "device.twin.plant.dry_friction": "0.6",
    "device.twin.plant.dead_band": "0.1",
    "device.twin.plant.delay_s": "0.01",
    "device.twin.sensor_noise": "0.002",
}
SETTINGS = [part for name, value in SHORT_EXPERIMENT.items() for part in ("--set", f"{name}={value}")]


def short_excitations(self: Pendulum, rig: Rig, ranges: Ranges) -> list[Excitation]:
    return [chirp(rig, ranges, 0, amplitude, (0.2, 2.5), 8.0) for amplitude in (0.2, 0.5, 1.0)]


@pytest.fixture(autouse=True)
def _shorten_excitations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pendulum, "excitations", short_excitations)


def test_a_twin_is_identified_and_a_run_takes_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identify", "pendulum", *SETTINGS, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "All signs at once" in out
    result = read_result(tmp_path / "identified.yaml")
    values = {p.name: p for p in result.parameters}
    assert values["delay_s"].low - 1e-3 < 0.01 < values["delay_s"].high + 1e-3
    assert values["gravity_per_s2"].value == pytest.approx(24.08, rel=0.02)
    config = load("pendulum", [f"identified={tmp_path / 'identified.yaml'}"])
    assert config.identified
    page = (tmp_path / "identification.html").read_text()
    assert "gravity_per_s2" in page
    assert page.count("<figure>") == 3


def test_the_shield_sees_every_command() -> None:
    config = load("pendulum", ["limits.range.voltage=[-0.5, 0.5]", "limits.predicted=null"])
    steps = driving.drive(
        config, lockstep_session(config), short_excitations(Pendulum(), config.rig, {"voltage": (-3.0, 3.0)}), 0
    )
    assert max(abs(s.command[0]) for s in steps) == 5000
    assert {s.rule for s in steps} == {Rule.NONE, Rule.RANGE}
    assert len(steps) == 1200


def test_a_twin_that_no_run_could_reset_can_be_driven_and_scored() -> None:
    session = lockstep_session(load("pendulum", ["device.pace=realtime", "device.twin.reset=false"]))
    session.arm()
    session.reset(1)
    assert session.wait_state(0) is not None


def test_it_leaves_the_device_disarmed() -> None:
    config = load("pendulum")
    session = lockstep_session(config)
    driving.drive(config, session, short_excitations(Pendulum(), config.rig, {"voltage": (-1.0, 1.0)})[:1], seed=0)
    session.reset(1)
    state = session.wait_state(0)
    assert state is not None
    assert not state.status & Status.ARMED


def test_a_reversed_actuator_stops_it_before_any_strong_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original_drive = driving.drive

    def drive_reversed(*args: object, **kwargs: object) -> list[object]:
        steps = original_drive(*args, **kwargs)  # type: ignore[arg-type]
        for step in steps:
            step.u_start, step.u_end = (-step.u_start[0],), (-step.u_end[0],)
        return list(steps)

    monkeypatch.setattr(driving, "drive", drive_reversed)
    assert main(["identify", "pendulum", *SETTINGS, "--out", str(tmp_path / "out")]) == 3
    assert "voltage" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_study_reports_how_often_the_interval_contained_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identify", "pendulum", "--study", "1"]) == 0
    out = capsys.readouterr().out
    assert "signs correct: 1 of 1" in out
    assert "dry_friction" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pendulum", "--effort", "0"], "--effort: expected more than 0"),
        (["pendulum", "--study", "0"], "--study: expected 1 or more"),
        (["nowhere"], "no 'nowhere'"),
    ],
)
def test_mistakes_are_reported_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["identify", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["--set", "limits.predicted=null"]], ids=["by its box", "by its twin"])
def test_a_device_is_driven_only_after_confirmation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str]
) -> None:
    terminal_fd, other_fd = os.openpty()
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    port = os.ttyname(other_fd)
    settings = ["--set", "device.pace=realtime", "--out", str(tmp_path / "out")]
    assert main(["identify", "pendulum", "--device", port, *settings, *arguments]) == 3
    captured = capsys.readouterr()
    assert "voltage: -3 to 3 V" in captured.out
    assert "velocity within -15 to 15" in captured.out
    assert "nothing was moved" in captured.err
    os.close(terminal_fd)
    os.close(other_fd)


def test_a_plant_is_identified_from_the_log_of_a_run(tmp_path: Path) -> None:
    config = load("pendulum", [f"{name}={value}" for name, value in SHORT_EXPERIMENT.items()])
    parts = short_excitations(Pendulum(), config.rig, {"voltage": (-3.0, 3.0)})
    steps = driving.drive(config, lockstep_session(config), parts, seed=1)
    save_resolved(config, tmp_path / "config.yaml")
    log = McapLog(config, tmp_path, "session", lambda kind, **values: None)
    log.add(RecordLayout.for_rig(config.rig).pack(steps))
    log.close()
    assert main(["identify", str(tmp_path)]) == 0
    assert read_result(tmp_path / "identification" / "identified.yaml").rig == "pendulum"


def test_an_experiment_ends_as_soon_as_the_parameters_are_known(tmp_path: Path) -> None:
    """The complete experiment takes 24 s."""
    words = ["identify", "pendulum", *SETTINGS, "--out", str(tmp_path), "--until"]
    assert main([*words, "0.5"]) == 0
    result = read_result(tmp_path / "identified.yaml")
    driven_s = float(result.source.split(", driven for ")[-1].removesuffix(" s"))
    assert driven_s in (8.5, 12.5)
    for parameter in result.parameters[:3]:
        assert (parameter.high / parameter.low) ** 0.5 - 1 <= 0.65


@pytest.mark.parametrize("width", ["0", "1", "-0.1"])
def test_a_width_is_relative(width: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identify", "pendulum", f"--until={width}"]) == 2
    assert "--until: expected more than 0 and less than 1" in capsys.readouterr().err


def test_a_plants_own_excitations_are_shortened_unless_it_has_brief_ones() -> None:
    config = load("pendulum")
    ranges = {"voltage": (-3.0, 3.0)}
    assert [e.name for e in Plant.brief_excitations(Pendulum(), config.rig, ranges)] == [
        e.name for e in short_excitations(Pendulum(), config.rig, ranges)
    ]
    assert sum(e.duration_s for e in Pendulum().brief_excitations(config.rig, ranges)) < 21
