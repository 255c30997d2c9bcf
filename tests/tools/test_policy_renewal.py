"""`onrig policy renew` with the firmware's policy, in virtual time."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.hw.clock import VirtualClock
from onrig.hw.renewal import policy_name
from onrig.hw.transport import Transport
from onrig.runtime.run_config import RunConfig
from onrig.tools import policy_renewal
from onrig.tools.cli import main
from onrig.tools.policy_renewal import RenewalOptions, renew_policy
from tests.hw.firmware.build import SWING_UP
from tests.hw.firmware.loop import FirmwareLoop
from tests.tools import policies

POLICY_NAME_HEX = policy_name(SWING_UP.read_bytes()).hex()


class Bench:
    """A line to the firmware; ``interrupted`` is the time of a Ctrl-C."""

    def __init__(self, *, policy: bool = True, interrupt_at_s: float | None = None) -> None:
        self.clock = VirtualClock()
        self.device = FirmwareLoop("pendulum", self.clock, policy=policy)
        self.interrupt_at_s = interrupt_at_s
        self.name, self.fileno, self.close = "bench", lambda: -1, lambda: None
        self.write = self.device.transport.write

    def open(self) -> Transport:
        return self

    def read(self, timeout_ns: int) -> bytes:
        if self.interrupt_at_s is not None and self.clock.now_ns > self.interrupt_at_s * 1e9:
            self.interrupt_at_s = None
            raise KeyboardInterrupt
        return self.device.transport.read(timeout_ns)


def drive(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    file: Path = SWING_UP,
    *,
    seconds: float | None = 2.0,
    **kwargs: object,
) -> int:
    @contextlib.contextmanager
    def line(config: RunConfig) -> Iterator[Bench]:
        yield bench

    monkeypatch.setattr(policy_renewal, "open_device_line", line)
    log, overrides = kwargs.get("log"), kwargs.get("overrides", ())
    assert log is None or isinstance(log, Path)
    assert isinstance(overrides, tuple)
    return renew_policy(RenewalOptions(file, "pendulum", overrides, None), seconds, log, bench.clock)


def test_it_drives_for_a_while_logs_and_disarms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench, log = Bench(), tmp_path / "log.csv"
    assert drive(bench, monkeypatch, log=log) == 0
    assert (
        capsys.readouterr().out
        == f"policy {POLICY_NAME_HEX} acted; the device is disarmed, confirmed by a state frame\n"
    )
    assert bench.device.output(1) == (0.0,)
    with log.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = ["frame", "t_s", "lease_left", "tau_s", "angle (rad)", "velocity (rad/s)", "voltage (V)"]
    assert list(rows[0]) == columns
    assert float(rows[-1]["t_s"]) - float(rows[0]["t_s"]) == pytest.approx(2.0)
    assert len(rows) == 101
    assert 2.5 < max(abs(float(row["voltage (V)"])) for row in rows) <= 3.0


def test_ctrl_c_disarms(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(interrupt_at_s=1.0)
    assert drive(bench, monkeypatch, seconds=None) == 130
    assert "confirmed by a state frame" in capsys.readouterr().out
    assert bench.device.output(1) == (0.0,)


def test_limits_of_the_configuration_reach_the_board(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    limit = ("limits.range.voltage=[-1.5, 1.0]",)
    assert drive(Bench(), monkeypatch, log=log, overrides=limit) == 0
    with log.open(newline="") as file:
        volts = [float(row["voltage (V)"]) for row in csv.DictReader(file)]
    assert (min(volts), max(volts)) == (-1.5, 1.0)


def test_devices_that_cannot_be_driven_are_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(code: int, bench: Bench, file: Path = SWING_UP, *overrides: str, seconds: float = 1.0) -> str:
        assert drive(bench, monkeypatch, file, seconds=seconds, overrides=overrides) == code
        (line,) = capsys.readouterr().err.splitlines()
        return line.removeprefix("onrig policy: ")

    assert "no built-in policy" in refusal(4, Bench(policy=False))
    other = tmp_path / "other.onnx"
    other.write_bytes(policies.sound_policy())
    assert "was built with another" in refusal(5, Bench(), other)
    assert "rate is 50.0 Hz; the rig runs at 100.0 Hz" in refusal(2, Bench(), SWING_UP, "rate_hz=100")
    other.write_bytes(b"nothing")
    assert "not a policy with a contract" in refusal(2, Bench(), other)
    assert "cannot be read" in refusal(2, Bench(), tmp_path / "missing.onnx")
    assert "--duration: expected a number of seconds above 0" in refusal(2, Bench(), seconds=0.0)
    bench = Bench()
    bench.device.press_estop(pressed=True)
    assert "the device refused CLEAR_FAULT: NOT_NOW" in refusal(4, bench)


def test_the_verb_reaches_a_twin_without_a_policy(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--set", "device.pace=realtime", "--duration", "1"]
    assert main(["policy", "renew", str(SWING_UP), "pendulum", *arguments]) == 4
    assert "no built-in policy" in capsys.readouterr().err
