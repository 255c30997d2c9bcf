"""Parameters of a service, and the templates of its files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from onrig.runtime.supervise.revival import HANG_GRACE_S
from onrig.tools.ports import UsbIdentity

HEADER_LINE = "# Written by Onrig (onrig service CONFIG --write), which replaces it."
"""First line of every file; only files that begin with it are replaced."""


class Service(NamedTuple):
    """Rig that is run as a service."""

    name: str
    """Name of the service; the unit is ``onrig-NAME.service``."""
    rig: str
    user: str
    group: str
    """Group that may open the port."""
    python: str
    config: Path
    overrides: tuple[str, ...]
    trusted: bool
    """Whether the Python files that the configuration names are trusted, regardless of who owns them."""
    folder: Path
    """Parent folder of ``runs``, which holds the run folders."""
    port: str | None
    """Serial port; None if the configuration uses another transport."""
    port_given: bool
    """Whether the port replaces the configured one."""
    baud: int
    device: str
    """Device file of the port, such as /dev/ttyUSB0; empty without a port."""
    usb: UsbIdentity | None
    """USB identity; None if the port is not a USB adapter."""
    fade_s: float
    for_user: bool
    """Whether the unit belongs to the user's service manager, which needs no root."""

    @property
    def unit(self) -> str:
        """Name of the systemd unit."""
        return f"onrig-{self.name}.service"


class ServiceFile(NamedTuple):
    """File of the service, with its path and content."""

    path: Path
    text: str


_GENERIC_NAME: Final = "run"
"""Name of the configuration that `onrig init` writes in the folder of each rig."""


def service_name(config: Path) -> str:
    """Return the name of a service: the configuration's name or, for a ``run.yaml``, its folder's name.

    The name is made valid for systemd, udev and symlinks.
    """
    name = config.parent.name if config.stem == _GENERIC_NAME else config.stem
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "rig"


_FTDI_VENDOR_ID: Final = "0403"


def _quote_for_udev(text: str) -> str:
    """Quote a value to be matched, replacing characters with a special meaning to udev by ``?``."""
    return '"' + "".join("?" if c in '"*[]\\|' or not c.isprintable() else c for c in text) + '"'


def udev_rule_text(s: Service) -> str:
    """Return the content of the udev rule file."""
    lines = [HEADER_LINE]
    match_keys = ['SUBSYSTEM=="tty"', f"KERNEL=={_quote_for_udev(Path(s.device).name)}"]
    if s.usb is not None:
        match_keys = ['SUBSYSTEM=="tty"', f"ATTRS{{idVendor}}=={_quote_for_udev(s.usb.vendor)}"]
        match_keys.append(f"ATTRS{{idProduct}}=={_quote_for_udev(s.usb.product)}")
        if s.usb.serial:
            match_keys.append(f"ATTRS{{serial}}=={_quote_for_udev(s.usb.serial)}")
        if s.usb.vendor == _FTDI_VENDOR_ID:
            lines.append("# By default, FTDI adapters delay data by 16 ms.")
            lines.append('ACTION!="remove", SUBSYSTEM=="usb-serial", DRIVER=="ftdi_sio", ATTR{latency_timer}="1"')
    lines.append(f"# Persistent name of the rig's port, without ModemManager: /dev/onrig-{s.name}")
    assignments = [f'SYMLINK+="onrig-{s.name}"', f'GROUP="{s.group}"', 'MODE="0660"', 'ENV{ID_MM_DEVICE_IGNORE}="1"']
    lines.append(", ".join(match_keys + assignments))
    return "\n".join(lines) + "\n"


_STOP_TIMEOUT_S: Final = 60
"""Timeout for stopping the service, which exceeds the supervisor's total shutdown timeout."""
_UNQUOTED: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:@,")
WATCHDOG_TIMEOUT_S: Final = 2 * round(HANG_GRACE_S)
"""Timeout of systemd's watchdog, which exceeds the supervisor's timeout for a hung loop, because systemd is the second
line of defence."""


def quote_for_systemd(text: str) -> str:
    """Quote one word of a command line for systemd (systemd.service(5), *Command lines*)."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if set(text) <= _UNQUOTED and text else f'"{escaped}"'


def device_unit(path: str) -> str:
    """Return the name of the unit for a device file (systemd-escape --path --suffix=device)."""
    stripped_path = path.strip("/")
    characters = []
    for i, byte in enumerate(stripped_path.encode()):
        char = chr(byte)
        if char == "/":
            characters.append("-")
        elif (char.isascii() and char.isalnum()) or char in ":_" or (char == "." and i > 0):
            characters.append(char)
        else:
            characters.append(f"\\x{byte:02x}")
    return f"{''.join(characters)}.device"


def unit_text(s: Service) -> str:
    """Return the content of the systemd unit."""
    run = [s.python, "-m", "onrig.tools.cli", "run", str(s.config)]
    if s.port_given and s.port is not None:
        run += ["--device", s.port]
    set_options = [argument for assignment in s.overrides for argument in ("--set", assignment)]
    set_options += ["--trust"] if s.trusted else []
    run += set_options
    dependencies = ["Wants=network-online.target", "After=network-online.target"]
    disarm_command = [s.python, "-m", "onrig.tools.verbs.disarm"]
    if s.port is not None:
        dependencies = [f"Requires={device_unit(s.port)}", f"After={device_unit(s.port)}"]
        disarm_command += [s.port, "--baud", str(s.baud)]
    else:
        disarm_command += [str(s.config), *set_options]
    halt_command = [s.python, "-m", "onrig.tools.service.halt"]
    user_lines = [] if s.for_user else [f"User={s.user}", f"SupplementaryGroups={s.group}"]
    lines = [
        HEADER_LINE,
        "[Unit]",
        f"Description=Onrig rig {' '.join(s.rig.split()).replace('%', '%%')} ({s.name})",
        *dependencies,
        "",
        "[Service]",
        "# READY=1 once the loop runs; WATCHDOG=1 only while it polls and ticks (runtime/supervise/notify.py).",
        "Type=notify",
        "NotifyAccess=main",
        f"WatchdogSec={WATCHDOG_TIMEOUT_S}",
        "TimeoutStartSec=180",
        *user_lines,
        # Paths with blanks need no quotes here.
        f"WorkingDirectory={str(s.folder).replace('%', '%%')}",
        f"ExecStart={' '.join(map(quote_for_systemd, run))}",
        "# Fades out and disarms, even if the supervisor hangs; SIGTERM to the supervisor follows.",
        f"ExecStop=-{' '.join(map(quote_for_systemd, halt_command))} $MAINPID",
        "# Disarms the device directly, however the run has ended; its lease has already expired.",
        f"ExecStopPost=-{' '.join(map(quote_for_systemd, disarm_command))}",
        "KillMode=mixed",
        f"TimeoutStopSec={_STOP_TIMEOUT_S + round(s.fade_s)}",
        "SuccessExitStatus=130",
        "# A rig that stopped by itself must be inspected before it moves again.",
        "Restart=no",
        "# A learner that runs out of memory is restarted by the supervisor; the loop continues.",
        "OOMPolicy=continue",
        "LimitRTPRIO=99",
        "LimitMEMLOCK=infinity",
        "NoNewPrivileges=yes",
        "",
        "[Install]",
        f"WantedBy={'default' if s.for_user else 'multi-user'}.target",
    ]
    return "\n".join(lines) + "\n"


def limits_text(s: Service) -> str:
    """Return the content of the file for pam_limits (limits.conf(5))."""
    return f"{HEADER_LINE}\n{s.user} - rtprio 99\n{s.user} - memlock unlimited\n"
