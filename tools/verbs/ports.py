"""``onrig ports``: the serial ports of this machine; no port is opened."""

from __future__ import annotations

import json
import sys

from onrig.runtime import registry
from onrig.runtime.exit_codes import ExitCode
from onrig.tools.machine import Machine
from onrig.tools.ports import PortFacts, read_ports, rivals
from onrig.tools.terminal import Table, VerbParser


def main(arguments: list[str], machine: Machine | None = None) -> int:
    """List them; returns the exit code, 0 even if there are none."""
    p = VerbParser(
        prog="onrig ports",
        description=__doc__,
        epilog="Configure the name by id (device.port.path, --device): it survives replugging.  Holders are the "
        "processes visible to this user.",
    )
    p.add_argument("--json", action="store_true", help="print a JSON list instead of the table")
    args = p.parse_args(arguments)
    machine = machine or Machine()
    ports = read_ports(machine)
    if args.json:
        sys.stdout.write(json.dumps([as_data(port) for port in ports], indent=1) + "\n")
    elif not ports:
        print("no serial ports")
    else:
        print(Table("port", ("device on USB", "serial number", "may open", "held by", "name by id"), rows(ports)))
    if not args.json:
        for kind, line in registry.loadable(registry.TRANSPORTS).items():
            for place in line.found():
                print(f"{kind}: {place}")
        for rival in rivals(machine):
            print(f"{rival.does}: {rival.remedy}")
    return ExitCode.OK


def as_data(port: PortFacts) -> dict[str, object]:
    """The facts about a port as JSON data."""
    usb = port.usb
    return {
        "device": port.device,
        "by_id": port.lasting or None,
        "usb": None if usb is None else usb._asdict(),
        "may_open": hindrance(port) is None,
        "why_not": hindrance(port),
        "held_by": list(port.holders),
        "latency_ms": port.latency_ms,
    }


def rows(ports: list[PortFacts]) -> tuple[tuple[str, ...], ...]:
    """One row of text for each port."""
    return tuple(
        (
            port.device,
            "-" if port.usb is None else port.usb.name or f"{port.usb.vendor}:{port.usb.product}",
            "-" if port.usb is None else port.usb.serial or "-",
            "yes" if (why := hindrance(port)) is None else f"no: {why}",
            ", ".join(port.holders) or "nobody",
            port.lasting or "-",
        )
        for port in ports
    )


def hindrance(port: PortFacts) -> str | None:
    """Why this user cannot open a free port; None if nothing prevents it."""
    if not port.accessible:
        return f"no permission (group {port.group})"
    return "the kernel's console is on this line" if port.console else None
