"""A device written in Python: whatever dies or stops, its motor is released within the time stated on the page."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.actuators import SAFE_TEXT
from tests.lab.rig.driven import VICTIMS, Motor, driven_run, motor, release_time_s

UNHURRIED = ("rig.lease_periods=50", "device.driver.watchdog_s=1.0", "device.driver.answer_s=10")
"""Longer than a busy machine delays a process: the tests only show that the motor is released."""


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Motor]:
    with motor(tmp_path) as controller:
        yield controller


@pytest.mark.parametrize(
    ("victim", "signum"), [("driver", signal.SIGKILL), ("both", signal.SIGSTOP)], ids=["driver killed", "both stopped"]
)
def test_the_controllers_watchdog_releases_the_motor_when_the_driver_is_gone(
    tmp_path: Path, controller: Motor, victim: str, signum: signal.Signals
) -> None:
    with driven_run(tmp_path, controller.port, *UNHURRIED) as run:
        release_time_s(run, controller, VICTIMS[victim], signum)
        if signum is signal.SIGKILL:
            assert run.ended() == ExitCode.HARDWARE
            assert "unconfirmed" in str(run.summary()["actuators"])


def test_the_driver_releases_the_motor_when_the_loop_is_gone(tmp_path: Path, controller: Motor) -> None:
    with driven_run(tmp_path, controller.port, *UNHURRIED, "device.driver.watchdog_s=10") as run:
        release_time_s(run, controller, VICTIMS["loop"], signal.SIGKILL)
        assert run.ended() == ExitCode.INTERNAL
        assert run.leftover_paths() == []


def test_an_exception_in_the_driver_ends_the_run_safely_and_is_named(tmp_path: Path, controller: Motor) -> None:
    broken = (
        "return [float",
        'if float(words[1]) > 1.0:\n            raise RuntimeError("encoder")\n        return [float',
    )
    with driven_run(tmp_path, controller.port, *UNHURRIED, replacement=broken) as run:
        assert run.ended() == ExitCode.HARDWARE
    assert not controller.is_driving
    summary = run.summary()
    assert (summary["fault"], summary["actuators"]) == ("driver_failed", SAFE_TEXT)
    assert "RuntimeError: encoder" in str(summary["exit_reason"])
    assert "my_motor.py, line" in str(summary["exit_reason"])
