from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from onrig.runtime.link.endpoint import parse_tcp
from onrig.tools.bench.link.network import LossyLink

PATIENCE_S = 60.0


class EchoServer:
    """Echoes what it reads, until its peer ends; then sends a last word."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    while data := connection.recv(4096):
                        connection.sendall(data)
                    connection.sendall(b"bye")
                except OSError:
                    continue

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    echo = EchoServer()
    yield echo
    echo.close()


def connect(link: LossyLink) -> socket.socket:
    return socket.create_connection(("127.0.0.1", parse_tcp(link.endpoint).port), timeout=PATIENCE_S)


def read_exactly(connection: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n and (chunk := connection.recv(n - len(data))):
        data += chunk
    return data


def test_everything_passes_in_order_despite_stalls(echo: EchoServer) -> None:
    sent = bytes(range(256)) * 400
    with LossyLink(echo.port, delay_s=0.001, loss=0.3, stall_s=0.005) as link, connect(link) as connection:
        threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
        assert read_exactly(connection, len(sent)) == sent
    assert link.n_stalled > 0
    assert link.n_forwarded_bytes - 2 * len(sent) in (0, len(b"bye"))  # the last word may still have passed at the end


def test_data_sent_before_the_end_arrive(echo: EchoServer) -> None:
    with LossyLink(echo.port, delay_s=0.02) as link, connect(link) as connection:
        connection.sendall(b"x")
        connection.shutdown(socket.SHUT_WR)
        assert read_exactly(connection, 100) == b"xbye"


def test_a_cut_ends_connections_mid_message_and_allows_none_until_restored(echo: EchoServer) -> None:
    with LossyLink(echo.port) as link:
        with connect(link) as connection:
            link.cut_after(30)
            connection.sendall(bytes(20))
            received = b""
            with contextlib.suppress(ConnectionError):
                received = read_exactly(connection, 20)
            assert len(received) <= 10
        with connect(link) as connection, contextlib.suppress(ConnectionError):
            assert read_exactly(connection, 1) == b""
        assert (link.n_cuts, link.n_rejected) == (1, 1)
        link.restore()
        with connect(link) as connection:
            connection.sendall(b"x")
            assert read_exactly(connection, 1) == b"x"


def test_a_frozen_line_loses_nothing(echo: EchoServer) -> None:
    with LossyLink(echo.port) as link, connect(link) as connection:
        connection.sendall(b"x")
        assert read_exactly(connection, 1) == b"x"
        link.freeze()
        connection.sendall(b"y")
        link.restore()
        assert read_exactly(connection, 1) == b"y"
