from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from onrig.runtime.link import client as client_module
from onrig.runtime.link.client import LinkClient, LinkClosed, RequestRejected
from onrig.runtime.link.messages import LEASE, Accepted, Attach, Leave, Pull, Refused, Rows, encode

PATIENCE_MS = 60_000


class Rig:
    """A rig that answers each request with the next line of its script: frames to send for an id."""

    def __init__(self, endpoint: str, *script: list[list[bytes]]) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self._script = script
        self.requests: list[list[bytes]] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for replies in self._script:
            if not self._socket.poll(PATIENCE_MS):
                return
            peer, *frames = self._socket.recv_multipart()
            self.requests.append(frames)
            for reply in replies:
                self._socket.send_multipart([peer, *(frames[0] if f == b"ID" else f for f in reply)])

    def close(self) -> None:
        self._thread.join(PATIENCE_MS / 1000)
        assert not self._thread.is_alive()
        self._socket.close()
        self._context.term()


ACCEPTED = [b"ID", encode(Accepted())]


@pytest.fixture
def endpoint(socket_folder: Path) -> str:
    return f"ipc://{socket_folder}/s"


@pytest.fixture
def client(endpoint: str) -> Iterator[LinkClient]:
    client = LinkClient(endpoint, lambda: False)
    yield client
    client.close()


def test_a_request_gets_its_reply_and_payloads(endpoint: str, client: LinkClient) -> None:
    rig = Rig(endpoint, [[b"ID", encode(Rows(1, 2, 3)), b"rows"]], [ACCEPTED])
    assert client.ask(Pull(0, 0), b"payload") == (Rows(1, 2, 3), [b"rows"])
    assert client.ask(Attach()) == (Accepted(), [])
    rig.close()
    assert [frames[1:] for frames in rig.requests] == [[encode(Pull(0, 0)), b"payload"], [encode(Attach())]]
    assert rig.requests[0][0] != rig.requests[1][0], "each request has its own id"
    assert client.n_retries == 0


def test_a_reply_to_another_request_is_ignored(endpoint: str, client: LinkClient) -> None:
    rig = Rig(endpoint, [[b"other-id", encode(Refused("late"))], ACCEPTED])
    assert client.ask(Attach())[0] == Accepted()
    rig.close()


def test_a_refusal_is_raised_with_its_reason(endpoint: str, client: LinkClient) -> None:
    rig = Rig(endpoint, [[b"ID", encode(Refused("the mirror differs"))]])
    with pytest.raises(RequestRejected, match="the mirror differs"):
        client.ask(Attach())
    rig.close()


def test_a_lost_request_is_repeated_under_the_same_id(
    endpoint: str, client: LinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RETRY_INTERVAL_MS", 0)
    rig = Rig(endpoint, [], [ACCEPTED])
    assert client.ask(Attach())[0] == Accepted()
    rig.close()
    assert rig.requests[0] == rig.requests[1]
    assert client.n_retries >= 1


def test_a_rig_that_does_not_answer_causes_a_timeout(client: LinkClient) -> None:
    with pytest.raises(LinkClosed, match="did not answer within 0 s"):
        client.ask(Attach(), timeout_s=0.0)


def test_an_invalid_endpoint_is_reported() -> None:
    with pytest.raises(LinkClosed, match="cannot connect: File name too long"):
        LinkClient(f"ipc:///{'n' * 120}", lambda: False)


def test_asking_ends_when_the_process_must_stop(endpoint: str) -> None:
    client = LinkClient(endpoint, lambda: True)
    with pytest.raises(LinkClosed, match="asked to stop"):
        client.ask(Attach())
    client.close()


def test_a_request_sent_before_the_rig_exists_is_answered_once_it_does(endpoint: str, client: LinkClient) -> None:
    answers = []
    thread = threading.Thread(target=lambda: answers.append(client.ask(Attach())[0]))
    thread.start()
    rig = Rig(endpoint, [ACCEPTED])
    thread.join(PATIENCE_MS / 1000)
    rig.close()
    assert answers == [Accepted()]


class Clock:
    """Replaces ``time``; advances when the client waits."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


def times_of_requests(
    client: LinkClient, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, until_s: float
) -> list[float]:
    """Times at which a request is sent to a rig that never answers, in seconds from the first."""
    monkeypatch.setattr(client_module, "time", clock)
    times_s: list[float] = []
    start_s = clock.now_s

    def send(frames: list[bytes]) -> bool:
        times_s.append(round(clock.now_s - start_s))
        return True

    def wait(*, until_writable: bool) -> bool:
        clock.now_s += 0.1
        if clock.now_s - start_s > until_s:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(client, "_send", send)
    monkeypatch.setattr(client, "_wait", wait)
    with pytest.raises((LinkClosed, KeyboardInterrupt)):
        client.ask(Attach())
    return times_s


def test_a_request_is_repeated_at_growing_intervals_and_abandoned_after_a_minute(
    client: LinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    assert times_of_requests(client, clock, monkeypatch, until_s=1e9) == [0, 2, 6, 14, 30, 46]
    assert clock.now_s == pytest.approx(1060, abs=0.2)


def test_a_learner_may_be_configured_to_ask_forever(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = LinkClient(endpoint, lambda: False, patience_s=math.inf)
    times_s = times_of_requests(client, Clock(), monkeypatch, until_s=5000)
    assert times_s[-1] > 4980
    client.close()


def test_an_invalid_reply_is_ignored(endpoint: str, client: LinkClient) -> None:
    rig = Rig(endpoint, [[b"ID", b"\xc1 no reply"]])
    with pytest.raises(LinkClosed, match="sent an invalid reply"):
        client.ask(Attach())
    rig.close()


def test_a_refusal_keeps_its_code(endpoint: str, client: LinkClient) -> None:
    rig = Rig(endpoint, [[b"ID", encode(Refused("another learner pushes", LEASE))]])
    with pytest.raises(RequestRejected) as error:
        client.ask(Attach())
    assert error.value.code == LEASE
    rig.close()


def test_a_goodbye_arrives_even_if_its_sender_does_not_wait(endpoint: str) -> None:
    client = LinkClient(endpoint, lambda: False)
    rig = Rig(endpoint, [ACCEPTED], [ACCEPTED])
    client.ask(Attach())
    client.post(Leave())
    client.close()
    rig.close()
    assert rig.requests[1][1] == encode(Leave())
