"""Rig's end of the link: receives requests, passes them to the replay process, sends the answers.

It never blocks and does bounded work per turn: replies to a peer that does not read are dropped, and excess requests
wait for the next turn.

Local learners use an ipc socket in a folder of mode 0700. Remote learners, if configured, use a tcp socket (CURVE,
listed keys only) behind a relay (``onrig.runtime.link.acceptor``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import zmq

from onrig.runtime.link.acceptor import ConnectionAcceptor, ShedConnections, peer_name
from onrig.runtime.link.endpoint import Link, TcpEndpoint, parse_tcp
from onrig.runtime.link.keys import RigKeys, load_rig_keys
from onrig.runtime.link.messages import (
    MAX_REQUEST_BYTES,
    Confirm,
    Offer,
    Refused,
    ReplyMessage,
    RequestMessage,
    decode_request,
    encode,
)
from onrig.runtime.link.pending import HANDSHAKE_TIMEOUT_S, ZAP_DOMAIN, PendingConnection, ZapHandler

_ID_BYTES: Final = 8
_MAX_REQUESTS_PER_TURN: Final = 64
_MAX_BYTES_PER_TURN: Final = 8 * 1024 * 1024
"""Limit on bytes read and written per turn."""
_MAX_FRAMES: Final = 5
"""Maximum number of frames: request id, header, and at most three payloads; further frames are discarded."""
_EXPENSIVE_REQUESTS: Final = (Offer, Confirm)
"""Requests that take milliseconds to handle; one of them ends a turn."""
_MAX_QUEUED_MESSAGES: Final = 4
"""Queue length per peer and direction.  A learner has one pending request at a time."""
_HEARTBEAT_INTERVAL_MS: Final = 2_000
_SILENCE_TIMEOUT_MS: Final = 10_000
"""Silence after which a connection counts as lost and is closed."""
_PROBE_ID: Final = bytes(_ID_BYTES)
"""Request id of unsolicited messages; learners count from 1."""
_CURVE_OVERHEAD_BYTES: Final = 33
"""Overhead of CURVE per frame: command name, nonce, flags and authenticator."""
_MAX_CACHED_CONNECTIONS: Final = 256
"""Maximum number of peers whose connection is cached."""


class Reply(NamedTuple):
    """Message and payload frames of a reply."""

    message: ReplyMessage
    payloads: tuple[bytes, ...] = ()
    bytes_read: int = 0
    """Bytes read to build the reply, counted as work of the turn."""


class Ticket(NamedTuple):
    """Recipient of a reply."""

    peer: bytes
    """Connection: index of the socket (one byte), then ZeroMQ's routing id."""
    request_id: bytes
    key: str = "local"
    """Peer: ``NAME:FINGERPRINT`` of its key, or the name of the socket."""


RequestHandler = Callable[[Ticket, RequestMessage, Sequence[bytes]], Reply | None]


class TcpAccess(NamedTuple):
    """Access for other machines; without keys the endpoint must be a loopback address."""

    endpoint: TcpEndpoint
    keys: RigKeys | None


class LinkServer:
    """Server with one ROUTER socket per endpoint.  Raises ``zmq.ZMQError`` or OSError if it cannot listen."""

    def __init__(self, endpoint: str, tcp: TcpAccess | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._zap_handler: ZapHandler | None = None
        self._acceptor: ConnectionAcceptor | None = None
        self._connections: dict[bytes, PendingConnection] = {}
        self._sockets: list[tuple[zmq.Socket[bytes], str]] = []
        self.n_malformed = 0
        self.work_bytes = 0
        """Bytes read and written in the last turn."""
        try:
            self._open(endpoint, "local", None, None)
            if tcp is not None:
                inner = f"{endpoint}.tcp"
                self._open(inner, "plain", tcp.endpoint, tcp.keys)
                overhead_bytes = 0 if tcp.keys is None else _CURVE_OVERHEAD_BYTES
                path = inner.removeprefix("ipc://")
                self._acceptor = ConnectionAcceptor(
                    tcp.endpoint,
                    path,
                    max_frame_bytes=MAX_REQUEST_BYTES + overhead_bytes,
                    overhead_bytes=overhead_bytes,
                )
        except (zmq.ZMQError, OSError):
            self.close()
            raise
        self._poller = zmq.Poller()
        for socket, _ in self._sockets:
            self._poller.register(socket, zmq.POLLIN)
        if self._zap_handler is not None:
            self._poller.register(self._zap_handler.socket, zmq.POLLIN)

    def _open(self, endpoint: str, name: str, tcp: TcpEndpoint | None, keys: RigKeys | None) -> None:
        socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._sockets.append((socket, name))
        options = {
            zmq.LINGER: 200,
            zmq.SNDHWM: _MAX_QUEUED_MESSAGES,
            zmq.RCVHWM: _MAX_QUEUED_MESSAGES,
            zmq.MAXMSGSIZE: MAX_REQUEST_BYTES,
            zmq.ROUTER_MANDATORY: 1,
        }
        if tcp is not None:
            options |= {
                zmq.HEARTBEAT_IVL: _HEARTBEAT_INTERVAL_MS,
                zmq.HEARTBEAT_TIMEOUT: _SILENCE_TIMEOUT_MS,
                zmq.HANDSHAKE_IVL: round(1000 * HANDSHAKE_TIMEOUT_S),
            }
        for option, value in options.items():
            socket.setsockopt(option, value)
        if keys is not None:
            self._zap_handler = ZapHandler(self._context, keys.names_by_key)
            socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # fail closed: no ZAP handler, no connection
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, keys.pair.secret)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.pair.public)
        socket.bind(endpoint)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Endpoints, with their actual ports."""
        local = self._sockets[0][0].getsockopt_string(zmq.LAST_ENDPOINT)
        return (local,) if self._acceptor is None else (local, *self._acceptor.endpoints)

    def take_refused_keys(self) -> list[str]:
        """Return the fingerprints of keys refused since the last call."""
        if self._zap_handler is None:
            return []
        fingerprints, self._zap_handler.refused_keys = self._zap_handler.refused_keys, []
        return fingerprints

    def take_shed_connections(self) -> list[ShedConnections]:
        """Return the TCP connections ended since the last call."""
        return [] if self._acceptor is None else self._acceptor.take_shed_connections()

    def wait(self, timeout_ms: int) -> bool:
        """Wait for a request; return True if one has arrived."""
        ready_sockets = dict(self._poller.poll(timeout_ms))
        if self._zap_handler is not None and self._zap_handler.socket in ready_sockets:
            self._zap_handler.reply_to_pending()
        return any(socket in ready_sockets for socket, _ in self._sockets)

    def serve(self, handle: RequestHandler) -> None:
        """Handle pending requests, up to a bounded amount of work, from all sockets in turn.

        Re-raises the exception that ended the relay's thread, without which no connection is accepted.
        """
        if self._acceptor is not None:
            if self._acceptor.failure is not None:
                raise self._acceptor.failure
            self._acceptor.last_poll_s = time.monotonic()
        if self._zap_handler is not None:
            self._zap_handler.reply_to_pending()
        self.work_bytes = 0
        socket_indices = list(range(len(self._sockets)))
        for _ in range(_MAX_REQUESTS_PER_TURN):
            if not socket_indices or self.work_bytes >= _MAX_BYTES_PER_TURN:
                return
            socket_index = socket_indices.pop(0)
            message = self._receive(socket_index)
            if message is None:
                continue
            socket_indices.append(socket_index)
            ticket, frames = message
            self.work_bytes += sum(map(len, frames))
            if self.handle_message(ticket, frames, handle):
                self.work_bytes += _MAX_BYTES_PER_TURN

    def _receive(self, socket_index: int) -> tuple[Ticket, list[bytes]] | None:
        socket, name = self._sockets[socket_index]
        try:
            identity_frame = socket.recv(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        frames: list[bytes] = []
        sizes: list[int] = []
        last_frame = identity_frame
        while last_frame.more:
            last_frame = socket.recv(copy=False)
            sizes.append(len(last_frame))
            if len(frames) < _MAX_FRAMES:
                frames.append(last_frame.bytes)
        key = name
        if name != "local" and self._zap_handler is not None:
            key = str(last_frame.get("User-Id"))
        peer = bytes([socket_index]) + identity_frame.bytes
        if name != "local":
            self._notify_relay(peer, last_frame, sizes)
        return Ticket(peer, frames[0] if frames else b"", key), frames[1:]

    def _notify_relay(self, peer: bytes, frame: zmq.Frame, sizes: list[int]) -> None:
        """Notify the relay that a complete message of this connection has been received."""
        if self._acceptor is None:
            return
        connection = self._connections.get(peer)
        if connection is None:
            try:
                name = peer_name(int(frame.get(zmq.SRCFD)))
            except (OSError, zmq.ZMQError):
                return  # closed in the meantime
            connection = self._acceptor.connection(name)
            if connection is None:
                return
            self._connections[peer] = connection
            while len(self._connections) > _MAX_CACHED_CONNECTIONS:
                del self._connections[next(iter(self._connections))]
        self._acceptor.record_received(connection, sizes)

    def handle_message(self, ticket: Ticket, frames: list[bytes], handle: RequestHandler) -> bool:
        """Handle one message, given the frames after its request id; return True if it was expensive."""
        if not frames or len(ticket.request_id) != _ID_BYTES:
            self.n_malformed += 1
            return False
        try:
            request = decode_request(frames[0])
        except msgspec.DecodeError as error:
            self.n_malformed += 1
            self.send(ticket, Reply(Refused(f"malformed request: {error}")))
            return False
        reply = handle(ticket, request, frames[1:])
        if reply is not None:
            self.work_bytes += reply.bytes_read
            self.send(ticket, reply)
        return isinstance(request, _EXPENSIVE_REQUESTS)

    def send(self, ticket: Ticket, reply: Reply) -> None:
        """Send a reply, or drop it if the peer is disconnected or does not keep up."""
        self._send(ticket.peer, [ticket.request_id, encode(reply.message), *reply.payloads])

    def is_disconnected(self, peer: bytes) -> bool:
        """Return whether a peer's connection is known to be closed."""
        return self._send(peer, [_PROBE_ID]) == zmq.EHOSTUNREACH

    def _send(self, peer: bytes, frames: list[bytes]) -> int:
        """Send without waiting; return 0 or an error number."""
        if not peer or peer[0] >= len(self._sockets):
            return zmq.EHOSTUNREACH
        connection, size = self._connections.get(peer), sum(map(len, frames))
        if connection is not None and self._acceptor is not None and not self._acceptor.may_reply(connection, size):
            return zmq.EAGAIN  # earlier replies are still unread
        socket = self._sockets[peer[0]][0]
        try:
            try:
                socket.send_multipart([peer[1:], *frames], zmq.NOBLOCK)
            except zmq.Again:
                # ZeroMQ processes the completion of earlier sends only when polled for events.
                socket.getsockopt(zmq.EVENTS)
                socket.send_multipart([peer[1:], *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if connection is not None and self._acceptor is not None:
                connection.queued_reply_bytes -= size
            return error.errno or zmq.EHOSTUNREACH
        self.work_bytes += size
        return 0

    def close(self) -> None:
        """Close all sockets."""
        for socket, _ in self._sockets:
            socket.close()
        if self._zap_handler is not None:
            self._zap_handler.close()
        self._context.term()
        if self._acceptor is not None:  # last, because it forwards the sockets' last messages
            self._acceptor.close()


class CannotListen(Exception):
    """Raised if an endpoint cannot be opened; the message gives the reason."""


def listen(local: str, link: Link) -> LinkServer:
    """Listen at ``local`` (ipc) and as configured in ``link``.

    Raises KeyFileError for unusable keys, and CannotListen if an endpoint cannot be opened, for example because its
    address is in use.
    """
    try:
        return LinkServer(local, _tcp_access(link))
    except zmq.ZMQError as error:
        raise CannotListen(f"{link.listen or local}: {zmq.strerror(error.errno or 0)}; see link.listen") from None
    except OSError as error:
        raise CannotListen(f"{link.listen}: {error.strerror or error}; see link.listen") from None


def _tcp_access(link: Link) -> TcpAccess | None:
    if link.listen is None:
        return None
    keys = None if link.keys is None else load_rig_keys(Path(link.keys).expanduser())
    return TcpAccess(parse_tcp(link.listen), keys)
