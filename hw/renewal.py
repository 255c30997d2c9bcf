"""Lease of a policy that a device evaluates itself (``hw/PROTOCOL.md`` §2.6): the message, and the host that sends it.

The host neither computes nor checks commands, so no shield acts.  The device's limits and its lease still apply.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from onrig.hw.clock import Clock
from onrig.hw.messages import Capability, Fault, MessageType, State, Status, WireError, fault_text, shows_safe
from onrig.hw.rig import Rig
from onrig.hw.session import DeviceSession
from onrig.hw.transport import LinkError

POLICY_BYTES: Final = 8
_LAYOUT: Final = struct.Struct(f"<BI{POLICY_BYTES}s")
_SILENCE_TIMEOUT_NS: Final = 1_000_000_000
_SILENCE_TIMEOUT_PERIODS: Final = 10
"""The longer of the two timeouts applies, as it does to the frames of a run (``hw/PROTOCOL.md`` §6)."""
_CONFIRM_TIMEOUT_NS: Final = 300_000_000
_CONFIRM_TIMEOUT_PERIODS: Final = 3


class Renewal(NamedTuple):
    """Message that permits a device's policy to act until the lease expires."""

    answers: int
    policy: bytes
    """Name of the policy (``policy_name``)."""


class PolicyStopped(Exception):
    """Raised when a device's policy stops; the message gives the reason, such as a fault, restart or unknown policy."""


def policy_name(model: bytes) -> bytes:
    """Return the name of a policy on a device: the first eight bytes of its ONNX file's SHA-256."""
    return hashlib.sha256(model).digest()[:POLICY_BYTES]


def encode_renewal(renewal: Renewal) -> bytes:
    """Encode a renewal, type byte included.  Raises ``struct.error`` if the frame number does not fit."""
    return _LAYOUT.pack(MessageType.RENEW, *renewal)


def decode_renewal(body: bytes) -> Renewal:
    """Decode a renewal from a frame body (type byte included).  Raises WireError if the length is wrong."""
    if len(body) != _LAYOUT.size:
        raise WireError(f"renewal of {len(body)} bytes, expected {_LAYOUT.size}")
    return Renewal(*_LAYOUT.unpack(body)[1:])


def renew(session: DeviceSession, policy: bytes, period_us: int, clock: Clock) -> Iterator[State]:
    """Arm a configured device and let its built-in policy act: answer each frame with a renewal, and yield the frame.

    When the caller stops iterating, the lease expires.  Raises PolicyStopped if the policy stops, and LinkError if no
    frame arrives for one second plus ten periods.
    """
    hello = session.hello
    if hello is None or not hello.capabilities & Capability.EVALUATES:
        raise PolicyStopped("the device has no built-in policy: build one in (hw/firmware/README.md)")
    session.clear_fault()  # such as the expired lease of an earlier host
    session.arm()
    if hello.capabilities & Capability.RESET:
        session.reset(0)
    has_acted, was_armed = False, False
    scale = hello.time_scale or 1.0
    silence_timeout_ns = _SILENCE_TIMEOUT_NS + round(_SILENCE_TIMEOUT_PERIODS * period_us * 1000 / scale)
    while True:
        state = session.wait_state(clock.monotonic_ns() + silence_timeout_ns)
        if session.has_rebooted:
            raise PolicyStopped("the device restarted")
        if state is None:
            raise LinkError(
                f"no frame arrived for {silence_timeout_ns * 1e-9:.2g} s; the policy stops when its lease expires"
            )
        has_acted = has_acted or state.answers != 0
        if state.status & Status.ARMED:
            was_armed = True
            session.send(encode_renewal(Renewal(state.frame, policy)))
        elif was_armed and not has_acted and state.fault == Fault.LEASE:
            raise PolicyStopped(
                f"the device accepts no renewal of policy {policy.hex()} at {period_us} us: "
                "the device was built with another policy or period"
            )
        elif was_armed or state.fault:
            raise PolicyStopped(f"the device stopped: {fault_text(state.fault) if state.fault else 'it was disarmed'}")
        yield state


def stop(session: DeviceSession, rig: Rig, period_us: int, clock: Clock) -> bool:
    """Disarm the device; return whether a later frame proves its safe output in force (``hw/PROTOCOL.md`` §2.4)."""
    hello = session.hello
    scale = (hello.time_scale if hello is not None else 1.0) or 1.0
    session.disarm()
    if hello is not None and not hello.time_scale:
        session.reset(0)  # without it, virtual time does not advance
    deadline_ns = clock.monotonic_ns() + max(
        _CONFIRM_TIMEOUT_NS, round(_CONFIRM_TIMEOUT_PERIODS * period_us * 1000 / scale)
    )
    while (state := session.wait_state(deadline_ns)) is not None:
        if shows_safe(state, rig.safe_counts):
            return True
    return False
