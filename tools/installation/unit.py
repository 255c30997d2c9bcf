"""The systemd unit: ready when the loop runs, petted while it ticks, safe when it ends.

What makes the actuator safe, in this order: the loop itself (``ExecStop`` asks it over shared memory, even where the
supervisor hangs), the device's own lease (a few periods after the last command, whatever happens to this machine), and
``ExecStopPost``, which asks the device once more when no process is left.
"""

from __future__ import annotations

from typing import Final

from onrig.runtime.supervise.watchdog import GIVE_UP_S
from onrig.tools.installation.service import MARK, Service

_ENDING_S: Final = 60
"""More than the supervisor gives all its processes together."""
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:@,")
WATCHDOG_S: Final = 2 * round(GIVE_UP_S)
"""Later than the supervisor gives up a loop that hangs and ends the run in order: systemd is the second line."""


def word(text: str) -> str:
    """Quote one word of a command line for systemd (systemd.service(5), *Command lines*)."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if set(text) <= _PLAIN and text else f'"{escaped}"'


def device_unit(path: str) -> str:
    """Name of the unit that stands for a device file (systemd-escape --path --suffix=device)."""
    parts = path.strip("/")
    out = []
    for i, byte in enumerate(parts.encode()):
        char = chr(byte)
        if char == "/":
            out.append("-")
        elif (char.isascii() and char.isalnum()) or char in ":_" or (char == "." and i > 0):
            out.append(char)
        else:
            out.append(f"\\x{byte:02x}")
    return f"{''.join(out)}.device"


def unit_text(s: Service) -> str:
    """Write the unit."""
    run = [s.python, "-m", "onrig.tools.cli", "run", str(s.config)]
    if s.port_given:
        run += ["--device", s.port]
    for assignment in s.overrides:
        run += ["--set", assignment]
    disarm = [s.python, "-m", "onrig.tools.disarm", s.port, "--baud", str(s.baud)]
    halt = [s.python, "-m", "onrig.tools.installation.halt"]
    who = [] if s.for_user else [f"User={s.user}", f"SupplementaryGroups={s.group}"]
    lines = [
        MARK,
        "[Unit]",
        f"Description=Onrig rig {' '.join(s.rig.split()).replace('%', '%%')} ({s.name})",
        f"Requires={device_unit(s.port)}",
        f"After={device_unit(s.port)}",
        "",
        "[Service]",
        "# READY=1 once the loop runs; WATCHDOG=1 only while it looks and ticks (runtime/supervise/notify.py).",
        "Type=notify",
        "NotifyAccess=main",
        f"WatchdogSec={WATCHDOG_S}",
        "TimeoutStartSec=180",
        *who,
        # A path with blanks stands here as it is.
        f"WorkingDirectory={str(s.folder).replace('%', '%%')}",
        f"ExecStart={' '.join(map(word, run))}",
        "# Fades out and disarms, past a supervisor that hangs; SIGTERM to the supervisor follows.",
        f"ExecStop=-{' '.join(map(word, halt))} $MAINPID",
        "# When nothing is left of the run, however it ended: the device is asked itself. Its lease was faster.",
        f"ExecStopPost=-{' '.join(map(word, disarm))}",
        "KillMode=mixed",
        f"TimeoutStopSec={_ENDING_S + round(s.fade_s)}",
        "SuccessExitStatus=130",
        "# A rig that stopped by itself is looked at by a person before it moves again.",
        "Restart=no",
        "# A learner that runs out of memory is started again by the supervisor; the loop goes on.",
        "OOMPolicy=continue",
        "LimitRTPRIO=99",
        "LimitMEMLOCK=infinity",
        "NoNewPrivileges=yes",
        "",
        "[Install]",
        f"WantedBy={'default' if s.for_user else 'multi-user'}.target",
    ]
    return "\n".join(lines) + "\n"
