"""What a run's lease is worth: what makes the actuators safe where the loop, the driver or this machine stops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import UNSET

from onrig.runtime.config.problem import Finding
from onrig.runtime.run_config import RunConfig

_FEEDINGS: Final = 2
"""Least number of samples in a watchdog's time: it is fed once at each."""


def lease_ns(config: RunConfig) -> int:
    """Longest time for which a device holds a command, from the receipt of the frame that it answers (wall clock).

    The device accepts it within the period that the frame begins, and then holds it for at most a lease.
    """
    return (config.rig.lease_periods + 1) * config.wall_period_ns


def longest_hold_ns(config: RunConfig) -> int:
    """``lease_ns``, or the watchdog's time after it where a driver may have stopped, too.

    0 in lockstep, where time stands still between commands.
    """
    driver = config.device.driver
    watchdog_s = None if driver is UNSET else driver.watchdog_s
    return 0 if config.lockstep else lease_ns(config) + round((watchdog_s or 0.0) * 1e9)


def worth(config: RunConfig) -> str:
    """What the lease is worth on this device, in one sentence."""
    held = f"safe within {lease_ns(config) * 1e-9:.3g} s of the last command"
    device = config.device
    if device.driver is UNSET:
        return f"{held}, by the device itself, whatever this machine does"
    watchdog_s = device.driver.watchdog_s
    if watchdog_s is None:
        return f"{held} while the driver runs; no watchdog: nothing makes the rig safe once the driver has stopped"
    return f"{held} while the driver runs; once it has stopped, within {watchdog_s:.3g} s by the controller's watchdog"


def driver_findings(config: RunConfig) -> Iterator[Finding]:
    """What a device written in Python asks of its run, and an ``attended`` that means nothing."""
    device = config.device
    if device.driver is UNSET:
        if device.attended is not UNSET:
            yield ("device", "attended"), "only a driver without a watchdog asks for this, at device.attended"
        return
    if device.pace != "realtime":
        yield ("device", "pace"), "a driver drives hardware, in real time, at device.pace"
    if config.limits.predicted is not None:
        message = "the prediction counts on a device that falls safe by itself within its lease, which a driver cannot"
        yield (
            ("limits", "predicted"),
            f"{message}: set null, the envelope on the measured state stays, at limits.predicted",
        )
    watchdog_s, period_s = device.driver.watchdog_s, config.period_us * 1e-6
    if watchdog_s is not None:
        if device.attended is not UNSET:
            message = "only a driver without a watchdog asks for this, and this one has one, at device.attended"
            yield ("device", "attended"), message
        if watchdog_s < _FEEDINGS * period_s:
            message = (
                f"{watchdog_s:g} s are less than {_FEEDINGS} periods of {period_s:g} s, and it is fed once in each"
            )
            yield ("device", "driver", "watchdog_s"), f"{message}, at device.driver.watchdog_s"
    elif device.attended is not True:
        message = (
            "once the driver has stopped nothing makes this rig safe: give the time of the motor controller's own "
            "watchdog, or accept that a person watches all of the run, with device.attended: true"
        )
        yield ("device", "driver", "watchdog_s"), f"{message}, at device.driver.watchdog_s"
    if not device.driver.period_min_us <= config.period_us <= device.driver.period_max_us:
        message = (
            f"{config.rate_hz:g} Hz is a period of {config.period_us} us, the driver has "
            f"{device.driver.period_min_us} to {device.driver.period_max_us} us"
        )
        yield ("rate_hz",), f"{message} at rate_hz"
