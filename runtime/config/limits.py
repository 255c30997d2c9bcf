"""The section ``limits`` of a run: what the shield holds a policy to, and which plants its prediction covers."""

from __future__ import annotations

import msgspec

from onrig.hw.bounds import NotNegative, Positive, Quantity


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fallback acts once an observation leaves [low, high], until it is back within ``release`` of that range."""

    low: Quantity
    high: Quantity
    release: Quantity = 0.8


class Damp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="damp", tag_field="kind"):
    """Brake: actuator = -sign(gain) |limit| sat(observation / full_at), full effort from ``full_at`` on."""

    actuator: str
    observation: str
    full_at: Positive


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="hold", tag_field="kind"):
    """Coils off while fast, then hold at the nearest magnet: its coil is on up to the speed ``slow``, and from there up
    to ``brake_below`` only while the body moves away from it, which brakes."""

    position: str
    velocity: str
    magnets: dict[str, Quantity]
    """Actuator to position of its magnet (m)."""
    slow: Quantity = 0.05
    """m/s."""
    brake_below: Quantity = 0.2
    """m/s."""


class SafeOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="safe", tag_field="kind"):
    """Every actuator at its safe value (coils off)."""


Fallback = Damp | Hold | SafeOutput


class PendulumPlants(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="pendulum", tag_field="kind"):
    """Plants theta'' = -A sin(theta) - D theta' + G u; each parameter within ``spread`` of the one given."""

    angle: str
    """Observation, 0 hanging down."""
    velocity: str
    """Observation; its envelope is what is promised."""
    actuator: str
    gravity_per_s2: NotNegative
    """A = M g l / J."""
    damping_per_s: NotNegative
    """D = (b + K^2 / R) / J."""
    gain_per_v_s2: Positive
    """G = K / (R J)."""
    spread: Quantity = 0.3
    late_us: int = 1000
    """From a sample to the effect of its command, at most, in ordinary operation; the lease comes on top."""
    sensor_error: dict[str, NotNegative] = {}
    """Bound of each observation's error in its unit; default: half a count of its sensor."""


class MagmanPlants(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="magman", tag_field="kind"):
    """Plants x'' = -(b/m) x' - (c1/m) sum_j u_j d_j / (d_j^2 + c2)^3, d_j = x - x_j; c1/m and b/m within ``spread``."""

    position: str
    """Observation; its range is the track between the walls."""
    velocity: str
    """Observation; its envelope is what is promised."""
    magnets: dict[str, Quantity]
    """Actuator to position x_j of its magnet (m), four at most."""
    pull_m6_per_a2_s2: Positive
    """c1 / m."""
    friction_per_s: NotNegative
    """b / m."""
    c2_m2: Positive
    spread: Quantity = 0.3
    late_us: int = 1000
    """As of the pendulum's plants."""
    sensor_error: dict[str, NotNegative] = {}
    """As of the pendulum's plants."""


Plants = PendulumPlants | MagmanPlants


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the shield holds a policy to; only ever tighter than the device's own limits (ARCHITECTURE §5)."""

    range: dict[str, tuple[Quantity, Quantity]] = {}
    """Per actuator [low, high] in SI; default: the rig's."""
    rate_per_s: dict[str, Quantity] = {}
    """Per actuator, SI units per second; default: the full range within one period."""
    jerk_per_s2: dict[str, Quantity] = {}
    """Per actuator, SI units per second squared: change of the rate; default: none.  Range and rate come first."""
    envelope: dict[str, Envelope] = {}
    predicted: Plants | None = None
    """Commands must lead where the fallback still keeps the velocity's envelope for each of these plants."""
    fallback: Fallback = SafeOutput()
    unguarded: bool | msgspec.UnsetType = msgspec.UNSET
    """Accept a rig on a port without any envelope: its device's own limits alone then bound what it does."""
    fallback_dwell_s: Quantity = 0.1
    """The fallback acts at least this long."""
