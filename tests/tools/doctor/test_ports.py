from __future__ import annotations

from pathlib import Path

import pytest

from onrig.tools.doctor.ports import check_ports, examine_ports, summarise_ports
from onrig.tools.machine import Machine
from onrig.tools.ports import PortFacts
from tests.tools.doctor.boards import (
    FTDI_PATH,
    GENERAL_NEEDS,
    RIG,
    checks_by_name,
    make_board,
    make_rig_machine,
    verdicts,
)

ACCESSIBLE_PORT = PortFacts(FTDI_PATH, "/dev/ttyUSB0", FTDI_PATH, True, True, "dialout", 1, (), False)


def test_a_port_by_its_persistent_name_passes() -> None:
    assert set(verdicts(check_ports(ACCESSIBLE_PORT, RIG, "pi")).values()) == {"PASS"}


def test_a_missing_port_fails_with_one_line() -> None:
    missing = PortFacts("/dev/ttyUSB7", "", "", False, False, "", None, (), False)
    (check,) = check_ports(missing, RIG, "pi")
    assert (check.verdict.value, check.finding) == ("FAIL", "/dev/ttyUSB7: no such port")


@pytest.mark.parametrize(
    ("facts", "name", "verdict", "remedy"),
    [
        (ACCESSIBLE_PORT._replace(accessible=False), "port", "FAIL", "sudo usermod -aG dialout pi"),
        (ACCESSIBLE_PORT._replace(is_terminal=False), "port", "FAIL", "device.port.path"),
        (ACCESSIBLE_PORT._replace(path="/dev/ttyUSB0"), "port", "WARN", FTDI_PATH),
        (ACCESSIBLE_PORT._replace(path="/dev/onrig-pendulum"), "port", "PASS", ""),
        (ACCESSIBLE_PORT._replace(console=True), "port", "FAIL", "raspi-config"),
        (
            ACCESSIBLE_PORT._replace(latency_ms=16),
            "port-latency",
            "WARN",
            "echo 1 | sudo tee /sys/bus/usb-serial/devices/ttyUSB0",
        ),
        (ACCESSIBLE_PORT._replace(holders=("minicom (pid 42)",)), "port-holder", "FAIL", "onrig stop"),
    ],
)
def test_obstacles_to_opening_a_port_are_named(facts: PortFacts, name: str, verdict: str, remedy: str) -> None:
    check = checks_by_name(check_ports(facts, RIG, "pi"))[name]
    assert check.verdict.value == verdict
    assert remedy in check.remedy


def test_an_adapter_without_a_latency_timer_has_no_line_for_it() -> None:
    assert "port-latency" not in verdicts(check_ports(ACCESSIBLE_PORT._replace(latency_ms=None), RIG, "pi"))


def test_without_a_configuration_all_ports_are_listed(tmp_path: Path) -> None:
    checks = checks_by_name(examine_ports(make_rig_machine(tmp_path), GENERAL_NEEDS))
    assert checks["ports"].verdict.value == "PASS"
    assert "/dev/ttyUSB0" in checks["ports"].finding
    assert "minicom (pid 42)" in checks["ports"].finding
    assert checks["port-latency"].verdict.value == "WARN"


def test_having_no_port_is_fine_for_a_twin(tmp_path: Path) -> None:
    assert verdicts(examine_ports(Machine(tmp_path), GENERAL_NEEDS)) == {"ports": "PASS"}


def test_a_port_without_permission_is_a_warning_in_general() -> None:
    check = summarise_ports([ACCESSIBLE_PORT, ACCESSIBLE_PORT._replace(accessible=False)])
    assert (check.verdict.value, "dialout" in check.remedy) == ("WARN", True)


def test_modem_manager_is_reported(tmp_path: Path) -> None:
    machine = make_board(tmp_path, {"proc/7/comm": "ModemManager\n"})
    assert verdicts(examine_ports(machine, GENERAL_NEEDS))["modem-manager"] == "WARN"


def test_brltty_is_reported_while_its_rules_are_installed(tmp_path: Path) -> None:
    machine = make_board(tmp_path, {"usr/lib/udev/rules.d/85-brltty.rules": ""})
    check = checks_by_name(examine_ports(machine, GENERAL_NEEDS))["brltty"]
    assert check.verdict.value == "WARN"
    assert "CH340" in check.finding
    assert "sudo ln -s /dev/null /etc/udev/rules.d/85-brltty.rules" in check.remedy
    (tmp_path / "etc/udev/rules.d").mkdir(parents=True)
    (tmp_path / "etc/udev/rules.d/85-brltty.rules").symlink_to("/dev/null")
    assert "brltty" not in verdicts(examine_ports(machine, GENERAL_NEEDS))
    make_board(tmp_path, {"proc/8/comm": "brltty\n"})
    assert verdicts(examine_ports(machine, GENERAL_NEEDS))["brltty"] == "WARN"
