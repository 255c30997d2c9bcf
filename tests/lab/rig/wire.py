"""A serial connection between a device and its host that can be cut in one or both directions, frozen, garbled, and
lose frames.

It joins two pseudo terminals with a thread that runs above the loop's priority if permitted.  It can record every state
frame that the device sends, regardless of what the host receives: an independent record of the device's output.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
import tty
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self

import msgspec

from onrig.hw.framing import FrameReader, encode_frame
from onrig.hw.messages import MessageType, State, StateLayout, shows_safe
from onrig.tools.workers import Channel, WorkerProcess

Mode = Literal["carry", "cut", "deaf", "freeze", "garble", "unplugged"]
"""``cut``: nothing passes; ``deaf``: the device receives nothing, but its frames pass; ``freeze``: the host receives
the same frame repeatedly; ``garble``: every byte is altered; ``unplugged``: the host's port is removed."""
_TO_DEVICE: Final = ("carry", "freeze")
_PRIORITY: Final = 60
_IDLE_S: Final = 0.05
_READ_BYTES: Final = 4096
FLIP: Final = bytes(b ^ 0x5A for b in range(256))
"""XOR mask of garbled bytes."""


class Ports(msgspec.Struct, frozen=True):
    """Device files of the two ends."""

    device: str
    host: str


class TimedState(NamedTuple):
    """A state frame, and its time at the device's end of the wire (monotonic ns)."""

    at_ns: int
    state: State


class Wire(threading.Thread):
    """A thread that forwards bytes until ``close``; with ``keep``, all state frames are recorded (an hour produces
    many)."""

    def __init__(self, n_sensors: int, n_actuators: int, *, keep: bool = True, link: Path | None = None) -> None:
        """``link``: symbolic link to the host's end, whose name changes after it was ``unplugged``."""
        super().__init__(daemon=True)
        self._ends = [_raw_pty()]
        self._device, device = self._ends[0]
        self._link = link
        host = self._plug_in()
        self.ports: Final = Ports(os.ttyname(device), host if link is None else str(link))
        self.mode: Mode = "carry"
        self.still_to_lose = 0
        """State frames."""
        self.seen: list[TimedState] = []
        self._keep = keep
        self._layout = StateLayout(n_sensors, n_actuators)
        self._reader = FrameReader()
        self._last_wire = b""
        self._closing = False

    def run(self) -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
        while not self._closing:
            if (self.mode == "unplugged") is not self._unplugged:
                self._unplug() if self.mode == "unplugged" else self._plug_in()
            hosts = [] if self._unplugged else [self._host]
            ready, _, _ = select.select([self._device, *hosts], (), (), _IDLE_S)
            with contextlib.suppress(OSError):  # the other end is not open, or its buffer is full
                if hosts and self._host in ready:
                    data = os.read(self._host, _READ_BYTES)
                    if self.mode in _TO_DEVICE:
                        os.write(self._device, data)
                    elif self.mode == "garble":
                        os.write(self._device, data.translate(FLIP))
            with contextlib.suppress(OSError):
                if self._device in ready:
                    self._from_device(os.read(self._device, _READ_BYTES))

    def _plug_in(self) -> str:
        """Open the host's end; returns the name of its port."""
        self._ends.append(_raw_pty())
        self._host, slave = self._ends[-1]
        self._unplugged = False
        if self._link is not None:
            self._link.symlink_to(os.ttyname(slave))
        return os.ttyname(slave)

    def _unplug(self) -> None:
        """Close the host's end; its reader receives a hang-up."""
        self._unplugged = True
        if self._link is not None:
            self._link.unlink()
        for fd in self._ends.pop():
            os.close(fd)

    def _from_device(self, data: bytes) -> None:
        now = time.monotonic_ns()
        out = b""
        for body in self._reader.feed(data):
            wire = encode_frame(body)
            if body[0] == MessageType.STATE:
                if self._keep:
                    self.seen.append(TimedState(now, self._layout.decode(body)))
                if self.still_to_lose > 0:
                    self.still_to_lose -= 1
                    continue
                if self.mode == "freeze" and self._last_wire:
                    wire = self._last_wire
                self._last_wire = wire
            out += wire
        if self.mode != "cut" and out and not self._unplugged:
            os.write(self._host, out.translate(FLIP) if self.mode == "garble" else out)

    def drop_frames(self, frames: int) -> None:
        """Lose the next state frames."""
        self.still_to_lose += frames

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def stop(self) -> None:
        """Stop forwarding."""
        self._closing = True
        self.join()

    def close(self) -> None:
        """Close both ends."""
        self.stop()
        for fd in (fd for end in self._ends for fd in end):
            os.close(fd)


def _raw_pty() -> tuple[int, int]:
    """Open a pseudo terminal that alters no bytes; returns master and slave."""
    master, slave = os.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    return master, slave


def device_time_us(seen: list[TimedState], at_ns: int, transit_ns: int) -> float:
    """Convert a host time to the device's clock, using the frames with the least delay.

    ``transit_ns`` is the minimum time between a frame's sample and its arrival.
    """
    offset_ns = min(s.at_ns - s.state.t_us * 1000 for s in seen) - transit_ns
    return (at_ns - offset_ns) / 1000


def safe_since_us(seen: list[TimedState], after_us: float, period_us: int, safe: Sequence[float]) -> float | None:
    """Return the device time after ``after_us`` at which the safe output took effect; None if no frame proves it.

    If a period starts with another output, the switch occurred at tau; if it starts with the safe one, at its beginning
    or earlier.
    """
    for _, state in seen:
        if state.t_us > after_us and shows_safe(state, safe):
            switched_us = state.tau_us if state.u_start != state.u_end else 0
            return max(float(state.t_us - period_us + switched_us), after_us)
    return None


class ServedWire:
    """A wire as a worker, with the methods called from other processes."""

    def __init__(self, wire: Wire) -> None:
        self._wire: Final = wire

    def ports(self) -> Ports:
        """Device files of the two ends."""
        return self._wire.ports

    def lose(self, frames: int) -> None:
        """Lose the next state frames."""
        self._wire.drop_frames(frames)

    def behave(self, mode: Mode) -> None:
        """Set the mode."""
        self._wire.mode = mode


class WireProcess(WorkerProcess):
    """A wire in a separate process, for callers whose work must not delay the bytes; a context manager."""

    def __init__(self, n_sensors: int, n_actuators: int) -> None:
        super().__init__(__name__, str(n_sensors), str(n_actuators))
        self.wait_for_value()
        self.ports: Final = self.ask("ports", returns=Ports)
        self._mode: Mode = "carry"

    @property
    def mode(self) -> Mode:
        """Mode of the wire (see ``Mode``); settable."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        self.ask("behave", mode, returns=type(None))

    def lose(self, frames: int) -> None:
        """Lose the next state frames."""
        self.ask("lose", frames, returns=type(None))


if __name__ == "__main__":
    with Wire(int(sys.argv[1]), int(sys.argv[2]), keep=False) as carrying:
        Channel().serve(lambda: ServedWire(carrying))
