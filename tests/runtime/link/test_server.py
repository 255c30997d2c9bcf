from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.link import server as server_module
from onrig.runtime.link.messages import (
    MAX_REQUEST_BYTES,
    Accepted,
    Attach,
    Confirm,
    Done,
    Pull,
    Refused,
    ReplyMessage,
    RequestMessage,
    Rows,
    decode_reply,
    encode,
)
from onrig.runtime.link.server import LinkServer, Reply, Ticket
from tests.sockets import short_folder

PATIENCE_MS = 60_000


class Peer:
    """Socket of a learner that ignores the rules."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, max_queued: int) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RCVHWM, max_queued)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def receive(self) -> tuple[bytes, ReplyMessage, list[bytes]]:
        assert self.socket.poll(PATIENCE_MS), "no answer"
        id_, header, *payloads = self.socket.recv_multipart()
        return id_, decode_reply(header), payloads


class Rig:
    """A server, the requests it handled, and peers."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.server = LinkServer(endpoint)
        self.context = zmq.Context()
        self.peers: list[Peer] = []
        self.handled: list[tuple[Ticket, RequestMessage, list[bytes]]] = []
        self.answer: Reply | None = Reply(Accepted())

    def peer(self, max_queued: int = 1000) -> Peer:
        """A connected peer whose socket accepts ``max_queued`` unread answers."""
        self.peers.append(Peer(self.context, self.endpoint, max_queued))
        return self.peers[-1]

    def close(self) -> None:
        for peer in self.peers:
            peer.socket.close()
        self.context.term()
        self.server.close()

    def serve(self, requests: int = 1) -> None:
        """Serve until this number of requests has been handled or found malformed since the call."""
        target = len(self.handled) + self.server.n_malformed + requests
        while len(self.handled) + self.server.n_malformed < target:
            assert self.server.wait(PATIENCE_MS), "nothing arrived"
            self.server.serve(self._handle)

    def _handle(self, ticket: Ticket, request: RequestMessage, payloads: Sequence[bytes]) -> Reply | None:
        self.handled.append((ticket, request, list(payloads)))
        return self.answer


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with short_folder() as folder:
        yield f"ipc://{folder}/s"


@pytest.fixture
def rig(endpoint: str) -> Iterator[Rig]:
    rig = Rig(endpoint)
    yield rig
    rig.close()


def test_a_request_is_handled_with_its_payloads_and_answered_under_its_id(rig: Rig) -> None:
    peer = rig.peer()
    rig.answer = Reply(Rows(1, 2, 3), (b"rows", b""))
    peer.send(b"request1", encode(Pull(0, 0)), b"a", b"", b"c")
    rig.serve()
    ((_, request, payloads),) = rig.handled
    assert (request, payloads) == (Pull(0, 0), [b"a", b"", b"c"])
    assert peer.receive() == (b"request1", Rows(1, 2, 3), [b"rows", b""])


def test_each_peer_gets_its_own_answer_even_later(rig: Rig) -> None:
    first_peer, second_peer = rig.peer(), rig.peer()
    rig.answer = None
    first_peer.send(b"00000001", encode(Done(1, 0, 0.0)))
    second_peer.send(b"00000001", encode(Done(2, 0, 0.0)))
    rig.serve(2)
    for ticket, request, _ in reversed(rig.handled):
        assert isinstance(request, Done)
        rig.server.send(ticket, Reply(Refused(f"episode {request.episode}")))
    assert first_peer.receive()[1] == Refused("episode 1")
    assert second_peer.receive()[1] == Refused("episode 2")


def test_a_repeated_request_is_answered_again(rig: Rig) -> None:
    peer = rig.peer()
    for _ in range(2):
        peer.send(b"00000001", encode(Attach()))
    rig.serve(2)
    assert peer.receive() == peer.receive() == (b"00000001", Accepted(), [])


@pytest.mark.parametrize(
    "header",
    [b"", b"\x80\x04\x95pickle", encode(Accepted()), b"\x81\xa4type\xa2\xff\xff", b"\x91" * 60_000, bytes(70_000)],
    ids=["empty", "pickle", "a reply", "no UTF-8", "nested without end", "oversize header"],
)
def test_a_malformed_request_is_counted_and_refused_and_the_next_is_served(rig: Rig, header: bytes) -> None:
    peer = rig.peer()
    peer.send(b"00000001", header)
    rig.serve()
    id_, answer, _ = peer.receive()
    assert id_ == b"00000001"
    assert isinstance(answer, Refused)
    assert answer.reason.startswith("malformed request")
    assert (rig.server.n_malformed, rig.handled) == (1, [])
    peer.send(b"00000002", encode(Attach()))
    rig.serve()
    assert peer.receive()[:2] == (b"00000002", Accepted())


@pytest.mark.parametrize("frames", [(b"",), (b"00000001",), (b"short", encode(Attach())), (bytes(9), encode(Attach()))])
def test_a_message_without_a_request_id_is_counted_and_not_answered(rig: Rig, frames: tuple[bytes, ...]) -> None:
    peer = rig.peer()
    peer.send(*frames)
    rig.serve()
    peer.send(b"00000002", encode(Attach()))
    rig.serve()
    assert rig.server.n_malformed == 1
    assert peer.receive()[0] == b"00000002", "the first answer is to the second request"


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.booleans())
def test_no_frames_crash_the_server(rig: Rig, frames: list[bytes], has_id: bool) -> None:
    peer = rig.peer()
    peer.send(*([b"12345678"] if has_id else []), *frames)
    rig.serve()
    peer.socket.close()


def test_an_oversize_payload_ends_only_its_senders_connection(rig: Rig) -> None:
    oversized, other = rig.peer(), rig.peer()
    oversized.send(b"00000001", encode(Attach()), bytes(MAX_REQUEST_BYTES + 1))
    other.send(b"00000002", encode(Attach()), bytes(MAX_REQUEST_BYTES))
    rig.serve()
    assert other.receive()[0] == b"00000002"
    ((_, _, payloads),) = rig.handled
    assert len(payloads[0]) == MAX_REQUEST_BYTES


def test_an_answer_to_a_vanished_peer_is_dropped(rig: Rig) -> None:
    peer = rig.peer()
    rig.answer = None
    peer.send(b"00000001", encode(Attach()))
    rig.serve()
    peer.socket.close()
    for _ in range(200):
        rig.server.send(rig.handled[0][0], Reply(Accepted(), (bytes(10_000),)))
    rig.server.send(Ticket(b"nobody", b"00000001"), Reply(Accepted()))


def test_the_work_of_one_turn_is_bounded(rig: Rig) -> None:
    peer = rig.peer()
    for n in range(200):
        peer.send(n.to_bytes(8, "little"), encode(Attach()))
    rig.serve(1)
    assert len(rig.handled) <= 64
    rig.serve(200 - len(rig.handled))
    assert [ticket.request_id for ticket, _, _ in rig.handled] == [n.to_bytes(8, "little") for n in range(200)]


def test_a_turn_is_bounded_whatever_is_requested_and_however_slowly_answers_are_read(rig: Rig) -> None:
    answer_bytes = 1 << 20
    rig.answer = Reply(Rows(1, 1, 0), (bytes(answer_bytes),))
    requests = [(b"%08d" % n, encode(Pull(0, 0))) for n in range(16)]
    for _ in range(6):  # they keep requesting and never read
        peer = rig.peer(max_queued=1)
        for frames in requests:
            peer.send(*frames)
    turn_bytes = []
    while len(rig.handled) < 6 * len(requests):
        assert rig.server.wait(PATIENCE_MS), "nothing arrived"
        rig.server.serve(rig._handle)
        turn_bytes.append(rig.server.work_bytes)
    assert max(turn_bytes) <= server_module._MAX_BYTES_PER_TURN + answer_bytes + 1000
    assert sum(turn_bytes) < 6 * len(requests) * answer_bytes, "unread answers are dropped, not queued"


def test_a_heavy_request_ends_the_turn(rig: Rig) -> None:
    peer = rig.peer()
    for n in range(3):
        peer.send(b"%08d" % n, encode(Confirm(n, b"")))
    for n in range(3):
        assert rig.server.wait(PATIENCE_MS)
        rig.server.serve(rig._handle)
        assert len(rig.handled) == n + 1


def test_reading_that_is_needed_to_find_an_answer_counts_in_the_turn(rig: Rig) -> None:
    rig.answer = Reply(Rows(1, 1, 0), (b"",), bytes_read=server_module._MAX_BYTES_PER_TURN // 2)
    peer = rig.peer()
    for n in range(4):
        peer.send(b"%08d" % n, encode(Pull(0, 0)))
    rig.serve(1)
    assert len(rig.handled) <= 2


def test_endless_frames_are_discarded(rig: Rig) -> None:
    peer = rig.peer()
    peer.send(b"00000001", encode(Attach()), *[b"x"] * 1000)
    rig.serve()
    assert len(rig.handled[0][2]) == 3


def test_a_peer_is_gone_once_its_connection_is_closed(rig: Rig) -> None:
    peer = rig.peer()
    peer.send(b"00000001", encode(Attach()))
    rig.serve()
    ticket = rig.handled[0][0]
    assert not rig.server.is_disconnected(ticket.peer)
    peer.receive()
    assert peer.socket.recv_multipart() == [bytes(8)], "a probe of the connection answers no request"
    peer.socket.close()
    while not rig.server.is_disconnected(ticket.peer):
        rig.server.wait(1)
    assert rig.server.is_disconnected(b"")
    assert rig.server.is_disconnected(b"\x07nobody")


def test_the_reason_of_a_refusal_is_text(rig: Rig) -> None:
    peer = rig.peer()
    peer.send(b"00000001", msgspec.msgpack.encode({"type": "pull", "since": "x", "closed": 0}))
    rig.serve()
    answer = peer.receive()[1]
    assert isinstance(answer, Refused)
    assert "Expected `int`, got `str` - at `$.since`" in answer.reason
