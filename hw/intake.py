"""Sorts arriving state frames: which one is new, which is old news, and what was lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from onrig.hw.framing import FrameCounters
from onrig.hw.messages import State, StateLayout, WireError

_NUMBER_MASK: Final = 0xFFFF_FFFF
_NUMBER_HALF: Final = 0x8000_0000
MAX_TIME_US: Final = 2**53 - 1
"""285 years: a device time beyond is damage, and no reader of the records could hold it in ns."""

Tap = Callable[[int, bytes], None]
"""Told of every whole frame that goes over the line: host time in ns, body (its first byte tells type and direction).

Called in the tick: it must be quick and must not raise.
"""


@dataclass
class LinkCounters(FrameCounters):
    """What happened on the line since the session was made."""

    states: int = 0
    """State frames read and found new."""
    skipped: int = 0
    """New, but overtaken by a newer one before anybody asked for it."""
    lost: int = 0
    """Missing from the numbering: they never arrived whole."""
    stale: int = 0
    """Sampled before the last reset."""
    not_advancing: int = 0
    """Number or device time did not grow: duplicates, or a frozen link."""
    unreadable: int = 0
    """Whole frames whose content does not fit their type."""
    unexpected: int = 0
    """Whole frames that nobody waits for (late responses, unknown types)."""
    retries: int = 0
    """Requests sent again because no response came in time."""
    short_writes: int = 0
    """Frames that a clogged line did not take, or not whole."""
    reboots: int = 0
    """Hellos with a boot id other than the one connected to."""


def is_before(number: int, other: int) -> bool:
    """Tell whether a frame number is older than another, across the wrap at 2**32."""
    return (number - other) & _NUMBER_MASK >= _NUMBER_HALF


class StateIntake:
    """Keeps the newest state frame until it is asked for.

    A dead link can look like a healthy robot that stands still; so a frame counts as new only if both its number and
    its device time have grown.
    """

    def __init__(self, layout: StateLayout, counters: LinkCounters, tap: Tap | None = None) -> None:
        self.newest: State | None = None
        """The newest frame that nobody has taken yet; whoever takes it sets this to None."""
        self.received_ns = 0
        """Host time at which the newest frame was received."""
        self.fault = 0
        """Fault code of the latest frame."""
        self._decode = layout.decode
        self._counters = counters
        self._tap = tap
        self.restart()

    def restart(self) -> None:
        """Forget all frames: what comes next may be another device, or the same one started anew."""
        self.newest = None
        self.fault = 0
        self.last_frame: int | None = None
        """Number of the newest frame, whether or not anybody took it; None before the first."""
        self._last_t_us = 0
        self._ignore_before: int | None = None

    def ignore_before(self, frame: int) -> None:
        """Drop frames older than ``frame`` from now on, the one that waits included."""
        self._ignore_before = frame
        if self.newest is not None and is_before(self.newest.frame, frame):
            self._counters.stale += 1
            self.newest = None

    def take(self, body: bytes, received_ns: int) -> None:
        """Read a frame body of type STATE and keep it if it is new; never raises."""
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
            ahead = (frame - self.last_frame) & _NUMBER_MASK
            if not 0 < ahead < _NUMBER_HALF or t_us <= self._last_t_us:
                counters.not_advancing += 1
                return
            counters.lost += ahead - 1
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
