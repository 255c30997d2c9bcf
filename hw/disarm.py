"""Disarming of an unknown device, for when its host process is gone (``hw/PROTOCOL.md`` §2.5).

It starts with a hello, because a device caches its last answer and ignores a request equal to the last one.
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

HELLO_S: Final = 5.0
"""Start-up time of boards that reboot when the port opens (``hw/PROTOCOL.md`` §6)."""
_RETRY_NS: Final = 100_000_000
_ANSWER_S: Final = 1.0
_FRAME_S: Final = 0.5
_PERIODS: Final = 3
"""Number of frames of which at least one must arrive."""
_PERIOD_US: Final = 20_000
"""Sampling period for an unconfigured device, within its bounds, or one that is slower than ``_LONGEST_S``."""
_LONGEST_S: Final = 5.0
"""Longest wait for a frame."""

T = TypeVar("T")


class Disarmed(NamedTuple):
    """Confirmation: a state frame of the device shows it disarmed with its safe output in force."""

    rig: str
    """Its name."""
    configured: bool
    """Whether it had to be configured first: after power-up a device sends no frames."""


def disarm(transport: Transport, clock: Clock, hello_s: float = HELLO_S) -> Disarmed:
    """Disarm the device at the other end, and wait for the frame that confirms it; raises LinkError without one.

    A device that sends no frames (not configured since power-up, or a simulator whose time has stopped) is configured,
    which disarms as well.
    """
    reader = FrameReader(LinkCounters())
    waiting: deque[bytes] = deque()  # a simulator's frame may arrive in one read with the answer before it

    def ask(frame: bytes, seconds: float, take: Callable[[bytes], T | None]) -> T | None:
        limit_ns = clock.monotonic_ns() + round(seconds * 1e9)
        while (now_ns := clock.monotonic_ns()) < limit_ns:
            if frame:
                transport.write(frame)
            again_ns = min(limit_ns, now_ns + _RETRY_NS)
            while waiting or (left_ns := again_ns - clock.monotonic_ns()) > 0:
                if not waiting:
                    data = transport.read(left_ns)
                    waiting.extend(reader.feed(data) if data else ())
                while waiting:
                    try:
                        taken = take(waiting.popleft())
                    except WireError:
                        continue
                    if taken is not None:
                        return taken
        return None

    hello = ask(encode_frame(bytes([MessageType.HELLO_REQUEST])), hello_s, _hello)
    if hello is None:
        raise LinkError(f"{transport.name}: no device answered within {hello_s:g} s")
    layout = StateLayout(hello.n_sensors, hello.n_actuators)
    last: State | None = None

    contradictory: State | None = None
    ids = count(1)

    def request(op: Op, payload: bytes = b"") -> bytes:
        id_ = next(ids)
        frame = encode_frame(encode_request(Request(id_, op, payload)))
        answer = ask(frame, _ANSWER_S, lambda body: _answer(body, id_, op))
        if answer is None:
            raise LinkError(f"{transport.name}: the device '{hello.rig}' did not answer {op.name}")
        return answer

    def shown(body: bytes) -> State | None:
        nonlocal last, contradictory
        if body[0] != MessageType.STATE:
            return None
        before, last = last, layout.decode(body)
        follows = before is not None and frames_between(last.frame, before.frame) == 1
        if contradictory is None and contradicts_safe(last, before if follows else None, safe):
            contradictory = last
        return last if shows_safe(last, safe) else None

    request(Op.DISARM)
    actuators = range(hello.n_sensors, hello.n_sensors + hello.n_actuators)
    safe = [_safe_value(request(Op.DESCRIBE, bytes([index])), transport.name) for index in actuators]
    slower = 1.0 / hello.time_scale if hello.time_scale > 0 else 1.0

    def frames_s(period_us: int) -> float:
        return min(max(_FRAME_S, _PERIODS * period_us * 1e-6 * slower), _LONGEST_S)

    if ask(b"", frames_s(hello.period_max_us), shown) is not None:
        return Disarmed(hello.rig, configured=False)
    if last is None:
        period_us = min(max(_PERIOD_US, hello.period_min_us), hello.period_max_us)
        request(Op.CONFIGURE, CONFIGURE_LAYOUT.pack(period_us, 1))
        if hello.capabilities & Capability.RESET and not hello.time_scale:
            request(Op.RESET, RESET_LAYOUT.pack(0))
        if ask(b"", frames_s(period_us), shown) is not None:
            return Disarmed(hello.rig, configured=True)
    if contradictory is not None:
        outputs = f"outputs of {contradictory.u_start} and {contradictory.u_end} counts (safe: {tuple(safe)})"
        raise LinkError(
            f"{transport.name}: the device '{hello.rig}' answered DISARM and reports its safe output in force, but "
            f"{outputs}; cut the power of its actuators"
        )
    what = "none arrived" if last is None else "none showed its outputs safe"
    raise LinkError(f"{transport.name}: the device '{hello.rig}' answered DISARM, but of its state frames {what}")


def _hello(body: bytes) -> Hello | None:
    return decode_hello(body) if body[0] == MessageType.HELLO else None


def _answer(body: bytes, id_: int, op: Op) -> bytes | None:
    if body[0] != MessageType.RESPONSE:
        return None
    response = decode_response(body)
    return response.payload if response.id == id_ and response.op == op and response.result == Result.OK else None


def _safe_value(described: bytes, name: str) -> int:
    try:
        return decode_channel(described).safe
    except WireError as error:
        raise LinkError(f"{name}: {error} from the device; check its firmware") from error
