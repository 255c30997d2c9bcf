"""A line between a twin and its host that a test can listen in on: two pseudo terminals, joined by the test."""

from __future__ import annotations

import contextlib
import os
import select
import time
import tty
from collections.abc import Callable

from onrig.hw.framing import FrameReader
from onrig.hw.messages import MessageType, State, StateLayout
from onrig.hw.transport import READ_BYTES, DescriptorTransport
from tests.processes.rig import PATIENCE_S, Process


class Tap:
    """Carries bytes both ways while ``until`` waits, and keeps every state frame that passes.

    The twin is given ``device_port``, the host ``host_port``.  Neither can tell when the other hangs up, as on a
    serial line: what happens then is the lease's doing.
    """

    def __init__(self, n_sensors: int, n_actuators: int) -> None:
        self._ends = [os.openpty() for _ in range(2)]
        for master, slave in self._ends:
            tty.setraw(slave)
            os.set_blocking(master, False)
        (self._device, device), (self._host, host) = self._ends
        self.device_port, self.host_port = os.ttyname(device), os.ttyname(host)
        self.states: list[State] = []
        self._layout = StateLayout(n_sensors, n_actuators)
        self._reader = FrameReader()

    def until(self, condition: Callable[[State], bool], what: str, *processes: Process) -> State:
        """Carry bytes until a state frame passes that fulfils the condition; it is then the last of ``states``."""
        limit = time.monotonic() + PATIENCE_S
        watched = [p.fd for p in processes]
        while True:
            ready, _, _ = select.select([self._device, self._host, *watched], (), (), PATIENCE_S)
            assert time.monotonic() < limit, f"waited {PATIENCE_S:g} s for {what}"
            assert not set(watched) & set(ready), f"a process ended before {what}"
            if self._host in ready:
                self._carry(self._host, self._device)
            if self._device in ready:
                for body in self._reader.feed(self._carry(self._device, self._host)):
                    if body[0] == MessageType.STATE:
                        self.states.append(self._layout.decode(body))
                        if condition(self.states[-1]):
                            return self.states[-1]

    @staticmethod
    def _carry(source: int, sink: int) -> bytes:
        data = os.read(source, READ_BYTES)
        with contextlib.suppress(BlockingIOError):  # nobody reads at the other end
            os.write(sink, data)
        return data

    def take_over(self) -> DescriptorTransport:
        """The device's line for a host of the test's own; nothing is carried any more."""
        return DescriptorTransport(os.dup(self._device), self.device_port)

    def close(self) -> None:
        """Close both lines."""
        for fd in (fd for end in self._ends for fd in end):
            os.close(fd)
