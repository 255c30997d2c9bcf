"""A device written in Python: its description, its driver, and the protocol layer above the driver."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

import msgspec

from onrig.hw.bounds import AboveZero
from onrig.hw.clock import Clock
from onrig.hw.device.output import INT32_MAX, INT32_MIN, Counts, Setpoint, count_range
from onrig.hw.device.protocol import Offer, ProtocolDevice
from onrig.hw.messages import Fault
from onrig.hw.rig import Rig, Sensor

_MAX_LEASE_PERIODS: Final = 255


class PythonDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """Description of a device written in Python; a subclass adds its settings as fields and its name as the tag."""

    home: ClassVar[str] = ""
    """``MODULE:NAME`` of the device's `Driver` (``:NAME`` if it is in the same module as the description).  The driver
    is constructed with the description and the rig."""
    watchdog_s: AboveZero | None = None
    """Time without feeding after which the motor controller's watchdog makes its outputs safe; null: no watchdog."""
    latency_us: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """Delay from the call to ``apply`` until the command takes effect."""
    period_min_us: Annotated[int, msgspec.Meta(ge=100, le=2**32 - 1)] = 1_000
    """Shortest sampling period offered in the hello."""
    period_max_us: Annotated[int, msgspec.Meta(ge=100, le=2**32 - 1)] = 1_000_000
    """Longest sampling period offered in the hello."""


class SensorLost(Exception):
    """Unreadable sensor; the device latches SENSOR and keeps running."""


class Driver:
    """Hardware access for a device written in Python, called by a single thread of the device's process.

    Each call must return within a fraction of the period.  After any exception other than SensorLost, ``safe`` is
    called, the fault INTERNAL latches, and the driver is no longer used.
    """

    def sample(self) -> Sequence[float]:
        """Read the sensors, in the rig's order and in SI units.  Raises SensorLost if one cannot be read."""
        raise NotImplementedError

    def apply(self, command: Sequence[float]) -> None:
        """Output a command, one value per actuator of the rig, in SI units and within the limits in force."""
        raise NotImplementedError

    def safe(self) -> None:
        """Output the rig's safe values; also called at start-up and shutdown."""
        raise NotImplementedError

    def estop(self) -> bool:
        """Whether the emergency stop is pressed; polled at every sample."""
        return False

    def arm_watchdog(self, timeout_s: float) -> None:
        """Arm the controller's watchdog, even if it has tripped; called whenever the device is armed."""

    def feed_watchdog(self) -> None:
        """Feed the controller's watchdog; called at every sample while the device is armed."""

    def close(self) -> None:
        """Release the driver's resources."""


class DriverError(Exception):
    """Raised if a driver fails to make its actuators safe; the message is one line."""


class DrivenDevice(ProtocolDevice):
    """Protocol layer of a device, on top of its driver; the constructor calls the driver's ``safe``."""

    def __init__(self, rig: Rig, settings: PythonDevice, driver: Driver, boot_id: int, clock: Clock = time) -> None:
        self._driver, self._settings, self._now_ns = driver, settings, clock.monotonic_ns
        self.failure: Exception | None = None
        """First exception raised by the driver."""
        self._resolutions = tuple(a.resolution for a in rig.actuators)
        self._is_feeding = False
        self._last_feed_ns = 0
        """Time at which the controller's watchdog was last armed or fed."""
        self._applied_setpoint: Setpoint | None = None
        offer = Offer(boot_id, settings.period_min_us, settings.period_max_us, _MAX_LEASE_PERIODS)
        super().__init__(rig, offer, settings.latency_us)
        self._update_output(0)

    def handle(self, body: bytes, offset_us: int = 0) -> list[bytes]:
        """Handle a message like ``ProtocolDevice.handle``, and update the output before the answer is sent."""
        self._check_watchdog()
        replies = super().handle(body, offset_us)
        self._update_output(offset_us)
        return replies

    def on_link_loss(self, offset_us: int = 0) -> None:
        super().on_link_loss(offset_us)
        self._update_output(offset_us)

    def press_estop(self, *, pressed: bool, offset_us: int = 0) -> None:
        super().press_estop(pressed=pressed, offset_us=offset_us)
        self._update_output(offset_us)

    def skip(self, periods: int) -> None:
        super().skip(periods)
        self._update_output(0)

    def sample(self) -> bytes:
        frame = super().sample()
        self._update_output(0)
        return frame

    def close(self) -> None:
        """Make the actuators safe and release the driver.  Raises DriverError if they cannot be made safe."""
        try:
            self._driver.safe()
        except Exception as error:
            raise DriverError(str(error)) from error
        finally:
            with contextlib.suppress(Exception):
                self._driver.close()

    def _measure(self, *, first: bool) -> Counts | None:
        if self.failure is not None:
            return None
        try:
            self.poll_estop(self.period_us)
            if self.failure is not None:
                return None
            values = self._driver.sample()
            self._check_watchdog()
            if self._is_feeding:
                self._last_feed_ns = self._now_ns()
                self._driver.feed_watchdog()
            if len(values) != len(self.rig.sensors):
                raise ValueError(f"sample() returned {len(values)} values, the rig has {len(self.rig.sensors)} sensors")
            return self._counts(values)
        except SensorLost:
            return None
        except Exception as error:
            self._fail(error)
            return None

    def _check_watchdog(self) -> None:
        """Latch LEASE if the watchdog has expired: the motor controller has then made the actuators safe."""
        watchdog_s = self._settings.watchdog_s
        if self._is_feeding and watchdog_s is not None and self._now_ns() - self._last_feed_ns >= watchdog_s * 1e9:
            self._is_feeding = False
            self._latch(Fault.LEASE)
            self._output.restart()

    def poll_estop(self, offset_us: int = 0) -> None:
        """Poll the e-stop between samples; `sample` polls it as well."""
        if self.failure is not None:
            return
        try:
            pressed = self._driver.estop()
        except Exception as error:
            self._fail(error, offset_us)
            return
        if pressed != self._estop_pressed:
            self.press_estop(pressed=pressed, offset_us=offset_us)

    def _counts(self, values: Sequence[float]) -> Counts | None:
        """Convert a sample to counts; return None if a value is non-finite or outside its sensor's limits."""
        counts = []
        for value, sensor in zip(values, self.rig.sensors, strict=True):
            exact_count = float(value) / sensor.resolution
            if not math.isfinite(exact_count):
                return None
            count, (low, high) = round(exact_count), self._range_of(sensor)
            if sensor.wrap:
                count = (count - low) % (high - low + 1) + low
            if not low <= count <= high:
                return None
            counts.append(count)
        return tuple(counts)

    def _range_of(self, sensor: Sensor) -> tuple[int, int]:
        if sensor.wrap or sensor.low is msgspec.UNSET or sensor.high is msgspec.UNSET:
            return count_range(sensor.resolution, sensor.wrap)
        low, high = round(sensor.low / sensor.resolution), round(sensor.high / sensor.resolution)
        return max(low, INT32_MIN), min(high, INT32_MAX)

    def _may_clear(self) -> bool:
        return super()._may_clear() and self.failure is None

    def _update_output(self, offset_us: int) -> None:
        """Pass the setpoint in force and the arming state to the driver if they have changed."""
        setpoint, settings = self._output.end, self._settings
        try:
            if self.armed and not self._is_feeding and settings.watchdog_s is not None:
                self._last_feed_ns = self._now_ns()
                self._driver.arm_watchdog(settings.watchdog_s)
            self._is_feeding = self.armed and settings.watchdog_s is not None
            if setpoint == self._applied_setpoint or self.failure is not None:
                return
            if setpoint.answers or (self.armed and not setpoint.released and self.rig.releases):
                self._driver.apply([c * r for c, r in zip(setpoint.counts, self._resolutions, strict=True)])
            else:
                self._driver.safe()
            self._applied_setpoint = setpoint
        except Exception as error:
            self._fail(error, offset_us)

    def _fail(self, error: Exception, offset_us: int = 0) -> None:
        """Make the actuators safe after an exception in the driver.  Raises DriverError if that fails.

        The driver is not used afterwards.
        """
        self.failure, self._is_feeding = error, False
        self._latch(Fault.INTERNAL)
        self._output.apply_safe(self._within_period(offset_us))
        try:
            self._driver.safe()
        except Exception as safe_error:
            raise DriverError(str(safe_error)) from error
        self._applied_setpoint = self._output.end
