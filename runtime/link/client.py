"""Learner's end of the link: one request at a time, repeated until answered."""

from __future__ import annotations

import itertools
import math
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec
import zmq

from onrig.runtime.link.endpoint import TcpEndpoint, parse_tcp, probe_addresses
from onrig.runtime.link.keys import LearnerKeys, pair_fingerprint
from onrig.runtime.link.messages import MAX_PAYLOAD_BYTES, Refused, ReplyMessage, RequestMessage, decode_reply, encode

RETRY_INTERVAL_MS: Final = 2000
MAX_RETRY_INTERVAL_MS: Final = 16_000
PATIENCE_S: Final = 60.0
_POLL_TIMEOUT_MS: Final = 100
_RECONNECT_INTERVAL_MS, _MAX_RECONNECT_INTERVAL_MS = 100, 5_000
_HEARTBEAT_INTERVAL_MS, _SILENCE_TIMEOUT_MS = 2_000, 10_000
_CONNECT_TIMEOUT_MS: Final = 5_000
_LINGER_TIMEOUT_MS: Final = 200
_EVENT_FORMAT: Final = struct.Struct("=hi")
_MONITORED_EVENTS: Final = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_UNREACHABLE_REPORT_DELAY_S: Final = 5.0
"""Time without any connection after which the addresses tried are reported."""
_MAX_FAILED_HANDSHAKES: Final = 4
"""Number of consecutive failed handshakes, before the first success, that indicate a wrong key rather than a bad
network."""


class LinkClosed(Exception):
    """Raised if the rig does not answer in time, or if a stop is requested."""


class KeyRejected(LinkClosed):
    """Raised if keys or security mechanism differ between the two ends; retrying does not help."""


class RequestRejected(Exception):
    """Raised if the rig refuses a request, with its reason; ``code`` is one of the codes in ``messages``."""

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.code = code


class LinkClient:
    """Client of a rig: a DEALER socket with blocking requests.

    An unanswered request is repeated (all requests are idempotent) after RETRY_INTERVAL_MS, then at doubling
    intervals, and at once after a reconnection.  ZeroMQ reconnects by itself, after 0.1 s, then 0.2 s, ... up to 5 s;
    if a name has several addresses, they are tried in turn.

    ``patience_s``: timeout for a reply; ``math.inf`` waits for ever.  ``on_problem`` receives one line about a
    prolonged lack of a connection, and about failing handshakes if the patience is infinite (otherwise they raise
    KeyRejected).  Raises LinkClosed if the endpoint is invalid.
    """

    def __init__(
        self,
        endpoint: str,
        stop_requested: Callable[[], bool],
        keys: LearnerKeys | None = None,
        patience_s: float = PATIENCE_S,
        on_problem: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._endpoint, self._keys, self._patience_s, self._on_problem = endpoint, keys, patience_s, on_problem
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        options = {
            zmq.LINGER: 0,
            zmq.IMMEDIATE: 1,  # queue nothing without a connection
            zmq.MAXMSGSIZE: MAX_PAYLOAD_BYTES,
            zmq.RECONNECT_IVL: _RECONNECT_INTERVAL_MS,
            zmq.RECONNECT_IVL_MAX: _MAX_RECONNECT_INTERVAL_MS,
        }
        self._tcp_endpoint = parse_tcp(endpoint) if endpoint.startswith("tcp://") else None
        if self._tcp_endpoint is not None:
            options |= {
                zmq.CONNECT_TIMEOUT: _CONNECT_TIMEOUT_MS,
                zmq.HEARTBEAT_IVL: _HEARTBEAT_INTERVAL_MS,
                zmq.HEARTBEAT_TIMEOUT: _SILENCE_TIMEOUT_MS,
            }
        self._addresses = deque(((endpoint, False),) if self._tcp_endpoint is None else self._tcp_endpoint.addresses)
        self._next_address_s, self._reconnect_delay_s = math.inf, _RECONNECT_INTERVAL_MS / 1000
        self._unconnected_since_s: float | None = None
        self._has_connected = False
        for option, value in options.items():
            self._socket.setsockopt(option, value)
        if keys is not None:
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, keys.rig)
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.pair.public)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.pair.secret)
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(_MONITORED_EVENTS)
        self._monitor.setsockopt(zmq.LINGER, 0)
        self._poller = zmq.Poller()
        self._poller.register(self._monitor, zmq.POLLIN)
        try:
            self._connect()
        except zmq.ZMQError as error:
            self.close()
            raise LinkClosed(f"{endpoint} cannot connect: {error.strerror}") from None
        self._ids = itertools.count(1)
        self._stop_requested = stop_requested
        self._n_failed_handshakes = 0
        self.n_connections = 0
        """Number of connections made; more than one means an outage."""
        self.n_retries = 0

    def ask(
        self, request: RequestMessage, *payloads: bytes, timeout_s: float | None = None
    ) -> tuple[ReplyMessage, list[bytes]]:
        """Send a request and return the reply and its payloads.

        Raises LinkClosed after ``timeout_s`` (by default the client's patience) without a reply or when asked to
        stop, KeyRejected if the rig does not accept this learner's key, RequestRejected if it refuses the request.
        """
        request_id = next(self._ids).to_bytes(8, "little")
        frames = [request_id, encode(request), *payloads]
        patience_s = self._patience_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + patience_s
        sent_s, wait_ms, n_tries = -math.inf, RETRY_INTERVAL_MS, 0
        while True:
            if self._stop_requested():
                raise LinkClosed("asked to stop")
            now_s = time.monotonic()
            is_due = now_s - sent_s > wait_ms / 1000
            if is_due and self._send(frames):
                if n_tries:
                    self.n_retries += 1
                    wait_ms = min(2 * wait_ms, MAX_RETRY_INTERVAL_MS)
                n_tries, sent_s = n_tries + 1, now_s
                is_due = False
            if self._wait(until_writable=is_due):
                reply = self._receive(request_id)
                if reply is not None:
                    return reply
            if self._poll_monitor():
                sent_s = -math.inf  # messages in transit are lost with the connection
            self._try_addresses(time.monotonic())
            if time.monotonic() > deadline_s:
                reason = (
                    ""
                    if self._has_connected or self._tcp_endpoint is None
                    else f"; {self._describe_attempts(self._tcp_endpoint)}"
                )
                raise LinkClosed(f"the rig at {self._endpoint} did not answer within {patience_s:g} s{reason}")

    def post(self, request: RequestMessage) -> None:
        """Send a request without waiting for a reply; the request is dropped if there is no connection."""
        self._socket.setsockopt(zmq.LINGER, _LINGER_TIMEOUT_MS)
        self._send([next(self._ids).to_bytes(8, "little"), encode(request)])

    def _send(self, frames: list[bytes]) -> bool:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _connect(self) -> None:
        endpoint, is_ipv6 = self._addresses[0]
        self._socket.setsockopt(zmq.IPV6, int(is_ipv6))
        self._socket.connect(endpoint)

    def _try_addresses(self, now_s: float) -> None:
        """Try the next address of the rig while not connected; report a prolonged failure once."""
        if len(self._addresses) > 1 and now_s >= self._next_address_s:
            self._next_address_s = math.inf
            self._socket.disconnect(self._addresses[0][0])
            self._addresses.rotate(-1)
            self._connect()
        if self._has_connected or self._tcp_endpoint is None:
            return
        if self._unconnected_since_s is None:
            self._unconnected_since_s = now_s
        elif now_s - self._unconnected_since_s > _UNREACHABLE_REPORT_DELAY_S:
            self._unconnected_since_s = math.inf
            self._on_problem(
                f"nothing answers at {self._endpoint}: {self._describe_attempts(self._tcp_endpoint)}; still trying"
            )

    def _describe_attempts(self, tcp: TcpEndpoint) -> str:
        return f"tried {probe_addresses(tcp)}; a rig prints its address when it starts (link.listen)"

    def _wait(self, *, until_writable: bool) -> bool:
        """Wait briefly for a reply, an event or (``until_writable``) room to send; return True if a reply has
        arrived."""
        self._poller.register(self._socket, zmq.POLLIN | zmq.POLLOUT if until_writable else zmq.POLLIN)
        return bool(dict(self._poller.poll(_POLL_TIMEOUT_MS)).get(self._socket, 0) & zmq.POLLIN)

    def _receive(self, request_id: bytes) -> tuple[ReplyMessage, list[bytes]] | None:
        frames = self._socket.recv_multipart(zmq.NOBLOCK)
        if len(frames) < 2 or frames[0] != request_id:
            return None  # late reply to an abandoned or repeated request, or a probe by the rig
        try:
            message = decode_reply(frames[1])
        except msgspec.DecodeError as error:
            raise LinkClosed(f"the rig at {self._endpoint} sent an invalid reply: {error}") from None
        if isinstance(message, Refused):
            raise RequestRejected(message.reason, message.code)
        return message, frames[2:]

    def _poll_monitor(self) -> bool:
        """Process the results of handshakes; return True if the client has reconnected."""
        has_reconnected = False
        while True:
            try:
                header = self._monitor.recv_multipart(zmq.NOBLOCK)[0]
            except zmq.Again:
                return has_reconnected
            event, value = _EVENT_FORMAT.unpack(header)
            if event == zmq.EVENT_CONNECTED:
                self._has_connected, self._next_address_s, self._reconnect_delay_s = (
                    True,
                    math.inf,
                    _RECONNECT_INTERVAL_MS / 1000,
                )
            elif event == zmq.EVENT_CONNECT_RETRIED:
                if self._next_address_s < math.inf:
                    continue
                self._next_address_s = time.monotonic() + self._reconnect_delay_s
                self._reconnect_delay_s = min(2 * self._reconnect_delay_s, _MAX_RECONNECT_INTERVAL_MS / 1000)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.n_connections += 1
                self._n_failed_handshakes = 0
                has_reconnected = self.n_connections > 1
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise KeyRejected(self._rejection_message(value))
            elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                raise KeyRejected(self._mismatch_message())
            else:
                self._n_failed_handshakes += 1
                if self.n_connections == 0 and self._n_failed_handshakes == _MAX_FAILED_HANDSHAKES:
                    if math.isfinite(self._patience_s):
                        raise KeyRejected(self._mismatch_message())
                    self._on_problem(
                        f"{self._mismatch_message()}; still trying"
                    )  # possibly a tunnel whose far end is down

    def _rejection_message(self, status: int) -> str:
        fingerprint = "" if self._keys is None else f" {pair_fingerprint(self._keys.pair)}"
        return (
            f"the rig at {self._endpoint} does not accept this learner's key{fingerprint} (status {status}); "
            "put its public key into the rig's folder 'learners' (onrig keys) and restart the rig"
        )

    def _mismatch_message(self) -> str:
        if self._keys is None:
            return (
                f"the rig at {self._endpoint} accepts no unencrypted connections; pass the learner's keys: --keys DIR"
            )
        return (
            f"the handshake with {self._endpoint} fails: it is not an Onrig rig with keys, or not the one whose public "
            "key is in rig.key"
        )

    def close(self) -> None:
        """Close the socket."""
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()
