"""List of the serial ports of this machine; no port is opened."""

from __future__ import annotations

import json
from collections.abc import Iterable

from onrig.runtime import registry
from onrig.runtime.exit_codes import ExitCode
from onrig.tools.machine import Machine
from onrig.tools.ports import InterferingProgram, PortFacts, interfering_programs, read_ports
from onrig.tools.terminal import Table, write_json


def show(json_file: str | None, machine: Machine | None = None) -> int:
    """Print the table, JSON (``json_file`` is ``-``), or the table with JSON in a file; returns the exit code."""
    machine = machine or Machine()
    ports = read_ports(machine)
    if json_file != "-":
        _print(ports, interfering_programs(machine))
    if json_file is None:
        return ExitCode.OK
    return write_json("ports", json.dumps([as_data(port) for port in ports], indent=1), json_file)


def _print(ports: list[PortFacts], interfering_programs: Iterable[InterferingProgram]) -> None:
    if not ports:
        print("no serial ports")
    else:
        print(Table("port", ("device on USB", "serial number", "may open", "held by", "name by id"), rows(ports)))
    for kind, line in registry.load_available(registry.TRANSPORTS).items():
        for place in line.find_addresses():
            print(f"{kind}: {place}")
    for rival in interfering_programs:
        print(f"{rival.does}: {rival.remedy}")


def as_data(port: PortFacts) -> dict[str, object]:
    """The facts about a port as JSON data."""
    usb = port.usb
    return {
        "device": port.device,
        "by_id": port.lasting or None,
        "usb": None if usb is None else usb._asdict(),
        "may_open": access_problem(port) is None,
        "why_not": access_problem(port),
        "held_by": list(port.holders),
        "latency_ms": port.latency_ms,
    }


def rows(ports: list[PortFacts]) -> tuple[tuple[str, ...], ...]:
    """Table rows, one for each port."""
    return tuple(
        (
            port.device,
            "-" if port.usb is None else port.usb.name or f"{port.usb.vendor}:{port.usb.product}",
            "-" if port.usb is None else port.usb.serial or "-",
            "yes" if (problem := access_problem(port)) is None else f"no: {problem}",
            ", ".join(port.holders) or "nobody",
            port.lasting or "-",
        )
        for port in ports
    )


def access_problem(port: PortFacts) -> str | None:
    """Reason why this user cannot open a free port, or None."""
    if not port.accessible:
        return f"no permission (group {port.group})"
    return "the kernel's console uses this port" if port.console else None
