"""Messages of the wire protocol as plain values, and their byte layout (``hw/PROTOCOL.md`` is the reference).

Messages are little-endian and have a fixed size for given numbers of sensors and actuators.  This module contains
neither framing (``onrig.hw.framing``) nor I/O; the host's session, the twin and firmware tests share it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

PROTOCOL_VERSION: Final = 1
NAME_BYTES: Final = 16
UNIT_BYTES: Final = 12
MAX_COUNT: Final = 2**31 - 1
MAX_STATE_COUNTS: Final = 56
"""Maximum number of sensors plus twice the number of actuators, set by the largest frame."""


class MessageType(enum.IntEnum):
    """First byte of every frame."""

    HELLO_REQUEST = 0x01
    HELLO = 0x02
    COMMAND = 0x10
    STATE = 0x11
    RENEW = 0x12
    REQUEST = 0x20
    RESPONSE = 0x21


_COMMAND: Final = int(MessageType.COMMAND)


class Op(enum.IntEnum):
    """Operations of the acknowledged channel."""

    DESCRIBE = 1
    CONFIGURE = 2
    LIMITS = 3
    ARM = 4
    DISARM = 5
    CLEAR_FAULT = 6
    RESET = 7


class Result(enum.IntEnum):
    """Outcome of a request."""

    OK = 0
    UNKNOWN_OP = 1
    BAD_LENGTH = 2
    OUT_OF_RANGE = 3
    NOT_NOW = 4


RESULT_HINTS: Final = {
    Result.UNKNOWN_OP: "the device does not know this operation",
    Result.BAD_LENGTH: "the device expects a payload of a different length",
    Result.OUT_OF_RANGE: "a value lies outside what the device allows",
    Result.NOT_NOW: "the device's current state does not allow it",
}


class Capability(enum.IntFlag):
    """Optional capabilities advertised in the hello."""

    RESET = 1
    RELEASES = 2
    """While disarmed, the device releases its actuators instead of driving them to their safe values."""
    EVALUATES = 4
    """The device has a built-in policy, which acts while the host renews the lease (``onrig.hw.renewal``)."""


class Status(enum.IntFlag):
    """Status bits of a state frame, at the time of the sample."""

    ARMED = 1
    FAULT = 2
    SAFE = 4
    """The safe output is in force (disarmed, faulted, or armed and not yet commanded)."""
    CLAMPED = 8
    """The command in force had to be clamped to the device's limits."""
    FIRST = 16
    """First frame after a reset: the period before it belongs to no episode."""


class Fault(enum.IntEnum):
    """Latched fault codes."""

    NONE = 0
    LEASE = 1
    SENSOR = 2
    ESTOP = 3
    INTERNAL = 4


FAULT_HINTS: Final = {
    Fault.NONE: "no fault",
    Fault.LEASE: "no command arrived during a complete lease; check the load of the host and the link, then re-arm",
    Fault.SENSOR: "a sensor reads outside its range or not at all; check its cable",
    Fault.ESTOP: "the emergency stop was pressed; release it, then re-arm",
    Fault.INTERNAL: "the device reports an internal error; power-cycle it",
}


class Hello(NamedTuple):
    """First message of a device: its identity and limits."""

    protocol: int
    n_sensors: int
    n_actuators: int
    rig: str
    capabilities: int
    boot_id: int
    """Number that differs at each start of the device; a new value during a session means a reboot."""
    period_min_us: int
    period_max_us: int
    lease_max: int
    time_scale: float
    """Device seconds per wall second: 1 for hardware, k for a twin at pace ``scaled: k``, 0 for lockstep."""


class Channel(NamedTuple):
    """One sensor or actuator as described by the device (limits in counts)."""

    is_actuator: bool
    wrap: bool
    name: str
    unit: str
    resolution: float
    low: int
    high: int
    safe: int


class State(NamedTuple):
    """One sample, and the output applied in the period before it (docs/architecture.md, *timing rule*)."""

    frame: int
    t_us: int
    status: int
    fault: int
    lease_left: int
    answers: int
    """Number of the frame answered by ``u_end``; 0 for the safe output."""
    tau_us: int
    """Time in the period at which the output switched from ``u_start`` to ``u_end``; the period's length otherwise."""
    sensors: tuple[int, ...]
    u_start: tuple[int, ...]
    u_end: tuple[int, ...]


_SAFE: Final = int(Status.SAFE)
_ARMED_OR_SAFE: Final = int(Status.ARMED | Status.SAFE)
_SAFE_OR_FAULT: Final = int(Status.SAFE | Status.FAULT)
_HALF_COUNT: Final = 0.5 + 1e-6


def shows_safe(state: State, safe: Sequence[float]) -> bool:
    """Whether a frame's status and outputs both prove that its device is disarmed with its safe output in force.

    ``safe``: (m,) safe values in counts, not necessarily integers.
    """
    return state.status & _ARMED_OR_SAFE == _SAFE and _equals_counts(state.u_end, safe)


def contradicts_safe(state: State, previous: State | None, safe: Sequence[float]) -> bool:
    """Whether a frame's outputs contradict the safe output that this frame, or the ``previous`` one, reports.

    A fault that latches at the sample makes the output safe from then on, so the frame of that sample may still report
    a different value in ``u_end``; the next frame starts at the safe output.  ``safe``: as in ``shows_safe``.
    """
    if state.status & _SAFE_OR_FAULT == _SAFE and not _equals_counts(state.u_end, safe):
        return True
    return previous is not None and bool(previous.status & _SAFE) and not _equals_counts(state.u_start, safe)


def _equals_counts(counts: Sequence[int], safe: Sequence[float]) -> bool:
    return all(abs(count - value) <= _HALF_COUNT for count, value in zip(counts, safe, strict=True))


class Command(NamedTuple):
    """A setpoint; only the latest takes effect, and none is retried."""

    answers: int
    values: tuple[int, ...]


class Request(NamedTuple):
    """An operation of the acknowledged channel; retried with the same ``id`` until its response arrives."""

    id: int
    op: int
    payload: bytes = b""


class Response(NamedTuple):
    """Answer to the request with the same ``id``."""

    id: int
    op: int
    result: int
    payload: bytes = b""


HELLO_LAYOUT: Final = struct.Struct(f"<HBB{NAME_BYTES}sIIIIBf")
CHANNEL_LAYOUT: Final = struct.Struct(f"<BB{NAME_BYTES}s{UNIT_BYTES}sdiii")
REQUEST_HEAD: Final = struct.Struct("<HB")
RESPONSE_HEAD: Final = struct.Struct("<HBB")
CONFIGURE_LAYOUT: Final = struct.Struct("<IB")
"""period_us, lease_periods"""
LIMITS_LAYOUT: Final = struct.Struct("<Bii")
"""actuator index, low, high (counts)"""
RESET_LAYOUT: Final = struct.Struct("<Q")
"""seed"""
NEXT_FRAME_LAYOUT: Final = struct.Struct("<I")
"""number of the first frame after the operation"""


def fault_text(code: int) -> str:
    """Return the name of a fault and its remedy, or the number if the code is unknown."""
    faults = {f.value: f for f in Fault}
    return f"{faults[code].name}: {FAULT_HINTS[faults[code]]}" if code in faults else f"code {code}"


class WireError(ValueError):
    """A frame whose length or content does not match its type."""


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def encode_hello(hello: Hello) -> bytes:
    """Encode a hello, type byte included.  Raises WireError if the rig's name is too long."""
    name = hello.rig.encode()
    if len(name) > NAME_BYTES:
        raise WireError(f"rig name '{hello.rig}' is longer than {NAME_BYTES} bytes")
    return bytes([MessageType.HELLO]) + HELLO_LAYOUT.pack(*hello[:3], name, *hello[4:])


def decode_hello(body: bytes) -> Hello:
    """Decode a hello from a frame body (type byte included).  Raises WireError if the length is wrong."""
    if len(body) != 1 + HELLO_LAYOUT.size:
        # A device with a different protocol version may lay out other fields differently; its version is still read.
        if len(body) >= 3:
            version = int.from_bytes(body[1:3], "little")
            if version != PROTOCOL_VERSION:
                return Hello(version, 0, 0, "", 0, 0, 0, 0, 0, 1.0)
        raise WireError(f"hello of {len(body)} bytes, expected {1 + HELLO_LAYOUT.size}")
    protocol, n_sensors, n_actuators, rig, capabilities, boot_id, low, high, lease, scale = HELLO_LAYOUT.unpack_from(
        body, 1
    )
    return Hello(protocol, n_sensors, n_actuators, _text(rig), capabilities, boot_id, low, high, lease, scale)


def encode_channel(channel: Channel) -> bytes:
    """Encode the payload of a DESCRIBE response.  Raises WireError if a name or unit does not fit."""
    name, unit = channel.name.encode(), channel.unit.encode()
    if len(name) > NAME_BYTES or len(unit) > UNIT_BYTES:
        raise WireError(f"'{channel.name}' or '{channel.unit}' is longer than {NAME_BYTES} or {UNIT_BYTES} bytes")
    return CHANNEL_LAYOUT.pack(
        channel.is_actuator,
        channel.wrap,
        name,
        unit,
        channel.resolution,
        channel.low,
        channel.high,
        channel.safe,
    )


def decode_channel(payload: bytes) -> Channel:
    """Decode the payload of a DESCRIBE response.  Raises WireError."""
    if len(payload) != CHANNEL_LAYOUT.size:
        raise WireError(f"channel description of {len(payload)} bytes, expected {CHANNEL_LAYOUT.size}")
    is_actuator, wrap, name, unit, resolution, low, high, safe = CHANNEL_LAYOUT.unpack(payload)
    return Channel(bool(is_actuator), bool(wrap), _text(name), _text(unit), resolution, low, high, safe)


class StateLayout:
    """Byte layout of STATE for a device with given numbers of sensors and actuators."""

    def __init__(self, n_sensors: int, n_actuators: int) -> None:
        self._struct = struct.Struct(f"<BIQHBBII{n_sensors}i{n_actuators}i{n_actuators}i")
        self._a = 8 + n_sensors
        self._b = self._a + n_actuators
        self.size = self._struct.size

    def encode(self, state: State) -> bytes:
        """Encode a state frame, type byte included."""
        return self._struct.pack(MessageType.STATE, *state[:7], *state.sensors, *state.u_start, *state.u_end)

    def decode(self, body: bytes) -> State:
        """Decode a state frame from a frame body (type byte included).  Raises WireError if the length is wrong."""
        if len(body) != self.size:
            raise WireError(f"state frame of {len(body)} bytes, expected {self.size}")
        f = self._struct.unpack(body)
        a, b = self._a, self._b
        # tuple.__new__ bypasses the named tuple's constructor, which is a Python function.
        return tuple.__new__(State, (f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8:a], f[a:b], f[b:]))


class CommandLayout:
    """Byte layout of COMMAND for a device with a given number of actuators."""

    def __init__(self, n_actuators: int) -> None:
        self._struct = struct.Struct(f"<BI{n_actuators}i")
        self.size = self._struct.size

    def encode(self, answers: int, values: tuple[int, ...]) -> bytes:
        """Encode a command, type byte included."""
        return self._struct.pack(_COMMAND, answers, *values)

    def decode(self, body: bytes) -> Command:
        """Decode a command from a frame body (type byte included).  Raises WireError if the length is wrong."""
        if len(body) != self.size:
            raise WireError(f"command of {len(body)} bytes, expected {self.size}")
        f = self._struct.unpack(body)
        return Command(f[1], f[2:])


def encode_request(request: Request) -> bytes:
    """Encode a request, type byte included."""
    return bytes([MessageType.REQUEST]) + REQUEST_HEAD.pack(request.id, request.op) + request.payload


def decode_request(body: bytes) -> Request:
    """Decode a request from a frame body (type byte included).  Raises WireError if it is too short."""
    if len(body) < 1 + REQUEST_HEAD.size:
        raise WireError(f"request of {len(body)} bytes")
    id_, op = REQUEST_HEAD.unpack_from(body, 1)
    return Request(id_, op, body[1 + REQUEST_HEAD.size :])


def encode_response(response: Response) -> bytes:
    """Encode a response, type byte included."""
    return bytes([MessageType.RESPONSE]) + RESPONSE_HEAD.pack(*response[:3]) + response.payload


def decode_response(body: bytes) -> Response:
    """Decode a response from a frame body (type byte included).  Raises WireError if it is too short."""
    if len(body) < 1 + RESPONSE_HEAD.size:
        raise WireError(f"response of {len(body)} bytes")
    id_, op, result = RESPONSE_HEAD.unpack_from(body, 1)
    return Response(id_, op, result, body[1 + RESPONSE_HEAD.size :])
