"""Record of the traffic from a device under test."""

from __future__ import annotations

from onrig.hw import messages as m
from onrig.hw.framing import FrameReader
from onrig.hw.messages import MessageType, Op, Result, State
from onrig.hw.transport import Transport


class Wire:
    """A Transport that records the traffic to the host, frame by frame."""

    def __init__(self, transport: Transport, layout: m.StateLayout) -> None:
        self._transport, self.layout = transport, layout
        self._reader = FrameReader()
        self.states: list[State] = []
        """Every state frame since the last CONFIGURE, in order."""
        self.count = 0
        """Number of state frames so far."""
        self.bodies: list[bytes] = []
        """Every frame, state or not, in order."""
        self.raw = bytearray()
        """All bytes received."""
        self.last_before_configure = 0
        """Number of the last frame before the last CONFIGURE."""

    def forget(self) -> None:
        """Discard the record and start a new one."""
        self.states.clear()
        self.bodies.clear()
        self.raw.clear()

    @property
    def name(self) -> str:
        return self._transport.name

    def fileno(self) -> int:
        return self._transport.fileno()

    def read(self, timeout_ns: int) -> bytes:
        data = self._transport.read(timeout_ns)
        self.raw += data
        for body in self._reader.feed(data):
            self.bodies.append(body)
            if body[0] == MessageType.STATE:
                self.states.append(self.layout.decode(body))
                self.count += 1
            elif body[0] == MessageType.RESPONSE and m.decode_response(body)[1:3] == (Op.CONFIGURE, Result.OK):
                self.last_before_configure = self.states[-1].frame if self.states else 0
                self.states.clear()
        return data

    def write(self, data: bytes) -> int:
        return self._transport.write(data)

    def close(self) -> None:
        self._transport.close()
