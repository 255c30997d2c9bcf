"""Serial port checks: persistent names, permissions, holders, FTDI latency timer.

No port is ever opened: that would reset many boards and disturb other users.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from onrig.tools.doctor.finding import Check, Needs, Verdict, failed, passed, warned
from onrig.tools.doctor.machine import Machine

_PATTERNS: Final = ("dev/ttyUSB*", "dev/ttyACM*", "dev/ttyAMA*")
_BY_ID: Final = "dev/serial/by-id"
_LATENCY_MS: Final = 1
_MINE: Final = "onrig service CONFIG --write"


class PortFacts(NamedTuple):
    """One port."""

    path: str
    """As it is named: /dev/ttyUSB0, or a link to it."""
    device: str
    """What it leads to: /dev/ttyUSB0; empty where there is none."""
    lasting: str
    """Its name under /dev/serial/by-id; empty where it has none."""
    is_terminal: bool
    accessible: bool
    group: str
    latency_ms: int | None
    """FTDI's latency timer; None for other adapters."""
    holders: tuple[str, ...]
    """``NAME (pid N)`` of the processes that have it open, as far as we may see them."""
    console: bool
    """The kernel or a login talks on this line."""


def read_ports(machine: Machine, path: str) -> PortFacts:
    """Read what can be told of a port without opening it."""
    inside = path.lstrip("/")
    device = _device_of(machine, inside)
    if device is None:
        return PortFacts(path, "", "", False, False, "", None, (), False)
    at = machine.path(device)
    name = Path(device).name
    lasting = next((f"/{link}" for link in machine.glob(f"{_BY_ID}/*") if _device_of(machine, link) == device), "")
    return PortFacts(
        path,
        f"/{device}",
        lasting,
        at.is_char_device(),
        os.access(at, os.R_OK | os.W_OK),
        _group_name(machine, at.stat().st_gid),
        machine.number(f"sys/bus/usb-serial/devices/{name}/latency_timer"),
        _holders(machine, f"/{device}"),
        any(w.partition(",")[0] == f"console={name}" for w in (machine.text("proc/cmdline") or "").split()),
    )


def _device_of(machine: Machine, path: str) -> str | None:
    """Follow links under the root; the device's path without its leading slash, None where it leads nowhere."""
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
        for pid in _pids(machine)
        if any(machine.link(f"proc/{pid}/fd/{fd}") == device for fd in machine.names(f"proc/{pid}/fd"))
    )


def _pids(machine: Machine) -> list[str]:
    return [name for name in machine.names("proc") if name.isdigit()]


def modem_manager(machine: Machine) -> bool:
    """Whether ModemManager runs: it talks to every new serial port to see whether it is a modem."""
    return any(machine.text(f"proc/{pid}/comm") == "ModemManager" for pid in _pids(machine))


def judge_ports(facts: PortFacts, needs: Needs, user: str) -> Iterator[Check]:
    """Judge the configured port."""
    path = facts.path
    if not facts.device:
        yield failed(
            "port", f"{path}: there is no such port", "plug the device in; `ls -l /dev/serial/by-id` lists ports"
        )
        return
    leads = path if path == facts.device else f"{path} ({facts.device})"
    if not facts.is_terminal:
        yield failed("port", f"{leads}: not a serial port", "name the port itself at device.port.path")
        return
    if not facts.accessible:
        remedy = f"sudo usermod -aG {facts.group} {user}, then log out and in again"
        yield failed("port", f"{leads}: no permission (group {facts.group})", remedy)
    elif facts.console:
        remedy = "sudo raspi-config: Interface, Serial Port, no login shell; or remove console= from the command line"
        yield failed("port", f"{leads}: the kernel's console is on this line", remedy)
    elif facts.lasting and path != facts.lasting and path == facts.device:
        remedy = f"write device: {{port: {{path: {facts.lasting}}}}}"
        yield warned("port", f"{leads}: the name may change when it is plugged in again", remedy)
    else:
        yield passed("port", leads)
    yield from _latency(facts)
    if facts.holders:
        remedy = "end it first: onrig stop, or the program itself"
        yield failed("port-holder", f"{leads} is open in {', '.join(facts.holders)}", remedy)
    else:
        yield passed("port-holder", "not open in any process visible to this user")


def _latency(facts: PortFacts) -> Iterator[Check]:
    if facts.latency_ms is None:
        return
    name = Path(facts.device).name
    if facts.latency_ms > _LATENCY_MS:
        command = f"echo 1 | sudo tee /sys/bus/usb-serial/devices/{name}/latency_timer"
        found = f"{facts.device}: the FTDI adapter holds data for {facts.latency_ms} ms (Onrig asks it for less)"
        yield warned("port-latency", found, f"{command}    (for good, by a udev rule: {_MINE})")
    else:
        yield passed("port-latency", f"{facts.device}: the FTDI adapter holds data for {facts.latency_ms} ms")


def general(ports: list[PortFacts]) -> Check:
    """Summary of a machine's ports, without a configured one."""
    if not ports:
        return passed("ports", "no USB or board serial port is there (a twin needs none)")
    lines = []
    verdict, remedy = Verdict.PASS, ""
    for port in ports:
        notes = [port.lasting] if port.lasting else []
        if not port.accessible:
            verdict, remedy = Verdict.WARN, f"sudo usermod -aG {port.group} $USER, then log out and in again"
            notes.append(f"no permission (group {port.group})")
        notes += [f"open in {', '.join(port.holders)}"] if port.holders else []
        lines.append(f"{port.device} ({'; '.join(notes)})" if notes else port.device)
    return Check("ports", verdict, ", ".join(lines), remedy)


def examine_ports(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Look at the configured port, or at all of them, and judge."""
    if needs.port is not None:
        yield from judge_ports(read_ports(machine, needs.port), needs, os.environ.get("USER") or "$USER")
    else:
        found = [read_ports(machine, f"/{path}") for pattern in _PATTERNS for path in machine.glob(pattern)]
        yield general(found)
        for port in found:
            yield from _latency(port)
    if modem_manager(machine):
        remedy = f"sudo systemctl disable --now ModemManager, or keep it off the rig's port by a udev rule: {_MINE}"
        yield warned("modem-manager", "it talks to every serial port that is plugged in", remedy)


def examine_keys(machine: Machine, needs: Needs) -> Iterator[Check]:
    """Read them as a run would; needs zmq."""
    if needs.config is None:
        return
    if not needs.listens:
        yield passed("keys", "none needed: nobody connects from outside")
        return
    if needs.keys is None:
        found = "plain loopback: whoever is on this machine may connect, unencrypted"
        yield warned("keys", found, "onrig keys K, then link: {keys: K/rig}")
        return
    from onrig.runtime.link.keys import KeyFault, fingerprint_of, load_rig_keys

    try:
        keys = load_rig_keys(needs.keys)
    except KeyFault as fault:
        found, _, remedy = str(fault).rpartition("; ")
        yield failed("keys", found or remedy, remedy if found else "onrig keys DIR")
        return
    names = ", ".join(sorted(keys.allowed.values()))
    yield passed("keys", f"{needs.keys}: rig {fingerprint_of(keys.own)}, may enter: {names}")
