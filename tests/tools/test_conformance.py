"""``onrig conformance``: devices that break a rule are named by its number, whoever made them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from typing import ClassVar, cast

import msgspec
import pytest

from onrig.hw import messages as m
from onrig.hw.clock import VirtualClock
from onrig.hw.conformance.host import Host
from onrig.hw.conformance.paced import PacedConformance
from onrig.hw.conformance.page import rule_texts, rules
from onrig.hw.conformance.runner import Tally, checks_of, run
from onrig.hw.line import Serial
from onrig.hw.messages import Result
from onrig.runtime.exit_codes import ExitCode
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.loopback import LoopbackDevice
from onrig.sim.twin.main import twin_options
from onrig.tools.cli import main
from onrig.tools.conformance import Selection, confirm_motion, examine, print_verdicts
from onrig.tools.load import load
from tests.tools.devices import PtyDevice

CONFIG = load("pendulum", [])


class UnclampedTwin(TwinDevice):
    def _configure(self, offset_us: int, period_us: int, lease_periods: int) -> Result:
        result = super()._configure(offset_us, period_us, lease_periods)
        self._output.limits = [(-(2**31), 2**31 - 1)] * len(self._output.limits)
        return result


class PatientTwin(TwinDevice):
    """Holds its output for one period too long."""

    def _configure(self, offset_us: int, period_us: int, lease_periods: int) -> Result:
        result = super()._configure(offset_us, period_us, lease_periods)
        self._lease.periods += 1
        return result


class LateCommandTwin(TwinDevice):
    """Accepts commands that are too late."""

    def _handle_command(self, body: bytes, offset_us: int) -> None:
        command = self._command_layout.decode(body)
        if command.answers:
            super()._handle_command(self._command_layout.encode(self.frame, command.values), offset_us)


class ForgetfulTwin(TwinDevice):
    """Executes a repeated request again."""

    def _handle_request(self, body: bytes, offset_us: int) -> list[bytes]:
        self._last_exchange = b"", b""
        return super()._handle_request(body, offset_us)


class LooseTwin(TwinDevice):
    """Arms even if a fault is latched."""

    def _arm(self) -> Result:
        self.fault = m.Fault.NONE
        return super()._arm()


class TwinConformance(PacedConformance):
    kind: ClassVar[type[TwinDevice]] = TwinDevice
    range_fraction: ClassVar[float] = 1.0

    def connect(self) -> Host:
        clock = VirtualClock()
        device = self.kind(CONFIG.rig, twin_options(CONFIG), CONFIG.task.start)
        return Host(LoopbackDevice(device, clock).transport, CONFIG.rig, clock, self.range_fraction)


def tally(kind: type[TwinDevice], *rule_numbers: str, range_fraction: float = 1.0) -> Tally:
    subject = type("One", (TwinConformance,), {"kind": kind, "range_fraction": range_fraction})()
    new_tally = Tally()
    new_tally.outcomes = [run(subject, check) for check in checks_of(PacedConformance, rule_numbers)]
    return new_tally


@pytest.mark.parametrize(
    ("kind", "rule_broken", "rule_kept"),
    [
        (UnclampedTwin, "P407", "P405"),
        (PatientTwin, "P412", "P404"),
        (LateCommandTwin, "P404", "P405"),
        (ForgetfulTwin, "P270", "P274"),
        (LooseTwin, "P306", "P282"),
    ],
)
def test_a_device_that_breaks_a_rule_is_named_by_the_rules_number(
    kind: type[TwinDevice], rule_broken: str, rule_kept: str
) -> None:
    result = tally(kind, rule_broken, rule_kept)
    assert result.verdict(rule_broken) == "failed"
    assert result.verdict(rule_kept) == "holds"
    reason = next(o.reason for o in result.outcomes if o.verdict == "failed" and rule_broken in o.check.rules)
    assert ".py:" in reason, "the condition, and where it is"


@pytest.mark.parametrize("range_fraction", [0.02, 1.0])
def test_a_compliant_device_keeps_all_unattended_rules_with_any_share_of_its_range(range_fraction: float) -> None:
    result = tally(TwinDevice, range_fraction=range_fraction)
    device = [number for number in rules() if number.startswith("P")]
    assert result.rules_with("failed", device) == []
    assert len(result.rules_with("holds", device)) > 120
    for number in ("P220", "P313", "P601"):
        assert result.verdict(number) == "not run"


def test_commands_stay_within_their_share() -> None:
    commanded: list[int] = []

    class WatchedTwin(TwinDevice):
        def sample(self) -> bytes:
            commanded.extend(self._output.end.counts)
            return super().sample()

    tally(WatchedTwin, "P4", range_fraction=0.05)
    (actuator,) = CONFIG.rig.actuators
    assert 0 < max(map(abs, commanded)) <= round(0.05 * actuator.high / actuator.resolution)


def test_an_output_with_an_off_centre_safe_value_stays_within_its_share_on_both_sides() -> None:
    (volts,) = CONFIG.rig.actuators
    config = msgspec.structs.replace(
        CONFIG, rig=msgspec.structs.replace(CONFIG.rig, actuators=(msgspec.structs.replace(volts, safe=2.0),))
    )
    clock = VirtualClock()
    twin = TwinDevice(config.rig, twin_options(config), config.task.start)
    host = Host(LoopbackDevice(twin, clock).transport, config.rig, clock, 0.1)
    (low, high) = host.command_ranges[0]
    assert low < 20_000 < high
    assert low <= host.opposite_setpoint(2)[0] < 20_000 or 20_000 < host.opposite_setpoint(2)[0] <= high
    assert (host.setpoint(2)[0] - 20_000) * (host.opposite_setpoint(2)[0] - 20_000) < 0


class UnknownResultTwin(TwinDevice):
    """Answers with a result that does not exist."""

    def _arm(self) -> Result:
        return cast(Result, 99)


def test_an_undecodable_answer_fails_its_rule_and_the_others_are_tried() -> None:
    result = tally(UnknownResultTwin, "P404", "P101")
    assert result.verdict("P404") == "failed"
    assert result.verdict("P101") == "holds"


def test_the_verdicts_use_the_sentences_of_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    result = tally(PatientTwin, "P414", "P601")
    expected = {number: rule_texts()[number] for number in ("P414", "P601")}
    assert print_verdicts(result, expected) == ExitCode.HARDWARE
    output = capsys.readouterr().out
    assert f"P414 FAILED: {rule_texts()['P414']}" in output
    assert "P601 not run (the sensors' cable must be unplugged by hand): Sensor limits" in output
    assert "2 rules: 0 hold, 1 failed, 1 not run" in output


def test_every_rule_has_a_sentence() -> None:
    assert list(rule_texts()) == rules()
    assert all(len(sentence) >= 4 for sentence in rule_texts().values())


def test_a_device_on_a_port_identifies_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with PtyDevice(CONFIG) as device:
        assert examine(Serial(device.port), None, Selection(("P2",)), None) == ExitCode.OK
    assert "device 'pendulum'" in capsys.readouterr().out


def test_nothing_is_driven_without_confirmation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("no\n"))
    with PtyDevice(CONFIG) as device:
        line = Serial(device.port)
        code = examine(line, None, Selection(("P4",), 0.2), lambda rig: confirm_motion(0.2, line.address, rig))
        assert not device.was_armed
    assert code == ExitCode.PREFLIGHT
    captured = capsys.readouterr()
    assert "voltage: -0.6 to 0.6 V (safe: 0)" in captured.out
    assert "not confirmed; nothing was moved" in captured.err


@pytest.fixture
def skip_manual_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An operator who skips everything."""
    read, write = os.pipe()
    os.write(write, b"s\n" * 100)
    with os.fdopen(read) as answers, os.fdopen(write, "w"):
        monkeypatch.setattr(sys, "stdin", answers)
        yield


@pytest.mark.usefixtures("skip_manual_steps")
def test_manual_actions_are_requested_and_may_be_declined(capsys: pytest.CaptureFixture[str]) -> None:
    with PtyDevice(CONFIG) as device:
        assert examine(Serial(device.port), None, Selection(("P252",), has_operator=True), None) == ExitCode.OK
    output = capsys.readouterr().out
    assert "unplug a sensor, then Enter (s: skip)" in output
    assert "P252 not run (skipped)" in output


def test_a_port_without_a_device_and_wrong_arguments_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "/dev/nothing"]) == ExitCode.HARDWARE
    assert "no such port" in capsys.readouterr().err
    assert main(["conformance", "pendulum", "--only", "X9"]) == ExitCode.CONFIGURATION
    assert "no rule for devices begins with X9" in capsys.readouterr().err
    assert main(["conformance", "pendulum", "--share", "2"]) == ExitCode.CONFIGURATION
    assert main(["conformance"]) == ExitCode.CONFIGURATION


def test_the_list_names_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--list", "--only", "P50"]) == ExitCode.OK
    output = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in output] == ["P501", "P502", "P503", "P504", "P505", "P506"]
    assert output[3].endswith(rule_texts()["P504"])


def test_a_configurations_twin_is_started_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "pendulum", "--only", "P505"]) == ExitCode.OK
    assert "1 rules: 1 hold, 0 failed, 0 not run" in capsys.readouterr().out
