"""The udev rule: 1 ms instead of FTDI's 16, a name that stays, the group that may open it, no ModemManager."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from onrig.tools.diagnosis.machine import Machine
from onrig.tools.installation.service import MARK, Service, UsbIdentity

_FTDI: Final = "0403"


def usb_identity(machine: Machine, device: str) -> UsbIdentity | None:
    """Read what the USB adapter behind a port (/dev/ttyUSB0) says of itself; None for a port that is none."""
    link = machine.path(f"sys/class/tty/{Path(device).name}/device")
    if not link.exists():
        return None
    at = link.resolve()
    while at != at.parent and at.is_relative_to(machine.root.resolve()):
        if (at / "idVendor").is_file():
            vendor, product, serial = ((at / n) for n in ("idVendor", "idProduct", "serial"))
            text = [p.read_text(errors="replace").strip() if p.is_file() else "" for p in (vendor, product, serial)]
            return UsbIdentity(*text)
        at = at.parent
    return None


def _quoted(text: str) -> str:
    """Write a value to match: what udev would take for a pattern or an end stands for any one character."""
    return '"' + "".join("?" if c in '"*[]\\|' or not c.isprintable() else c for c in text) + '"'


def rule_text(s: Service) -> str:
    """Write the rule."""
    lines = [MARK]
    match = ['SUBSYSTEM=="tty"', f"KERNEL=={_quoted(Path(s.device).name)}"]
    if s.usb is not None:
        match = ['SUBSYSTEM=="tty"', f"ATTRS{{idVendor}}=={_quoted(s.usb.vendor)}"]
        match.append(f"ATTRS{{idProduct}}=={_quoted(s.usb.product)}")
        if s.usb.serial:
            match.append(f"ATTRS{{serial}}=={_quoted(s.usb.serial)}")
        if s.usb.vendor == _FTDI:
            lines.append("# An FTDI adapter keeps data back for 16 ms unless told otherwise.")
            lines.append('ACTION=="add", SUBSYSTEM=="usb-serial", DRIVER=="ftdi_sio", ATTR{latency_timer}="1"')
    lines.append(f"# The rig's port by a name that stays, and ModemManager kept off it: /dev/onrig-{s.name}")
    grant = [f'SYMLINK+="onrig-{s.name}"', f'GROUP="{s.group}"', 'MODE="0660"', 'ENV{ID_MM_DEVICE_IGNORE}="1"']
    lines.append(", ".join(match + grant))
    return "\n".join(lines) + "\n"
