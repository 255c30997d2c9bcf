"""Facts about serial ports, on machines made of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onrig.tools.machine import Machine
from onrig.tools.ports import (
    PortFacts,
    UsbIdentity,
    list_ports,
    missing_port_problem,
    persistent_name,
    read_port,
    read_ports,
    wrong_port_problem,
)
from tests.tools.doctor.boards import FTDI_PATH, make_board, make_rig_machine


@pytest.mark.parametrize("path", ["/dev/ttyUSB0", FTDI_PATH])
def test_the_facts_are_read_from_dev_sys_and_proc(path: str, tmp_path: Path) -> None:
    facts = read_port(make_rig_machine(tmp_path), path)
    assert facts == PortFacts(
        path, "/dev/ttyUSB0", FTDI_PATH, False, True, "dialout", 16, ("minicom (pid 42)",), console=True
    )


def test_a_process_that_ends_meanwhile_hides_no_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = make_rig_machine(tmp_path)
    (tmp_path / "proc/41/fd").mkdir(parents=True)
    original_listdir = os.listdir

    def listdir_and_vanish(path: Path) -> list[str]:
        if "41" in Path(path).parts:
            raise FileNotFoundError(2, "No such file or directory")
        return original_listdir(path)

    monkeypatch.setattr(os, "listdir", listdir_and_vanish)
    assert read_port(machine, "/dev/ttyUSB0").holders == ("minicom (pid 42)",)


def test_dangling_and_circular_links_are_not_ports(tmp_path: Path) -> None:
    machine = make_board(tmp_path, {}, {"dev/a": "b", "dev/b": "a", "dev/c": "gone"})
    assert read_port(machine, "/dev/a").device == ""
    assert read_port(machine, "/dev/c").device == ""


def test_the_adapter_is_found_through_sys(tmp_path: Path) -> None:
    usb_path = "sys/devices/platform/usb1/1-1"
    machine = make_board(
        tmp_path,
        {
            "dev/ttyUSB0": "",
            "dev/ttyAMA0": "",
            f"{usb_path}/idVendor": "0403\n",
            f"{usb_path}/idProduct": "6001\n",
            f"{usb_path}/serial": "A600XYZ\n",
            f"{usb_path}/manufacturer": "FTDI\n",
            f"{usb_path}/product": "FT232R USB UART\n",
            f"{usb_path}/1-1:1.0/ttyUSB0/port_number": "0",
            "sys/class/tty/ttyAMA0/device/x": "",
        },
        {"sys/class/tty/ttyUSB0": "../../devices/platform/usb1/1-1/1-1:1.0/ttyUSB0/tty/ttyUSB0"},
    )
    tty = tmp_path / usb_path / "1-1:1.0/ttyUSB0/tty/ttyUSB0"
    tty.mkdir(parents=True)
    (tty / "device").symlink_to("../../../ttyUSB0")
    board_port, usb_port = read_ports(machine)
    assert (board_port.device, board_port.usb) == ("/dev/ttyAMA0", None)
    assert usb_port.usb == UsbIdentity("0403", "6001", "A600XYZ", "FTDI FT232R USB UART")


def test_ports_with_other_names_are_found_by_their_id(tmp_path: Path) -> None:
    machine = make_board(tmp_path, {"dev/ttyXR0": ""}, {"dev/serial/by-id/usb-EXAR": "../../ttyXR0"})
    assert [(p.device, p.name) for p in read_ports(machine)] == [("/dev/ttyXR0", "/dev/serial/by-id/usb-EXAR")]


def test_a_wrong_port_is_answered_with_the_existing_ports(tmp_path: Path) -> None:
    machine = make_rig_machine(tmp_path / "machine")
    ports_text = f"ports: {FTDI_PATH} (open in minicom (pid 42))"
    assert (
        missing_port_problem("/dev/ttyNOWHERE7", machine) == f"no such port (No such file or directory); {ports_text}"
    )
    assert wrong_port_problem(str(tmp_path), machine) == f"not a serial port; {ports_text}"
    assert missing_port_problem("/dev/\0", machine) == f"no such port (embedded null byte); {ports_text}"
    assert (missing_port_problem("/dev/null", machine), wrong_port_problem("/dev/null", machine)) == (None, None)


def test_a_device_file_is_replaced_by_the_name_that_survives_replugging(tmp_path: Path) -> None:
    machine = make_board(
        tmp_path,
        {"dev/ttyUSB0": "", "dev/ttyAMA0": ""},
        {FTDI_PATH.lstrip("/"): "../../ttyUSB0", "dev/my-rig": "ttyUSB0"},
    )
    assert persistent_name("/dev/ttyUSB0", machine) == FTDI_PATH
    for path in (FTDI_PATH, "/dev/my-rig", "/dev/ttyAMA0", "/dev/gone"):
        assert persistent_name(path, machine) == path


def test_a_machine_without_ports_reports_it(tmp_path: Path) -> None:
    assert list_ports(Machine(tmp_path)).startswith("this machine has no USB or board serial ports")
