"""Effect of a run's lease: time until the actuators are safe after the loop, the driver or this machine has stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import UNSET

from onrig.runtime.config.problem import Finding
from onrig.runtime.run_config import RunConfig

MAX_LEASE_S: Final = 10.0
"""Longest time for which a rig may hold its last command under its lease or its watchdog: one period at the lowest
sampling rate."""
_MIN_FEEDINGS: Final = 2
"""Minimum number of samples within a watchdog's timeout; the watchdog is fed once per sample."""


def lease_ns(config: RunConfig) -> int:
    """Return the longest time (wall clock) for which a device holds a command, from the receipt of the frame that the
    command answers.

    The device accepts the command within the period that starts with the frame, and then holds it for at most one
    lease.
    """
    return (config.rig.lease_periods + 1) * config.wall_period_ns


def longest_hold_ns(config: RunConfig) -> int:
    """Return ``lease_ns``, plus the watchdog's timeout for a driver, which may have stopped as well.

    The result is 0 in lockstep, where virtual time stops between commands.
    """
    driver = config.device.driver
    watchdog_s = None if driver is UNSET else driver.watchdog_s
    return 0 if config.lockstep else lease_ns(config) + round((watchdog_s or 0.0) * 1e9)


def describe_lease(config: RunConfig) -> str:
    """Describe in one sentence what the lease guarantees on this device."""
    guarantee = f"safe within {lease_ns(config) * 1e-9:.3g} s of the last command"
    device = config.device
    if device.driver is UNSET:
        return f"{guarantee}: the device enforces this, even if this machine fails"
    watchdog_s = device.driver.watchdog_s
    if watchdog_s is None:
        return (
            f"{guarantee} while the driver runs; no watchdog: the rig does not become safe once the driver has stopped"
        )
    watchdog_guarantee = f"within {watchdog_s:.3g} s by the controller's watchdog"
    return f"{guarantee} while the driver runs; once it has stopped, {watchdog_guarantee}"


def driver_findings(config: RunConfig) -> Iterator[Finding]:
    """Report unmet requirements of a device written in Python, and a setting ``attended`` that has no effect."""
    device = config.device
    if device.driver is UNSET:
        if device.attended is not UNSET:
            yield ("device", "attended"), "only a driver without a watchdog needs this: remove it, at device.attended"
        return
    if device.pace != "realtime":
        yield ("device", "pace"), "a driver controls hardware: expected real time, at device.pace"
    if config.limits.predicted is not None:
        message = "the prediction requires a device that enforces its own lease, which a driver does not"
        yield (
            ("limits", "predicted"),
            f"{message}: set it to null; the envelope on the measured state remains, at limits.predicted",
        )
    watchdog_s, period_s = device.driver.watchdog_s, config.period_us * 1e-6
    if watchdog_s is not None:
        if device.attended is not UNSET:
            message = "only a driver without a watchdog needs this, but this driver has one, at device.attended"
            yield ("device", "attended"), message
        if watchdog_s < _MIN_FEEDINGS * period_s:
            message = (
                f"{watchdog_s:g} s is less than {_MIN_FEEDINGS} periods of {period_s:g} s; it is fed once per period"
            )
            yield ("device", "driver", "watchdog_s"), f"{message}, at device.driver.watchdog_s"
        elif watchdog_s > MAX_LEASE_S:
            message = f"without its driver the rig would hold the last command for {watchdog_s:g} s"
            yield (
                ("device", "driver", "watchdog_s"),
                f"{message}; the maximum is {MAX_LEASE_S:g} s, at device.driver.watchdog_s",
            )
    elif device.attended is not True:
        message = (
            "this rig does not become safe once the driver has stopped: give the timeout of the motor controller's own "
            "watchdog, or confirm with device.attended: true that a person watches the entire run"
        )
        yield ("device", "driver", "watchdog_s"), f"{message}, at device.driver.watchdog_s"
    if not device.driver.period_min_us <= config.period_us <= device.driver.period_max_us:
        message = (
            f"{config.rate_hz:g} Hz is a period of {config.period_us} us, the driver supports "
            f"{device.driver.period_min_us} to {device.driver.period_max_us} us"
        )
        yield ("rate_hz",), f"{message} at rate_hz"
