from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from onrig.runtime.link.endpoint import TcpEndpoint
from onrig.tools.web import connections
from onrig.tools.web.connections import MAX_CONNECTIONS_PER_ADDRESS, Hub, Message
from onrig.tools.web.guard import SECURITY_HEADERS, Address, Guard, listen_at
from onrig.tools.web.server import PageServer, Site, load_assets
from tests.lab.mutants.peers import Crowd, answer, bad_requests, stalled_readers

JSON = {"Content-Type": "application/json"}


class ServedPage:
    """A server on its own port, and the requests it received."""

    def __init__(self, token: str | None = None, *, is_running: bool = True, max_watchers: int = 8) -> None:
        listening_socket = listen_at(Address("127.0.0.1", 0))
        self.port = int(listening_socket.getsockname()[1])
        self.stop_levels: list[int] = []
        self.hub = Hub(max_watchers)
        self._runs = is_running
        site = Site(
            guard=Guard(self.port, token),
            assets=load_assets(),
            hub=self.hub,
            snapshot=lambda: [Message("about", {"rig": "pendulum"})],
            surface=lambda policy, x, y: {"policy": policy} if policy == 3 else None,
            stop=self._stop,
        )
        self.server = PageServer(listening_socket, site)
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def _stop(self, level: int) -> bool:
        self.stop_levels.append(level)
        return self._runs

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def order(self, body: bytes, **headers: str) -> int:
        return self.request("POST", "/api/stop", {**JSON, "Origin": self.origin, **headers}, body)[0]

    def close(self) -> None:
        self.hub.end()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def page_server() -> Iterator[ServedPage]:
    server = ServedPage()
    yield server
    server.close()


def test_the_page_and_its_files_are_served_with_a_strict_policy(page_server: ServedPage) -> None:
    for path, content_type in (("/", "text/html"), ("/app.js", "text/javascript"), ("/style.css", "text/css")):
        status, headers, body = page_server.request("GET", path)
        assert status == 200
        assert headers["Content-Type"].startswith(content_type)
        assert int(headers["Content-Length"]) == len(body) > 100
        for name, value in SECURITY_HEADERS.items():
            assert headers[name] == value


@pytest.mark.parametrize("path", ["/../guard.py", "/static/app.js", "/%2e%2e/guard.py", "//etc/passwd", "/api/stop"])
def test_nothing_else_is_served(page_server: ServedPage, path: str) -> None:
    assert page_server.request("GET", path)[0] == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "HEAD"])
def test_other_methods_do_nothing(page_server: ServedPage, method: str) -> None:
    status, headers, _ = page_server.request(method, "/api/stop")
    assert status == 501
    assert SECURITY_HEADERS.items() <= dict(headers.items()).items()


def test_an_answer_to_head_has_no_body(page_server: ServedPage) -> None:
    with socket.create_connection(("127.0.0.1", page_server.port), timeout=60) as line:
        line.sendall(f"HEAD / HTTP/1.1\r\nHost: 127.0.0.1:{page_server.port}\r\n\r\n".encode())
        assert line.makefile("rb").read().endswith(b"\r\n\r\n")


def test_the_stream_sends_the_history_and_new_events_until_it_ends(page_server: ServedPage) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page_server.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/api/stream")
        response = connection.getresponse()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        lines = [response.readline() for _ in range(5)]
        assert lines[2:4] == [b"event: about\n", b'data: {"rig":"pendulum"}\n']
        page_server.hub.publish(lambda: [Message("status", {"tick": 5})])
        assert [response.readline(), response.readline()] == [b"event: status\n", b'data: {"tick":5}\n']
        page_server.hub.end()
        assert response.read() == b"\n"


def test_the_number_of_pages_is_limited() -> None:
    page_server = ServedPage(max_watchers=0)
    assert page_server.request("GET", "/api/stream")[0] == 503
    page_server.close()


@pytest.mark.parametrize(("stop_kind", "level"), [("fade", 1), ("now", 2)])
def test_the_stop_button_stops(page_server: ServedPage, stop_kind: str, level: int) -> None:
    assert page_server.order(msgspec.json.encode({"how": stop_kind})) == 200
    assert page_server.stop_levels == [level]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Host": "evil.example"},
        {"Content-Type": "text/plain"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_another_site_cannot_press_it(page_server: ServedPage, headers: dict[str, str]) -> None:
    assert page_server.order(b'{"how":"now"}', **headers) in (403, 415, 421)
    assert page_server.stop_levels == []


def test_two_origins_count_as_none(page_server: ServedPage) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", page_server.port, timeout=60)
    with contextlib.closing(connection):
        connection.putrequest("POST", "/api/stop")
        for origin in (page_server.origin, "http://evil.example"):
            connection.putheader("Origin", origin)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "13")
        connection.endheaders(b'{"how":"now"}')
        assert connection.getresponse().status == 403
    assert page_server.stop_levels == []


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"how":"gently"}', b'{"how":1}', b"[", b"\xff", b'{"how":"now","more":1}', b"x" * 1000]
)
def test_an_invalid_order_is_refused(page_server: ServedPage, body: bytes) -> None:
    assert page_server.order(body) == 400
    assert page_server.stop_levels == []


def test_a_finished_run_cannot_be_stopped() -> None:
    page_server = ServedPage(is_running=False)
    assert page_server.order(b'{"how":"now"}') == 409
    page_server.close()


def test_with_a_token_every_request_requires_it() -> None:
    page_server = ServedPage("secret")
    for path in ("/", "/app.js", "/api/stream", "/api/surface?policy=3&x=0&y=1", "/?token=wrong"):
        assert page_server.request("GET", path)[0] == 401
    assert page_server.order(b'{"how":"now"}') == 401
    status, headers, _ = page_server.request("GET", "/?token=secret")
    assert status == 200
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert page_server.request("GET", "/app.js", {"Cookie": cookie})[0] == 200
    assert page_server.order(b'{"how":"fade"}', Cookie=cookie) == 200
    page_server.close()


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("policy=3&x=0&y=1", 200),
        ("policy=4&x=0&y=1", 404),
        ("policy=3&x=0", 400),
        ("policy=a&x=0&y=1", 400),
        ("", 400),
        ("policy=" + "9" * 5000 + "&x=0&y=1", 400),
    ],
)
def test_a_surface_is_requested_by_numbers(page_server: ServedPage, query: str, status: int) -> None:
    assert page_server.request("GET", f"/api/surface?{query}")[0] == status


def test_a_request_that_is_not_http_is_survived(page_server: ServedPage) -> None:
    import socket

    for garbage in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"\r\n" * 10):
        with socket.create_connection(("127.0.0.1", page_server.port), timeout=60) as line:
            line.sendall(garbage)
            line.shutdown(socket.SHUT_WR)
            while line.recv(4096):
                pass
    assert page_server.request("GET", "/")[0] == 200


@pytest.mark.parametrize("target", ["http://[::1", "/?" + "&".join(f"a={i}" for i in range(30))])
def test_an_invalid_address_gets_an_answer(page_server: ServedPage, target: str) -> None:
    with socket.create_connection(("127.0.0.1", page_server.port), timeout=60) as line:
        line.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{page_server.port}\r\n\r\n".encode())
        assert b" 400 " in line.makefile("rb").readline()


@pytest.mark.parametrize("first_bytes", [b"", b"POST /api/stop HT"], ids=["idle", "slow"])
def test_stop_gets_through_however_many_connections_are_held_open(page_server: ServedPage, first_bytes: bytes) -> None:
    with Crowd(TcpEndpoint("127.0.0.1", page_server.port), 200, first=first_bytes) as crowd:
        for _ in range(3):
            crowd.trickle(b"X")
            assert page_server.order(b'{"how":"now"}') == 200
            assert page_server.request("GET", "/app.js")[0] == 200
        assert 0 < crowd.n_open() <= MAX_CONNECTIONS_PER_ADDRESS
    assert page_server.stop_levels == [2, 2, 2]


def test_stop_gets_through_past_clients_that_do_not_read(page_server: ServedPage) -> None:
    with (
        stalled_readers(page_server.port, 40, "/app.js"),
        stalled_readers(page_server.port, 40, "/api/stream"),
        stalled_readers(page_server.port, 40, "/api/stream", source="127.0.0.2"),
    ):
        assert page_server.order(b'{"how":"fade"}') == 200
        for n in range(100):
            page_server.hub.publish(lambda n=n: [Message("status", {"tick": n, "more": "x" * 100_000})])  # type: ignore[misc]
        assert page_server.order(b'{"how":"now"}') == 200
        connection = http.client.HTTPConnection("127.0.0.1", page_server.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/api/stream")
            assert connection.getresponse().status == 200, "a page that reads takes the place of one that does not"
    assert page_server.stop_levels == [1, 2]


def test_if_all_places_are_taken_the_next_client_gets_an_error(
    page_server: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS_PER_ADDRESS", 2)
    with stalled_readers(page_server.port, 2, "/api/stream") as readers:
        for line in readers.members:
            line.settimeout(60)
            assert line.recv(12) == b"HTTP/1.0 200"
        assert page_server.request("GET", "/")[0] == 503


@pytest.mark.parametrize("raw_request", sorted(bad_requests(0)))
def test_every_invalid_request_gets_an_answer(page_server: ServedPage, raw_request: str) -> None:
    status = answer(page_server.port, bad_requests(page_server.port)[raw_request]).partition(b"\r\n")[0].split()
    assert status[0] == b"HTTP/1.0"
    assert 400 <= int(status[1]) < 600
    assert page_server.stop_levels == []


def test_a_request_that_is_never_completed_times_out(page_server: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_TIMEOUT_S", 0.02)
    with socket.create_connection(("127.0.0.1", page_server.port), timeout=60) as line:
        line.sendall(b"GET / HT")
        assert line.recv(12) == b"HTTP/1.0 408"
