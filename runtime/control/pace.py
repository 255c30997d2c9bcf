"""Pace of the loop: real or scaled time, which does not wait for the loop, or lockstep, where the device waits for
it."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import isinf
from typing import Final, Protocol

from onrig.hw.messages import State
from onrig.hw.session import DeviceSession
from onrig.runtime.control.frames import Stopped
from onrig.runtime.control.outside import Requests
from onrig.runtime.record import Step
from onrig.runtime.run_config import RunConfig, record_layout
from onrig.runtime.shm.ring import RingWriter

_POLL_NS: Final = 1_000_000
_LOCKSTEP_POLL_S: Final = 0.0002
_MAX_LOCKSTEP_POLL_S: Final = 0.005
"""Maximum sleep between polls in lockstep; the learner works meanwhile, possibly on the same core."""
_FULL_RING_RETRY_S: Final = 0.0002


class Pace(Protocol):
    """Relation between the loop, device time and the wall clock."""

    overlaps_learning: bool
    """Whether learning overlaps the episodes; otherwise the loop waits for the learner at a barrier after each episode,
    and an interrupted episode is repeated."""
    clock: Callable[[], int] | None
    """Clock (ns) that times third-party code in the tick; None if it is not timed."""

    def push(self, step: Step) -> None:
        """Write a record into the ring."""

    def poll(self, waited_s: float) -> State | None:
        """Wait briefly before the next poll of a condition; return a frame if one arrives, otherwise None.

        ``waited_s``: how long the condition has been awaited.
        """

    def request_frame(self) -> None:
        """Make sure that a disarmed device sends a frame."""

    def wall_s(self, pause_s: float) -> float:
        """Return how long a pause of ``pause_s`` in device time lasts by the wall clock."""

    def paused_s(self, pause_s: float, elapsed_s: float) -> float:
        """Return the device time of a pause of ``pause_s`` that lasted ``elapsed_s`` by the wall clock."""


class RealTime:
    """Real or scaled time; records that find the ring full are lost and counted."""

    overlaps_learning: bool = True

    def __init__(self, config: RunConfig, session: DeviceSession, ring: RingWriter) -> None:
        self._session, self._ring = session, ring
        self._values = record_layout(config).values
        self._device_s_per_s = _time_scale(config)
        self.clock: Callable[[], int] | None = time.monotonic_ns

    def push(self, step: Step) -> None:
        self._ring.push(self._values(step))

    def poll(self, waited_s: float) -> State | None:
        """Wait while reading frames, because a link full of old frames would lose the answer to the next request."""
        return self._session.wait_state(time.monotonic_ns() + _POLL_NS)

    def request_frame(self) -> None:
        """Do nothing, since the device sends frames by itself."""

    def wall_s(self, pause_s: float) -> float:
        return pause_s / self._device_s_per_s

    def paused_s(self, pause_s: float, elapsed_s: float) -> float:
        return elapsed_s * self._device_s_per_s


class Lockstep:
    """Virtual time, which advances only with commands: no record is lost, and a bounded pause takes no time."""

    overlaps_learning: bool = False
    clock: Callable[[], int] | None = None

    def __init__(self, config: RunConfig, session: DeviceSession, ring: RingWriter, requests: Requests) -> None:
        self._session, self._ring, self._requests = session, ring, requests
        self._values = record_layout(config).values
        self._device_s_per_s = _time_scale(config)

    def push(self, step: Step) -> None:
        """Wait until the replay process has caught up, then write; raises Stopped."""
        while self._ring.is_full:
            if self._requests.is_stop_requested:
                raise Stopped
            time.sleep(_FULL_RING_RETRY_S)
        self._ring.push(self._values(step))

    def poll(self, waited_s: float) -> State | None:
        """Wait for an interval that grows with ``waited_s``; return None, because the device sends no frames."""
        time.sleep(min(max(_LOCKSTEP_POLL_S, waited_s / 16), _MAX_LOCKSTEP_POLL_S))
        return None

    def request_frame(self) -> None:
        self._session.reset(0)

    def wall_s(self, pause_s: float) -> float:
        return pause_s if isinf(pause_s) else 0.0

    def paused_s(self, pause_s: float, elapsed_s: float) -> float:
        """Return ``pause_s``; for an unbounded pause, how long it lasted until a person ended it."""
        return elapsed_s * self._device_s_per_s if isinf(pause_s) else pause_s


def make_pace(
    config: RunConfig, session: DeviceSession, ring: RingWriter, requests: Requests, *, time_scale: float
) -> Pace:
    """Return the pace for a device that reports this ``time_scale`` in its hello."""
    if time_scale == 0.0:
        return Lockstep(config, session, ring, requests)
    return RealTime(config, session, ring)


def _time_scale(config: RunConfig) -> float:
    """Return the seconds of device time that pass per second of wall-clock time."""
    return 1000 * config.period_us / config.wall_period_ns
