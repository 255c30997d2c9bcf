"""Limits on TCP connections and on data in flight, and the authentication of learners.

``ZapHandler`` answers ZeroMQ's authentication requests (ZAP, RFC 27) for CURVE, in the server's thread between requests
of learners.  pyzmq's authenticator would add a thread that blocks every handshake if it dies, and that competes for the
GIL.

``onrig.runtime.link.seats`` decides which connections are served and which are closed.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import zmq

from onrig.runtime.link.keys import fingerprint

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Timeout for a greeting, and for the first complete request once ZeroMQ serves the connection."""
INCOMPLETE_MESSAGE_TIMEOUT_S: Final = 5.0
"""Timeout for an unfinished message that fills the shared buffer."""
MAX_FRAMES_IN_FLIGHT: Final = 256
"""Maximum number of frames from one connection that the rig has not yet received; a request has at most five, and a
heartbeat is sent every 2 s."""
MAX_BYTES_IN_FLIGHT: Final = 10 * 1024 * 1024
"""Maximum number of bytes from one connection that the rig has not yet received: enough for two of the largest
requests."""
MAX_TOTAL_BYTES_IN_FLIGHT: Final = 24 * 1024 * 1024
MAX_REPLY_BYTES: Final = 9 * 1024 * 1024
"""Maximum number of bytes of unsent replies per connection: enough for one of the largest replies."""
MAX_TOTAL_REPLY_BYTES: Final = 24 * 1024 * 1024
FRAME_OVERHEAD_BYTES: Final = 128
"""Memory overhead of a frame."""


class Stage(enum.Enum):
    """Progress of a connection."""

    SILENT = enum.auto()
    """No greeting yet."""
    WAITING = enum.auto()
    """Greeting received; waiting for a seat."""
    SEATED = enum.auto()
    """ZeroMQ serves its handshake and its first request."""
    INSIDE = enum.auto()
    """The rig has received a complete request from it."""


@dataclass(eq=False)
class PendingConnection:
    """One connection."""

    address: str
    arrived_s: float
    greeting_received: bool = False
    """Whether its stream started with a ZMTP 3 greeting."""
    seated_s: float | None = None
    """Time at which it received a seat."""
    jumped_queue: bool = False
    """Whether it got its seat before connections that had waited longer."""
    has_sent_request: bool = False
    last_request_s: float = 0.0
    """Time at which the rig received its last request."""
    frames: deque[int] = field(default_factory=deque)
    """Wire sizes of the frames forwarded but not yet received by the rig, oldest first."""
    forwarded_cost: int = 0
    """Cumulative cost of the frames forwarded."""
    received_cost: int = 0
    """Cumulative cost of the frames that the rig has received."""
    oldest_frame_s: float = 0.0
    """Time at which the oldest pending frame was forwarded, or at which the rig last received a message, if later."""
    queued_reply_bytes: int = 0
    """Value that ``sent_reply_bytes`` will have once all queued replies have been sent."""
    sent_reply_bytes: int = 0
    """Bytes sent to the learner so far."""

    @property
    def stage(self) -> Stage:
        """Progress of the connection so far."""
        if self.has_sent_request:
            return Stage.INSIDE
        if self.seated_s is not None:
            return Stage.SEATED
        return Stage.WAITING if self.greeting_received else Stage.SILENT

    @property
    def bytes_in_flight(self) -> int:
        """Cost of the frames in flight."""
        return max(0, self.forwarded_cost - self.received_cost)

    @property
    def unsent_reply_bytes(self) -> int:
        """Bytes of unsent replies."""
        return max(0, self.queued_reply_bytes - self.sent_reply_bytes)

    def add_forwarded(self, sizes: Sequence[int], now_s: float) -> None:
        """Record that forwarding of frames of these sizes has started."""
        if sizes and not self.frames:
            self.oldest_frame_s = now_s
        self.frames.extend(sizes)
        self.forwarded_cost += sum(sizes) + FRAME_OVERHEAD_BYTES * len(sizes)

    def add_received(self, sizes: Sequence[int], overhead: int, now_s: float) -> None:
        """Record that the rig has received a message with frames of these sizes, each ``overhead`` longer on the wire.

        Earlier heartbeats and handshake frames, which never reach the rig itself, are settled as well.
        """
        self.has_sent_request, self.last_request_s, self.oldest_frame_s = True, now_s, now_s
        for size in sizes:
            while self.frames:
                frame_size = self.frames.popleft()
                self.received_cost += frame_size + FRAME_OVERHEAD_BYTES
                if frame_size == size + overhead:
                    break

    def may_reply(self, size: int, total_queued_bytes: int) -> bool:
        """Return whether a reply of ``size`` bytes may be queued; if so, count it as queued.

        ``total_queued_bytes``: bytes of unsent replies on all connections.
        """
        unsent_reply_bytes = self.unsent_reply_bytes
        fits = unsent_reply_bytes + size <= MAX_REPLY_BYTES and total_queued_bytes + size <= MAX_TOTAL_REPLY_BYTES
        if fits:
            self.queued_reply_bytes = self.sent_reply_bytes + unsent_reply_bytes + size
        return fits


def may_read(connection: PendingConnection, total_in_flight: int) -> bool:
    """Return whether to read more from a connection; ``total_in_flight``: bytes in flight on all connections."""
    return connection.bytes_in_flight < MAX_BYTES_IN_FLIGHT and total_in_flight < MAX_TOTAL_BYTES_IN_FLIGHT


def end_reason(connection: PendingConnection, now_s: float, last_poll_s: float, total_in_flight: int) -> str | None:
    """Return the reason for ending a connection, or None to keep it.

    ``last_poll_s``: time at which the rig last polled for requests; ``total_in_flight``: bytes in flight on all
    connections.
    """
    since_s = connection.arrived_s if connection.seated_s is None else connection.seated_s
    if connection.stage in (Stage.SILENT, Stage.SEATED) and now_s - since_s > HANDSHAKE_TIMEOUT_S:
        return "no request"
    if len(connection.frames) > MAX_FRAMES_IN_FLIGHT:
        return "too many frames without a complete message"
    if (
        not may_read(connection, total_in_flight)
        and connection.bytes_in_flight
        and last_poll_s - connection.oldest_frame_s > INCOMPLETE_MESSAGE_TIMEOUT_S
    ):
        return "an incomplete message"
    return None


ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
ZAP_DOMAIN: Final = b"onrig"
_MAX_REPLIES_PER_CALL: Final = 16
_MAX_REFUSED_KEYS: Final = 64
_ZAP_VERSION: Final = b"1.0"
_N_REQUEST_FRAMES: Final = 7
"""Version, request id, domain, address, identity, mechanism, one credential."""


def zap_reply(request: Sequence[bytes], names_by_key: Mapping[bytes, str], domain: bytes = ZAP_DOMAIN) -> list[bytes]:
    """Return the reply to a ZAP request: version, request id, status, text, user id, metadata.

    ``names_by_key``: learners' names by public key (32 bytes).  The user id, which ZeroMQ attaches to every message, is
    ``NAME:FINGERPRINT``.  Anything other than a CURVE request for our domain with an allowed key is refused (status
    400).
    """
    request_id = request[1] if len(request) > 1 else b""
    if len(request) != _N_REQUEST_FRAMES or request[0] != _ZAP_VERSION:
        return [_ZAP_VERSION, request_id, b"400", b"malformed request", b"", b""]
    _, _, request_domain, _, _, mechanism, key = request
    if request_domain != domain or mechanism != b"CURVE":
        return [_ZAP_VERSION, request_id, b"400", b"no CURVE of this domain", b"", b""]
    name = names_by_key.get(key)
    if name is None:
        return [_ZAP_VERSION, request_id, b"400", b"unknown key", b"", b""]
    return [_ZAP_VERSION, request_id, b"200", b"OK", f"{name}:{fingerprint(key)}".encode(), b""]


class ZapHandler:
    """ZAP handler of one context; it must exist before the guarded socket is bound."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], names_by_key: Mapping[bytes, str]) -> None:
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ZAP_ENDPOINT)
        self._names_by_key = names_by_key
        self.refused_keys: list[str] = []
        """Fingerprints of the keys refused since the last report; their number is bounded."""

    def reply_to_pending(self) -> None:
        """Reply to pending requests, a bounded number per call."""
        for _ in range(_MAX_REPLIES_PER_CALL):
            try:
                request = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            reply = zap_reply(request, self._names_by_key)
            if reply[2] != b"200" and len(self.refused_keys) < _MAX_REFUSED_KEYS:
                self.refused_keys.append(fingerprint(request[6]) if len(request) == _N_REQUEST_FRAMES else "?")
            self.socket.send_multipart(reply, zmq.NOBLOCK)

    def close(self) -> None:
        """Close the socket; further connections are refused."""
        self.socket.close()
