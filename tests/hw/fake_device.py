"""A minimal device, in virtual time: answers requests, emits what a test queues, fails on demand."""

from collections.abc import Callable

from onrig.hw.clock import VirtualClock
from onrig.hw.framing import FrameReader, encode_frame
from onrig.hw.messages import (
    NEXT_FRAME_LAYOUT,
    PROTOCOL_VERSION,
    Capability,
    Channel,
    Command,
    CommandLayout,
    Hello,
    MessageType,
    Op,
    Request,
    Response,
    Result,
    State,
    StateLayout,
    decode_request,
    encode_channel,
    encode_hello,
    encode_response,
)
from onrig.hw.rig import Rig
from onrig.hw.transport import LoopbackTransport

PERIOD_US = 20_000


def hello_of(rig: Rig) -> Hello:
    return Hello(
        protocol=PROTOCOL_VERSION,
        n_sensors=len(rig.sensors),
        n_actuators=len(rig.actuators),
        rig=rig.name,
        capabilities=Capability.RESET | (Capability.RELEASES if rig.releases else 0),
        boot_id=1,
        period_min_us=1000,
        period_max_us=1_000_000,
        lease_max=100,
        time_scale=1.0,
    )


def channels_of(rig: Rig) -> tuple[Channel, ...]:
    return (
        *(Channel(False, s.wrap, s.name, s.unit, s.resolution, -8192, 8191, 0) for s in rig.sensors),
        *(
            Channel(
                *(True, False, a.name, a.unit, a.resolution),
                *(round(a.low / a.resolution), round(a.high / a.resolution), round(a.safe / a.resolution)),
            )
            for a in rig.actuators
        ),
    )


class FakeDevice:
    """The other end of a LoopbackTransport (``line``); ``acted`` lists each operation actually executed."""

    def __init__(self, rig: Rig, clock: VirtualClock) -> None:
        self.hello = hello_of(rig)
        self.channels = channels_of(rig)
        self.results: dict[Op, Result] = {}
        self.deaf_for = 0
        """Number of frames from the host that are lost before they arrive."""
        self.mute_for = 0
        """Number of responses that are lost on their way to the host."""
        self.before_response: list[State] = []
        self.next_frame = 1
        self.acted: list[tuple[Op, bytes]] = []
        self.request_ids: list[int] = []
        self.commands: list[Command] = []
        self.arrivals: list[tuple[int, bytes]] = []
        """Pending (device's sending time in ns, bytes), in order."""
        self.babble: Callable[[], bytes] | None = None
        self.line = LoopbackTransport(self._handle, self._wait, "fake")
        self._clock = clock
        self._reader = FrameReader()
        self._states = StateLayout(len(rig.sensors), len(rig.actuators))
        self._commands = CommandLayout(len(rig.actuators))
        self._last: tuple[int, bytes] | None = None

    def wire(self, state: State) -> bytes:
        return encode_frame(self._states.encode(state))

    def send(self, *states: State) -> None:
        """Let state frames arrive at once."""
        self.send_raw(b"".join(self.wire(state) for state in states))

    def send_raw(self, data: bytes) -> None:
        self.arrivals.append((self._clock.monotonic_ns(), data))

    def _handle(self, data: bytes) -> bytes:
        return b"".join(self._answer(body) for body in self._reader.feed(data))

    def _wait(self, timeout_ns: int) -> bytes:
        if self.babble is not None:
            self._clock.advance(min(1_000_000, timeout_ns))
            return self.babble()
        due_ns = self._clock.monotonic_ns() + timeout_ns
        if self.arrivals and self.arrivals[0][0] <= due_ns:
            at_ns, data = self.arrivals.pop(0)
            self._clock.advance(max(0, at_ns - self._clock.monotonic_ns()))
            return data
        self._clock.advance(timeout_ns)
        return b""

    def _answer(self, body: bytes) -> bytes:
        if self.deaf_for:
            self.deaf_for -= 1
            return b""
        if body[0] == MessageType.HELLO_REQUEST:
            self._last = None
            return encode_frame(encode_hello(self.hello))
        if body[0] == MessageType.COMMAND:
            self.commands.append(self._commands.decode(body))
            return b""
        request = decode_request(body)
        self.request_ids.append(request.id)
        if self._last is None or self._last[0] != request.id:
            self._last = (request.id, self._act(request))
        sampled_meanwhile, self.before_response = self.before_response, []
        reply = b"".join(self.wire(state) for state in sampled_meanwhile)
        if self.mute_for:
            self.mute_for -= 1
            return reply
        return reply + encode_frame(self._last[1])

    def _act(self, request: Request) -> bytes:
        op = Op(request.op)
        self.acted.append((op, request.payload))
        result = self.results.get(op, Result.OK)
        payload = b""
        if result == Result.OK and op == Op.DESCRIBE:
            payload = encode_channel(self.channels[request.payload[0]])
        elif result == Result.OK and op == Op.RESET:
            payload = NEXT_FRAME_LAYOUT.pack(self.next_frame)
        return encode_response(Response(request.id, op, result, payload))


def state_of(frame: int, t_us: int | None = None, fault: int = 0) -> State:
    """A state frame of the pendulum, on the grid by default."""
    return State(
        frame=frame,
        t_us=frame * PERIOD_US if t_us is None else t_us,
        status=1,
        fault=fault,
        lease_left=5,
        answers=frame - 1,
        tau_us=1200,
        sensors=(frame % 100, -5),
        u_start=(100,),
        u_end=(-100,),
    )
