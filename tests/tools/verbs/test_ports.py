from __future__ import annotations

import json
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.tools.machine import Machine
from onrig.tools.port_list import access_problem, as_data, rows, show
from onrig.tools.ports import PortFacts, UsbIdentity
from tests.tools.doctor.boards import FTDI_PATH, make_board, make_rig_machine

PICO_PORT = PortFacts(
    "/dev/ttyACM0", "/dev/ttyACM0", "", True, True, "dialout", None, (), False, UsbIdentity("2e8a", "0005", "E66", "")
)


def test_a_machine_without_ports_is_not_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(None, Machine(tmp_path)) == ExitCode.OK
    assert capsys.readouterr().out == "no serial ports\n"
    assert show("-", Machine(tmp_path)) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == []


def test_a_port_is_listed_with_its_holder_and_its_persistent_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(None, make_rig_machine(tmp_path)) == ExitCode.OK
    _, line = capsys.readouterr().out.splitlines()
    assert line.split()[0] == "/dev/ttyUSB0"
    assert line.endswith(f"minicom (pid 42)  {FTDI_PATH}")
    assert "no: the kernel's console" in line


def test_json_has_the_same_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show("-", make_rig_machine(tmp_path)) == ExitCode.OK
    (port,) = json.loads(capsys.readouterr().out)
    assert port == {
        "device": "/dev/ttyUSB0",
        "by_id": FTDI_PATH,
        "usb": None,
        "may_open": False,
        "why_not": "the kernel's console uses this port",
        "held_by": ["minicom (pid 42)"],
        "latency_ms": 16,
    }


def test_an_adapter_without_a_name_is_shown_by_its_ids() -> None:
    assert rows([PICO_PORT]) == (("/dev/ttyACM0", "2e8a:0005", "E66", "yes", "nobody", "-"),)
    assert as_data(PICO_PORT)["usb"] == {"vendor": "2e8a", "product": "0005", "serial": "E66", "name": ""}


def test_missing_permissions_prevent_a_user_from_opening_a_port() -> None:
    assert access_problem(PICO_PORT) is None
    assert access_problem(PICO_PORT._replace(accessible=False)) == "no permission (group dialout)"


def test_a_program_that_occupies_ports_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = make_board(tmp_path, {"usr/lib/udev/rules.d/85-brltty.rules": ""})
    assert show(None, machine) == 0
    assert "brltty claims common USB adapters" in capsys.readouterr().out
