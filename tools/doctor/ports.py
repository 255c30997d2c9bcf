"""Checks of the keys and of serial ports (persistent names, permissions, holders, latency timer of FTDI adapters)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from onrig.tools.doctor.finding import Check, Needs, Verdict, report_failure, report_pass, report_warning
from onrig.tools.machine import Machine
from onrig.tools.ports import UDEV_COMMAND, PortFacts, interfering_programs, read_port, read_ports

_MAX_LATENCY_MS: Final = 1


def check_ports(facts: PortFacts, needs: Needs, user: str) -> Iterator[Check]:
    """Yield the findings on the configured port."""
    path = facts.path
    if not facts.device:
        yield report_failure("port", f"{path}: no such port", "connect the device; `onrig ports` lists the ports")
        return
    port = path if path == facts.device else f"{path} ({facts.device})"
    if not facts.is_terminal:
        yield report_failure("port", f"{port}: not a serial port", "set device.port.path to a serial port")
        return
    if not facts.accessible:
        remedy = f"sudo usermod -aG {facts.group} {user}, then log out and in again"
        yield report_failure("port", f"{port}: no permission (group {facts.group})", remedy)
    elif facts.console:
        remedy = (
            "sudo raspi-config: Interface, Serial Port, no login shell; or remove console= from the kernel's command "
            "line"
        )
        yield report_failure("port", f"{port}: the kernel's console uses this port", remedy)
    elif facts.persistent_path and path != facts.persistent_path and path == facts.device:
        remedy = f"set device: {{port: {{path: {facts.persistent_path}}}}}"
        yield report_warning("port", f"{port}: the name may change when the device is reconnected", remedy)
    else:
        yield report_pass("port", port)
    yield from _check_latency(facts)
    if facts.holders:
        remedy = "end that program first (a run: with `onrig stop`)"
        yield report_failure("port-holder", f"{port} is open in {', '.join(facts.holders)}", remedy)
    else:
        yield report_pass("port-holder", "not open in any process visible to this user")


def _check_latency(facts: PortFacts) -> Iterator[Check]:
    if facts.latency_ms is None:
        return
    name = Path(facts.device).name
    if facts.latency_ms > _MAX_LATENCY_MS:
        command = f"echo 1 | sudo tee /sys/bus/usb-serial/devices/{name}/latency_timer"
        finding = f"{facts.device}: the FTDI adapter delays data by {facts.latency_ms} ms (Onrig requests less)"
        yield report_warning("port-latency", finding, f"{command}    (permanently, by a udev rule: {UDEV_COMMAND})")
    else:
        yield report_pass("port-latency", f"{facts.device}: the FTDI adapter delays data by {facts.latency_ms} ms")


def summarise_ports(ports: list[PortFacts]) -> Check:
    """Summarise all of a machine's ports in one finding, for use without a configured port."""
    if not ports:
        return report_pass("ports", "no USB or board serial ports (a twin needs none)")
    lines = []
    verdict, remedy = Verdict.PASS, ""
    for port in ports:
        notes = [port.persistent_path] if port.persistent_path else []
        if not port.accessible:
            verdict, remedy = Verdict.WARN, f"sudo usermod -aG {port.group} $USER, then log out and in again"
            notes.append(f"no permission (group {port.group})")
        notes += [f"open in {', '.join(port.holders)}"] if port.holders else []
        lines.append(f"{port.device} ({'; '.join(notes)})" if notes else port.device)
    return Check("ports", verdict, ", ".join(lines), remedy)


def examine_ports(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Yield the findings on the configured port, or on all ports if none is configured."""
    if needs.port is not None:
        yield from check_ports(read_port(machine, needs.port), needs, os.environ.get("USER") or "$USER")
    else:
        ports = read_ports(machine)
        yield summarise_ports(ports)
        for port in ports:
            yield from _check_latency(port)
    for program in interfering_programs(machine):
        yield report_warning(program.name, program.effect, program.remedy)


def examine_keys(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Yield the findings on the keys from the same checks as in a run, which need zmq."""
    if needs.config is None:
        return
    if not needs.listens:
        yield report_pass("keys", "none needed: the rig accepts no remote connections")
        return
    if needs.keys is None:
        finding = "loopback without keys: any user of this machine may connect, unencrypted"
        yield report_warning("keys", finding, "onrig keys K, then link: {keys: K/rig}")
        return
    from onrig.runtime.link.keys import KeyFileError, load_rig_keys, pair_fingerprint

    try:
        keys = load_rig_keys(needs.keys)
    except KeyFileError as fault:
        finding, _, remedy = str(fault).rpartition("; ")
        yield report_failure("keys", finding or remedy, remedy if finding else "onrig keys DIR")
        return
    names = ", ".join(sorted(keys.names_by_key.values()))
    yield report_pass("keys", f"{needs.keys}: rig {pair_fingerprint(keys.pair)}, admitted: {names}")
