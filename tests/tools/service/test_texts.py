"""The texts of a service's files."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.supervise.revival import HANG_GRACE_S
from onrig.tools.ports import UsbIdentity
from onrig.tools.service.texts import (
    HEADER_LINE,
    WATCHDOG_TIMEOUT_S,
    Service,
    device_unit,
    limits_text,
    quote_for_systemd,
    service_name,
    udev_rule_text,
    unit_text,
)

FTDI = UsbIdentity("0403", "6001", "A600XYZ")
SERVICE = Service(
    name="pendulum",
    rig="pendulum-hw",
    user="pi",
    group="dialout",
    python="/home/pi/onrig/.venv/bin/python",
    config=Path("/home/pi/my rig.yaml"),
    overrides=('selection={strategy: "FULL[Uniform]"}',),
    trusted=False,
    folder=Path("/home/pi/lab 100%"),
    port="/dev/serial/by-id/usb-FTDI_FT232R-if00",
    port_given=False,
    baud=921600,
    device="/dev/ttyUSB0",
    usb=FTDI,
    fade_s=0.3,
    for_user=False,
)


def values(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/usr/bin/python", "/usr/bin/python"),
        ("my rig.yaml", '"my rig.yaml"'),
        ('a="b"', '"a=\\"b\\""'),
        ("100%", '"100%%"'),
        ("$HOME", '"$$HOME"'),
        ("a\\b", '"a\\\\b"'),
        ("a\nb", '"a\\nb"'),
        ("", '""'),
    ],
)
def test_words_of_a_command_line_reach_the_program_unchanged(text: str, expected: str) -> None:
    assert quote_for_systemd(text) == expected


@settings(max_examples=50)
@given(st.text(max_size=30))
def test_a_word_is_one_word_on_one_line_and_reads_back_as_written(text: str) -> None:
    expected = quote_for_systemd(text)
    assert "\n" not in expected
    if not expected.startswith('"'):
        assert expected == text
        return
    assert re.fullmatch(r'"(?:[^"\\]|\\.)*"', expected, re.DOTALL)
    unescaped = re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), expected[1:-1], flags=re.DOTALL)
    assert unescaped.replace("%%", "%").replace("$$", "$") == text


def test_device_units_are_named_as_by_systemd_escape() -> None:
    assert device_unit("/dev/ttyUSB0") == "dev-ttyUSB0.device"
    assert device_unit("/dev/serial/by-id/usb-A_b.c") == "dev-serial-by\\x2did-usb\\x2dA_b.c.device"
    if shutil.which("systemd-escape"):
        path = "/dev/serial/by-id/usb-Ärger_#1:x.y"
        process = subprocess.run(
            ["systemd-escape", "--path", "--suffix=device", path], capture_output=True, text=True, check=True
        )
        assert device_unit(path) == process.stdout.strip()


def test_the_unit_runs_the_rig_and_makes_it_safe_when_it_ends() -> None:
    text = unit_text(SERVICE)
    unit = values(text)
    assert text.startswith(HEADER_LINE)
    assert unit["Type"] == "notify"
    assert unit["ExecStart"] == (
        '/home/pi/onrig/.venv/bin/python -m onrig.tools.cli run "/home/pi/my rig.yaml"'
        ' --set "selection={strategy: \\"FULL[Uniform]\\"}"'
    )
    assert unit["ExecStop"].endswith("-m onrig.tools.service.halt $MAINPID")
    assert unit["ExecStopPost"].endswith(f"-m onrig.tools.verbs.disarm {SERVICE.port} --baud 921600")
    assert unit["After"] == unit["Requires"] == device_unit(SERVICE.port or "")
    assert (unit["User"], unit["SupplementaryGroups"]) == ("pi", "dialout")
    assert unit["Restart"] == "no"
    assert (unit["LimitRTPRIO"], unit["LimitMEMLOCK"]) == ("99", "infinity")
    assert unit["WorkingDirectory"] == "/home/pi/lab 100%%"


def test_systemd_gives_up_on_a_hung_loop_only_after_the_supervisor() -> None:
    assert WATCHDOG_TIMEOUT_S / 2 >= HANG_GRACE_S
    assert values(unit_text(SERVICE))["WatchdogSec"] == str(WATCHDOG_TIMEOUT_S)


def test_a_device_on_another_line_is_disarmed_by_its_configuration_with_the_given_trust() -> None:
    lines = values(unit_text(SERVICE._replace(port=None, device="", usb=None, trusted=True)))
    assert "Requires" not in lines
    assert lines["After"] == "network-online.target"
    assert lines["ExecStart"].endswith(" --trust")
    run_words, disarm_words = (
        lines[key].partition('"/home/pi/my rig.yaml" ')[2] for key in ("ExecStart", "ExecStopPost")
    )
    assert run_words == disarm_words, "the device that ran is the one that is disarmed"


def test_a_given_port_and_a_user_unit() -> None:
    unit = values(unit_text(SERVICE._replace(port="/dev/ttyACM0", port_given=True, for_user=True, overrides=())))
    assert unit["ExecStart"].endswith('run "/home/pi/my rig.yaml" --device /dev/ttyACM0')
    assert "User" not in unit
    assert unit["WantedBy"] == "default.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("for_user", [False, True])
def test_systemd_itself_finds_nothing_wrong_with_the_unit(for_user: bool, tmp_path: Path) -> None:
    import sys

    folder = tmp_path / "a folder"
    folder.mkdir()
    service = SERVICE._replace(python=sys.executable, folder=folder, for_user=for_user)
    path = tmp_path / service.unit
    path.write_text(unit_text(service))
    systemd_arguments = ["--user"] if for_user else []
    process = subprocess.run(
        ["systemd-analyze", *systemd_arguments, "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "Failed to initialize manager" in process.stderr or "XDG_RUNTIME_DIR" in process.stderr:
        pytest.skip("there is no user manager here")
    own_lines = [line for line in process.stderr.splitlines() if service.unit in line]
    assert (own_lines, process.returncode) == ([], 0), process.stderr


def test_the_rule_matches_only_this_adapter_and_sets_its_latency() -> None:
    lines = udev_rule_text(SERVICE).splitlines()
    assert lines[0] == HEADER_LINE
    rules = [line for line in lines if not line.startswith("#")]
    assert rules == [
        'ACTION!="remove", SUBSYSTEM=="usb-serial", DRIVER=="ftdi_sio", ATTR{latency_timer}="1"',
        'SUBSYSTEM=="tty", ATTRS{idVendor}=="0403", ATTRS{idProduct}=="6001", ATTRS{serial}=="A600XYZ", '
        'SYMLINK+="onrig-pendulum", GROUP="dialout", MODE="0660", ENV{ID_MM_DEVICE_IGNORE}="1"',
    ]


@pytest.mark.parametrize("usb_identity", [None, UsbIdentity("2341", "0043", "")])
def test_other_ports_have_no_latency_setting(usb_identity: UsbIdentity | None) -> None:
    text = udev_rule_text(SERVICE._replace(usb=usb_identity))
    assert "latency_timer" not in text
    assert ("KERNEL" in text) is (usb_identity is None)
    assert "serial" not in text


def test_a_serial_number_cannot_break_out_of_its_rule() -> None:
    text = udev_rule_text(SERVICE._replace(usb=FTDI._replace(serial='A", RUN+="/bin/sh')))
    assert 'ATTRS{serial}=="A?, RUN+=?/bin/sh"' in text


def test_the_limits_apply_only_to_the_user() -> None:
    assert limits_text(SERVICE).splitlines() == [HEADER_LINE, "pi - rtprio 99", "pi - memlock unlimited"]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("/pendulum.yaml", "pendulum"),
        ("/a/my rig (2).yaml", "my-rig-2"),
        ("/a/%.yaml", "rig"),
        ("/lab/my-rig/run.yaml", "my-rig"),
        ("/run.yaml", "rig"),
    ],
)
def test_a_service_is_named_after_its_configuration(config: str, name: str) -> None:
    assert service_name(Path(config)) == name


def test_a_rigs_name_stays_within_the_line_of_the_description() -> None:
    text = unit_text(SERVICE._replace(rig="a\nUser=root %n"))
    assert values(text)["Description"] == "Onrig rig a User=root %%n (pendulum)"
    assert values(text)["User"] == "pi"
