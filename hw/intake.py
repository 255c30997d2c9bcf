"""Classification of arriving state frames: new, duplicate or stale, with a count of lost frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from onrig.hw.framing import FrameCounters
from onrig.hw.messages import State, StateLayout, WireError

_NUMBER_MASK: Final = 0xFFFF_FFFF
_NUMBER_HALF: Final = 0x8000_0000
MAX_TIME_US: Final = 2**53 - 1
"""285 years; a later device time is corrupt and would overflow 64 bits in ns."""

Tap = Callable[[int, bytes], None]
"""Callback for every frame on the wire, with the host time in ns and the body, whose first byte gives type and
direction.

It is called within the tick, so it must be fast and must not raise.
"""


@dataclass
class LinkCounters(FrameCounters):
    """Link counters since the session was created."""

    states: int = 0
    """State frames accepted as new."""
    skipped: int = 0
    """New frames superseded by a newer one before the consumer read them."""
    lost: int = 0
    """Frames not received intact, as inferred from gaps in the frame numbers."""
    stale: int = 0
    """Frames sampled before the last reset."""
    not_advancing: int = 0
    """Frames whose number or device time did not advance: duplicates, or a frozen link."""
    unreadable: int = 0
    """Valid frames whose content does not match their type."""
    unexpected: int = 0
    """Unexpected frames (late responses, unknown types)."""
    retries: int = 0
    """Requests repeated because no response arrived in time."""
    short_writes: int = 0
    """Frames not sent, or only partly sent, because the port's buffer was full."""
    reboots: int = 0
    """Hellos whose boot id differs from the connected device's."""


def is_before(number: int, other: int) -> bool:
    """Whether a frame number is older than another, modulo 2**32."""
    return (number - other) & _NUMBER_MASK >= _NUMBER_HALF


def frames_between(number: int, other: int) -> int:
    """Return the number of frames from an older frame number to a newer one; numbers wrap from 2**32 - 1 to 1."""
    return ((number - other) & _NUMBER_MASK) - (number < other)


class StateIntake:
    """Buffer of the newest state frame.

    A dead link can look like a healthy robot at rest.  A frame therefore counts as new only if both its number and its
    device time have advanced.
    """

    def __init__(self, layout: StateLayout, counters: LinkCounters, tap: Tap | None = None) -> None:
        self.newest: State | None = None
        """Newest frame, until the consumer reads it and sets this to None."""
        self.received_ns = 0
        """Host time at which the newest frame was received."""
        self.fault = 0
        """Fault code of the latest frame."""
        self._decode = layout.decode
        self._counters = counters
        self._tap = tap
        self.restart()

    def restart(self) -> None:
        """Discard all frames: the next one may come from a different device, or from the same one after a reboot."""
        self.newest = None
        self.fault = 0
        self.last_frame: int | None = None
        """Number of the newest frame, even after the consumer has read it; None before the first."""
        self._last_t_us = 0
        self._ignore_before: int | None = None

    def ignore_before(self, frame: int) -> None:
        """Drop frames older than ``frame`` from now on, including a buffered one."""
        self._ignore_before = frame
        if self.newest is not None and is_before(self.newest.frame, frame):
            self._counters.stale += 1
            self.newest = None

    def take(self, body: bytes, received_ns: int) -> None:
        """Decode the body of a STATE frame and keep the state if it is new.  Never raises."""
        counters = self._counters
        if self._tap is not None:
            self._tap(received_ns, body)
        try:
            state = self._decode(body)
        except WireError:
            counters.unreadable += 1
            return
        frame, t_us = state.frame, state.t_us
        if t_us > MAX_TIME_US:
            counters.unreadable += 1
            return
        if self.last_frame is not None:
            n_frames = frames_between(frame, self.last_frame)
            if not 0 < n_frames < _NUMBER_HALF or t_us <= self._last_t_us:
                counters.not_advancing += 1
                return
            counters.lost += n_frames - 1
        self.last_frame = frame
        self._last_t_us = t_us
        self.fault = state.fault
        if self._ignore_before is not None:
            if is_before(frame, self._ignore_before):
                counters.stale += 1
                return
            self._ignore_before = None
        counters.states += 1
        if self.newest is not None:
            counters.skipped += 1
        self.newest = state
        self.received_ns = received_ns
