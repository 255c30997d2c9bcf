"""Emulation of a bad network between learner and rig: a tcp proxy that delays data and cuts or freezes connections.

tcp hides packet loss: to a program, the data just arrive late. A *loss* of 2 % therefore means that one chunk in fifty
waits for a retransmission and delays all later data. A *cut* closes all connections, including new ones; a *freeze*
forwards nothing but closes nothing, like an unplugged cable.

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

_MAX_CHUNK_BYTES: Final = 16_384
_MAX_QUEUED_BYTES: Final = 1 << 20
"""Number of buffered bytes per direction above which the sender blocks, as with a full pipe."""
_MAX_WAIT_S: Final = 0.05
_MAX_RECORDED_BYTES: Final = 1 << 22


class _Direction:
    """One direction of one connection."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.queue: deque[tuple[float, bytes]] = deque()
        self.queued_bytes = 0
        self.last_due_s = 0.0
        self.has_ended = False
        """Whether the source or the sink has closed."""
        self.is_closed = False


class LossyLink:
    """Proxy from ``endpoint`` to ``port`` of ``host``, as a context manager with its own thread.

    ``delay_s`` applies to each direction; with probability ``loss``, a chunk is delayed by a further ``stall_s``.
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
        max_recorded_bytes: int = _MAX_RECORDED_BYTES,
    ) -> None:
        self._target = (host, port)
        self._delay_s, self._loss, self._stall_s = delay_s, loss, stall_s
        self._rng = random.Random(seed)
        self._max_recorded_bytes = max_recorded_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.endpoint: Final = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._directions: list[_Direction] = []
        self._is_cut = self._is_frozen = self._stop = False
        self._cut_after_bytes: int | None = None
        self.n_forwarded_bytes = self.n_stalled = self.n_cuts = self.n_rejected = 0
        """Numbers of forwarded bytes, stalled chunks, cuts, and connections rejected since the last cut."""
        self.recorded_data = bytearray()
        """First ``max_recorded_bytes`` bytes (or slightly more) forwarded in either direction."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LossyLink:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop = True
        self._thread.join()

    def cut(self) -> None:
        """Close every connection, including new ones, until `restore`."""
        self._is_cut = True

    def cut_after(self, n_bytes: int) -> None:
        """Cut after ``n_bytes`` further bytes, usually in the middle of a message."""
        self._cut_after_bytes = self.n_forwarded_bytes + n_bytes

    def freeze(self) -> None:
        """Stop forwarding data without closing anything."""
        self._is_frozen = True

    def restore(self) -> None:
        """End a cut or freeze."""
        self._is_cut = self._is_frozen = False

    def set_quality(self, *, delay_s: float, loss: float) -> None:
        """Set the delay and the loss for data received from now on."""
        self._delay_s, self._loss = delay_s, loss

    @property
    def is_cut(self) -> bool:
        return self._is_cut

    def _run(self) -> None:
        while not self._stop:
            now_s = time.monotonic()
            if self._is_cut and self._directions:
                self._close_all()
                self.n_rejected = 0
                self.n_cuts += 1
            self._wait(now_s)
            self._accept()
            for direction in self._directions:
                self._read(direction)
                self._write(direction)
            self._close_finished()
        self._close_all()
        self._listener.close()

    def _wait(self, now_s: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            timeout_s = _MAX_WAIT_S
            for direction in () if self._is_frozen else self._directions:
                if direction.queued_bytes < _MAX_QUEUED_BYTES and not direction.has_ended:
                    selector.register(direction.source, selectors.EVENT_READ)
                if direction.queue:
                    timeout_s = min(timeout_s, max(0.0005, direction.queue[0][0] - now_s))
            selector.select(timeout_s)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            accepted_socket, _ = self._listener.accept()
            if self._is_cut:
                self.n_rejected += 1
                accepted_socket.close()
                return
            try:
                target_socket = socket.create_connection(self._target, timeout=5)
            except OSError:
                accepted_socket.close()
                return
            for end in (accepted_socket, target_socket):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._directions += [_Direction(accepted_socket, target_socket), _Direction(target_socket, accepted_socket)]

    def _read(self, direction: _Direction) -> None:
        if self._is_frozen or direction.has_ended or direction.queued_bytes >= _MAX_QUEUED_BYTES:
            return
        try:
            data = direction.source.recv(_MAX_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            direction.has_ended = True
            return
        due_s = time.monotonic() + self._delay_s
        if self._loss and self._rng.random() < self._loss:
            self.n_stalled += 1
            due_s += self._stall_s
        direction.last_due_s = max(due_s, direction.last_due_s)
        direction.queue.append((direction.last_due_s, data))
        direction.queued_bytes += len(data)

    def _write(self, direction: _Direction) -> None:
        now_s = time.monotonic()
        while direction.queue and direction.queue[0][0] <= now_s and not (self._is_frozen or self._is_cut):
            due_s, data = direction.queue[0]
            if self._cut_after_bytes is not None:
                data = data[: max(0, self._cut_after_bytes - self.n_forwarded_bytes)]
                if not data:
                    self._is_cut, self._cut_after_bytes = True, None
                    return
            try:
                n_sent = direction.sink.send(data)
            except BlockingIOError:
                return
            except OSError:
                direction.has_ended = True
                direction.queue.clear()
                return
            data_sent = direction.queue.popleft()[1]
            if n_sent < len(data_sent):
                direction.queue.appendleft((due_s, data_sent[n_sent:]))
            direction.queued_bytes -= n_sent
            self.n_forwarded_bytes += n_sent
            if len(self.recorded_data) < self._max_recorded_bytes:
                self.recorded_data += data[:n_sent]

    def _close_finished(self) -> None:
        """Shut down the sinks of finished directions, and remove connections that have finished in both directions."""
        for direction in self._directions:
            if direction.has_ended and not direction.queue and not direction.is_closed:
                direction.is_closed = True
                with contextlib.suppress(OSError):
                    direction.sink.shutdown(socket.SHUT_WR)
        finished_sources = {direction.source for direction in self._directions if direction.is_closed}
        for direction in [w for w in self._directions if w.is_closed and w.sink in finished_sources]:
            self._directions.remove(direction)
            direction.source.close()

    def _close_all(self) -> None:
        for direction in self._directions:
            direction.source.close()
            direction.sink.close()
        self._directions.clear()


def main(arguments: list[str]) -> int:
    """Emulate a bad network until stdin ends, and return the exit code."""
    p = argparse.ArgumentParser(prog="network", description=__doc__)
    p.add_argument("target", metavar="HOST:PORT")
    p.add_argument("--delay-ms", type=float, default=0.0, help="in each direction")
    p.add_argument("--loss", type=float, default=0.0, help="share of chunks that wait for a retransmission")
    args = p.parse_args(arguments)
    host, _, port = args.target.rpartition(":")
    with LossyLink(int(port), host=host, delay_s=args.delay_ms / 1000, loss=args.loss) as link:
        print(link.endpoint, flush=True)
        sys.stdin.buffer.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
