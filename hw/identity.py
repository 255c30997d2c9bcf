"""Comparison of a device with the rig's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onrig.hw.messages import PROTOCOL_VERSION, Capability, Channel, Hello
from onrig.hw.rig import Actuator, Rig, Sensor

RESOLUTION_TOLERANCE: Final = 1e-6


class DeviceMismatch(Exception):
    """Device other than the configured one; the message states the difference, with both values."""

    def __init__(self, what: str, device: object, host: object) -> None:
        super().__init__(f"{what}: the device has {device}, the configuration {host}")
        self.what = what
        self.device = device
        self.host = host


class LimitsWider(DeviceMismatch):
    """Configured actuator limits wider than the device's."""


def check_hello(hello: Hello, rig: Rig) -> None:
    """Compare the hello with the rig; raises DeviceMismatch at the first difference."""
    for what, device, host in (
        ("protocol version", hello.protocol, PROTOCOL_VERSION),
        ("rig name", hello.rig, rig.name),
        ("number of sensors", hello.n_sensors, len(rig.sensors)),
        ("number of actuators", hello.n_actuators, len(rig.actuators)),
        ("safe output (rig.safe_output)", _safe_output(hello), rig.safe_output),
    ):
        if device != host:
            raise DeviceMismatch(what, device, host)


def _safe_output(hello: Hello) -> str:
    return "released" if hello.capabilities & Capability.RELEASES else "driven"


def check_channels(channels: Sequence[Channel], rig: Rig) -> None:
    """Compare the channels, sensors before actuators, with the rig's; raises DeviceMismatch at the first difference.

    Names, order, units, wrapping, safe values and resolutions (relative 1e-6) must be equal; the rig's actuator limits
    may be tighter than the device's (to half a count), never wider (LimitsWider).
    """
    wanted: tuple[Sensor | Actuator, ...] = (*rig.sensors, *rig.actuators)
    names = [c.name for c in channels]
    if names != [w.name for w in wanted]:
        raise DeviceMismatch("channel names, in order,", ", ".join(names), ", ".join(w.name for w in wanted))
    for channel, want in zip(channels, wanted, strict=True):
        kind = "actuator" if isinstance(want, Actuator) else "sensor"
        label = f"{kind} '{want.name}'"
        if channel.is_actuator != isinstance(want, Actuator):
            raise DeviceMismatch(f"kind of '{want.name}'", "an actuator" if channel.is_actuator else "a sensor", kind)
        if channel.unit != want.unit:
            raise DeviceMismatch(f"unit of {label}", channel.unit, want.unit)
        # Negated so that a NaN from the device counts as a difference.
        if not abs(channel.resolution - want.resolution) <= RESOLUTION_TOLERANCE * want.resolution:
            raise DeviceMismatch(f"resolution of {label}", channel.resolution, want.resolution)
        if isinstance(want, Sensor):
            if channel.wrap != want.wrap:
                raise DeviceMismatch(f"wrapping of {label}", channel.wrap, want.wrap)
        else:
            _check_range(channel, want)


def _check_range(channel: Channel, want: Actuator) -> None:
    for what, count, value, wider in (
        ("low limit", channel.low, want.low, want.low / want.resolution < channel.low - 0.5),
        ("high limit", channel.high, want.high, want.high / want.resolution > channel.high + 0.5),
        ("safe value", channel.safe, want.safe, abs(want.safe / want.resolution - channel.safe) > 0.5),
    ):
        if wider:
            si = count * want.resolution
            mismatch = DeviceMismatch if what == "safe value" else LimitsWider
            raise mismatch(f"{what} of actuator '{want.name}'", f"{si:.9g} {want.unit}", f"{value:.9g} {want.unit}")
