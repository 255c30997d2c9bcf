"""`onrig check` rejects what `onrig run` would refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from onrig.runtime.config.problem import ConfigError
from onrig.tools.cli import main
from onrig.tools.load import load_for_learner, load_for_rig
from tests.tools import policies


def check_message(capsys: pytest.CaptureFixture[str], *overrides: str, config: str = "pendulum") -> str:
    assert main(["check", config, *(f"--set={o}" for o in overrides)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def test_an_algorithm_that_cannot_explore_as_configured(capsys: pytest.CaptureFixture[str]) -> None:
    message = check_message(capsys, "learner.algorithm=dqn")
    assert "the actions of dqn are discrete: expected 'epsilon_greedy' or 'none', got 'ou'" in message


def test_a_plant_not_covered_by_the_shield(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "pendulum", "--set=device.twin.plant.inertia=hardware"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all("the shield covers" in line for line in lines)


def test_a_sensor_offset_not_covered_by_the_shield(capsys: pytest.CaptureFixture[str]) -> None:
    message = check_message(capsys, "device.twin.sensor_zero={angle: 0.05}")
    assert "the twin's angle is up to 0.0502 rad off, which sensor_error does not cover at limits.predicted" in message
    assert (
        main(
            [
                "check",
                "pendulum",
                "--set=device.twin.sensor_zero={angle: 0.001}",
                "--set=limits.predicted.sensor_error={angle: 0.002}",
            ]
        )
        == 0
    )


@pytest.mark.parametrize("name", ["wrong shapes", "NaN outputs"])
def test_an_initial_policy_that_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = policies.write_bad_policy(name, tmp_path)
    _, stage, reason = policies.BAD_POLICIES[name]
    line = check_message(capsys, f"policy={path}")
    assert f"'{path}' is refused by the {stage} check: " in line
    assert reason in line


def test_a_memory_too_large_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 1000)  # pages of as many bytes: a megabyte
    line = check_message(capsys, "selection={strategy: 'FIFO[Uniform]', capacity: 100000}")
    assert "100000 experiences need 0.004 GB, but this machine has 0.001 GB" in line


def test_an_invalid_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "port").write_text("")
    line = check_message(capsys, f"device={{port: {{path: {tmp_path / 'port'}}}}}")
    assert line.rstrip().endswith("at device.port.path")
    assert "not a serial port; " in line


@pytest.mark.parametrize("bound_text", ["1.7976931348623157e308", "1e10"])
def test_an_unreasonable_envelope(bound_text: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = check_message(capsys, f"limits.envelope.velocity={{low: -{bound_text}, high: 15}}")
    assert "expected at least -1e+09" in line
    assert "at limits.envelope.velocity.low" in line


def test_names_that_are_not_words(capsys: pytest.CaptureFixture[str]) -> None:
    line = check_message(capsys, "rig.name='[/x]'")
    assert "expected a plain word of letters, digits and _ . + -, got '[/x]' at rig.name" in line


def test_a_rig_without_its_own_learner_need_not_configure_one(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["local_learner=false", "learner={}"]
    assert load_for_rig("pendulum", overrides).local_learner is False
    with pytest.raises(ConfigError, match="expected exactly one of 'updates_per_episode'"):
        load_for_learner("pendulum", overrides)
    assert "exactly one of" in check_message(capsys, "learner={}")
    assert "expected at least 1" in check_message(capsys, "local_learner=false", "learner={updates_per_episode: 0}")
