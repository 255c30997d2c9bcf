"""Access over tcp: the two pitfalls of CURVE, and the message to a rejected learner."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from onrig.runtime.link.client import KeyRejected, LinkClient, LinkClosed
from onrig.runtime.link.endpoint import parse_tcp
from onrig.runtime.link.keys import (
    KeyPair,
    LearnerKeys,
    RigKeys,
    generate_key_pair,
    load_learner_keys,
    load_rig_keys,
    pair_fingerprint,
)
from onrig.runtime.link.messages import Accepted, Attach
from onrig.runtime.link.pending import ZAP_DOMAIN, ZapHandler, zap_reply
from onrig.tools.bench.link.network import LossyLink
from onrig.tools.key_folder import make_keys
from onrig.tools.verbs.learn import endpoint_problem
from tests.runtime.link.doors import PATIENCE_S, AcceptingRig

PATIENCE_MS = int(1000 * PATIENCE_S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("k") / "keys"
    make_keys(folder)
    return folder


@pytest.fixture(scope="module")
def rig_keys(folder: Path) -> RigKeys:
    return load_rig_keys(folder)


@pytest.fixture(scope="module")
def learner_keys(folder: Path) -> LearnerKeys:
    return load_learner_keys(folder)


@pytest.fixture
def rig(socket_folder: Path, rig_keys: RigKeys) -> Iterator[AcceptingRig]:
    with AcceptingRig(socket_folder, rig_keys) as rig:
        yield rig


def attach(endpoint: str, keys: LearnerKeys | None) -> object:
    client = LinkClient(endpoint, lambda: False, keys, patience_s=PATIENCE_S)
    try:
        return client.ask(Attach())[0]
    finally:
        client.close()


def test_a_listed_learner_enters_and_is_known_by_name_and_key(rig: AcceptingRig, learner_keys: LearnerKeys) -> None:
    assert attach(rig.endpoint, learner_keys) == Accepted()
    assert attach(rig.local, None) == Accepted()
    assert rig.client_keys == [f"learner:{pair_fingerprint(learner_keys.pair)}", "local"]
    assert rig.refused_keys == []


def test_an_unlisted_learner_is_refused_at_once(rig: AcceptingRig, learner_keys: LearnerKeys) -> None:
    unlisted_keys = learner_keys._replace(pair=generate_key_pair())
    with pytest.raises(KeyRejected, match=f"does not accept this learner's key {pair_fingerprint(unlisted_keys.pair)}"):
        attach(rig.endpoint, unlisted_keys)
    assert rig.client_keys == []
    assert attach(rig.endpoint, learner_keys) == Accepted(), "other learners continue"
    assert set(rig.refused_keys) == {pair_fingerprint(unlisted_keys.pair)}


def test_a_learner_without_keys_is_asked_to_provide_them(rig: AcceptingRig) -> None:
    with pytest.raises(KeyRejected, match="accepts no unencrypted connections; pass the learner's keys: --keys DIR"):
        attach(rig.endpoint, None)
    assert rig.client_keys == []


def test_a_learner_that_expects_another_rig_is_informed(rig: AcceptingRig, learner_keys: LearnerKeys) -> None:
    with pytest.raises(KeyRejected, match=r"not the one whose public key is in rig\.key"):
        attach(rig.endpoint, learner_keys._replace(rig=generate_key_pair().public))


def test_a_learner_that_waits_forever_is_informed_and_keeps_trying(
    rig: AcceptingRig, learner_keys: LearnerKeys
) -> None:
    notes: list[str] = []
    wrong_rig_key = learner_keys._replace(rig=generate_key_pair().public)
    client = LinkClient(rig.endpoint, lambda: len(notes) > 0, wrong_rig_key, math.inf, notes.append)
    with pytest.raises(LinkClosed, match="asked to stop"):
        client.ask(Attach())
    client.close()
    assert notes[0].endswith("still trying")
    assert len(notes) == 1


def test_a_learner_with_keys_does_not_talk_to_a_plain_rig(socket_folder: Path, learner_keys: LearnerKeys) -> None:
    with AcceptingRig(socket_folder, None) as rig:
        with pytest.raises(KeyRejected, match="not an Onrig rig with keys"):
            attach(rig.endpoint, learner_keys)
        assert attach(rig.endpoint, None) == Accepted()
        assert rig.client_keys == ["plain"]


class Handshake:
    """A hand-written CURVE server socket, and a client whose handshake is monitored."""

    def __init__(self, *, enforce: int, domain: bytes = ZAP_DOMAIN) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        rig = KeyPair(*zmq.curve_keypair())
        self.server = self.context.socket(zmq.ROUTER)
        self.server.setsockopt(zmq.CURVE_SERVER, 1)
        self.server.setsockopt(zmq.CURVE_SECRETKEY, rig.secret)
        self.server.setsockopt(zmq.ZAP_DOMAIN, domain)
        self.server.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, enforce)
        self.server.bind("tcp://127.0.0.1:0")
        self.client = self.context.socket(zmq.DEALER)
        self.client.setsockopt(zmq.CURVE_SERVERKEY, rig.public)
        self.pair = generate_key_pair()
        self.client.setsockopt(zmq.CURVE_PUBLICKEY, self.pair.public)
        self.client.setsockopt(zmq.CURVE_SECRETKEY, self.pair.secret)
        self.monitor = self.client.get_monitor_socket(zmq.EVENT_ALL)

    def succeeds(self, authenticator: ZapHandler | None) -> bool:
        self.client.connect(self.server.getsockopt_string(zmq.LAST_ENDPOINT))
        failure_events = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED
        poller = zmq.Poller()
        poller.register(self.monitor, zmq.POLLIN)
        if authenticator is not None:
            poller.register(authenticator.socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(PATIENCE_MS))
            assert ready, "nothing happens"
            if authenticator is not None:
                authenticator.reply_to_pending()
            if self.monitor in ready:
                event = int.from_bytes(self.monitor.recv_multipart()[0][:2], "little")
                if event & zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    return True
                if event & failure_events:
                    return False

    def close(self) -> None:
        self.client.disable_monitor()
        self.context.destroy(linger=0)


def test_trap_curve_without_an_authenticator_admits_everyone_unless_the_domain_is_enforced() -> None:
    for enforce, expected in ((0, True), (1, False)):
        handshake = Handshake(enforce=enforce)
        assert handshake.succeeds(None) is expected
        handshake.close()


def test_our_rig_admits_no_one_if_its_authenticator_is_gone(socket_folder: Path, rig_keys: RigKeys) -> None:
    """Fails closed: the key is listed, but nothing authenticates it."""
    rig = AcceptingRig(socket_folder, rig_keys)
    assert rig.server._zap_handler is not None
    for option in (zmq.ZAP_ENFORCE_DOMAIN, zmq.CURVE_SERVER):
        assert rig.server._sockets[1][0].getsockopt(option) == 1
    assert rig.server._sockets[1][0].getsockopt(zmq.ZAP_DOMAIN) == ZAP_DOMAIN
    assert rig.server._sockets[0][0].getsockopt(zmq.CURVE_SERVER) == 0, "local access is through an ipc folder"
    rig.server.close()


def test_trap_another_zap_domain_admits_no_one() -> None:
    for domain, expected in ((ZAP_DOMAIN, True), (b"other", False)):
        handshake = Handshake(enforce=1, domain=domain)
        allowed = {bytes(z85.decode(handshake.pair.public)): "me"}
        authenticator = ZapHandler(handshake.context, allowed)
        assert handshake.succeeds(authenticator) is expected
        authenticator.close()
        handshake.close()


KEY = bytes(range(32))


def request(
    *, version: bytes = b"1.0", domain: bytes = ZAP_DOMAIN, mechanism: bytes = b"CURVE", key: bytes = KEY
) -> list[bytes]:
    return [version, b"7", domain, b"10.0.0.1", b"", mechanism, key]


def test_a_listed_key_is_admitted_under_its_name() -> None:
    version, number, status, text, user, metadata = zap_reply(request(), {KEY: "lab"})
    assert (version, number, status, text, metadata) == (b"1.0", b"7", b"200", b"OK", b"")
    assert user.startswith(b"lab:")


@pytest.mark.parametrize(
    "frames",
    [
        request(version=b"2.0"),
        request(domain=b""),
        request(domain=b"onrig2"),
        request(mechanism=b"NULL"),
        request(mechanism=b"PLAIN"),
        request(key=KEY[::-1]),
        request(key=b""),
        request()[:-1],
        [*request(), b""],
        [],
        [b"1.0"],
    ],
)
def test_everything_else_is_refused(frames: list[bytes]) -> None:
    answer = zap_reply(frames, {KEY: "lab"})
    assert len(answer) == 6
    assert (answer[2], answer[4]) == (b"400", b"")


@pytest.mark.parametrize(
    ("endpoint", "with_keys", "plain", "problem"),
    [
        ("ipc://run/learner", False, False, None),
        ("ipc://run/learner", True, False, "keys are for tcp"),
        ("ipc://", False, False, "1 to 107 bytes"),
        ("ipc:///" + "n" * 107, False, False, "1 to 107 bytes"),
        ("tcp://10.0.0.1:5", True, False, None),
        ("tcp://10.0.0.1:5", False, False, "another machine: add the learner's keys"),
        ("tcp://10.0.0.1:5", False, True, "another machine: add the learner's keys"),
        ("tcp://127.0.0.1:5", False, False, "tcp without keys needs --plain-loopback"),
        ("tcp://127.0.0.1:5", False, True, None),
        ("tcp://*:5", True, False, "is not a valid address"),
        ("tcp://a:0", True, False, "is not a valid address"),
        ("http://a", True, False, "not an endpoint"),
    ],
)
def test_addresses_that_a_learner_may_connect_to(
    endpoint: str, with_keys: bool, plain: bool, problem: str | None
) -> None:
    message = endpoint_problem(endpoint, with_keys=with_keys, plain=plain)
    assert (message is None) if problem is None else (message is not None and problem in message)


def test_with_keys_nothing_readable_is_sent_over_the_wire(
    socket_folder: Path, rig_keys: RigKeys, learner_keys: LearnerKeys
) -> None:
    secret = b"what only the two of them should know"
    for keys, learner, is_readable in ((None, None, True), (rig_keys, learner_keys, False)):
        with AcceptingRig(socket_folder, keys) as rig, LossyLink(parse_tcp(rig.endpoint).port) as wire:
            client = LinkClient(wire.endpoint, lambda: False, learner, patience_s=PATIENCE_S)
            client.ask(Attach(), secret)
            client.close()
            assert (secret in wire.recorded_data) is is_readable
