"""Disarming of an unknown device after its host process has ended (``hw/PROTOCOL.md`` §2.5).

The exchange starts with a hello, because a device caches its last answer and would replay it for an identical request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final, NamedTuple, TypeVar

from onrig.hw.clock import Clock
from onrig.hw.framing import FrameReader, encode_frame
from onrig.hw.intake import LinkCounters, frames_between
from onrig.hw.messages import (
    CONFIGURE_LAYOUT,
    RESET_LAYOUT,
    Capability,
    Hello,
    MessageType,
    Op,
    Request,
    Result,
    State,
    StateLayout,
    WireError,
    contradicts_safe,
    decode_channel,
    decode_hello,
    decode_response,
    encode_request,
    shows_safe,
)
from onrig.hw.transport import LinkError, Transport

HELLO_TIMEOUT_S: Final = 5.0
"""Time to wait for a hello: the start-up time of boards that reboot when the port opens (``hw/PROTOCOL.md`` §6)."""
_RETRY_INTERVAL_NS: Final = 100_000_000
_RESPONSE_TIMEOUT_S: Final = 1.0
_MIN_FRAME_TIMEOUT_S: Final = 0.5
_N_AWAITED_PERIODS: Final = 3
"""Number of periods within which at least one frame must arrive."""
_DEFAULT_PERIOD_US: Final = 20_000
"""Sampling period to configure if the device sends no frames, clamped to the device's bounds."""
_MAX_FRAME_TIMEOUT_S: Final = 5.0
"""Longest wait for a frame."""

T = TypeVar("T")


class DisarmConfirmation(NamedTuple):
    """Confirmation that a state frame showed the device disarmed, with its safe output in force."""

    rig: str
    """Name of the device's rig."""
    was_configured: bool
    """Whether the device had to be configured first: after power-up it sends no frames until it is configured."""


class _Exchange:
    """Exchange of frames with an unknown device."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport, self._clock = transport, clock
        self._reader = FrameReader(LinkCounters())
        self._pending: deque[bytes] = deque()
        """Frames read but not yet processed: a simulator's state may arrive in the same read as the preceding
        answer."""
        self._ids = count(1)

    def ask(self, frame: bytes, seconds: float, process: Callable[[bytes], T | None]) -> T | None:
        """Send a frame repeatedly until ``process`` returns a result for a received frame; return that result.

        Return None after ``seconds``.  If ``frame`` is empty, only listen.
        """
        clock, pending = self._clock, self._pending
        deadline_ns = clock.monotonic_ns() + round(seconds * 1e9)
        while (now_ns := clock.monotonic_ns()) < deadline_ns:
            if frame:
                self._transport.write(frame)
            retry_ns = min(deadline_ns, now_ns + _RETRY_INTERVAL_NS)
            while pending or (remaining_ns := retry_ns - clock.monotonic_ns()) > 0:
                if not pending:
                    data = self._transport.read(remaining_ns)
                    pending.extend(self._reader.feed(data) if data else ())
                while pending:
                    try:
                        result = process(pending.popleft())
                    except WireError:
                        continue
                    if result is not None:
                        return result
        return None

    def request(self, rig: str, op: Op, payload: bytes = b"") -> bytes:
        """Send a request and return the payload of its answer.  Raises LinkError if none arrives."""
        id_ = next(self._ids)
        frame = encode_frame(encode_request(Request(id_, op, payload)))
        reply_payload = self.ask(frame, _RESPONSE_TIMEOUT_S, lambda body: _reply_payload(body, id_, op))
        if reply_payload is None:
            raise LinkError(f"{self._transport.name}: the device '{rig}' did not answer {op.name}")
        return reply_payload


class _StateComparison:
    """Comparison of a device's state frames with its safe output (counts)."""

    def __init__(self, hello: Hello, safe: list[int]) -> None:
        self._layout, self._safe = StateLayout(hello.n_sensors, hello.n_actuators), safe
        self.last_state: State | None = None
        self._contradicting_state: State | None = None

    def process(self, body: bytes) -> State | None:
        """Compare a frame; return its state if it proves the device disarmed with its safe output in force."""
        if body[0] != MessageType.STATE:
            return None
        previous, self.last_state = self.last_state, self._layout.decode(body)
        is_consecutive = previous is not None and frames_between(self.last_state.frame, previous.frame) == 1
        if self._contradicting_state is None and contradicts_safe(
            self.last_state, previous if is_consecutive else None, self._safe
        ):
            self._contradicting_state = self.last_state
        return self.last_state if shows_safe(self.last_state, self._safe) else None

    @property
    def problem(self) -> str:
        """Reason why the frames do not prove the safe output, worded to follow "the device answered DISARM"."""
        if self._contradicting_state is not None:
            start, end = self._contradicting_state.u_start, self._contradicting_state.u_end
            outputs = f"its outputs were {start} and {end} counts (safe: {tuple(self._safe)})"
            return f" and reports its safe output in force, but {outputs}; cut the power to its actuators"
        symptom = (
            "no state frame arrived" if self.last_state is None else "no state frame shows its safe output in force"
        )
        return f", but {symptom}; cut the power to its actuators"


def disarm(transport: Transport, clock: Clock, hello_s: float = HELLO_TIMEOUT_S) -> DisarmConfirmation:
    """Disarm the connected device and wait for the confirming frame.  Raises LinkError if none arrives.

    A device that sends no frames (not configured since power-up, or a simulator whose time has stopped) is configured,
    which also disarms it.
    """
    device = _Exchange(transport, clock)
    hello = device.ask(encode_frame(bytes([MessageType.HELLO_REQUEST])), hello_s, _parse_hello)
    if hello is None:
        raise LinkError(f"{transport.name}: no device answered within {hello_s:g} s; check its power and cable")
    rig = hello.rig
    device.request(rig, Op.DISARM)
    actuators = range(hello.n_sensors, hello.n_sensors + hello.n_actuators)
    payloads = (device.request(rig, Op.DESCRIBE, bytes([index])) for index in actuators)
    states = _StateComparison(hello, [_safe_value(payload, transport.name) for payload in payloads])
    if device.ask(b"", _frame_timeout_s(hello, hello.period_max_us), states.process) is not None:
        return DisarmConfirmation(rig, was_configured=False)
    if states.last_state is None:
        period_us = min(max(_DEFAULT_PERIOD_US, hello.period_min_us), hello.period_max_us)
        device.request(rig, Op.CONFIGURE, CONFIGURE_LAYOUT.pack(period_us, 1))
        if hello.capabilities & Capability.RESET and not hello.time_scale:
            device.request(rig, Op.RESET, RESET_LAYOUT.pack(0))
        if device.ask(b"", _frame_timeout_s(hello, period_us), states.process) is not None:
            return DisarmConfirmation(rig, was_configured=True)
    raise LinkError(f"{transport.name}: the device '{rig}' answered DISARM{states.problem}")


def _frame_timeout_s(hello: Hello, period_us: int) -> float:
    """Return the time (s) within which at least one frame must arrive."""
    time_factor = 1.0 / hello.time_scale if hello.time_scale > 0 else 1.0
    return min(max(_MIN_FRAME_TIMEOUT_S, _N_AWAITED_PERIODS * period_us * 1e-6 * time_factor), _MAX_FRAME_TIMEOUT_S)


def _parse_hello(body: bytes) -> Hello | None:
    return decode_hello(body) if body[0] == MessageType.HELLO else None


def _reply_payload(body: bytes, id_: int, op: Op) -> bytes | None:
    if body[0] != MessageType.RESPONSE:
        return None
    response = decode_response(body)
    return response.payload if response.id == id_ and response.op == op and response.result == Result.OK else None


def _safe_value(payload: bytes, name: str) -> int:
    try:
        return decode_channel(payload).safe
    except WireError as error:
        raise LinkError(f"{name}: {error} from the device; check its firmware") from error
