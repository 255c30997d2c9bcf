"""A bad network between a learner and a rig, on one machine: a tcp proxy that delays, stalls, cuts and freezes.

tcp hides the loss of a packet: to a program, everything behind it comes late.  So a *loss* of 2 % means here that one
piece in fifty waits for a retransmission, and everything behind it waits too.  A *cut* closes all connections,
including new ones; a *freeze* passes nothing but closes nothing, like an unplugged cable.

``python -m onrig.tools.bench.link.network HOST:PORT [--delay-ms D] [--loss P]`` prints where it listens and passes on
until stdin ends.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import selectors
import socket
import sys
import threading
import time
from collections import deque
from typing import Final

_PIECE: Final = 16_384
_QUEUED: Final = 1 << 20
"""Buffer in bytes per direction; beyond it the sender blocks, as on a full pipe."""
_IDLE_S: Final = 0.05
_TAPPED: Final = 1 << 22


class _Way:
    """One direction of one connection."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.bytes = 0
        self.last_due_s = 0.0
        self.ended = False
        """Its source sends no more, or its sink takes no more."""
        self.closed = False


class LossyLink:
    """Listens at ``endpoint`` and passes on to ``port`` of ``host``; a context that ends its thread.

    ``delay_s`` holds for each direction; a piece stalls with probability ``loss`` for ``stall_s`` more.
    """

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        delay_s: float = 0.0,
        loss: float = 0.0,
        stall_s: float = 0.2,
        seed: int = 0,
        tap_bytes: int = _TAPPED,
    ) -> None:
        self._target = (host, port)
        self._delay_s, self._loss, self._stall_s = delay_s, loss, stall_s
        self._random = random.Random(seed)
        self._tap_bytes = tap_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.endpoint: Final = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ways: list[_Way] = []
        self._cut = self._frozen = self._stop = False
        self._cut_after: int | None = None
        self.passed = self.stalled = self.cuts = self.knocks = 0
        """Bytes passed on; pieces stalled; cuts made; connections turned away since the last cut."""
        self.tapped = bytearray()
        """The first bytes that passed, either way, ``tap_bytes`` of them."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LossyLink:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop = True
        self._thread.join()

    def cut(self) -> None:
        """Close every connection, and new ones at once, until `mend`."""
        self._cut = True

    def cut_after(self, more: int) -> None:
        """Cut after ``more`` more bytes, in the middle of a message."""
        self._cut_after = self.passed + more

    def freeze(self) -> None:
        """Stop passing data without closing anything."""
        self._frozen = True

    def mend(self) -> None:
        """End a cut or freeze."""
        self._cut = self._frozen = False

    def behave(self, *, delay_s: float, loss: float) -> None:
        """Set delay and loss for subsequent data."""
        self._delay_s, self._loss = delay_s, loss

    @property
    def is_cut(self) -> bool:
        """Whether connections are being ended."""
        return self._cut

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop:
            now_s = time.monotonic()
            if self._cut and self._ways:
                self._end_all()
                self.knocks = 0
                self.cuts += 1
            self._wait(now_s)
            self._accept()
            for way in self._ways:
                self._read(way)
                self._write(way)
            self._bury()
        self._end_all()
        self._listener.close()

    def _wait(self, now_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            until_s = _IDLE_S
            for way in () if self._frozen else self._ways:
                if way.bytes < _QUEUED and not way.ended:
                    selector.register(way.source, selectors.EVENT_READ)
                if way.waiting:
                    until_s = min(until_s, max(0.0005, way.waiting[0][0] - now_s))
            selector.select(until_s)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            inner, _ = self._listener.accept()
            if self._cut:
                self.knocks += 1
                inner.close()
                return
            try:
                outer = socket.create_connection(self._target, timeout=5)
            except OSError:
                inner.close()
                return
            for end in (inner, outer):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ways += [_Way(inner, outer), _Way(outer, inner)]

    def _read(self, way: _Way) -> None:
        if self._frozen or way.ended or way.bytes >= _QUEUED:
            return
        try:
            data = way.source.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            way.ended = True
            return
        due_s = time.monotonic() + self._delay_s
        if self._loss and self._random.random() < self._loss:
            self.stalled += 1
            due_s += self._stall_s
        way.last_due_s = max(due_s, way.last_due_s)
        way.waiting.append((way.last_due_s, data))
        way.bytes += len(data)

    def _write(self, way: _Way) -> None:
        now_s = time.monotonic()
        while way.waiting and way.waiting[0][0] <= now_s and not (self._frozen or self._cut):
            due_s, data = way.waiting[0]
            if self._cut_after is not None:
                data = data[: max(0, self._cut_after - self.passed)]
                if not data:
                    self._cut, self._cut_after = True, None
                    return
            try:
                sent = way.sink.send(data)
            except BlockingIOError:
                return
            except OSError:
                way.ended = True
                way.waiting.clear()
                return
            whole = way.waiting.popleft()[1]
            if sent < len(whole):
                way.waiting.appendleft((due_s, whole[sent:]))
            way.bytes -= sent
            self.passed += sent
            if len(self.tapped) < self._tap_bytes:
                self.tapped += data[:sent]

    def _bury(self) -> None:
        """Pass on the end of a direction that has ended; close connections that have ended both ways."""
        for way in self._ways:
            if way.ended and not way.waiting and not way.closed:
                way.closed = True
                with contextlib.suppress(OSError):
                    way.sink.shutdown(socket.SHUT_WR)
        over = {way.source for way in self._ways if way.closed}
        for way in [w for w in self._ways if w.closed and w.sink in over]:
            self._ways.remove(way)
            way.source.close()

    def _end_all(self) -> None:
        for way in self._ways:
            way.source.close()
            way.sink.close()
        self._ways.clear()


def main(arguments: list[str]) -> int:
    """Run a bad network until stdin ends; returns the exit code."""
    p = argparse.ArgumentParser(prog="network", description=__doc__)
    p.add_argument("target", metavar="HOST:PORT")
    p.add_argument("--delay-ms", type=float, default=0.0, help="in each direction")
    p.add_argument("--loss", type=float, default=0.0, help="share of the pieces that wait for a retransmission")
    args = p.parse_args(arguments)
    host, _, port = args.target.rpartition(":")
    with LossyLink(int(port), host=host, delay_s=args.delay_ms / 1000, loss=args.loss) as wire:
        print(wire.endpoint, flush=True)
        sys.stdin.buffer.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
