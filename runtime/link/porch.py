"""The tcp door's porch: takes connections in, passes their bytes on to ZeroMQ, and ends those that only stand about.

ZeroMQ accepts whoever comes, for as long as there are descriptors, and collects the frames of a message without
bound.  So the rig accepts by itself, in a thread that sleeps while nothing arrives, and passes bytes on to a socket of
the rig's folder, where ZeroMQ does all else: handshake, keys, encryption.  Of what passes, only the lengths of frames
are looked at.  Who gives way and who has too much under way, ``runtime.link.guests`` decides.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from runtime.link.endpoint import Tcp
from runtime.link.guests import Guest, may_read, outstayed, too_many
from runtime.link.zmtp import FrameMeter, NotZmtp

_PIECE: Final = 65_536
_DOWN: Final = 262_144
_BACKLOG: Final = 512
_ACCEPTED: Final = 16
"""In one go; then those that are there already have their turn."""
_PAUSE_S: Final = 0.01
_NO_ROOM_S: Final = 0.2
_LOOK_S: Final = 0.25
_BLOCKED_S: Final = 0.02
_FAREWELL_S: Final = 0.2
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_SIOCGIFADDR: Final = 0x8915
_TOLD: Final = 16
"""Addresses told of one by one."""
OTHERS: Final = "others"


class Connection:
    """A learner's socket, ours to ZeroMQ (once the first bytes are those of a learner), and what waits in between."""

    def __init__(self, outer: socket.socket, guest: Guest, longest: int) -> None:
        self.outer, self.guest = outer, guest
        self.inner: socket.socket | None = None
        self.name = b""
        """Of the socket to ZeroMQ, as its other end sees it."""
        self.meter = FrameMeter(longest)
        self.up = self.down = b""
        self.up_ended = self.down_ended = False
        self.masks = [0, 0]
        self.blocked = False


class Porch:
    """Listens at ``endpoint``; a thread of its own passes on to the Unix socket ``inner``.

    Raises OSError where it cannot listen.  ``overhead``: bytes by which encryption lengthens a frame.
    """

    def __init__(self, endpoint: Tcp, inner: str, *, longest: int, overhead: int) -> None:
        self._inner, self._longest, self._overhead = inner, longest, overhead
        self._listener = _listening(endpoint)
        self._there: dict[bytes, Connection] = {}
        self._connections: set[Connection] = set()
        self._selector = selectors.DefaultSelector()
        self._accepts_at = 0.0
        self._accepting = False
        self._look_at = 0.0
        self.served_s = time.monotonic()
        """When the rig last looked for requests."""
        self._shed: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self.failure: BaseException | None = None
        self._stop = False
        self._waker, self._sleeper = socket.socketpair()
        self._waker.setblocking(False)
        self._selector.register(self._sleeper, _READ)
        self._thread = threading.Thread(target=self._run, name="porch", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """Where it listens, with the port that was found."""
        host, port = self._listener.getsockname()[:2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    # -- for the rig's thread --------------------------------------------------------------------------------------

    def guest(self, name: bytes) -> Guest | None:
        """The connection whose socket to ZeroMQ has this name."""
        connection = self._there.get(name)
        return None if connection is None else connection.guest

    def took(self, guest: Guest, sizes: Sequence[int]) -> None:
        """Note that the rig has taken a message with frames of these sizes."""
        blocked = not may_read(guest, self._under_way())
        guest.take(sizes, self._overhead, time.monotonic())
        if blocked:
            self._wake()

    def may_answer(self, guest: Guest, size: int) -> bool:
        """Whether an answer of ``size`` bytes may wait for a connection."""
        return guest.may_answer(size, sum(c.guest.waiting for c in self._there.copy().values()))

    def shed(self) -> list[tuple[str, str, int]]:
        """(address, why, how many) of connections that were ended since the last call."""
        if not self._shed:
            return []
        with self._lock:
            shed, self._shed = self._shed, Counter()
        return [(address, why, n) for (address, why), n in shed.items()]

    def close(self) -> None:
        """End every connection and the thread."""
        self._stop = True
        self._wake()
        self._thread.join()
        for end in (self._waker, self._sleeper, self._listener):
            end.close()
        self._selector.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b".")

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop:
                self._turn()
            limit = time.monotonic() + _FAREWELL_S
            while any(c.inner is not None for c in self._connections) and time.monotonic() < limit:
                self._turn()  # what ZeroMQ has said last is still on its way
        except BaseException as failure:  # the rig must hear of it: without the porch nobody enters any more
            self.failure = failure
        for connection in list(self._connections):
            self._end(connection)

    def _turn(self) -> None:
        now = time.monotonic()
        self._heed_listener(now)
        timeout = _LOOK_S if self._accepting else max(0.0, min(_LOOK_S, self._accepts_at - now))
        if self._stop or any(c.blocked for c in self._connections):
            timeout = min(timeout, _BLOCKED_S)
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._sleeper:
                self._sleeper.recv(4096)
            elif key.fileobj is self._listener:
                self._accept(time.monotonic())
            elif key.data in self._connections:
                self._pump(key.data)
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _BLOCKED_S
            self._look_round(now)

    def _heed_listener(self, now: float) -> None:
        wanted = now >= self._accepts_at
        if wanted and not self._accepting:
            self._selector.register(self._listener, _READ)
        elif self._accepting and not wanted:
            self._selector.unregister(self._listener)
        self._accepting = wanted

    def _accept(self, now: float) -> None:
        for _ in range(_ACCEPTED):
            try:
                outer, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._accepts_at = now + _NO_ROOM_S
                    return
                continue  # gone before it was taken in
            outer.setblocking(False)
            with contextlib.suppress(OSError):
                outer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(outer, Guest(str(address[0]), now), self._longest)
            self._connections.add(connection)
            self._pump(connection)  # whoever is a learner has said so by now
            self._make_room(entered=False)
        self._accepts_at = now + _PAUSE_S

    def _make_room(self, *, entered: bool) -> None:
        while (guest := too_many([c.guest for c in self._connections], entered=entered)) is not None:
            self._turn_out(next(c for c in self._connections if c.guest is guest), "too many")

    def _look_round(self, now: float) -> None:
        of_all = self._under_way()
        for connection in list(self._connections):
            why = outstayed(connection.guest, now, self.served_s, of_all)
            if why is not None:
                self._turn_out(connection, why)
            elif connection.blocked and may_read(connection.guest, of_all):
                self._pump(connection)
        self._make_room(entered=True)

    def _under_way(self) -> int:
        return sum(c.guest.under_way for c in self._connections.copy())

    # -- one connection --------------------------------------------------------------------------------------------

    def _pump(self, connection: Connection) -> None:
        try:
            self._upwards(connection)
            self._downwards(connection)
        except NotZmtp:
            self._turn_out(connection, "no learner")
            return
        except OSError:
            self._end(connection)
            return
        c = connection
        if (c.up_ended and (not c.up or c.inner is None)) or (c.down_ended and not c.down):
            self._end(connection)
            return
        self._watch(connection)

    def _upwards(self, c: Connection) -> None:
        if (not c.up or c.inner is None) and not c.up_ended:
            c.blocked = not may_read(c.guest, self._under_way())
            if not c.blocked and (data := _received(c.outer, _PIECE)) is not None:
                c.up_ended = not data
                c.guest.pass_on(c.meter.take(data), time.monotonic())
                c.guest.progress = c.meter.signed + min(c.meter.frames, 2)
                c.up += data
                if c.meter.signed and c.inner is None:
                    self._connect(c)
        if c.up and c.inner is not None:
            c.up = _sent(c.inner, c.up)

    def _downwards(self, c: Connection) -> None:
        if c.inner is None:
            return
        if not c.down and not c.down_ended and (data := _received(c.inner, _DOWN)) is not None:
            c.down_ended = not data
            c.down = data
        if c.down:
            rest = _sent(c.outer, c.down)
            c.guest.left += len(c.down) - len(rest)
            c.down = rest

    def _connect(self, c: Connection) -> None:
        c.inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        c.inner.setblocking(False)
        c.inner.bind("")  # Linux finds a name that nobody has
        c.name = c.inner.getsockname()
        c.inner.connect(self._inner)
        self._there[c.name] = c

    def _watch(self, c: Connection) -> None:
        reads = (not c.up or c.inner is None) and not c.up_ended and not c.blocked
        wanted = [(_READ if reads else 0) | (_WRITE if c.down else 0), 0]
        if c.inner is not None:
            wanted[1] = (_READ if not c.down and not c.down_ended else 0) | (_WRITE if c.up else 0)
        for n, end in enumerate((c.outer, c.inner)):
            if end is None or wanted[n] == c.masks[n]:
                continue
            if not c.masks[n]:
                self._selector.register(end, wanted[n], c)
            elif wanted[n]:
                self._selector.modify(end, wanted[n], c)
            else:
                self._selector.unregister(end)
            c.masks[n] = wanted[n]

    def _turn_out(self, c: Connection, why: str) -> None:
        with self._lock:
            address = c.guest.address
            known = {a for a, _ in self._shed}
            self._shed[address if address in known or len(known) < _TOLD else OTHERS, why] += 1
        self._end(c)

    def _end(self, c: Connection) -> None:
        self._connections.discard(c)
        self._there.pop(c.name, None)
        for n, end in enumerate((c.outer, c.inner)):
            if end is not None:
                if c.masks[n]:
                    self._selector.unregister(end)
                end.close()


def _received(end: socket.socket, most: int) -> bytes | None:
    try:
        return end.recv(most)
    except BlockingIOError:
        return None


def _sent(end: socket.socket, data: bytes) -> bytes:
    """Send what goes; the rest."""
    try:
        n = end.send(data)
    except BlockingIOError:
        return data
    return data[n:]


def _listening(endpoint: Tcp) -> socket.socket:
    host = endpoint.host.strip("[]")
    family = socket.AF_INET6 if endpoint.ipv6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if endpoint.ipv6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(_address(listener, host, endpoint.port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _address(listener: socket.socket, host: str, port: int) -> tuple[str, int]:
    """Resolve the host: an address, a name, every interface (``*``) or the name of one."""
    if host == "*":
        return ("::" if listener.family == socket.AF_INET6 else "0.0.0.0", port)
    if listener.family == socket.AF_INET and host in {name for _, name in socket.if_nameindex()}:
        request = struct.pack("256s", host.encode())
        found = fcntl.ioctl(listener.fileno(), _SIOCGIFADDR, request)
        return socket.inet_ntoa(found[20:24]), port
    return host, port


def peer_name(fd: int) -> bytes:
    """Abstract name of the socket at the other end of a descriptor of ours; raises OSError where there is none any more."""
    with socket.socket(fileno=os.dup(fd)) as end:
        name = end.getpeername()
        return name if isinstance(name, bytes) else b""
