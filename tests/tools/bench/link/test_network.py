from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from onrig.runtime.link.endpoint import parse_tcp
from onrig.tools.bench.link.network import LossyLink

PATIENCE_S = 60.0


class Echo:
    """Sends back what it reads, until its peer ends; then a last word."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            with end:
                try:
                    while data := end.recv(4096):
                        end.sendall(data)
                    end.sendall(b"bye")
                except OSError:
                    continue

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


def connect(wire: LossyLink) -> socket.socket:
    return socket.create_connection(("127.0.0.1", parse_tcp(wire.endpoint).port), timeout=PATIENCE_S)


def read(end: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n and (more := end.recv(n - len(data))):
        data += more
    return data


def test_everything_passes_in_order_however_it_stalls(echo: Echo) -> None:
    sent = bytes(range(256)) * 400
    with LossyLink(echo.port, delay_s=0.001, loss=0.3, stall_s=0.005) as wire, connect(wire) as end:
        threading.Thread(target=end.sendall, args=(sent,), daemon=True).start()
        assert read(end, len(sent)) == sent
    assert wire.n_stalled > 0
    assert wire.n_forwarded_bytes - 2 * len(sent) in (0, len(b"bye"))  # the last word may still have passed at the end


def test_what_was_said_before_the_end_arrives(echo: Echo) -> None:
    with LossyLink(echo.port, delay_s=0.02) as wire, connect(wire) as end:
        end.sendall(b"x")
        end.shutdown(socket.SHUT_WR)
        assert read(end, 100) == b"xbye"


def test_a_cut_ends_connections_in_mid_message_and_lets_none_live_until_mended(echo: Echo) -> None:
    with LossyLink(echo.port) as wire:
        with connect(wire) as end:
            wire.cut_after(30)
            end.sendall(bytes(20))
            got = b""
            with contextlib.suppress(ConnectionError):
                got = read(end, 20)
            assert len(got) <= 10
        with connect(wire) as end, contextlib.suppress(ConnectionError):
            assert read(end, 1) == b""
        assert (wire.n_cuts, wire.n_rejected) == (1, 1)
        wire.restore()
        with connect(wire) as end:
            end.sendall(b"x")
            assert read(end, 1) == b"x"


def test_a_frozen_line_loses_nothing(echo: Echo) -> None:
    with LossyLink(echo.port) as wire, connect(wire) as end:
        end.sendall(b"x")
        assert read(end, 1) == b"x"
        wire.freeze()
        end.sendall(b"y")
        wire.restore()
        assert read(end, 1) == b"y"
