"""Making a device safe without knowing which one it is: for when whoever drove it is gone (``hw/PROTOCOL.md`` §2.5).

A hello first: a device keeps its last answer, and a request that looks like the last one would not be carried out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from hw.clock import Clock
from hw.framing import FrameReader, encode_frame
from hw.intake import LinkCounters
from hw.messages import (
    Hello,
    MessageType,
    Op,
    Request,
    Result,
    State,
    StateLayout,
    Status,
    WireError,
    decode_hello,
    decode_response,
    encode_request,
)
from hw.transport import LinkError, Transport

HELLO_S: Final = 5.0
"""Boards that restart when the port opens take so long (``hw/PROTOCOL.md`` §6)."""
_RETRY_NS: Final = 100_000_000
_ANSWER_S: Final = 1.0
_FRAME_S: Final = 0.5

T = TypeVar("T")


class Disarmed(NamedTuple):
    """What the device said."""

    rig: str
    """Its name."""
    shown: bool
    """Whether a state frame has shown it disarmed as well; one that was just powered up sends none."""


def disarm(transport: Transport, clock: Clock, hello_s: float = HELLO_S) -> Disarmed:
    """Disarm the device at the other end, and wait for its word; raises LinkError where it gives none."""
    reader = FrameReader(LinkCounters())

    def ask(frame: bytes, seconds: float, take: Callable[[bytes], T | None]) -> T | None:
        limit_ns = clock.monotonic_ns() + round(seconds * 1e9)
        while (now_ns := clock.monotonic_ns()) < limit_ns:
            if frame:
                transport.write(frame)
            again_ns = min(limit_ns, now_ns + _RETRY_NS)
            while (left_ns := again_ns - clock.monotonic_ns()) > 0:
                data = transport.read(left_ns)
                for body in reader.feed(data) if data else ():
                    try:
                        taken = take(body)
                    except WireError:
                        continue
                    if taken is not None:
                        return taken
        return None

    hello = ask(encode_frame(bytes([MessageType.HELLO_REQUEST])), hello_s, _hello)
    if hello is None:
        raise LinkError(f"{transport.name}: no device answered within {hello_s:g} s")
    request = encode_frame(encode_request(Request(1, Op.DISARM, b"")))
    if ask(request, _ANSWER_S, _is_done) is None:
        raise LinkError(f"{transport.name}: the device '{hello.rig}' did not answer DISARM")
    layout = StateLayout(hello.n_sensors, hello.n_actuators)

    def disarmed(body: bytes) -> State | None:
        state = layout.decode(body) if body[0] == MessageType.STATE else None
        return None if state is None or state.status & Status.ARMED else state

    return Disarmed(hello.rig, ask(b"", _FRAME_S, disarmed) is not None)


def _hello(body: bytes) -> Hello | None:
    return decode_hello(body) if body[0] == MessageType.HELLO else None


def _is_done(body: bytes) -> bool | None:
    if body[0] != MessageType.RESPONSE:
        return None
    response = decode_response(body)
    return True if response.id == 1 and response.op == Op.DISARM and response.result == Result.OK else None
