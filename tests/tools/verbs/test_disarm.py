from __future__ import annotations

from pathlib import Path

import pytest

from onrig.hw.transport import DEFAULT_BAUD_RATE
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import Port
from onrig.tools.cli import main
from onrig.tools.load import load
from onrig.tools.verbs.disarm import Options
from tests.tools.devices import PtyDevice


def test_a_device_on_a_port_is_disarmed(capsys: pytest.CaptureFixture[str]) -> None:
    with PtyDevice(load("pendulum")) as device:
        assert main(["disarm", device.port]) == ExitCode.OK
    assert "device 'pendulum' is disarmed" in capsys.readouterr().out


def test_a_missing_device_is_reported_in_one_line_with_what_makes_it_safe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["disarm", str(tmp_path / "ttyUSB0")]) == ExitCode.HARDWARE
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "no such port" in err
    assert "unconfirmed: the device sets its safe outputs" in err


def test_host_twin_and_disarm_use_the_same_rate_by_default() -> None:
    assert Port("").baud == DEFAULT_BAUD_RATE == Options(port="").baud
