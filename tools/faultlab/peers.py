"""Peers that wish a rig's tcp door no good: idle, slow, garbled, greedy, noisy.  Loopback only, bounded in count.

Each is one socket or a crowd of them, without threads: whoever uses them decides when they act.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import random
import select
import socket
import time
from types import TracebackType
from typing import Final, NamedTuple

from onrig.runtime.link.endpoint import Tcp
from onrig.runtime.link.messages import Attach, Leave, RequestMessage, encode

MOST: Final = 4000
"""Sockets of one crowd."""
_CONNECT_S: Final = 2.0
_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_PIECE: Final = 65_536
_MORE, _LONG, _COMMAND = 1, 2, 4


def on_loopback(endpoint: Tcp) -> tuple[str, int]:
    """Where to connect; ValueError for anything but a loopback address."""
    host = endpoint.host.strip("[]")
    if not ipaddress.ip_address(host).is_loopback:
        raise ValueError(f"{endpoint}: attacks stay on this machine")
    return host, endpoint.port


def greeting(mechanism: bytes = b"NULL") -> bytes:
    """What a ZMTP 3.1 client says first, 64 bytes."""
    return _SIGNATURE + b"\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


def frame(data: bytes, *, more: bool = False, command: bool = False) -> bytes:
    """Write one ZMTP frame."""
    flags = _MORE * more | _COMMAND * command
    if len(data) > 255:
        return bytes([flags | _LONG]) + len(data).to_bytes(8, "big") + data
    return bytes([flags, len(data)]) + data


READY: Final = frame(b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00", command=True)


class Crowd:
    """Up to MOST connections that say ``first`` and then only what ``trickle`` gives them; a context.

    ``source`` is the loopback address that they come from.
    """

    def __init__(self, endpoint: Tcp, count: int, *, source: str = "127.0.0.1", first: bytes = b"") -> None:
        if count > MOST:
            raise ValueError(f"a crowd has at most {MOST} members")
        here = on_loopback(endpoint)
        self.refused = 0
        """Connections that could not be made."""
        self._members: list[socket.socket] = []
        for _ in range(count):
            member = socket.socket()
            try:
                member.settimeout(_CONNECT_S)
                member.bind((source, 0))
                member.connect(here)
                if first:
                    member.sendall(first)
                member.setblocking(False)
            except OSError:
                self.refused += 1
                member.close()
                continue
            self._members.append(member)

    def __enter__(self) -> Crowd:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self._members:
            member.close()
        self._members.clear()

    def trickle(self, data: bytes) -> None:
        """Let each send a little more."""
        for member in self._members:
            with contextlib.suppress(OSError):
                member.send(data)

    def left(self) -> int:
        """How many the other end has not hung up on."""
        return sum(not _is_over(member) for member in self._members)


def _is_over(member: socket.socket) -> bool:
    try:
        while member.recv(_PIECE):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class Tally(NamedTuple):
    """What came of garbled connections."""

    made: int
    refused: int
    """That were not accepted."""


def garbled(endpoint: Tcp, count: int, seed: int, *, source: str = "127.0.0.1") -> Tally:
    """Make ``count`` connections, one after the other, that send garbage or a damaged greeting and hang up."""
    here = on_loopback(endpoint)
    rng = random.Random(seed)
    refused = 0
    for _ in range(count):
        with socket.socket() as line:
            try:
                line.settimeout(_CONNECT_S)
                line.bind((source, 0))
                line.connect(here)
                line.sendall(_garbage(rng))
            except OSError as failure:
                refused += failure.errno in (errno.ECONNREFUSED, errno.EADDRNOTAVAIL) or isinstance(
                    failure, TimeoutError
                )
    return Tally(count, refused)


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


class RawPeer:
    """A plain learner without ZeroMQ, so that it can break its rules; a context.  OSError where the rig is silent."""

    def __init__(self, endpoint: Tcp, *, source: str = "127.0.0.1") -> None:
        self._line = socket.socket()
        self._line.bind((source, 0))
        self._line.settimeout(_CONNECT_S)
        self._line.connect(on_loopback(endpoint))
        self._line.sendall(greeting() + READY)
        answer = b""
        while b"READY" not in answer and (data := self._line.recv(_PIECE)):  # ZeroMQ takes no message before that
            answer += data
        self._line.setblocking(False)
        self._asked = 0

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.close()

    def ask(self, request: RequestMessage) -> None:
        """Send a request; its answer is not read."""
        self._asked += 1
        number = self._asked.to_bytes(8, "little")
        self._line.setblocking(True)
        self._line.settimeout(_CONNECT_S)
        self._line.sendall(frame(number, more=True) + frame(encode(request)))
        self._line.setblocking(False)

    def read(self) -> bytes:
        """Whatever has arrived, up to 64 KiB; empty where nothing has, or the rig has hung up."""
        with contextlib.suppress(OSError):
            return self._line.recv(_PIECE)
        return b""

    def flood(self, size: int, most_bytes: int, seconds: float) -> int:
        """Send frames of ``size`` bytes of one message that never ends; how many bytes were taken.

        Stops at ``most_bytes``, after ``seconds``, or where the rig hangs up.
        """
        piece = frame(bytes(size), more=True)
        piece *= max(1, _PIECE // len(piece))
        limit, sent, rest = time.monotonic() + seconds, 0, b""
        while sent < most_bytes and time.monotonic() < limit:
            rest = rest or piece
            if not select.select((), (self._line,), (), 0.05)[1]:
                continue
            try:
                n = self._line.send(rest)
            except BlockingIOError:
                continue
            except OSError:
                break
            sent, rest = sent + n, rest[n:]
        return sent


def noisy(endpoint: Tcp, seconds: float, most: int = 1_000_000, *, source: str = "127.0.0.1") -> int:
    """Attach and leave over and over, up to ``most`` times, on a new connection where one is ended; how often."""
    limit, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < limit and rounds < most:
        with contextlib.suppress(OSError), RawPeer(endpoint, source=source) as peer:
            while time.monotonic() < limit and rounds < most:
                peer.ask(Attach())
                peer.ask(Leave())
                rounds += 1
                peer.read()
    return rounds
