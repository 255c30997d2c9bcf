"""Hostile clients of a rig's tcp endpoint and of its page: idle, slow, malformed, not reading, and returning.

They connect on loopback only.  Each has one or many sockets and no threads: the caller controls their timing; only a
returning crowd has its own thread.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import random
import selectors
import socket
import threading
import time
from typing import Final

from onrig.runtime.link.endpoint import TcpEndpoint

MAX_SOCKETS: Final = 4000
"""Maximum number of sockets of one crowd."""
LOOPBACK: Final = "127.0.0.1"
CONNECT_TIMEOUT_S: Final = 2.0
_PATIENCE_S: Final = 30.0
_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_CROWD_POLL_S: Final = 0.02
_PIECE: Final = 65_536
_MORE, _LONG, _COMMAND = 1, 2, 4


def on_loopback(endpoint: TcpEndpoint) -> tuple[str, int]:
    """Return the address to connect to; raises ValueError for anything but a loopback address."""
    host = endpoint.host.strip("[]")
    if not ipaddress.ip_address(host).is_loopback:
        raise ValueError(f"{endpoint}: attacks stay on this machine")
    return host, endpoint.port


def greeting(mechanism: bytes = b"NULL") -> bytes:
    """Return the first 64 bytes of a ZMTP 3.1 client."""
    return _SIGNATURE + b"\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


def frame(data: bytes, *, more: bool = False, command: bool = False) -> bytes:
    """Encode one ZMTP frame."""
    flags = _MORE * more | _COMMAND * command
    if len(data) > 255:
        return bytes([flags | _LONG]) + len(data).to_bytes(8, "big") + data
    return bytes([flags, len(data)]) + data


HELLO_BEGUN: Final = greeting(b"CURVE") + bytes([_COMMAND, 200])
"""CURVE handshake up to the header of its first command, without the body."""
READY_BEGUN: Final = greeting() + bytes([_COMMAND, 200])
"""Handshake without keys, up to the same point."""
READY: Final = frame(b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00", command=True)


class Crowd:
    """Context manager of up to MAX_SOCKETS connections that send ``first``, and then only the data of ``trickle``.

    ``source`` is their loopback address; ``receive_bytes`` sets the kernel's receive buffer of each.
    """

    def __init__(
        self,
        endpoint: TcpEndpoint,
        count: int,
        *,
        source: str = LOOPBACK,
        first: bytes = b"",
        receive_bytes: int | None = None,
    ) -> None:
        if count > MAX_SOCKETS:
            raise ValueError(f"a crowd has at most {MAX_SOCKETS} members")
        address = on_loopback(endpoint)
        self.refused = 0
        """Number of failed connection attempts."""
        self.members: list[socket.socket] = []
        for _ in range(count):
            member = socket.socket()
            try:
                member.settimeout(CONNECT_TIMEOUT_S)
                if receive_bytes is not None:
                    member.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
                member.bind((source, 0))
                member.connect(address)
                if first:
                    member.sendall(first)
                member.setblocking(False)
            except OSError:
                self.refused += 1
                member.close()
                continue
            self.members.append(member)

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *error: object) -> None:
        for member in self.members:
            member.close()
        self.members.clear()

    def trickle(self, data: bytes) -> None:
        """Let each connection send more data."""
        for member in self.members:
            with contextlib.suppress(OSError):
                member.send(data)

    def n_open(self) -> int:
        """Number of connections that the other end has not closed."""
        return sum(not _is_over(member) for member in self.members)


def _is_over(member: socket.socket) -> bool:
    try:
        while member.recv(_PIECE):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class ReturningCrowd:
    """Context manager of ``count`` connections that send ``first`` and are reopened whenever they are closed.

    A separate thread reopens them until the end of the context, or for at most ``seconds``.
    """

    def __init__(
        self, endpoint: TcpEndpoint, count: int, first: bytes, *, seconds: float, source: str = LOOPBACK
    ) -> None:
        if count > MAX_SOCKETS:
            raise ValueError(f"a crowd has at most {MAX_SOCKETS} members")
        self._address, self._count, self._first, self._source = on_loopback(endpoint), count, first, source
        self._seconds = seconds
        self.opened = 0
        """Number of connections made so far."""
        self.complete = threading.Event()
        """Set once all members have tried to connect."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="crowd", daemon=True)

    def __enter__(self) -> ReturningCrowd:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        limit_s = time.monotonic() + self._seconds
        with selectors.DefaultSelector() as selector:
            missing = self._count
            while not self._over.is_set() and time.monotonic() < limit_s:
                missing -= sum(self._open(selector) for _ in range(missing))
                self.complete.set()
                for key, _ in selector.select(_CROWD_POLL_S):
                    member = key.fileobj
                    if isinstance(member, socket.socket) and _is_over(member):
                        selector.unregister(member)
                        member.close()
                        missing += 1
            for key in list(selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()

    def _open(self, selector: selectors.BaseSelector) -> bool:
        member = socket.socket()
        try:
            member.settimeout(CONNECT_TIMEOUT_S)
            member.bind((self._source, 0))
            member.connect(self._address)
            member.sendall(self._first)
        except OSError:
            member.close()
            return False
        member.setblocking(False)
        selector.register(member, selectors.EVENT_READ)
        self.opened += 1
        return True


def stalled_readers(port: int, count: int, path: str, *, source: str = LOOPBACK) -> Crowd:
    """Open HTTP clients that request ``path`` and never read."""
    request = f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\n\r\n".encode()
    return Crowd(TcpEndpoint(LOOPBACK, port), count, source=source, first=request, receive_bytes=2048)


def garbled(endpoint: TcpEndpoint, count: int, seed: int, *, source: str = LOOPBACK) -> int:
    """Make ``count`` successive connections that send garbage or a damaged greeting; returns how many failed."""
    address = on_loopback(endpoint)
    rng = random.Random(seed)
    refused = 0
    for _ in range(count):
        with socket.socket() as line:
            try:
                line.settimeout(CONNECT_TIMEOUT_S)
                line.bind((source, 0))
                line.connect(address)
                line.sendall(_garbage(rng))
            except OSError as failure:
                turned_away = failure.errno in (errno.ECONNREFUSED, errno.EADDRNOTAVAIL)
                refused += turned_away or isinstance(failure, TimeoutError)
    return refused


def _garbage(rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        return b"GET / HTTP/1.1\r\nHost: rig\r\n\r\n"
    data = bytearray(greeting(rng.choice((b"NULL", b"CURVE", b"PLAIN"))) + READY)
    if kind == 2:
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randrange(1, len(data) + 1)])


def garbled_locally(path: str, rng: random.Random) -> bool:
    """Send garbage to a Unix socket; returns whether the connection was accepted."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(CONNECT_TIMEOUT_S)
        try:
            line.connect(path)
        except OSError:
            return False
        with contextlib.suppress(OSError):
            line.sendall(greeting()[: rng.randrange(65)] + rng.randbytes(rng.randrange(200)))
        return True


def garbled_visit(port: int, rng: random.Random) -> bool:
    """Send a garbage request to the page; returns whether the connection was accepted."""
    # Random damage could make a bad request valid, and the rig would obey a stop.
    request = bytearray(rng.choice(list(bad_requests(port).values())).replace(b"/api/stop", b"/api/none"))
    match rng.randrange(4):
        case 0:
            request = bytearray(rng.randbytes(rng.randrange(300)))
        case 1:
            request[rng.randrange(len(request))] = rng.randrange(256)
        case 2:
            request = request[: rng.randrange(len(request))]
    try:
        # The page may legitimately close before everything is sent.
        with socket.create_connection((LOOPBACK, port), CONNECT_TIMEOUT_S) as line, contextlib.suppress(OSError):
            line.sendall(request)
        return True
    except OSError:
        return False


def bad_requests(port: int) -> dict[str, bytes]:
    """Return malformed requests by kind; each must receive an error reply (4xx or 5xx)."""
    origin = f"http://{LOOPBACK}:{port}"
    order = (
        f"POST /api/stop HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\nOrigin: {origin}\r\nContent-Type: application/json\r\n"
    ).encode()
    body = b'{"how":"now"}'
    get = f"GET / HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\n".encode()
    return {
        "a length of 5000 digits": order + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n" + body,
        "a negative length": order + b"Content-Length: -13\r\n\r\n" + body,
        "a length with a sign": order + b"Content-Length: +13\r\n\r\n" + body,
        "a length with an underscore": order + b"Content-Length: 1_3\r\n\r\n" + body,
        "a length of other digits": order + "Content-Length: \u00b9\u00b3\r\n\r\n".encode("latin-1") + body,
        "two lengths": order + b"Content-Length: 13\r\nContent-Length: 12\r\n\r\n" + body,
        "no length": order + b"\r\n" + body,
        "chunked": order + b"Transfer-Encoding: chunked\r\n\r\nd\r\n" + body + b"\r\n0\r\n\r\n",
        "chunked with a length": order + b"Transfer-Encoding: chunked\r\nContent-Length: 13\r\n\r\n" + body,
        "a long body": order + b"Content-Length: 200000\r\n\r\n" + b"x" * 200_000,
        "a long line": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        "a long header": get + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
        "many headers": get + b"X: a\r\n" * 200 + b"\r\n",
        "a header without a colon": b"GET / HTTP/1.1\r\nnonsense\r\n\r\n",
        "a method that is none": b"\xff\xfe / HTTP/1.1\r\n\r\n",
        "a long method": b"A" * 5000 + b" / HTTP/1.1\r\n\r\n",
        "another version": b"GET / HTTP/9.9\r\n\r\n",
        "a version of 5000 digits": b"GET / HTTP/" + b"1" * 5000 + b".1\r\n\r\n",
        "a word": b"GET\r\n\r\n",
        "four words": b"GET / / HTTP/1.1\r\n\r\n",
        "an empty line": b"\r\n\r\n",
        "zeros": bytes(100) + b"\r\n\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40) + b"\n",
    }


def answer(port: int, data: bytes) -> bytes:
    """Send a raw request and read the complete answer."""
    with socket.create_connection((LOOPBACK, port), timeout=_PATIENCE_S) as line:
        with contextlib.suppress(OSError):
            line.sendall(data)
        got = b""
        with contextlib.suppress(OSError):
            while data := line.recv(_PIECE):
                got += data
        return got


def unanswered(port: int) -> list[str]:
    """Return the kinds of malformed requests that receive no error reply."""
    requests = bad_requests(port).items()
    return [kind for kind, data in requests if not answer(port, data).split(b" ")[1:2] >= [b"400"]]
