from __future__ import annotations

import os
from pathlib import Path

import pytest

from onrig.tools.doctor.machine import Machine
from onrig.tools.doctor.ports import PortFacts, examine_ports, general, judge_ports, modem_manager, read_ports
from tests.tools.doctor.boards import GENERAL, RIG, board, by_name, verdicts

BY_ID = "/dev/serial/by-id/usb-FTDI_FT232R_A600-if00-port0"
GOOD = PortFacts(BY_ID, "/dev/ttyUSB0", BY_ID, True, True, "dialout", 1, (), False)


def rig(root: Path) -> Machine:
    return board(
        root,
        {
            "dev/ttyUSB0": "",
            "etc/group": f"root:x:{os.getgid() + 1}:\ndialout:x:{os.getgid()}:pi\n",
            "sys/bus/usb-serial/devices/ttyUSB0/latency_timer": "16\n",
            "proc/42/comm": "minicom\n",
            "proc/43/comm": "bash\n",
            "proc/cmdline": "console=ttyUSB0,115200 quiet",
        },
        {
            BY_ID.lstrip("/"): "../../ttyUSB0",
            "proc/42/fd/3": "/dev/ttyUSB0",
            "proc/43/fd/0": "/dev/pts/1",
        },
    )


def test_a_port_by_its_lasting_name_passes() -> None:
    assert set(verdicts(judge_ports(GOOD, RIG, "pi")).values()) == {"PASS"}


def test_a_missing_port_fails_with_one_line() -> None:
    missing = PortFacts("/dev/ttyUSB7", "", "", False, False, "", None, (), False)
    (check,) = judge_ports(missing, RIG, "pi")
    assert (check.verdict.value, check.found) == ("FAIL", "/dev/ttyUSB7: there is no such port")


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
    check = by_name(judge_ports(facts, RIG, "pi"))[name]
    assert check.verdict.value == verdict
    assert remedy in check.remedy


def test_an_adapter_without_a_latency_timer_has_no_line_for_it() -> None:
    assert "port-latency" not in verdicts(judge_ports(GOOD._replace(latency_ms=None), RIG, "pi"))


@pytest.mark.parametrize("path", ["/dev/ttyUSB0", BY_ID])
def test_the_facts_come_from_dev_sys_and_proc(path: str, tmp_path: Path) -> None:
    facts = read_ports(rig(tmp_path), path)
    assert facts == PortFacts(
        path, "/dev/ttyUSB0", BY_ID, False, True, "dialout", 16, ("minicom (pid 42)",), console=True
    )


def test_a_process_that_ends_meanwhile_hides_no_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = rig(tmp_path)
    (tmp_path / "proc/41/fd").mkdir(parents=True)
    real = os.listdir

    def vanishing(path: Path) -> list[str]:
        if "41" in Path(path).parts:
            raise FileNotFoundError(2, "No such file or directory")
        return real(path)

    monkeypatch.setattr(os, "listdir", vanishing)
    assert read_ports(machine, "/dev/ttyUSB0").holders == ("minicom (pid 42)",)


def test_links_that_lead_nowhere_or_round_and_round_are_no_port(tmp_path: Path) -> None:
    machine = board(tmp_path, {}, {"dev/a": "b", "dev/b": "a", "dev/c": "gone"})
    assert read_ports(machine, "/dev/a").device == ""
    assert read_ports(machine, "/dev/c").device == ""


def test_without_a_configuration_all_ports_are_listed(tmp_path: Path) -> None:
    found = by_name(examine_ports(rig(tmp_path), GENERAL))
    assert found["ports"].verdict.value == "PASS"
    assert "/dev/ttyUSB0" in found["ports"].found
    assert "minicom (pid 42)" in found["ports"].found
    assert found["port-latency"].verdict.value == "WARN"


def test_no_port_at_all_is_well_for_a_twin(tmp_path: Path) -> None:
    assert verdicts(examine_ports(Machine(tmp_path), GENERAL)) == {"ports": "PASS"}


def test_a_port_without_permission_is_a_warning_in_general() -> None:
    check = general([GOOD, GOOD._replace(accessible=False)])
    assert (check.verdict.value, "dialout" in check.remedy) == ("WARN", True)


def test_modem_manager_is_told_of(tmp_path: Path) -> None:
    machine = board(tmp_path, {"proc/7/comm": "ModemManager\n"})
    assert modem_manager(machine)
    assert verdicts(examine_ports(machine, GENERAL))["modem-manager"] == "WARN"
