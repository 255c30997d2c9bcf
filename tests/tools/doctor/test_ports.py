from __future__ import annotations

from pathlib import Path

import pytest

from onrig.tools.doctor.ports import check_ports, examine_ports, summarise_ports
from onrig.tools.machine import Machine
from onrig.tools.ports import PortFacts
from tests.tools.doctor.boards import BY_ID, GENERAL, RIG, a_rig, board, by_name, verdicts

GOOD = PortFacts(BY_ID, "/dev/ttyUSB0", BY_ID, True, True, "dialout", 1, (), False)


def test_a_port_by_its_lasting_name_passes() -> None:
    assert set(verdicts(check_ports(GOOD, RIG, "pi")).values()) == {"PASS"}


def test_a_missing_port_fails_with_one_line() -> None:
    missing = PortFacts("/dev/ttyUSB7", "", "", False, False, "", None, (), False)
    (check,) = check_ports(missing, RIG, "pi")
    assert (check.verdict.value, check.finding) == ("FAIL", "/dev/ttyUSB7: no such port")


@pytest.mark.parametrize(
    ("facts", "name", "verdict", "remedy"),
    [
        (GOOD._replace(accessible=False), "port", "FAIL", "sudo usermod -aG dialout pi"),
        (GOOD._replace(is_terminal=False), "port", "FAIL", "device.port.path"),
        (GOOD._replace(path="/dev/ttyUSB0"), "port", "WARN", BY_ID),
        (GOOD._replace(path="/dev/onrig-pendulum"), "port", "PASS", ""),
        (GOOD._replace(console=True), "port", "FAIL", "raspi-config"),
        (GOOD._replace(latency_ms=16), "port-latency", "WARN", "echo 1 | sudo tee /sys/bus/usb-serial/devices/ttyUSB0"),
        (GOOD._replace(holders=("minicom (pid 42)",)), "port-holder", "FAIL", "onrig stop"),
    ],
)
def test_what_keeps_a_port_from_the_loop_is_named(facts: PortFacts, name: str, verdict: str, remedy: str) -> None:
    check = by_name(check_ports(facts, RIG, "pi"))[name]
    assert check.verdict.value == verdict
    assert remedy in check.remedy


def test_an_adapter_without_a_latency_timer_has_no_line_for_it() -> None:
    assert "port-latency" not in verdicts(check_ports(GOOD._replace(latency_ms=None), RIG, "pi"))


def test_without_a_configuration_all_ports_are_listed(tmp_path: Path) -> None:
    found = by_name(examine_ports(a_rig(tmp_path), GENERAL))
    assert found["ports"].verdict.value == "PASS"
    assert "/dev/ttyUSB0" in found["ports"].finding
    assert "minicom (pid 42)" in found["ports"].finding
    assert found["port-latency"].verdict.value == "WARN"


def test_no_port_at_all_is_well_for_a_twin(tmp_path: Path) -> None:
    assert verdicts(examine_ports(Machine(tmp_path), GENERAL)) == {"ports": "PASS"}


def test_a_port_without_permission_is_a_warning_in_general() -> None:
    check = summarise_ports([GOOD, GOOD._replace(accessible=False)])
    assert (check.verdict.value, "dialout" in check.remedy) == ("WARN", True)


def test_modem_manager_is_told_of(tmp_path: Path) -> None:
    machine = board(tmp_path, {"proc/7/comm": "ModemManager\n"})
    assert verdicts(examine_ports(machine, GENERAL))["modem-manager"] == "WARN"


def test_brltty_is_told_of_as_long_as_its_rules_count(tmp_path: Path) -> None:
    machine = board(tmp_path, {"usr/lib/udev/rules.d/85-brltty.rules": ""})
    check = by_name(examine_ports(machine, GENERAL))["brltty"]
    assert check.verdict.value == "WARN"
    assert "CH340" in check.finding
    assert "sudo ln -s /dev/null /etc/udev/rules.d/85-brltty.rules" in check.remedy
    (tmp_path / "etc/udev/rules.d").mkdir(parents=True)
    (tmp_path / "etc/udev/rules.d/85-brltty.rules").symlink_to("/dev/null")
    assert "brltty" not in verdicts(examine_ports(machine, GENERAL))
    board(tmp_path, {"proc/8/comm": "brltty\n"})
    assert verdicts(examine_ports(machine, GENERAL))["brltty"] == "WARN"
