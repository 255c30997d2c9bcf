"""Machines made of files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from onrig.tools.doctor.finding import Check, Needs, Verdict
from onrig.tools.machine import Machine

RIG = Needs(config="rig.yaml")
LOCKSTEP_NEEDS = Needs(config="pendulum", realtime=False)
GENERAL_NEEDS = Needs()
FTDI_PATH = "/dev/serial/by-id/usb-FTDI_FT232R_A600-if00-port0"
PI_5 = {"proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0", "boot/firmware/cmdline.txt": "quiet"}


def make_board(root: Path, files: dict[str, str], links: dict[str, str] | None = None) -> Machine:
    """Build one under ``root``."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path, target in (links or {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    return Machine(root)


def make_rig_machine(root: Path) -> Machine:
    """One with an FTDI adapter that minicom holds."""
    return make_board(
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
            FTDI_PATH.lstrip("/"): "../../ttyUSB0",
            "proc/42/fd/3": "/dev/ttyUSB0",
            "proc/43/fd/0": "/dev/pts/1",
        },
    )


def verdicts(checks: Iterable[Check]) -> dict[str, str]:
    """Verdicts by name; checks that every problem has a remedy and nothing else has one."""
    verdict_by_name = {}
    for check in checks:
        assert bool(check.remedy) is (check.verdict is not Verdict.PASS), check
        assert check.name not in verdict_by_name
        assert "\n" not in check.finding + check.remedy
        verdict_by_name[check.name] = check.verdict.value
    return verdict_by_name


def checks_by_name(checks: Iterable[Check]) -> dict[str, Check]:
    """Checks by name."""
    return {check.name: check for check in checks}
