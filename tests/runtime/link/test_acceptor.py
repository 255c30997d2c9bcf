"""Hostile tcp peers: a listed learner still gets in, and the process remains small."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from onrig.runtime.link import acceptor as module
from onrig.runtime.link.acceptor import ConnectionAcceptor
from onrig.runtime.link.client import LinkClient, LinkClosed
from onrig.runtime.link.endpoint import TcpEndpoint, parse_tcp
from onrig.runtime.link.keys import LearnerKeys, load_learner_keys, load_rig_keys
from onrig.runtime.link.messages import Accepted, Attach, Done, Pull
from onrig.runtime.link.pending import HANDSHAKE_TIMEOUT_S, MAX_TOTAL_BYTES_IN_FLIGHT
from onrig.runtime.link.seats import (
    MAX_INSIDE_PER_ADDRESS,
    MAX_SEATS_PER_ADDRESS,
    MAX_SILENT_CONNECTIONS_PER_ADDRESS,
    MAX_WAITING,
)
from onrig.runtime.link.server import Reply, Ticket
from onrig.tools.bench.link.network import LossyLink
from onrig.tools.key_folder import make_keys
from tests.lab.mutants.peers import HELLO_BEGUN, READY_BEGUN, Crowd, ReturningCrowd, garbled, greeting
from tests.lab.rig.processes import resident_bytes
from tests.runtime.link.doors import PATIENCE_S, AcceptingRig
from tests.runtime.link.raw_peer import RawPeer

CROWD_SIZE = 700
MIB = 1 << 20


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("k") / "keys"
    make_keys(folder)
    return folder


@pytest.fixture
def learner_keys(keys: Path) -> LearnerKeys:
    return load_learner_keys(keys)


def can_attach(endpoint: str, keys: LearnerKeys | None) -> bool:
    client = LinkClient(endpoint, lambda: False, keys, patience_s=PATIENCE_S)
    with contextlib.closing(client):
        return client.ask(Attach())[0] == Accepted()


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def attach_until(condition: Callable[[], bool], rig: AcceptingRig) -> None:
    """Poll the slow rig until a condition holds."""
    for _ in range(1000):
        if condition():
            return
        can_attach(rig.local, None)
    raise AssertionError("the condition was never met")


@pytest.mark.parametrize(
    ("first_bytes", "max_kept"),
    [(b"", MAX_SILENT_CONNECTIONS_PER_ADDRESS), (greeting(b"CURVE")[:11], MAX_SEATS_PER_ADDRESS + MAX_WAITING)],
    ids=["idle", "slow"],
)
def test_a_listed_learner_gets_in_past_hundreds_of_connections_that_never_identify_themselves(
    socket_folder: Path, keys: Path, learner_keys: LearnerKeys, first_bytes: bytes, max_kept: int
) -> None:
    with AcceptingRig(socket_folder, load_rig_keys(keys)) as rig:
        endpoint = parse_tcp(rig.endpoint)
        before = count_descriptors()
        with Crowd(endpoint, CROWD_SIZE, first=first_bytes, source="127.0.0.3") as crowd:
            assert can_attach(rig.endpoint, learner_keys), "from another address than the crowd's"
            crowd.trickle(b"\0")
            attach_until(lambda: crowd.n_open() <= max_kept, rig)
            assert count_descriptors() - before < CROWD_SIZE + max_kept + 2 * MAX_SEATS_PER_ADDRESS + 20, (
                "the rig itself uses few descriptors"
            )
        with Crowd(endpoint, CROWD_SIZE, first=first_bytes) as crowd:
            assert can_attach(rig.endpoint, learner_keys), "from the same address too"
        shed_connections = rig.server.take_shed_connections()
        n_shed = sum(group.n_connections for group in shed_connections if group.reason == "too many")
        assert n_shed >= 2 * (CROWD_SIZE - max_kept) - 50
        assert len(shed_connections) < 10, "one report covers many"


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_learner_gets_in_past_a_returning_crowd(
    socket_folder: Path, keys: Path, learner_keys: LearnerKeys, encrypted: bool
) -> None:
    """40 connections from its own address that begin their handshake and are reopened whenever they are closed."""
    first_bytes, presented_keys = (HELLO_BEGUN, learner_keys) if encrypted else (READY_BEGUN, None)
    with (
        AcceptingRig(socket_folder, load_rig_keys(keys) if encrypted else None) as rig,
        ReturningCrowd(parse_tcp(rig.endpoint), 40, first_bytes, seconds=PATIENCE_S) as crowd,
    ):
        assert crowd.complete.wait(PATIENCE_S)
        assert can_attach(rig.endpoint, presented_keys)


def test_connections_that_greet_and_hang_up_leave_room_for_others(socket_folder: Path) -> None:
    with (
        AcceptingRig(socket_folder, None) as rig,
        ReturningCrowd(parse_tcp(rig.endpoint), 40, greeting(), seconds=60.0),
    ):
        for _ in range(MAX_WAITING):
            with Crowd(parse_tcp(rig.endpoint), 8, first=greeting()):
                pass
        assert can_attach(rig.endpoint, None)


def test_a_peer_that_sends_garbage_is_disconnected_at_once_and_counted(socket_folder: Path) -> None:
    with AcceptingRig(socket_folder, None) as rig:
        garbled(parse_tcp(rig.endpoint), 300, 1)
        assert can_attach(rig.endpoint, None)
        n_shed = {group.reason: group.n_connections for group in rig.server.take_shed_connections()}
        assert n_shed["no learner"] > 100


def test_a_peer_that_sends_no_request_is_disconnected_after_a_while(
    socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HANDSHAKE_TIMEOUT_S > 1
    monkeypatch.setattr("onrig.runtime.link.pending.HANDSHAKE_TIMEOUT_S", 0.05)
    with AcceptingRig(socket_folder, None) as rig, Crowd(parse_tcp(rig.endpoint), 3, first=greeting()) as crowd:
        attach_until(lambda: crowd.n_open() == 0, rig)
        assert [(group.reason, group.n_connections) for group in rig.server.take_shed_connections()] == [
            ("no request", 3)
        ]


@pytest.mark.parametrize("size", [0, 40, MIB, 4 * MIB])
def test_an_endless_message_does_not_grow_the_rig_beyond_its_bound(
    socket_folder: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onrig.runtime.link.pending.INCOMPLETE_MESSAGE_TIMEOUT_S", 0.3)
    with AcceptingRig(socket_folder, None) as rig:
        assert can_attach(rig.endpoint, None)
        before = resident_bytes()
        with RawPeer(parse_tcp(rig.endpoint)) as peer:
            peer.flood(size, 300 * MIB, 20.0)
        assert can_attach(rig.endpoint, None)
        assert resident_bytes() - before < 40 * MIB
        (shed_connections,) = [group.reason for group in rig.server.take_shed_connections()]
        assert shed_connections in ("an incomplete message", "too many frames without a complete message")


def test_many_endless_messages_share_one_bound(socket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onrig.runtime.link.pending.INCOMPLETE_MESSAGE_TIMEOUT_S", 2.0)
    with AcceptingRig(socket_folder, None) as rig, contextlib.ExitStack() as stack:
        endpoint = parse_tcp(rig.endpoint)
        assert can_attach(rig.endpoint, None)
        before = resident_bytes()
        peers = [stack.enter_context(RawPeer(endpoint)) for _ in range(8)]
        sent = sum(peer.flood(MIB, 100 * MIB, 0.2) for peer in peers)
        assert sent < MAX_TOTAL_BYTES_IN_FLIGHT + len(peers) * 8 * MIB, "the rest is in the kernel's buffers"
        assert resident_bytes() - before < 64 * MIB
        assert can_attach(rig.endpoint, None), "another learner gets in once they are disconnected"


def test_a_peer_that_sends_requests_and_does_not_read_grows_the_rig_by_one_answer(
    socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = bytes(8 * MIB)

    def handle(rig: AcceptingRig, ticket: Ticket, request: object, payloads: object) -> Reply:
        return Reply(Accepted(), (payload,) if isinstance(request, Pull) else ())

    monkeypatch.setattr(AcceptingRig, "_handle", handle)
    with AcceptingRig(socket_folder, None) as rig, contextlib.ExitStack() as stack:
        assert can_attach(rig.endpoint, None)
        before = resident_bytes()
        for peer in [stack.enter_context(RawPeer(parse_tcp(rig.endpoint))) for _ in range(6)]:
            for _ in range(8):
                peer.ask(Pull(0, 0))
        assert can_attach(rig.endpoint, None)
        assert resident_bytes() - before < 64 * MIB


def test_an_admitted_silent_peer_makes_room_when_there_are_too_many(socket_folder: Path) -> None:
    with AcceptingRig(socket_folder, None) as rig, contextlib.ExitStack() as stack:
        endpoint = parse_tcp(rig.endpoint)
        for n in range(MAX_INSIDE_PER_ADDRESS + 8):
            stack.enter_context(RawPeer(endpoint)).ask(Attach())
            attach_until(lambda n=n: rig.client_keys.count("plain") > n, rig)  # type: ignore[misc]
        assert can_attach(rig.endpoint, None)
        acceptor = rig.server._acceptor
        assert acceptor is not None
        attach_until(lambda: len(acceptor._relays) <= MAX_INSIDE_PER_ADDRESS, rig)
        assert (
            sum(group.n_connections for group in rig.server.take_shed_connections() if group.reason == "too many") >= 8
        )


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_well_behaved_learner_is_never_disconnected_however_much_it_sends(
    socket_folder: Path, keys: Path, learner_keys: LearnerKeys, encrypted: bool
) -> None:
    with AcceptingRig(socket_folder, load_rig_keys(keys) if encrypted else None) as rig:
        client = LinkClient(rig.endpoint, lambda: False, learner_keys if encrypted else None, patience_s=PATIENCE_S)
        with contextlib.closing(client):
            for n in range(60):
                payloads = (bytes(MIB),) * 4 if n % 10 == 0 else (bytes(100),)
                assert client.ask(Done(n, n, 0.0), *payloads)[0] == Accepted()
        assert (client.n_connections, client.n_retries) == (1, 0)
        assert rig.server.take_shed_connections() == []
        acceptor = rig.server._acceptor
        assert acceptor is not None
        assert all(connection.bytes_in_flight < 10_000 for connection in acceptor._connections_by_name.values())


def test_an_error_in_the_acceptor_is_reported(socket_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ConnectionAcceptor, listener: object, now_s: float) -> None:
        raise RuntimeError("the acceptor broke")

    monkeypatch.setattr(AcceptingRig, "__exit__", lambda self, *error: None)
    with AcceptingRig(socket_folder, None) as rig:
        rig._stop.set()
        rig._thread.join()
        monkeypatch.setattr(module.ConnectionAcceptor, "_accept", fail)
        with Crowd(parse_tcp(rig.endpoint), 1):
            assert rig.server._acceptor is not None
            rig.server._acceptor._thread.join(PATIENCE_S)
            with pytest.raises(RuntimeError, match="the acceptor broke"):
                rig.server.serve(rig._handle)
    rig.server.close()


def test_an_endpoint_may_be_all_interfaces_one_by_name_or_ipv6() -> None:
    for host, presented_keys in (
        ("*", "tcp://0.0.0.0:"),
        ("lo", "tcp://127.0.0.1:"),
        ("localhost", "tcp://127.0.0.1:"),
    ):
        acceptor = ConnectionAcceptor(TcpEndpoint(host, 0), "/nowhere", max_frame_bytes=100, overhead_bytes=0)
        assert acceptor.endpoints[0].startswith(presented_keys)
        acceptor.close()


@pytest.mark.parametrize(
    ("listen_host", "destination", "is_accepted"),
    [
        ("localhost", "127.0.0.1", True),
        ("localhost", "[::1]", True),
        ("localhost", "localhost", True),
        ("[::1]", "localhost", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "[::1]", False),
        ("[::1]", "127.0.0.1", False),
    ],
)
def test_a_name_covers_all_of_its_addresses_and_another_address_is_reported(
    socket_folder: Path, listen_host: str, destination: str, is_accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_ipv6_loopback():
        pytest.skip("this machine has no IPv6")
    with AcceptingRig(socket_folder, None, listen_host) as rig:
        endpoint = f"tcp://{destination}:{parse_tcp(rig.endpoint).port}"
        if is_accepted:
            assert can_attach(endpoint, None)
            return
        monkeypatch.setattr("onrig.runtime.link.client._UNREACHABLE_REPORT_DELAY_S", 0.0)
        notes: list[str] = []
        client = LinkClient(endpoint, lambda: len(notes) > 0, on_problem=notes.append)
        with contextlib.closing(client), pytest.raises(LinkClosed, match="asked to stop"):
            client.ask(Attach())
        assert f"nothing answers at {endpoint}: tried {destination.strip('[]')}: Connection refused" in notes[0]
        client = LinkClient(endpoint, lambda: False)
        message = "did not answer within 0 s; tried .*: Connection refused; a rig prints"
        with contextlib.closing(client), pytest.raises(LinkClosed, match=message):
            client.ask(Attach(), timeout_s=0.0)


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as line:
            line.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_attacks_stay_on_this_machine(socket_folder: Path) -> None:
    with pytest.raises(ValueError, match="stay on this machine"):
        Crowd(TcpEndpoint("192.0.2.1", 5), 1)
    with AcceptingRig(socket_folder, None) as rig, LossyLink(parse_tcp(rig.endpoint).port) as wire:
        assert can_attach(wire.endpoint, None)
