"""The host's side of a device under test: a session, and what goes over the wire underneath it."""

from __future__ import annotations

from typing import Final

from hw import messages as m
from hw.clock import Clock
from hw.framing import FrameReader, encode_frame
from hw.messages import Capability, Hello, MessageType, Op, Response, Result, State, Status
from hw.rig import Rig
from hw.session import DeviceSession
from hw.transport import LinkError, Transport

Counts = tuple[int, ...]
PATIENCE_NS: Final = 10_000_000_000
_TRIES: Final = 200


class Wire:
    """A Transport that keeps what passes through it to the host, frame by frame."""

    def __init__(self, transport: Transport, layout: m.StateLayout) -> None:
        self._transport, self._layout = transport, layout
        self._reader = FrameReader()
        self.states: list[State] = []
        """Every state frame, in order."""
        self.bodies: list[bytes] = []
        """Every frame, state or not, in order."""

    @property
    def name(self) -> str:
        return self._transport.name

    def fileno(self) -> int:
        return self._transport.fileno()

    def read(self, timeout_ns: int) -> bytes:
        data = self._transport.read(timeout_ns)
        for body in self._reader.feed(data):
            self.bodies.append(body)
            if body[0] == MessageType.STATE:
                self.states.append(self._layout.decode(body))
        return data

    def write(self, data: bytes) -> int:
        return self._transport.write(data)

    def close(self) -> None:
        self._transport.close()


class Host:
    """Drives one device and looks closely at what it says."""

    def __init__(self, transport: Transport, rig: Rig, clock: Clock) -> None:
        self.rig = rig
        self._now = clock.monotonic_ns
        self.wire = Wire(transport, m.StateLayout(len(rig.sensors), len(rig.actuators)))
        self.session = DeviceSession(self.wire, rig, clock)
        self.hello: Hello = self.session.connect()
        self.channels = self.session.channels
        self._commands = m.CommandLayout(len(rig.actuators))
        self.period_us = 0

    # -- values ----------------------------------------------------------------------------------------------------

    @property
    def lockstep(self) -> bool:
        """Whether the device waits for its commands."""
        return self.hello.time_scale == 0.0

    @property
    def can_reset(self) -> bool:
        """Whether the device is a simulator."""
        return bool(self.hello.capabilities & Capability.RESET)

    @property
    def actuators(self) -> tuple[m.Channel, ...]:
        """The device's own description of its actuators."""
        return self.channels[self.hello.n_sensors :]

    @property
    def safe(self) -> Counts:
        """Safe output."""
        return tuple(a.safe for a in self.actuators)

    def part(self, divisor: int) -> Counts:
        """A setpoint between the safe output and the limit that is further from it (2: half way)."""
        ends = [a.high if a.high - a.safe >= a.safe - a.low else a.low for a in self.actuators]
        return tuple(a.safe + (end - a.safe) // divisor for a, end in zip(self.actuators, ends, strict=True))

    # -- driving ---------------------------------------------------------------------------------------------------

    def begin(self, period_us: int, lease: int, *, arm: bool = True) -> State:
        """Bring the device, whatever state it is in, to its first sample after CONFIGURE (and ARM)."""
        self.session.clear_fault()
        self.period_us = period_us
        self.session.configure(period_us, lease)
        if arm:
            self.session.arm()
        return self.sample()

    def sample(self) -> State:
        """The next sample without a command: in lockstep only a reset gives one."""
        if self.lockstep:
            self.session.reset(1)
        return self.wait()

    def wait(self) -> State:
        """The next state frame (the newest, if several wait)."""
        state = self.session.wait_state(self._now() + PATIENCE_NS)
        assert state is not None, "no state frame came"
        return state

    def act(self, state: State, values: Counts) -> State:
        """Command ``values`` in answer to ``state``, or to a later frame if the host is late; the frame that tells."""
        for _ in range(_TRIES):
            self.session.send_command(state.frame, values)
            answered = state.frame
            state = self.wait()
            told = next((s for s in self.wire.states if s.answers == answered), None)
            if told is not None:
                return told
        raise AssertionError(f"none of {_TRIES} commands was accepted")

    def latest(self) -> State:
        """The newest state frame that has been read."""
        return self.wire.states[-1]

    # -- below the session -----------------------------------------------------------------------------------------

    def send(self, *bodies: bytes) -> None:
        """Send frames in one piece."""
        self.send_raw(b"".join(encode_frame(body) for body in bodies))

    def send_raw(self, data: bytes) -> None:
        """Send bytes."""
        assert self.wire.write(data) == len(data)

    def command(self, answers: int, values: Counts) -> bytes:
        """Body of a COMMAND."""
        return self._commands.encode(answers, values)

    def replies(self) -> list[bytes]:
        """What is not a state frame of all that the device has sent up to its answer to a HELLO_REQUEST sent now.

        Requests are answered in order, so this is also the moment until which a device that ignores something has
        had time to answer it; that last HELLO is left out.
        """
        first = len(self.wire.bodies)
        self.send(bytes([MessageType.HELLO_REQUEST]))
        seen = first
        while True:
            assert self.wire.read(PATIENCE_NS), "the device does not answer"
            for body in self.wire.bodies[seen:]:
                seen += 1
                if body[0] == MessageType.HELLO:
                    return [b for b in self.wire.bodies[first : seen - 1] if b[0] != MessageType.STATE]

    def respond(self, body: bytes) -> Response:
        """Send a REQUEST's body as it is, and return the response."""
        first = len(self.wire.bodies)
        self.send(body)
        while True:
            assert self.wire.read(PATIENCE_NS), "the device does not answer"
            for reply in self.wire.bodies[first:]:
                if reply[0] == MessageType.RESPONSE:
                    return m.decode_response(reply)

    def result(self, op: int, payload: bytes = b"", *, request_id: int = 0x7000) -> Result:
        """Outcome of a request with an id that the session is not using."""
        response = self.respond(m.encode_request(m.Request(request_id, op, payload)))
        assert (response.id, response.op) == (request_id, op)
        return Result(response.result)

    def armed(self) -> bool:
        """Whether the next sample says ARMED."""
        return bool(self.sample().status & Status.ARMED)

    def close(self) -> None:
        """Leave the device disarmed and close the line."""
        try:
            self.session.disarm()
        except LinkError:
            return
        finally:
            self.session.close()


__all__ = ["Counts", "Host", "Op", "Wire"]
