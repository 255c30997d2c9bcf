"""Host-side session with one device (``hw/PROTOCOL.md``).

Two channels share the link.  Requests, for everything that must not be lost, are acknowledged and retried.  Of states
and commands, only the newest counts, and none is sent twice.
"""

from __future__ import annotations

from typing import Final

from onrig.hw.clock import Clock
from onrig.hw.framing import FrameReader, encode_frame
from onrig.hw.identity import check_channels, check_hello
from onrig.hw.intake import LinkCounters, StateIntake, Tap
from onrig.hw.messages import (
    CONFIGURE_LAYOUT,
    LIMITS_LAYOUT,
    NEXT_FRAME_LAYOUT,
    RESET_LAYOUT,
    RESULT_HINTS,
    Capability,
    Channel,
    CommandLayout,
    Hello,
    MessageType,
    Op,
    Request,
    Response,
    Result,
    State,
    StateLayout,
    WireError,
    decode_channel,
    decode_hello,
    decode_response,
    encode_request,
    fault_text,
)
from onrig.hw.rig import Rig
from onrig.hw.transport import LinkError, Transport

RETRY_INTERVAL_S: Final = 0.1
MAX_ATTEMPTS: Final = 10
_FRAME_OVERHEAD_BYTES: Final = 7
_MAX_DRAIN_READS: Final = 64
"""Limit on reads when draining a port that is never silent; together they exceed the kernel's serial buffers."""
_HELLO_REQUEST: Final = encode_frame(bytes([MessageType.HELLO_REQUEST]))
_STATE: Final = int(MessageType.STATE)


class RequestRefused(Exception):
    """Request refused by the device."""

    def __init__(self, op: Op, result: int, detail: str = "") -> None:
        result_names = {r.value: r.name for r in Result}
        hint = RESULT_HINTS.get(Result(result), "") if result in result_names else ""
        reasons = "; ".join(text for text in (hint, detail) if text)
        super().__init__(f"the device refused {op.name}: {result_names.get(result, result)} ({reasons})")
        self.op = op
        self.result = result


class DeviceSession:
    """Session with the device at the other end of a transport; single-threaded.

    Every method raises LinkError once the link is closed; methods that need an answer also raise it if none arrives.
    """

    def __init__(
        self,
        transport: Transport,
        rig: Rig,
        clock: Clock,
        *,
        retry_s: float = RETRY_INTERVAL_S,
        attempts: int = MAX_ATTEMPTS,
        tap: Tap | None = None,
    ) -> None:
        self.counters = LinkCounters()
        self.hello: Hello | None = None
        """Hello of the connected device; None until connected."""
        self.channels: tuple[Channel, ...] = ()
        """Channels as described by the device: sensors, then actuators."""
        self.has_rebooted = False
        """Whether the device has rebooted since `connect`: a later hello had a different boot id."""
        self._transport = transport
        self._rig = rig
        self._now_ns = clock.monotonic_ns
        self._retry_s = retry_s
        self._attempts = attempts
        self._reader = FrameReader(self.counters)
        state_layout = StateLayout(len(rig.sensors), len(rig.actuators))
        self._tap = tap
        self._intake = StateIntake(state_layout, self.counters, tap)
        self._command_layout = CommandLayout(len(rig.actuators))
        self._one_frame_bytes = state_layout.size + _FRAME_OVERHEAD_BYTES
        self._read_ns = 0
        self._request_id = 0

    @property
    def received_ns(self) -> int:
        """Host time at which the newest state frame was received."""
        return self._intake.received_ns

    @property
    def last_frame(self) -> int | None:
        """Number of the newest state frame received, even if not yet returned; None before the first."""
        return self._intake.last_frame

    @property
    def fault(self) -> int:
        """Fault code of the newest state frame."""
        return self._intake.fault

    def connect(self, timeout_s: float = 5.0) -> Hello:
        """Request a hello until one arrives, then read the channels and compare everything with the rig.

        Raises DeviceMismatch if the device does not match (rig, protocol version, unit, limit, ...), and LinkError if
        no device answers.
        """
        self._reader.reset()
        self.hello = None
        hello = self.fetch_hello(timeout_s)
        self._intake.restart()  # frames received before the hello may date from before a restart of the device
        check_hello(hello, self._rig)
        self.hello = hello
        self.has_rebooted = False
        channels = []
        for index in range(hello.n_sensors + hello.n_actuators):
            try:
                channels.append(decode_channel(self.request(Op.DESCRIBE, bytes([index]))))
            except WireError as error:
                raise LinkError(f"{self._transport.name}: {error} from the device; check its firmware") from error
        check_channels(channels, self._rig)
        self.channels = tuple(channels)
        self._intake.newest = None
        return hello

    def request(self, op: Op, payload: bytes = b"", *, detail: str = "") -> bytes:
        """Send a request, with retries, and return the payload of the response; the device executes it exactly once.

        Raises RequestRefused (with ``detail``, or the latched fault, in its message) or, after the last attempt,
        LinkError.  The newest state frame that arrives meanwhile is kept for the next `wait_state`.
        """
        self._request_id = (self._request_id + 1) & 0xFFFF
        body = encode_request(Request(self._request_id, op, payload))
        dropped_before = self.counters.bytes_dropped
        for attempt in range(self._attempts):
            self.counters.retries += attempt > 0
            self.send(body)
            deadline_ns = self._now_ns() + round(self._retry_s * 1e9)
            while (bodies := self._receive(deadline_ns)) is not None:
                for response in self._responses(bodies):
                    if response.id != self._request_id or response.op != op:
                        self.counters.unexpected += 1
                    elif response.result != Result.OK:
                        raise RequestRefused(op, response.result, detail or self._fault_text())
                    else:
                        return response.payload
        raise LinkError(
            f"{self._transport.name}: no answer to {op.name} in {self._attempts} attempts"
            f"{self._describe_dropped_bytes(dropped_before)}"
        )

    def configure(self, period_us: int, lease_periods: int) -> None:
        """Set period and lease; the device also disarms, restores its limits and starts its stream of state frames."""
        hello = self._require_hello()
        detail = (
            f"period {period_us} us, lease {lease_periods} periods; the device allows "
            f"{hello.period_min_us} to {hello.period_max_us} us and leases of 1 to {hello.lease_max}"
        )
        if not (hello.period_min_us <= period_us <= hello.period_max_us and 1 <= lease_periods <= hello.lease_max):
            raise RequestRefused(Op.CONFIGURE, Result.OUT_OF_RANGE, detail)
        self.request(Op.CONFIGURE, CONFIGURE_LAYOUT.pack(period_us, lease_periods), detail=detail)
        self._intake.newest = None

    def limit(self, index: int, low: int, high: int) -> None:
        """Tighten the limits of actuator ``index`` to [low, high] counts; the device refuses limits wider than its
        own."""
        detail = f"actuator {index}: {low} to {high} counts"
        self.request(Op.LIMITS, LIMITS_LAYOUT.pack(index, low, high), detail=detail)

    def arm(self) -> None:
        """Arm the device, so that commands take effect; it must be configured and have no latched fault."""
        self.request(Op.ARM)

    def disarm(self) -> None:
        """Disarm the device: it applies its safe output at once and keeps it in force."""
        self.request(Op.DISARM)

    def clear_fault(self) -> None:
        """Release a latched fault whose cause is gone; the device remains disarmed."""
        self.request(Op.CLEAR_FAULT)

    def reset(self, seed: int) -> int:
        """Reset a twin's plant to its start state and return the number of its first frame; older frames are dropped.

        Raises RequestRefused if the hello does not advertise RESET (a real rig has a reset controller instead).
        """
        if not self._require_hello().capabilities & Capability.RESET:
            raise RequestRefused(Op.RESET, Result.UNKNOWN_OP, "the device's hello does not advertise RESET")
        payload = self.request(Op.RESET, RESET_LAYOUT.pack(seed))
        if len(payload) != NEXT_FRAME_LAYOUT.size:
            raise LinkError(f"{self._transport.name}: answer to RESET of {len(payload)} bytes; check its firmware")
        next_frame = int(NEXT_FRAME_LAYOUT.unpack(payload)[0])
        self._intake.ignore_before(next_frame)
        return next_frame

    def request_hello(self) -> None:
        """Request a hello without waiting; `wait_state` receives it and sets ``has_rebooted`` after a reboot."""
        self._write(_HELLO_REQUEST)

    def check_reboot(self, within_s: float = 0.2) -> bool:
        """Request a hello and return whether the device has rebooted since `connect`; a closed link raises no error."""
        deadline_ns = self._now_ns() + round(within_s * 1e9)
        try:
            self.request_hello()
            while not self.has_rebooted and (bodies := self._receive(deadline_ns)) is not None:
                for body in bodies:
                    self._handle_unrequested(body)
        except LinkError:
            pass
        return self.has_rebooted

    def wait_state(self, deadline_ns: int) -> State | None:
        """Return the newest state frame, waiting for it until ``deadline_ns``; None if none has arrived by then.

        A hello that shows a reboot ends the wait.  Other frames are counted and cause no error.  Raises
        LinkError once the link is closed.
        """
        read, feed, now, intake = self._transport.read, self._reader.feed, self._now_ns, self._intake
        n_drains = 0
        while True:
            timeout_ns = 0 if intake.newest is not None else deadline_ns - now()
            if timeout_ns <= 0:
                n_drains += 1
            data = read(timeout_ns)
            if data:
                self._read_ns = now()
                for body in feed(data):
                    if body[0] == _STATE:
                        intake.take(body, self._read_ns)
                    else:
                        if self._tap is not None:
                            self._tap(self._read_ns, body)
                        self._handle_unrequested(body)
            state = intake.newest
            # A read of at most one frame has emptied the buffer, so the usual case needs no second read.
            is_buffer_empty = state is not None and len(data) <= self._one_frame_bytes
            if is_buffer_empty or not data or self.has_rebooted or n_drains >= _MAX_DRAIN_READS:
                intake.newest = None
                return state

    def send_command(self, answers: int, counts: tuple[int, ...]) -> None:
        """Send one setpoint per actuator (int32 counts), once, in answer to a frame.

        Raises ``struct.error`` if a setpoint does not fit.
        """
        body = self._command_layout.encode(answers, counts)
        self._write(encode_frame(body))
        if self._tap is not None:
            self._tap(self._now_ns(), body)

    def send(self, body: bytes) -> None:
        """Send a message once, without waiting for an answer."""
        self._write(encode_frame(body))
        if self._tap is not None:
            self._tap(self._now_ns(), body)

    def switch_transport(self, transport: Transport) -> None:
        """Close the current transport and use a new one; call `connect` next."""
        self._transport.close()
        self._transport = transport

    def close(self) -> None:
        """Close the transport; an armed device then switches to its safe output when its lease expires."""
        self._transport.close()

    def fetch_hello(self, timeout_s: float) -> Hello:
        """Request a hello until one arrives, and return it without comparing it with the rig.

        Raises LinkError on a timeout.
        """
        dropped = self.counters.bytes_dropped
        for _ in range(max(1, round(timeout_s / self._retry_s))):
            self._write(_HELLO_REQUEST)
            deadline_ns = self._now_ns() + round(self._retry_s * 1e9)
            while (bodies := self._receive(deadline_ns)) is not None:
                for body in bodies:
                    if body[0] == MessageType.HELLO:
                        try:
                            return decode_hello(body)
                        except WireError:
                            self.counters.unreadable += 1
        raise LinkError(
            f"{self._transport.name}: no device answered within {timeout_s:g} s"
            f"{self._describe_dropped_bytes(dropped)}; check its power and cable, and that this is its port"
        )

    def _require_hello(self) -> Hello:
        if self.hello is None:
            raise LinkError(f"{self._transport.name}: not connected to a device yet")
        return self.hello

    def _receive(self, deadline_ns: int) -> list[bytes] | None:
        """Read once, buffer state frames and return the other frames' bodies; None if nothing arrives in time."""
        timeout_ns = deadline_ns - self._now_ns()
        data = self._transport.read(timeout_ns) if timeout_ns > 0 else b""
        if not data:
            return None
        self._read_ns = self._now_ns()
        other_bodies = []
        for body in self._reader.feed(data):
            if body[0] == _STATE:
                self._intake.take(body, self._read_ns)
            else:
                if self._tap is not None:
                    self._tap(self._read_ns, body)
                other_bodies.append(body)
        return other_bodies

    def _responses(self, bodies: list[bytes]) -> list[Response]:
        responses = []
        for body in bodies:
            if body[0] == MessageType.RESPONSE:
                try:
                    responses.append(decode_response(body))
                except WireError:
                    self.counters.unreadable += 1
            else:
                self._handle_unrequested(body)
        return responses

    def _handle_unrequested(self, body: bytes) -> None:
        if body[0] != MessageType.HELLO:
            self.counters.unexpected += 1
            return
        try:
            hello = decode_hello(body)
        except WireError:
            self.counters.unreadable += 1
            return
        if self.hello is not None and hello.boot_id != self.hello.boot_id:
            self.has_rebooted = True
            self.counters.reboots += 1

    def _write(self, frame: bytes) -> None:
        if self._transport.write(frame) != len(frame):
            self.counters.short_writes += 1

    def _fault_text(self) -> str:
        code = self._intake.fault
        return f"fault {fault_text(code)}" if code else ""

    def _describe_dropped_bytes(self, dropped_before: int) -> str:
        if not (dropped := self.counters.bytes_dropped - dropped_before):
            return ""
        return f" ({dropped} bytes received without a valid frame: wrong baud rate, or another device?)"
