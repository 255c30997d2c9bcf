"""Serial ports of a machine. No port is opened, since that would reset many boards and disturb other users."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from onrig.tools.machine import Machine

_PATTERNS: Final = ("dev/ttyUSB*", "dev/ttyACM*", "dev/ttyAMA*")
_BY_ID_FOLDER: Final = "dev/serial/by-id"
_MAX_LINK_FILE_BYTES: Final = 4096
UDEV_COMMAND: Final = "onrig service CONFIG --write"
"""Command that writes a udev rule for the rig's port."""


class UsbIdentity(NamedTuple):
    """Identity of a USB adapter according to /sys; vendor and product are hexadecimal ids."""

    vendor: str
    product: str
    serial: str
    """Serial number; empty if the adapter has none, so that it cannot be distinguished from others of its kind."""
    name: str = ""
    """Names of the manufacturer and the product."""


class PortFacts(NamedTuple):
    """Facts about one port."""

    path: str
    """Path by which the port was requested, such as /dev/ttyUSB0 or a link to it."""
    device: str
    """Device file that the path leads to, such as /dev/ttyUSB0; empty if it is missing."""
    persistent_path: str
    """Path of the port under /dev/serial/by-id; empty if it has none."""
    is_terminal: bool
    accessible: bool
    """Whether the port's permissions allow this user to open it."""
    group: str
    latency_ms: int | None
    """FTDI's latency timer; None for other adapters."""
    holders: tuple[str, ...]
    """``NAME (pid N)`` of each process that has the port open and is visible to this user."""
    console: bool
    """Whether the kernel's console uses this port."""
    usb: UsbIdentity | None = None
    """None if the port is not a USB adapter."""

    @property
    def name(self) -> str:
        """Path for the configuration: one that survives replugging, if available."""
        return self.persistent_path or self.device


def read_ports(machine: Machine) -> list[PortFacts]:
    """Return the USB and on-board serial ports, sorted by device file."""
    paths = {path for pattern in _PATTERNS for path in machine.glob(pattern)}
    paths |= {
        device for link in machine.glob(f"{_BY_ID_FOLDER}/*") if (device := _device_of(machine, link)) is not None
    }
    return [read_port(machine, f"/{path}") for path in sorted(paths)]


def read_port(machine: Machine, path: str) -> PortFacts:
    """Return the facts about the port at ``path``, which may be missing."""
    relative_path = path.lstrip("/")
    device = _device_of(machine, relative_path)
    if device is None:
        return PortFacts(path, "", "", False, False, "", None, (), False)
    file = machine.path(device)
    name = Path(device).name
    persistent_path = next(
        (f"/{link}" for link in machine.glob(f"{_BY_ID_FOLDER}/*") if _device_of(machine, link) == device), ""
    )
    return PortFacts(
        path,
        f"/{device}",
        persistent_path,
        file.is_char_device(),
        os.access(file, os.R_OK | os.W_OK),
        _group_name(machine, file.stat().st_gid),
        machine.number(f"sys/bus/usb-serial/devices/{name}/latency_timer"),
        _holders(machine, f"/{device}"),
        any(w.partition(",")[0] == f"console={name}" for w in (machine.text("proc/cmdline") or "").split()),
        _usb_identity(machine, name),
    )


def persistent_name(path: str, machine: Machine | None = None) -> str:
    """Return the by-id path of the port at ``path``, which survives replugging. Return ``path`` itself if there is none
    or ``path`` is already a link.
    """
    port = read_port(machine or Machine(), path)
    return port.persistent_path if port.persistent_path and port.path == port.device else path


def _device_of(machine: Machine, path: str) -> str | None:
    """Follow links under the root, and return the device's path without a leading slash, or None if a link dangles."""
    for _ in range(8):
        target = machine.link(path)
        if target is None:
            return path if machine.exists(path) else None
        path = os.path.normpath(os.path.join("/", os.path.dirname(path), target)).lstrip("/")
    return None


def _group_name(machine: Machine, gid: int) -> str:
    for line in (machine.text("etc/group") or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(gid):
            return fields[0]
    return str(gid)


def _holders(machine: Machine, device: str) -> tuple[str, ...]:
    return tuple(
        f"{machine.text(f'proc/{pid}/comm') or '?'} (pid {pid})"
        for pid in pids(machine)
        if any(machine.link(f"proc/{pid}/fd/{fd}") == device for fd in machine.names(f"proc/{pid}/fd"))
    )


class InterferingProgram(NamedTuple):
    """A program that claims serial ports."""

    name: str
    effect: str
    remedy: str


def interfering_programs(machine: Machine) -> list[InterferingProgram]:
    """Find the programs on this machine that interfere with serial ports."""
    programs = []
    running_programs = {machine.text(f"proc/{pid}/comm") for pid in pids(machine)}
    if "ModemManager" in running_programs:
        remedy = (
            "sudo systemctl disable --now ModemManager, or keep it away from the rig's port with a udev rule: "
            f"{UDEV_COMMAND}"
        )
        programs.append(
            InterferingProgram("modem-manager", "ModemManager probes every serial port that is plugged in", remedy)
        )
    rules = [path for path in machine.glob("usr/lib/udev/rules.d/*brltty*.rules") if not _is_masked(machine, path)]
    if rules or "brltty" in running_programs:
        masks = " ".join(f"sudo ln -s /dev/null /etc/udev/rules.d/{Path(path).name};" for path in rules)
        remedy = f"sudo apt remove brltty{f', or {masks} sudo udevadm control --reload' if masks else ''}; replug"
        description = (
            "brltty claims common USB adapters (CH340, CP210x, FTDI) as Braille displays: the port vanishes immediately"
        )
        programs.append(InterferingProgram("brltty", description, remedy))
    return programs


def _is_masked(machine: Machine, rule: str) -> bool:
    """Return whether the administrator has replaced a udev rule with one of the same name."""
    name = Path(rule).name
    return machine.exists(f"etc/udev/rules.d/{name}") or machine.link(f"etc/udev/rules.d/{name}") is not None


def pids(machine: Machine) -> list[str]:
    """Return the ids of all processes."""
    return [name for name in machine.names("proc") if name.isdigit()]


def _usb_identity(machine: Machine, name: str) -> UsbIdentity | None:
    """Return the identity of a port's USB adapter: the first USB device above ``name`` (``ttyUSB0``) in /sys."""
    link = machine.path(f"sys/class/tty/{name}/device")
    if not link.exists():
        return None
    folder = link.resolve()
    root = machine.root.resolve()
    while folder != folder.parent and folder.is_relative_to(root):
        if (folder / "idVendor").is_file():
            relative = folder.relative_to(root)
            vendor, product, serial, maker, title = (
                machine.text(str(relative / file)) or ""
                for file in ("idVendor", "idProduct", "serial", "manufacturer", "product")
            )
            return UsbIdentity(vendor, product, serial, f"{maker} {title}".strip())
        folder = folder.parent
    return None


# -- wrong ports -----------------------------------------------------------------------------------------------------


def missing_port_problem(path: str, machine: Machine | None = None) -> str | None:
    """Return a message that lists the available ports if ``path`` is missing, or None if it exists."""
    try:
        Path(path).stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return f"no such port ({reason}); {list_ports(machine)}"
    return None


def wrong_port_problem(path: str, machine: Machine | None = None) -> str | None:
    """Return a message that names the right port or lists the available ones if ``path`` exists but is not a port,
    otherwise None.
    """
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return None
    if stat.S_ISCHR(mode) or stat.S_ISSOCK(mode):
        return None
    if stat.S_ISREG(mode):
        try:
            with Path(path).open(errors="replace") as file:
                content = file.read(_MAX_LINK_FILE_BYTES).strip()
        except OSError:
            content = ""
        if content.startswith("/dev/"):
            return f"not a serial port, but a file that names one: use --device {content}"
    return f"not a serial port; {list_ports(machine)}"


def list_ports(machine: Machine | None = None) -> str:
    """List the ports of this machine in one line, each with the processes that have it open."""
    ports = read_ports(machine or Machine())
    if not ports:
        return "this machine has no USB or board serial ports: plug the device in, or start `onrig twin`"
    names = (p.name + (f" (open in {', '.join(p.holders)})" if p.holders else "") for p in ports)
    return f"ports: {', '.join(names)}"
