"""Comparison of a device with the rig's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onrig.hw.messages import PROTOCOL_VERSION, Capability, Channel, Hello
from onrig.hw.rig import Actuator, Rig, Sensor

RESOLUTION_TOLERANCE: Final = 1e-6


class DeviceMismatch(Exception):
    """Difference between the device and the configuration; the message states both values."""

    def __init__(self, subject: str, device: object, host: object) -> None:
        super().__init__(f"{subject}: the device has {device}, the configuration {host}")
        self.subject = subject
        self.device = device
        self.host = host


class LimitMismatch(DeviceMismatch):
    """Configured actuator limits that are wider than the device's."""


def check_hello(hello: Hello, rig: Rig) -> None:
    """Compare the hello with the rig.  Raises DeviceMismatch at the first difference."""
    for subject, device, host in (
        ("protocol version", hello.protocol, PROTOCOL_VERSION),
        ("rig name", hello.rig, rig.name),
        ("number of sensors", hello.n_sensors, len(rig.sensors)),
        ("number of actuators", hello.n_actuators, len(rig.actuators)),
        ("safe output (rig.safe_output)", _safe_output(hello), rig.safe_output),
    ):
        if device != host:
            raise DeviceMismatch(subject, device, host)


def _safe_output(hello: Hello) -> str:
    return "released" if hello.capabilities & Capability.RELEASES else "driven"


def check_channels(channels: Sequence[Channel], rig: Rig) -> None:
    """Compare the channels, sensors before actuators, with the rig's.

    Names, order, units, wrapping, safe values (to within half a count) and resolutions (to within a relative 1e-6) must
    be equal.  The rig's actuator limits may be tighter than the device's, but not wider by more than half a count
    (LimitMismatch).  Raises DeviceMismatch at the first difference.
    """
    names = [c.name for c in channels]
    if names != [w.name for w in rig.channels]:
        raise DeviceMismatch("channel names, in order,", ", ".join(names), ", ".join(w.name for w in rig.channels))
    for channel, expected in zip(channels, rig.channels, strict=True):
        kind = "actuator" if isinstance(expected, Actuator) else "sensor"
        label = f"{kind} '{expected.name}'"
        if channel.is_actuator != isinstance(expected, Actuator):
            raise DeviceMismatch(
                f"kind of '{expected.name}'", "an actuator" if channel.is_actuator else "a sensor", kind
            )
        if channel.unit != expected.unit:
            raise DeviceMismatch(f"unit of {label}", channel.unit, expected.unit)
        # Negated so that a NaN from the device counts as a difference.
        if not abs(channel.resolution - expected.resolution) <= RESOLUTION_TOLERANCE * expected.resolution:
            raise DeviceMismatch(f"resolution of {label}", channel.resolution, expected.resolution)
        if isinstance(expected, Sensor):
            if channel.wrap != expected.wrap:
                raise DeviceMismatch(f"wrapping of {label}", channel.wrap, expected.wrap)
        else:
            _check_range(channel, expected)


def _check_range(channel: Channel, expected: Actuator) -> None:
    for subject, count, value, is_wrong in (
        ("low limit", channel.low, expected.low, expected.low / expected.resolution < channel.low - 0.5),
        ("high limit", channel.high, expected.high, expected.high / expected.resolution > channel.high + 0.5),
        ("safe value", channel.safe, expected.safe, abs(expected.safe / expected.resolution - channel.safe) > 0.5),
    ):
        if is_wrong:
            si = count * expected.resolution
            mismatch = DeviceMismatch if subject == "safe value" else LimitMismatch
            raise mismatch(
                f"{subject} of actuator '{expected.name}'", f"{si:.9g} {expected.unit}", f"{value:.9g} {expected.unit}"
            )
