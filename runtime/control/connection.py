"""Connection to a run's device: the checks made before any motion, and reconnection after the connection has closed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from onrig.hw.identity import DeviceMismatch
from onrig.hw.messages import Capability, Hello
from onrig.hw.session import DeviceSession
from onrig.hw.transport import LineClosed, LinkError, Transport
from onrig.runtime.control.frames import Stopped
from onrig.runtime.control.outside import Requests
from onrig.runtime.run_config import RunConfig, Scaled

CONNECT_TIMEOUT_S: Final = 5.0
_HELLO_TIMEOUT_S: Final = 0.5
"""Timeout of each hello during a reconnection; stop requests are polled between attempts."""
_RETRY_INTERVAL_S: Final = 0.5
"""Interval between attempts to open the port."""
_POLL_INTERVAL_S: Final = 0.05


class LimitsTooWide(ValueError):
    """Raised if the configured limits are wider than the device's."""


def connect(config: RunConfig, session: DeviceSession, timeout_s: float = CONNECT_TIMEOUT_S) -> Hello:
    """Connect to the device, compare it with the configuration, and configure it; the device remains disarmed.

    Raises LinkError, DeviceMismatch, LimitsTooWide or RequestRefused.
    """
    hello = session.connect(timeout_s)
    check_pace(config, hello)
    check_reset(config, hello)
    session.configure(config.period_us, config.rig.lease_periods)
    apply_limits(config, session)
    return hello


def apply_limits(config: RunConfig, session: DeviceSession) -> None:
    """Set the device's limits to the configured ones; raises LimitsTooWide if those are wider than the device's."""
    for i, (actuator, counts) in enumerate(
        zip(config.rig.actuators, config.limits.count_ranges(config.rig), strict=True)
    ):
        device = session.channels[len(config.rig.sensors) + i]
        low, high = config.limits.range.get(actuator.name, (actuator.low, actuator.high))
        device_low, device_high = device.low * device.resolution, device.high * device.resolution
        slack = 0.5 * device.resolution
        if low < device_low - slack or high > device_high + slack:
            raise LimitsTooWide(
                f"limits.range.{actuator.name}: [{low:g}, {high:g}] {actuator.unit} is wider than the device's "
                f"[{device_low:g}, {device_high:g}]"
            )
        session.limit(i, *counts)


def check_pace(config: RunConfig, hello: Hello) -> None:
    """Check that the device's time passes at the configured pace; raises DeviceMismatch."""
    pace = config.device.pace
    expected = 0.0 if config.lockstep else pace.scaled if isinstance(pace, Scaled) else 1.0
    # The hello carries a float32.
    if not abs(hello.time_scale - expected) <= 1e-6 * expected:
        raise DeviceMismatch("pace", _pace_name(hello.time_scale), _pace_name(expected))


def check_reset(config: RunConfig, hello: Hello) -> None:
    """Check that each episode can start with a reset, by the device or by a reset controller; raises DeviceMismatch."""
    has_reset_controller = config.task.reset is not None and not config.lockstep
    if not hello.capabilities & Capability.RESET and not has_reset_controller:
        raise DeviceMismatch("reset", "none", "needs one at the start of every episode")


def _pace_name(scale: float) -> str:
    return {0.0: "lockstep", 1.0: "real time"}.get(scale, f"{scale:g} times real time")


class Reconnection:
    """Reconnection to a device whose connection has closed: tries to open the same port every half second."""

    def __init__(
        self,
        config: RunConfig,
        session: DeviceSession,
        requests: Requests,
        port: str,
        open_line: Callable[[], Transport],
    ) -> None:
        self.port = port
        self._config, self._session, self._requests, self._open_line = config, session, requests, open_line
        self.limit_s = config.device.reconnect_limit_s
        """Maximum wait for the device."""

    def wait(self) -> bool:
        """Wait until the device is back, checked, configured and disarmed; return True if it has rebooted.

        Raises Stopped, LinkError after ``limit_s``, or the errors of ``connect`` if a different device answers.
        """
        previous_hello = self._session.hello
        self._session.close()  # while the old port is open, the device would reappear under a different number
        deadline_s = time.monotonic() + self.limit_s
        while True:
            try:
                self._session.switch_transport(self._open_line())
                hello = self._connect_before(deadline_s)
            except LinkError as error:
                self._session.close()
                if time.monotonic() >= deadline_s:
                    raise LinkError(f"{error}; waited {self.limit_s:g} s (device.reconnect_s)") from error
            except BaseException:
                self._session.close()  # frames from a different device must not confirm this one's safe outputs
                raise
            else:
                return previous_hello is None or hello.boot_id != previous_hello.boot_id
            self._sleep(_RETRY_INTERVAL_S)

    def _connect_before(self, deadline_s: float) -> Hello:
        """Connect; retry until ``deadline_s`` (monotonic), because some boards restart when their port is opened."""
        while True:
            self._sleep(0.0)
            try:
                return connect(self._config, self._session, _HELLO_TIMEOUT_S)
            except LineClosed:
                raise
            except LinkError:
                if time.monotonic() >= deadline_s:
                    raise

    def _sleep(self, seconds: float) -> None:
        """Sleep while polling for stop requests; raises Stopped."""
        deadline_s = time.monotonic() + seconds
        while True:
            if self._requests.is_stop_requested:
                raise Stopped
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                return
            time.sleep(min(remaining_s, _POLL_INTERVAL_S))
