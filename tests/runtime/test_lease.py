"""The value of a device's lease, and what a device written in Python requires of its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from onrig.hw.device.driven import PythonDevice
from onrig.hw.line import Serial
from onrig.runtime.lease import describe_lease, driver_findings, longest_hold_ns
from onrig.runtime.run_config import RunConfig
from onrig.tools.load import load
from onrig.tools.machine import Machine
from onrig.tools.service.installation import NotInstallable, describe_service


class Bench(PythonDevice, frozen=True, kw_only=True, tag="bench"):
    """A device for these tests."""


CONFIG = load("pendulum", ["limits.predicted=null", "device.pace=realtime"])  # 50 Hz, a lease of 5 periods


def load_with_driver(watchdog_s: float | None = 0.1, **changes: Any) -> RunConfig:
    device = {"twin": None, "driver": Bench(watchdog_s=watchdog_s), **changes}
    return msgspec.structs.replace(CONFIG, device=msgspec.structs.replace(CONFIG.device, **device))


def problems_by_path(config: RunConfig) -> Mapping[str, str]:
    return {".".join(map(str, path)): message for path, message in driver_findings(config)}


def test_a_device_with_its_own_timer_is_safe_whatever_this_machine_does() -> None:
    assert (
        describe_lease(CONFIG)
        == "safe within 0.12 s of the last command: the device enforces this, even if this machine fails"
    )
    assert longest_hold_ns(CONFIG) == 120_000_000
    assert not problems_by_path(CONFIG)


def test_for_a_driver_its_controllers_watchdog_counts_after_the_lease() -> None:
    config = load_with_driver()
    assert not problems_by_path(config)
    assert describe_lease(config).endswith(
        "while the driver runs; once it has stopped, within 0.1 s by the controller's watchdog"
    )
    assert longest_hold_ns(config) == 220_000_000


def test_without_a_watchdog_only_an_attending_operator_makes_a_run_acceptable() -> None:
    problems = problems_by_path(load_with_driver(None))
    assert "this rig does not become safe once the driver has stopped" in problems["device.driver.watchdog_s"]
    assert "device.attended: true" in problems["device.driver.watchdog_s"]
    assert problems_by_path(load_with_driver(None, attended=False)) == problems
    attended_config = load_with_driver(None, attended=True)
    assert not problems_by_path(attended_config)
    assert "no watchdog: the rig does not become safe once the driver has stopped" in describe_lease(attended_config)


def test_a_service_has_no_attending_operator() -> None:
    with pytest.raises(NotInstallable, match=r"a service runs unattended, but this rig is safe within 0.12 s"):
        describe_service(load_with_driver(None, attended=True), "pendulum", (), None, "root", False, False, Machine())


@pytest.mark.parametrize(
    ("config", "path", "message"),
    [
        (load_with_driver(attended=True), "device.attended", "but this driver has one"),
        (
            msgspec.structs.replace(CONFIG, device=msgspec.structs.replace(CONFIG.device, attended=True)),
            "device.attended",
            "only a driver without a watchdog needs this",
        ),
        (load_with_driver(3600.0), "device.driver.watchdog_s", "hold the last command for 3600 s; the maximum is 10 s"),
        (load_with_driver(0.03), "device.driver.watchdog_s", "0.03 s is less than 2 periods of 0.02 s"),
        (load_with_driver(pace="lockstep"), "device.pace", "a driver controls hardware: expected real time"),
        (
            load_with_driver(driver=Bench(watchdog_s=1.0, period_min_us=50_000)),
            "rate_hz",
            "the driver supports 50000 to 1000000 us",
        ),
        (
            msgspec.structs.replace(load_with_driver(), limits=load("pendulum").limits),
            "limits.predicted",
            "a device that enforces its own lease, which a driver does not",
        ),
    ],
)
def test_settings_that_do_not_match_a_driver_are_named(config: RunConfig, path: str, message: str) -> None:
    assert message in problems_by_path(config)[path]


def test_a_line_names_the_port_of_the_device_and_a_driver_its_name() -> None:
    serial_device = msgspec.structs.replace(CONFIG.device, twin=None, transport=Serial("/dev/ttyACM0"))
    assert (serial_device.address, load_with_driver().device.address, CONFIG.device.address) == (
        "/dev/ttyACM0",
        "driver 'bench'",
        "a twin",
    )
