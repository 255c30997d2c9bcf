"""Recorded times of the frames, taken from the host's clock or from the device's virtual clock."""

from __future__ import annotations

from typing import Final, Protocol

from onrig.hw.clock import ClockSync
from onrig.hw.messages import State
from onrig.runtime.record import Step

_STALLED_CLOCK_FRAMES: Final = 64
"""Number of consecutive frames, each late by about a period or more, that indicates a stopped device clock instead of
late frames."""
_LATE_FRAME_PERIODS: Final = 0.9


class Stamps(Protocol):
    """Source of the times in each record, which it derives from the record's frame."""

    resumed_at_us: int
    """Device time that had passed before the run was resumed, which the device itself does not count (lockstep)."""

    def restart(self) -> None:
        """Allow for a restart of the device's clock."""

    def stamp(self, step: Step, state: State, received_ns: int) -> None:
        """Set the times of a record whose frame was received at ``received_ns`` (host monotonic)."""

    def due_ns(self, t_device_us: int, now_ns: int) -> int:
        """Return when the newest frame, sampled at ``t_device_us``, would have arrived without delay; at most
        ``now_ns`` (host monotonic)."""


class HostStamps:
    """Times from the host's monotonic clock; the sampling time is estimated from the device's clock."""

    def __init__(self, time_scale: float, period_ns: int) -> None:
        self._sync, self._period_ns = ClockSync(time_scale), period_ns
        self._n_consecutive_late = 0
        self.resumed_at_us = 0

    def restart(self) -> None:
        self._sync.reset()

    def stamp(self, step: Step, state: State, received_ns: int) -> None:
        """Stamp a record, and discard the clock estimate if the device's clock has stopped.

        Otherwise, a device whose clock stopped for a while (a twin that was not scheduled, a restarted timer) would
        appear late by the lost time from then on.
        """
        sync, t_device_us = self._sync, state.t_us
        sync.add(t_device_us, received_ns)
        sampled_ns = sync.host_time_ns(t_device_us)
        if received_ns - sampled_ns < _LATE_FRAME_PERIODS * self._period_ns:
            self._n_consecutive_late = 0
        else:
            self._n_consecutive_late += 1
            if self._n_consecutive_late >= _STALLED_CLOCK_FRAMES:
                self._n_consecutive_late = 0
                sync.reset()
                sync.add(t_device_us, received_ns)
                sampled_ns = received_ns
        step.t_receive_ns, step.t_mono_ns = received_ns, sampled_ns
        step.lateness_ns = received_ns - sampled_ns

    def due_ns(self, t_device_us: int, now_ns: int) -> int:
        """Return the time described in the protocol, but ``now_ns`` if no estimate is ready, or if the estimate is over
        a period old: a later frame would then be the newest."""
        if not self._sync.is_ready:
            return now_ns
        due_ns = self._sync.host_time_ns(t_device_us)
        return due_ns if 0 <= now_ns - due_ns < self._period_ns else now_ns


class DeviceStamps:
    """Virtual times from the device's clock (in lockstep), so that no record depends on the wall clock."""

    def __init__(self) -> None:
        self.resumed_at_us = 0

    def restart(self) -> None:
        """Do nothing: virtual time does not restart."""

    def stamp(self, step: Step, state: State, received_ns: int) -> None:
        step.t_mono_ns = step.t_receive_ns = (self.resumed_at_us + state.t_us) * 1000

    def due_ns(self, t_device_us: int, now_ns: int) -> int:
        """Return ``now_ns``: virtual time waits, so no frame is late."""
        return now_ns
