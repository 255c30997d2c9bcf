"""Loop of a device written in Python: answers requests on arrival, samples on an absolute grid of monotonic time."""

from __future__ import annotations

import time
from typing import Final

from onrig.hw.clock import Clock
from onrig.hw.device.driven import DrivenDevice
from onrig.hw.device.line import SocketLine
from onrig.hw.framing import FrameReader, encode_frame

_IDLE_TIMEOUT_NS: Final = 20_000_000


class DriverLoop:
    """Passes messages between a connection and a device, and samples the device.

    Frame k is sampled at time kT.  A sample that this process could not take in time is skipped: its frame is missing,
    and its period still counts towards the lease.
    """

    def __init__(self, device: DrivenDevice, line: SocketLine, clock: Clock = time) -> None:
        self._device, self._line, self._now_ns = device, line, clock.monotonic_ns
        self._reader = FrameReader()
        self._configurations = device.configurations
        self._sampled_ns = self._now_ns()
        self._is_connected = False
        self.samples = self.skipped = 0

    def step(self) -> None:
        """Take a sample if one is due; otherwise wait for messages until it is, and answer them."""
        device, now_ns = self._device, self._now_ns()
        if device.configurations != self._configurations:
            self._configurations, self._sampled_ns = device.configurations, now_ns
        period_ns = device.period_us * 1000
        due_ns = self._sampled_ns + period_ns if period_ns else now_ns + _IDLE_TIMEOUT_NS
        if period_ns and now_ns >= due_ns:
            self._sample(due_ns, (now_ns - due_ns) // period_ns, period_ns)
            return
        data = self._line.read(due_ns - now_ns)
        offset_us = (self._now_ns() - self._sampled_ns) // 1000
        if self._line.has_hung_up and self._is_connected:
            device.on_link_loss(offset_us)
        self._is_connected = not self._line.has_hung_up
        if not period_ns:
            device.poll_estop()
        for body in self._reader.feed(data) if data else ():
            for reply in device.handle(body, offset_us):
                self._line.write(encode_frame(reply))

    def _sample(self, due_ns: int, n_missed: int, period_ns: int) -> None:
        if n_missed:
            self.skipped += n_missed
            self._device.skip(n_missed)
        self.samples += 1
        self._line.write(encode_frame(self._device.sample()))
        self._sampled_ns = due_ns + n_missed * period_ns
