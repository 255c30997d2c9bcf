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
    """Print the table, write the ports as JSON to ``json_file``, and return the exit code. If ``json_file`` is ``-``,
    print only the JSON.
    """
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
        for address in line.find_addresses():
            print(f"{kind}: {address}")
    for interfering_program in interfering_programs:
        print(f"{interfering_program.effect}: {interfering_program.remedy}")


def as_data(port: PortFacts) -> dict[str, object]:
    """Return the facts about a port as JSON data."""
    usb = port.usb
    return {
        "device": port.device,
        "by_id": port.persistent_path or None,
        "usb": None if usb is None else usb._asdict(),
        "may_open": access_problem(port) is None,
        "why_not": access_problem(port),
        "held_by": list(port.holders),
        "latency_ms": port.latency_ms,
    }


def rows(ports: list[PortFacts]) -> tuple[tuple[str, ...], ...]:
    """Return the table rows, one for each port."""
    return tuple(
        (
            port.device,
            "-" if port.usb is None else port.usb.name or f"{port.usb.vendor}:{port.usb.product}",
            "-" if port.usb is None else port.usb.serial or "-",
            "yes" if (problem := access_problem(port)) is None else f"no: {problem}",
            ", ".join(port.holders) or "nobody",
            port.persistent_path or "-",
        )
        for port in ports
    )


def access_problem(port: PortFacts) -> str | None:
    """Return why this user cannot open a port, or None if nothing prevents it. Processes that have the port open are
    ignored.
    """
    if not port.accessible:
        return f"no permission (group {port.group})"
    return "the kernel's console uses this port" if port.console else None
