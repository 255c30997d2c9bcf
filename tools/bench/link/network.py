"""Emulation of a bad network between learner and rig: a tcp proxy that delays, stalls, cuts and freezes.

tcp hides packet loss: to a program, all following data arrive late. A *loss* of 2 % therefore means that one piece in
fifty waits for a retransmission, and all following data with it.  A *cut* closes all connections, including new ones; a
*freeze* passes nothing but closes nothing, like an unplugged cable.

``python -m onrig.tools.bench.link.network HOST:PORT [--delay-ms D] [--loss P]`` prints its endpoint and forwards until
stdin ends.
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


class _Direction:
    """One direction of one connection."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.bytes = 0
        self.last_due_s = 0.0
        self.ended = False
        """Whether its source or its sink has closed."""
        self.closed = False


class LossyLink:
    """Proxy from ``endpoint`` to ``port`` of ``host``; a context manager that ends its thread.

    ``delay_s`` applies to each direction; a piece stalls for a further ``stall_s`` with probability ``loss``.
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
        self._directions: list[_Direction] = []
        self._cut = self._frozen = self._stop = False
        self._cut_after: int | None = None
        self.passed = self.stalled = self.cuts = self.rejected = 0
        """Bytes forwarded; pieces stalled; cuts made; connections rejected since the last cut."""
        self.tapped = bytearray()
        """The first ``tap_bytes`` bytes forwarded, in either direction."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LossyLink:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop = True
        self._thread.join()

    def cut(self) -> None:
        """Close every connection, and new ones immediately, until `mend`."""
        self._cut = True

    def cut_after(self, more: int) -> None:
        """Cut after ``more`` more bytes, in the middle of a message."""
        self._cut_after = self.passed + more

    def freeze(self) -> None:
        """Stop passing data without closing anything."""
        self._frozen = True

    def restore(self) -> None:
        """End a cut or freeze."""
        self._cut = self._frozen = False

    def set_quality(self, *, delay_s: float, loss: float) -> None:
        """Set delay and loss for subsequent data."""
        self._delay_s, self._loss = delay_s, loss

    @property
    def is_cut(self) -> bool:
        """Whether a cut is in force."""
        return self._cut

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop:
            now_s = time.monotonic()
            if self._cut and self._directions:
                self._end_all()
                self.rejected = 0
                self.cuts += 1
            self._wait(now_s)
            self._accept()
            for way in self._directions:
                self._read(way)
                self._write(way)
            self._close_finished()
        self._end_all()
        self._listener.close()

    def _wait(self, now_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            until_s = _IDLE_S
            for way in () if self._frozen else self._directions:
                if way.bytes < _QUEUED and not way.ended:
                    selector.register(way.source, selectors.EVENT_READ)
                if way.waiting:
                    until_s = min(until_s, max(0.0005, way.waiting[0][0] - now_s))
            selector.select(until_s)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            inner, _ = self._listener.accept()
            if self._cut:
                self.rejected += 1
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
            self._directions += [_Direction(inner, outer), _Direction(outer, inner)]

    def _read(self, way: _Direction) -> None:
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

    def _write(self, way: _Direction) -> None:
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

    def _close_finished(self) -> None:
        """Forward the end of a direction; close connections whose directions have both ended."""
        for way in self._directions:
            if way.ended and not way.waiting and not way.closed:
                way.closed = True
                with contextlib.suppress(OSError):
                    way.sink.shutdown(socket.SHUT_WR)
        over = {way.source for way in self._directions if way.closed}
        for way in [w for w in self._directions if w.closed and w.sink in over]:
            self._directions.remove(way)
            way.source.close()

    def _end_all(self) -> None:
        for way in self._directions:
            way.source.close()
            way.sink.close()
        self._directions.clear()


def main(arguments: list[str]) -> int:
    """Run a bad network until stdin ends; returns the exit code."""
    p = argparse.ArgumentParser(prog="network", description=__doc__)
    p.add_argument("target", metavar="HOST:PORT")
    p.add_argument("--delay-ms", type=float, default=0.0, help="in each direction")
    p.add_argument("--loss", type=float, default=0.0, help="share of pieces that wait for a retransmission")
    args = p.parse_args(arguments)
    host, _, port = args.target.rpartition(":")
    with LossyLink(int(port), host=host, delay_s=args.delay_ms / 1000, loss=args.loss) as wire:
        print(wire.endpoint, flush=True)
        sys.stdin.buffer.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
