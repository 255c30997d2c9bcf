"""Each rule of the page has a number and tests that show it: the device's on each device, the host's at least once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from tests.conformance import (
    test_firmware_loop,
    test_firmware_pty,
    test_firmware_qemu,
    test_twin_lockstep,
    test_twin_pty,
)
from tests.conformance.faults import FaultConformance
from tests.conformance.page import rules

DEVICES: Final = {
    "twin in virtual time": test_twin_lockstep,
    "twin on a pty": test_twin_pty,
    "firmware in virtual time": test_firmware_loop,
    "firmware on a pty": test_firmware_pty,
    "firmware on an emulated board": test_firmware_qemu,
}
NOT_SHOWN: Final = {
    # Its process takes its boot id from the configuration, and its faults from a plan made before it starts.
    "twin on a pty": {"P220", "P301", "P242", "P251", "P252", "P312", "P313", "P601"},
    # A UART does not show that the host has closed the line.
    "firmware on an emulated board": {"P314"},
}
_HOOKS: Final = ("press_estop", "kill_sensors", "hang_up")
_TESTS: Final = Path(__file__).parents[1]


def shown_by(module: ModuleType) -> Iterator[str]:
    """Numbers cited by the tests of a module that are not skipped for want of a hook."""
    for name, test_class in vars(module).items():
        if not (name.startswith("Test") and inspect.isclass(test_class)):
            continue
        absent = [h for h in _HOOKS if getattr(test_class, h, None) is getattr(FaultConformance, h)]
        for function in (getattr(test_class, n) for n in dir(test_class) if n.startswith("test_")):
            if any(f"self.{hook}(" in inspect.getsource(function) for hook in absent):
                continue
            for mark in getattr(function, "pytestmark", []):
                if mark.name == "rules":
                    yield from mark.args


def test_no_number_stands_twice() -> None:
    numbers = rules()
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("device", DEVICES)
def test_every_rule_of_the_device_is_shown_on_it(device: str) -> None:
    of_device = {number for number in rules() if number.startswith("P")}
    shown = set(shown_by(DEVICES[device]))
    assert shown <= of_device, "no such rules"
    assert of_device - shown == NOT_SHOWN.get(device, set())


def test_every_rule_of_the_host_is_cited_by_a_test() -> None:
    of_host = {number for number in rules() if number.startswith("H")}
    cited = set()
    for path in _TESTS.rglob("test_*.py"):
        for call in re.findall(r"mark\.rules\(([^)]*)\)", path.read_text(encoding="utf-8")):
            cited |= set(re.findall(r'"(H\d{3})"', call))
    assert cited == of_host
