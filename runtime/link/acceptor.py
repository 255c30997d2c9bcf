"""Relay in front of the TCP socket: accepts connections, forwards their bytes to ZeroMQ, and ends idle ones.

ZeroMQ accepts connections until descriptors run out, and collects the frames of a message without a limit.  The rig
therefore accepts connections itself, in a thread that sleeps while nothing arrives, and forwards the bytes to a socket
in the rig's folder, where ZeroMQ does the rest: handshake, keys, encryption.  The relay reads only the lengths of
frames.  ``onrig.runtime.link.seats`` decides who is served, ``onrig.runtime.link.pending`` sets the limits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from onrig.runtime.link.endpoint import TcpEndpoint, bind_listeners, listener_endpoint
from onrig.runtime.link.pending import PendingConnection, Stage, end_reason, may_read
from onrig.runtime.link.relay import Relay
from onrig.runtime.link.seats import next_assignment, surplus_connections
from onrig.runtime.link.zmtp import ZmtpError

_MAX_ACCEPTS_PER_TURN: Final = 16
"""Maximum number of connections accepted at once, before existing ones are served."""
_ACCEPT_PAUSE_S: Final = 0.01
_RESOURCE_RETRY_DELAY_S: Final = 0.2
_IDLE_TIMEOUT_S: Final = 0.25
_CHECK_INTERVAL_S: Final = 0.02
_LINGER_TIMEOUT_S: Final = 0.2
_GIL_SWITCH_INTERVAL_S: Final = 0.0005
"""Interval at which the GIL switches between the rig's thread and this one while bytes are pending."""
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_MAX_REPORTED_ADDRESSES: Final = 16
"""Maximum number of addresses reported individually."""
_OTHER_ADDRESSES: Final = "others"
_RESOURCE_ERRNOS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ShedConnections(NamedTuple):
    """Connections from one address that the rig ended for the same reason."""

    address: str
    reason: str
    n_connections: int


class ConnectionAcceptor:
    """Listener at ``endpoint`` with its own thread, which forwards to the Unix socket ``inner_path``.

    Raises OSError if it cannot listen.  ``max_frame_bytes``: maximum size of a frame in bytes; ``overhead_bytes``:
    bytes added to a frame by encryption.
    """

    def __init__(self, endpoint: TcpEndpoint, inner_path: str, *, max_frame_bytes: int, overhead_bytes: int) -> None:
        self._inner_path, self._max_frame_bytes, self._overhead_bytes = inner_path, max_frame_bytes, overhead_bytes
        self._listeners = bind_listeners(endpoint)
        self.endpoints = tuple(map(listener_endpoint, self._listeners))
        """Endpoints with their actual ports."""
        self._relays: set[Relay] = set()
        self._connections_by_name: dict[bytes, PendingConnection] = {}
        self._selector = selectors.DefaultSelector()
        self._next_accept_s = self._next_check_s = 0.0
        self._is_accepting = False
        self.last_poll_s = time.monotonic()
        """Time at which the rig last polled for requests."""
        self._shed_counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self.failure: BaseException | None = None
        """Exception that ended the thread."""
        self._stop_requested = False
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._selector.register(self._wake_receiver, _READ)
        self._initial_switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(_GIL_SWITCH_INTERVAL_S, self._initial_switch_interval_s))
        self._thread = threading.Thread(target=self._run, name="acceptor", daemon=True)
        self._thread.start()

    # -- for the rig's thread --------------------------------------------------------------------------------------

    def connection(self, name: bytes) -> PendingConnection | None:
        """Return the connection whose socket to ZeroMQ has this name."""
        return self._connections_by_name.get(name)

    def record_received(self, connection: PendingConnection, sizes: Sequence[int]) -> None:
        """Record that the rig has received a message with frames of these sizes (bytes)."""
        was_blocked = not self._may_read(connection)
        connection.add_received(sizes, self._overhead_bytes, time.monotonic())
        if was_blocked:
            self._wake()

    def may_reply(self, connection: PendingConnection, size: int) -> bool:
        """Return whether a reply of ``size`` bytes may be queued for a connection; if so, count it as queued."""
        return connection.may_reply(size, sum(c.unsent_reply_bytes for c in self._connections_by_name.copy().values()))

    def take_shed_connections(self) -> list[ShedConnections]:
        """Return the connections ended since the last call."""
        if not self._shed_counts:
            return []
        with self._lock:
            shed_counts, self._shed_counts = self._shed_counts, Counter()
        return [ShedConnections(address, reason, n) for (address, reason), n in shed_counts.items()]

    def close(self) -> None:
        """End every connection and the thread."""
        self._stop_requested = True
        self._wake()
        self._thread.join()
        sys.setswitchinterval(self._initial_switch_interval_s)
        for end in (self._wake_sender, self._wake_receiver, *self._listeners):
            end.close()
        self._selector.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_sender.send(b".")

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop_requested:
                self._run_once()
            limit = time.monotonic() + _LINGER_TIMEOUT_S
            while any(relay.inner is not None for relay in self._relays) and time.monotonic() < limit:
                self._run_once()  # ZeroMQ's last bytes are still in transit
        except BaseException as failure:  # passed to the rig, because without this thread no connection is accepted
            self.failure = failure
        for relay in list(self._relays):
            self._end(relay)

    def _run_once(self) -> None:
        now_s = time.monotonic()
        self._update_listeners(now_s)
        timeout = _IDLE_TIMEOUT_S if self._is_accepting else max(0.0, min(_IDLE_TIMEOUT_S, self._next_accept_s - now_s))
        if self._stop_requested or any(r.is_blocked or r.connection.stage is Stage.WAITING for r in self._relays):
            timeout = min(timeout, _CHECK_INTERVAL_S)
        for key, mask in self._selector.select(timeout):
            if key.fileobj is self._wake_receiver:
                self._wake_receiver.recv(4096)
            elif key.fileobj in self._listeners:
                self._accept(key.fileobj, time.monotonic())
            elif key.data in self._relays:
                outer = key.fileobj is key.data.outer
                up_mask, down_mask = (_READ, _WRITE) if outer else (_WRITE, _READ)
                self._forward(key.data, is_upwards=bool(mask & up_mask), is_downwards=bool(mask & down_mask))
        now_s = time.monotonic()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + _CHECK_INTERVAL_S
            self._check_connections(now_s)

    def _update_listeners(self, now_s: float) -> None:
        should_listen = now_s >= self._next_accept_s and not self._stop_requested
        for listener in self._listeners:
            if should_listen and not self._is_accepting:
                self._selector.register(listener, _READ)
            elif self._is_accepting and not should_listen:
                self._selector.unregister(listener)
        self._is_accepting = should_listen

    def _accept(self, listener: socket.socket, now_s: float) -> None:
        for _ in range(_MAX_ACCEPTS_PER_TURN):
            try:
                peer_socket, address = listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _RESOURCE_ERRNOS:
                    self._next_accept_s = now_s + _RESOURCE_RETRY_DELAY_S
                    break
                continue  # closed before acceptance
            peer_socket.setblocking(False)
            with contextlib.suppress(OSError):
                peer_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            relay = Relay(peer_socket, PendingConnection(str(address[0]), now_s), self._max_frame_bytes)
            self._relays.add(relay)
            self._forward(relay, is_upwards=True)  # a real learner has sent its greeting by now
        else:
            self._next_accept_s = now_s + _ACCEPT_PAUSE_S
        self._assign_seats(now_s)

    def _assign_seats(self, now_s: float) -> None:
        for relay in [r for r in self._relays if r.connection.stage is Stage.WAITING and r.has_hung_up]:
            self._end(relay)
        relays = {relay.connection: relay for relay in self._relays}
        while (assignment := next_assignment(relays, now_s)) is not None:
            if assignment.previous is not None:
                self._shed_connection(relays.pop(assignment.previous), "too many")
            assignment.connection.seated_s, assignment.connection.jumped_queue = now_s, assignment.jumped_queue
            self._forward(relays[assignment.connection], is_upwards=True)
        for connection in surplus_connections(relays):
            if relays[connection] in self._relays:
                self._shed_connection(relays[connection], "too many")

    def _check_connections(self, now_s: float) -> None:
        total_in_flight = self._total_in_flight()
        for relay in list(self._relays):
            reason = end_reason(relay.connection, now_s, self.last_poll_s, total_in_flight)
            if reason is not None:
                self._shed_connection(relay, reason)
            elif relay.is_blocked and may_read(relay.connection, total_in_flight):
                self._forward(relay, is_upwards=True)
        self._assign_seats(now_s)

    def _may_read(self, connection: PendingConnection) -> bool:
        return may_read(connection, self._total_in_flight())

    def _total_in_flight(self) -> int:
        return sum(relay.connection.bytes_in_flight for relay in self._relays.copy())

    def _forward(self, relay: Relay, *, is_upwards: bool = False, is_downwards: bool = False) -> None:
        try:
            if is_upwards:
                relay.forward_upwards(time.monotonic(), self._may_read, self._inner_path)
                if relay.name:
                    self._connections_by_name[relay.name] = relay.connection
            if is_downwards:
                relay.forward_downwards()
        except ZmtpError:
            self._shed_connection(relay, "no learner")
        except OSError:
            self._end(relay)
        else:
            if relay.is_finished:
                self._end(relay)
            else:
                relay.watch(self._selector)

    def _shed_connection(self, relay: Relay, reason: str) -> None:
        address = relay.connection.address
        with self._lock:
            addresses = {addresses for addresses, _ in self._shed_counts}
            self._shed_counts[
                address if address in addresses or len(addresses) < _MAX_REPORTED_ADDRESSES else _OTHER_ADDRESSES,
                reason,
            ] += 1
        self._end(relay)

    def _end(self, relay: Relay) -> None:
        self._relays.discard(relay)
        self._connections_by_name.pop(relay.name, None)
        relay.close(self._selector)


def peer_name(fd: int) -> bytes:
    """Return the abstract socket name of a socket's peer; raises OSError if the peer is disconnected."""
    with socket.socket(fileno=os.dup(fd)) as end:
        name = end.getpeername()
        return name if isinstance(name, bytes) else b""
