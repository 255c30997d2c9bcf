"""The line between a twin and its host, in the hands of the benchmark: it can be cut, frozen and garbled.

Two pseudo terminals, joined by a thread that runs above the loop's priority where it may.  It keeps every state frame
the device sends, whatever the host gets to see of it: so the device's own account of its output can be read.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
import tty
from typing import Final, Literal, NamedTuple

from hw.framing import FrameReader, encode_frame
from hw.messages import MessageType, State, StateLayout, Status

Mode = Literal["carry", "cut", "freeze", "garble"]
_PRIORITY: Final = 60
_IDLE_S: Final = 0.05
_READ_BYTES: Final = 4096
FLIP: Final = bytes(b ^ 0x5A for b in range(256))
"""What garbling makes of each byte."""


class Seen(NamedTuple):
    """A state frame, and when the host's side of the world could have had it (monotonic ns)."""

    at_ns: int
    state: State


class Wire(threading.Thread):
    """Carries bytes until ``close``."""

    def __init__(self, n_sensors: int, n_actuators: int) -> None:
        super().__init__(daemon=True)
        self._ends = [os.openpty() for _ in range(2)]
        for master, slave in self._ends:
            tty.setraw(slave)
            os.set_blocking(master, False)
        (self._device, device), (self._host, host) = self._ends
        self.device_port, self.host_port = os.ttyname(device), os.ttyname(host)
        self.mode: Mode = "carry"
        self.seen: list[Seen] = []
        self._layout = StateLayout(n_sensors, n_actuators)
        self._reader = FrameReader()
        self._last_wire = b""
        self._closing = False

    def run(self) -> None:
        """Carry."""
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
        while not self._closing:
            ready, _, _ = select.select([self._device, self._host], (), (), _IDLE_S)
            with contextlib.suppress(OSError):  # nobody has the other end open for now, or it takes no more
                if self._host in ready:
                    data = os.read(self._host, _READ_BYTES)
                    if self.mode in ("carry", "freeze"):
                        os.write(self._device, data)
                    elif self.mode == "garble":
                        os.write(self._device, data.translate(FLIP))
            with contextlib.suppress(OSError):
                if self._device in ready:
                    self._from_device(os.read(self._device, _READ_BYTES))

    def _from_device(self, data: bytes) -> None:
        now = time.monotonic_ns()
        out = b""
        for body in self._reader.feed(data):
            wire = encode_frame(body)
            if body[0] == MessageType.STATE:
                self.seen.append(Seen(now, self._layout.decode(body)))
                if self.mode == "freeze" and self._last_wire:
                    wire = self._last_wire
                self._last_wire = wire
            out += wire
        if self.mode == "garble":
            os.write(self._host, out.translate(FLIP))
        elif self.mode != "cut":
            os.write(self._host, out)

    def close(self) -> None:
        """Close both lines."""
        self._closing = True
        self.join()
        for fd in (fd for end in self._ends for fd in end):
            os.close(fd)


def device_time_us(seen: list[Seen], at_ns: int, transit_ns: int) -> float:
    """What the device's clock read at a moment of the host's, by the frames that came with the least delay.

    ``transit_ns`` is what a frame takes at least from its sample on.
    """
    offset_ns = min(s.at_ns - s.state.t_us * 1000 for s in seen) - transit_ns
    return (at_ns - offset_ns) / 1000


def safe_since_us(seen: list[Seen], after_us: float, period_us: int) -> float | None:
    """Device time at which the safe output came into force after ``after_us``; None while it has not.

    A frame that says SAFE and reports a safe output switched within its period, at tau; one that reports another
    output switched at its sample.
    """
    for _, state in seen:
        if state.t_us > after_us and state.status & Status.SAFE:
            if state.answers == 0:
                return max(state.t_us - period_us + state.tau_us % period_us, after_us)
            return float(state.t_us)
    return None
