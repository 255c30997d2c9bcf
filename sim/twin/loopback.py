"""Twin device in its host's process, in virtual time, for safety campaigns and tests."""

from __future__ import annotations

from onrig.hw.clock import VirtualClock
from onrig.hw.device.protocol import ProtocolDevice
from onrig.hw.framing import FrameReader, encode_frame
from onrig.hw.transport import LoopbackTransport


class LoopbackDevice:
    """Connection that passes bytes and time between ``transport``, the host's end, and a device paced by ``clock``."""

    def __init__(self, device: ProtocolDevice, clock: VirtualClock) -> None:
        self._device, self._clock = device, clock
        self._reader = FrameReader()
        self._configurations = device.configurations
        self._sample_time_ns = clock.now_ns
        self.transport = LoopbackTransport(self._handle, self._wait)

    def _handle(self, data: bytes) -> bytes:
        device = self._device
        out = b""
        for body in self._reader.feed(data):
            offset_us = round((self._clock.now_ns - self._sample_time_ns) * device.time_scale) // 1000
            out += b"".join(encode_frame(reply) for reply in device.handle(body, offset_us))
            if device.configurations != self._configurations:
                self._configurations, self._sample_time_ns = device.configurations, self._clock.now_ns
            if device.time_scale == 0 and device.sample_due:
                out += encode_frame(device.sample())
        return out

    def _wait(self, timeout_ns: int) -> bytes:
        device, clock = self._device, self._clock
        if device.time_scale == 0 or not device.period_us:
            clock.advance(timeout_ns)
            return b""
        due_ns = self._sample_time_ns + round(device.period_us * 1000 / device.time_scale)
        if due_ns > clock.now_ns + timeout_ns:
            clock.advance(timeout_ns)
            return b""
        clock.advance(due_ns - clock.now_ns)
        self._sample_time_ns = due_ns
        return encode_frame(device.sample())
