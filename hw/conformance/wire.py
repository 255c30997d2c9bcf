"""Recording of the frames sent by a device under test."""

from __future__ import annotations

from onrig.hw import messages as m
from onrig.hw.framing import FrameReader
from onrig.hw.messages import MessageType, Op, Result, State
from onrig.hw.transport import Transport


class RecordingTransport:
    """A Transport that records all frames from the device to the host."""

    def __init__(self, transport: Transport, layout: m.StateLayout) -> None:
        self._transport, self.layout = transport, layout
        self._reader = FrameReader()
        self.states: list[State] = []
        """State frames since the last CONFIGURE, in order."""
        self.n_states = 0
        """Number of state frames received, including those before the last CONFIGURE."""
        self.bodies: list[bytes] = []
        """Bodies of all frames, in order."""
        self.raw = bytearray()
        """All bytes received."""
        self.last_frame_before_configure = 0
        """Number of the last state frame before the last CONFIGURE."""

    def clear(self) -> None:
        """Discard the recorded frames and bytes."""
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
                self.n_states += 1
            elif body[0] == MessageType.RESPONSE and m.decode_response(body)[1:3] == (Op.CONFIGURE, Result.OK):
                self.last_frame_before_configure = self.states[-1].frame if self.states else 0
                self.states.clear()
        return data

    def write(self, data: bytes) -> int:
        return self._transport.write(data)

    def close(self) -> None:
        self._transport.close()
