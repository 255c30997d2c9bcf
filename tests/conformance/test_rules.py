"""Each rule of the page has a number and tests: the device's rules on each device, the host's at least once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from onrig.hw.conformance.faults import FaultConformance
from onrig.hw.conformance.page import rules
from tests.conformance import (
    test_driver_loop,
    test_firmware_loop,
    test_firmware_pty,
    test_firmware_qemu,
    test_twin_lockstep,
    test_twin_pty,
)

DEVICES: Final = {
    "twin in virtual time": test_twin_lockstep,
    "twin on a pty": test_twin_pty,
    "Python device in virtual time": test_driver_loop,
    "firmware in virtual time": test_firmware_loop,
    "firmware on a pty": test_firmware_pty,
    "firmware on an emulated board": test_firmware_qemu,
}
EXCEPTIONS: Final = {
    "a UART does not show that the host has closed the line": {("P314", "firmware on an emulated board")},
    "hardware has no lockstep": {(f"P50{n}", "Python device in virtual time") for n in (2, 3, 4, 5, 6)},
}
"""Cells of the table that must be empty, by reason."""
_HOOKS: Final = {
    "press_estop": ("press_estop",),
    "kill_sensors": ("kill_sensors",),
    "hang_up": ("hang_up",),
    "reboot": ("reboot", "power_cycle"),
}
"""Hooks that a device may lack, and the methods that tests call if they need them."""
_TESTS: Final = Path(__file__).parents[1]


def shown_by(module: ModuleType) -> Iterator[tuple[str, str]]:
    """(number, test) for each rule cited by a test of a module, unless skipped because a hook is missing."""
    for name, test_class in vars(module).items():
        if not (name.startswith("Test") and inspect.isclass(test_class)):
            continue
        absent = [h for h in _HOOKS if getattr(test_class, h, None) is getattr(FaultConformance, h)]
        calls = [f"self.{call}(" for hook in absent for call in _HOOKS[hook]]
        for function in (getattr(test_class, n) for n in dir(test_class) if n.startswith("test_")):
            if calls and any(call in inspect.getsource(function) for call in calls):
                continue
            marked = [mark.args for mark in getattr(function, "pytestmark", []) if mark.name == "rules"]
            for numbers in (getattr(function, "rules", ()), *marked):
                yield from ((number, function.__name__) for number in numbers)


def table() -> dict[tuple[str, str], set[str]]:
    """The tests that verify a device rule on a device, by (number, device)."""
    cells: dict[tuple[str, str], set[str]] = {(n, d): set() for n in rules() if n[0] == "P" for d in DEVICES}
    for device, module in DEVICES.items():
        for number, test in shown_by(module):
            cells[number, device].add(test)
    return cells


def test_no_rule_number_is_used_twice() -> None:
    numbers = rules()
    assert len(numbers) == len(set(numbers))


def test_every_device_rule_is_verified_on_every_device_except_for_the_listed_exceptions() -> None:
    empty = {cell for cell, tests in table().items() if not tests}
    assert empty == set().union(*EXCEPTIONS.values())


def test_every_rule_of_the_host_is_cited_by_a_test() -> None:
    of_host = {number for number in rules() if number.startswith("H")}
    cited = set()
    for path in _TESTS.rglob("test_*.py"):
        for call in re.findall(r"mark\.rules\(([^)]*)\)", path.read_text(encoding="utf-8")):
            cited |= set(re.findall(r'"(H\d{3})"', call))
    assert cited == of_host
