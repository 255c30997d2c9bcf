"""The device of docs/examples/python-device: checked, driven, disarmed, examined."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands import ROOT
from tests.lab.rig.driven import EXAMPLE, Motor, copy_example, motor


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Motor]:
    with motor(tmp_path) as controller:
        yield controller


def onrig(folder: Path, port: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onrig.tools.cli", *words]
    environment = os.environ | {"MOTOR_PORT": port}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def changed(folder: Path, file: str, old: str, new: str) -> None:
    path = folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_the_example_is_checked_and_the_value_of_its_lease_is_reported(tmp_path: Path) -> None:
    copy_example(tmp_path)
    done = onrig(tmp_path, "/dev/none", "check", "run.yaml")
    assert done.returncode == 0, done.stderr
    assert "device on driver 'motor'" in done.stdout
    assert "the lease: safe within 0.1 s of the last command while the driver runs; once it has stopped" in done.stdout


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "my_motor.py",
            "def feed_watchdog",
            "def feed",
            "does not define feed_watchdog(), but the watchdog of 0.1 s",
        ),
        ("my_motor.py", "def apply", "def put", "does not define apply()"),
        ("my_motor.py", "(Driver)", "", "which is not a subclass of Driver"),
        ("my_motor.py", "= 0.1", "= None", "this rig does not become safe"),
        ("run.yaml", "port: $MOTOR_PORT", "prot: x", "prot"),
    ],
)
def test_driver_mistakes_are_reported_before_anything_moves(
    tmp_path: Path, file: str, old: str, new: str, said: str
) -> None:
    copy_example(tmp_path)
    changed(tmp_path, file, old, new)
    done = onrig(tmp_path, "/dev/none", "check", "run.yaml")
    assert done.returncode == 2
    assert said in done.stderr


def test_disarm_starts_the_driver_and_reports_one_that_does_not_start(tmp_path: Path, controller: Motor) -> None:
    copy_example(tmp_path)
    done = onrig(tmp_path, controller.port, "disarm", "run.yaml")
    assert done.returncode == 0, done.stderr
    assert "device 'motor' is disarmed, confirmed by a state frame" in done.stdout
    done = onrig(tmp_path, "/dev/none", "disarm", "run.yaml")
    assert done.returncode == 4
    assert "driver 'motor': the driver does not start: SerialException" in done.stderr
    assert "lease" not in done.stderr, "without its driver, the device has no lease"


def test_the_example_keeps_the_rules_that_a_busy_machine_cannot_break(tmp_path: Path, controller: Motor) -> None:
    copy_example(tmp_path)
    done = onrig(tmp_path, controller.port, "conformance", "run.yaml", "--yes", "--only", "P29")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout


def test_the_example_is_formatted_like_the_code() -> None:
    for how in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *how, "--config", str(ROOT / "pyproject.toml"), str(EXAMPLE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
