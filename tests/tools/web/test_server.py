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


class Served:
    """A server on a port of its own, and what it was asked to do."""

    def __init__(self, token: str | None = None, *, runs: bool = True, watchers: int = 8) -> None:
        listening = listen_at(Address("127.0.0.1", 0))
        self.port = int(listening.getsockname()[1])
        self.stops: list[int] = []
        self.hub = Hub(watchers)
        self._runs = runs
        site = Site(
            guard=Guard(self.port, token),
            assets=load_assets(),
            hub=self.hub,
            snapshot=lambda: [Message("about", {"rig": "pendulum"})],
            surface=lambda policy, x, y: {"policy": policy} if policy == 3 else None,
            stop=self._stop,
        )
        self.server = PageServer(listening, site)
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def _stop(self, level: int) -> bool:
        self.stops.append(level)
        return self._runs

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def order(self, body: bytes, **headers: str) -> int:
        return self.ask("POST", "/api/stop", {**JSON, "Origin": self.origin, **headers}, body)[0]

    def close(self) -> None:
        self.hub.end()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.close()


def test_the_page_and_its_files_are_served_with_a_strict_policy(served: Served) -> None:
    for path, content_type in (("/", "text/html"), ("/app.js", "text/javascript"), ("/style.css", "text/css")):
        status, headers, body = served.ask("GET", path)
        assert status == 200
        assert headers["Content-Type"].startswith(content_type)
        assert int(headers["Content-Length"]) == len(body) > 100
        for name, value in SECURITY_HEADERS.items():
            assert headers[name] == value


@pytest.mark.parametrize("path", ["/../guard.py", "/static/app.js", "/%2e%2e/guard.py", "//etc/passwd", "/api/stop"])
def test_nothing_else_is_to_be_had(served: Served, path: str) -> None:
    assert served.ask("GET", path)[0] == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "HEAD"])
def test_other_methods_do_nothing(served: Served, method: str) -> None:
    status, headers, _ = served.ask(method, "/api/stop")
    assert status == 501
    assert SECURITY_HEADERS.items() <= dict(headers.items()).items()


def test_an_answer_to_head_has_no_body(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as line:
        line.sendall(f"HEAD / HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
        assert line.makefile("rb").read().endswith(b"\r\n\r\n")


def test_the_stream_tells_the_story_so_far_and_what_happens_until_it_ends(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/api/stream")
        response = connection.getresponse()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        told = [response.readline() for _ in range(5)]
        assert told[2:4] == [b"event: about\n", b'data: {"rig":"pendulum"}\n']
        served.hub.publish(lambda: [Message("status", {"tick": 5})])
        assert [response.readline(), response.readline()] == [b"event: status\n", b'data: {"tick":5}\n']
        served.hub.end()
        assert response.read() == b"\n"


def test_so_many_pages_and_no_more() -> None:
    served = Served(watchers=0)
    assert served.ask("GET", "/api/stream")[0] == 503
    served.close()


@pytest.mark.parametrize(("how", "level"), [("fade", 1), ("now", 2)])
def test_the_stop_button_stops(served: Served, how: str, level: int) -> None:
    assert served.order(msgspec.json.encode({"how": how})) == 200
    assert served.stops == [level]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Host": "evil.example"},
        {"Content-Type": "text/plain"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_another_site_cannot_press_it(served: Served, headers: dict[str, str]) -> None:
    assert served.order(b'{"how":"now"}', **headers) in (403, 415, 421)
    assert served.stops == []


def test_two_origins_are_none(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    with contextlib.closing(connection):
        connection.putrequest("POST", "/api/stop")
        for origin in (served.origin, "http://evil.example"):
            connection.putheader("Origin", origin)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "13")
        connection.endheaders(b'{"how":"now"}')
        assert connection.getresponse().status == 403
    assert served.stops == []


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"how":"gently"}', b'{"how":1}', b"[", b"\xff", b'{"how":"now","more":1}', b"x" * 1000]
)
def test_an_order_that_is_none_is_refused(served: Served, body: bytes) -> None:
    assert served.order(body) == 400
    assert served.stops == []


def test_a_run_that_is_over_cannot_be_stopped() -> None:
    served = Served(runs=False)
    assert served.order(b'{"how":"now"}') == 409
    served.close()


def test_with_a_token_everything_asks_for_it() -> None:
    served = Served("secret")
    for path in ("/", "/app.js", "/api/stream", "/api/surface?policy=3&x=0&y=1", "/?token=wrong"):
        assert served.ask("GET", path)[0] == 401
    assert served.order(b'{"how":"now"}') == 401
    status, headers, _ = served.ask("GET", "/?token=secret")
    assert status == 200
    cookie = headers["Set-Cookie"].partition(";")[0]
    assert served.ask("GET", "/app.js", {"Cookie": cookie})[0] == 200
    assert served.order(b'{"how":"fade"}', Cookie=cookie) == 200
    served.close()


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
def test_a_surface_is_asked_for_by_numbers(served: Served, query: str, status: int) -> None:
    assert served.ask("GET", f"/api/surface?{query}")[0] == status


def test_a_request_that_is_no_http_is_survived(served: Served) -> None:
    import socket

    for garbage in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"\r\n" * 10):
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as line:
            line.sendall(garbage)
            line.shutdown(socket.SHUT_WR)
            while line.recv(4096):
                pass
    assert served.ask("GET", "/")[0] == 200


@pytest.mark.parametrize("target", ["http://[::1", "/?" + "&".join(f"a={i}" for i in range(30))])
def test_an_address_that_is_none_is_answered(served: Served, target: str) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as line:
        line.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
        assert b" 400 " in line.makefile("rb").readline()


@pytest.mark.parametrize("first", [b"", b"POST /api/stop HT"], ids=["idle", "slow"])
def test_stop_gets_through_however_many_hold_on_to_connections(served: Served, first: bytes) -> None:
    with Crowd(TcpEndpoint("127.0.0.1", served.port), 200, first=first) as crowd:
        for _ in range(3):
            crowd.trickle(b"X")
            assert served.order(b'{"how":"now"}') == 200
            assert served.ask("GET", "/app.js")[0] == 200
        assert 0 < crowd.left() <= MAX_CONNECTIONS_PER_ADDRESS
    assert served.stops == [2, 2, 2]


def test_stop_gets_through_past_those_that_do_not_read(served: Served) -> None:
    with (
        stalled_readers(served.port, 40, "/app.js"),
        stalled_readers(served.port, 40, "/api/stream"),
        stalled_readers(served.port, 40, "/api/stream", source="127.0.0.2"),
    ):
        assert served.order(b'{"how":"fade"}') == 200
        for n in range(100):
            served.hub.publish(lambda n=n: [Message("status", {"tick": n, "more": "x" * 100_000})])  # type: ignore[misc]
        assert served.order(b'{"how":"now"}') == 200
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/api/stream")
            assert connection.getresponse().status == 200, "a page that reads takes the place of one that does not"
    assert served.stops == [1, 2]


def test_where_everybody_watches_the_next_is_told_so(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS_PER_ADDRESS", 2)
    with stalled_readers(served.port, 2, "/api/stream") as readers:
        for line in readers.members:
            line.settimeout(60)
            assert line.recv(12) == b"HTTP/1.0 200"
        assert served.ask("GET", "/")[0] == 503


@pytest.mark.parametrize("what", sorted(bad_requests(0)))
def test_whatever_is_no_request_gets_an_answer(served: Served, what: str) -> None:
    status = answer(served.port, bad_requests(served.port)[what]).partition(b"\r\n")[0].split()
    assert status[0] == b"HTTP/1.0"
    assert 400 <= int(status[1]) < 600
    assert served.stops == []


def test_a_request_that_never_arrives_whole_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_TIMEOUT_S", 0.02)
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as line:
        line.sendall(b"GET / HT")
        assert line.recv(12) == b"HTTP/1.0 408"
