"""Pace of the loop: real or scaled time, in which nothing waits for it, and lockstep, in which the device does."""

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

_LOOK_NS: Final = 1_000_000
_LOOK_LOCKSTEP_S: Final = 0.0002
_MAX_CHECK_INTERVAL_S: Final = 0.005
"""In lockstep the learner works meanwhile, and may have only this core."""
_FULL_S: Final = 0.0002


class Pace(Protocol):
    """What the passing of time means to the loop; it is the device's, at most the wall clock's times a scale."""

    overlaps: bool
    """Whether learning overlaps the episodes; otherwise it is awaited at a barrier after each, and an interrupted
    episode is repeated."""
    clock: Callable[[], int] | None
    """Clock (ns) that judges foreign code in the tick; None: none does."""

    def push(self, step: Step) -> None:
        """Write a record into the ring."""

    def look(self, waited_s: float) -> State | None:
        """Wait a moment, between two looks at a condition that has been waited for so long; returns a frame."""

    def request_frame(self) -> None:
        """See to it that a disarmed device sends a frame."""

    def wall_s(self, pause_s: float) -> float:
        """Time that a pause takes by the wall clock."""

    def paused_s(self, pause_s: float, took_s: float) -> float:
        """Device time of a pause that took so long by the wall clock."""


class RealTime:
    """A full ring loses records, which are counted."""

    overlaps: bool = True

    def __init__(self, config: RunConfig, session: DeviceSession, ring: RingWriter) -> None:
        self._session, self._ring = session, ring
        self._values = record_layout(config).values
        self._scale = _scale_of(config)
        self.clock: Callable[[], int] | None = time.monotonic_ns

    def push(self, step: Step) -> None:
        """As Pace."""
        self._ring.push(self._values(step))

    def look(self, waited_s: float) -> State | None:
        """As Pace; keeps reading: a link full of old frames would lose the answer to the next request."""
        return self._session.wait_state(time.monotonic_ns() + _LOOK_NS)

    def request_frame(self) -> None:
        """As Pace; it sends them by itself."""

    def wall_s(self, pause_s: float) -> float:
        """As Pace."""
        return pause_s / self._scale

    def paused_s(self, pause_s: float, took_s: float) -> float:
        """As Pace."""
        return took_s * self._scale


class Lockstep:
    """Virtual time stands still between commands: no record is lost, no bounded pause takes time, no clock judges."""

    overlaps: bool = False
    clock: Callable[[], int] | None = None

    def __init__(self, config: RunConfig, session: DeviceSession, ring: RingWriter, requests: Requests) -> None:
        self._session, self._ring, self._requests = session, ring, requests
        self._values = record_layout(config).values
        self._scale = _scale_of(config)

    def push(self, step: Step) -> None:
        """As Pace; waits until the replay process has caught up, or raises Stopped."""
        while self._ring.full:
            if self._requests.stopped:
                raise Stopped
            time.sleep(_FULL_S)
        self._ring.push(self._values(step))

    def look(self, waited_s: float) -> State | None:
        """As Pace; longer the longer it has taken, and without a frame: the device sends none."""
        time.sleep(min(max(_LOOK_LOCKSTEP_S, waited_s / 16), _MAX_CHECK_INTERVAL_S))
        return None

    def request_frame(self) -> None:
        """As Pace."""
        self._session.reset(0)

    def wall_s(self, pause_s: float) -> float:
        """As Pace."""
        return pause_s if isinf(pause_s) else 0.0

    def paused_s(self, pause_s: float, took_s: float) -> float:
        """As Pace; an unbounded pause lasts until a person ends it."""
        return took_s * self._scale if isinf(pause_s) else pause_s


def pace(config: RunConfig, session: DeviceSession, ring: RingWriter, requests: Requests, *, time_scale: float) -> Pace:
    """Return the pace of a device whose hello states this ``time_scale``."""
    if time_scale == 0.0:
        return Lockstep(config, session, ring, requests)
    return RealTime(config, session, ring)


def _scale_of(config: RunConfig) -> float:
    """Device time per time of the wall clock."""
    return 1000 * config.period_us / config.wall_period_ns
