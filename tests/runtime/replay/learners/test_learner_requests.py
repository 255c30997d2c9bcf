from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onrig.runtime.link.messages import (
    LEASE,
    LINK_VERSION,
    MAX_FEEDBACK_EXPERIENCES,
    MAX_PAYLOAD_BYTES,
    MAX_RULINGS,
    UNKNOWN,
    VERSION,
    Accepted,
    Ancestor,
    Attach,
    Attached,
    ClosedEpisode,
    Confirm,
    Done,
    Feedback,
    Leave,
    Offer,
    Pull,
    Refused,
    ReplyMessage,
    RequestMessage,
    Rows,
    Ruling,
    Verdict,
    decode_reply,
    encode,
)
from onrig.runtime.link.server import Reply, Ticket
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.layout import Layout, Slots
from onrig.runtime.memory.settings import Selection
from onrig.runtime.memory.storage import Storage
from onrig.runtime.memory.transitions import TransitionBuilder
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.replay.learners.admission_terms import examination
from onrig.runtime.replay.learners.learner_requests import LearnerRequests, RunIdentity
from onrig.runtime.replay.learners.policy_admission import PolicyAdmission
from onrig.runtime.replay.learners.policy_folder import PolicyFolder
from onrig.runtime.replay.learners.succession import AnyLearner, FromCheckpoint
from onrig.runtime.shm.latest import SLOT_BYTES, SLOT_SCHEMA, PolicySlot
from onrig.runtime.shm.segment import Segment
from tests.runtime.samples import PENDULUM, records

A, B, C, D = (Ticket(b"peer %c" % ticket, b"00000001", f"{chr(ticket)}:key") for ticket in b"abcd")


class Rig:
    """A desk with its memory; ``now_s`` is its clock."""

    def __init__(
        self, folder: Path, strategy: str = "FIFO[Uniform]", capacity: int = 64, *, lockstep: bool = True
    ) -> None:
        config = msgspec.structs.replace(PENDULUM, selection=Selection(strategy, capacity))
        self.memory = Memory(config)
        self.events: list[str] = []
        segment = Segment.create(folder / f"slot{len(list(folder.iterdir()))}", SLOT_BYTES, SLOT_SCHEMA)
        note = lambda kind, **fields: self.events.append(kind)  # noqa: E731
        policies = PolicyAdmission(examination(config), PolicySlot(segment), PolicyFolder(folder / "policies"), note)
        self.disconnected_peers: set[bytes] = set()
        """Peers whose connection is closed."""
        self.requests = LearnerRequests(
            self.memory,
            policies,
            RunIdentity("4a" * 16, "run-1", b"rig: x\n"),
            FromCheckpoint() if lockstep else AnyLearner(),
            note,
            self.disconnected_peers.__contains__,
        )

    def insert(self, n: int) -> None:
        """Keep this number of additional experiences."""
        n_offered = self.memory.offered
        self.memory.insert(TransitionBuilder(PENDULUM.rig).add(records(n + 1, tick=n_offered)))

    def attach(self, role: Literal["push", "watch"] = "push", ticket: Ticket = A, **options: bytes) -> Attached:
        answer = self.request(
            Attach(session=options.pop("session", b""), role=role, memory=options.pop("memory", b"")), ticket=ticket
        )
        assert isinstance(answer, Attached)
        return answer

    def request(self, request: RequestMessage, *payloads: bytes, ticket: Ticket = A) -> ReplyMessage:
        answer = self.requests.handle(ticket, request, payloads)
        assert answer is not None, "it waits"
        return answer.message

    def pull(self, since_number: int, closed: int = 0, **options: int) -> tuple[Rows, bytes]:
        answer = self.requests.handle(A, Pull(since_number, closed, **options), ())
        assert answer is not None
        assert isinstance(answer.message, Rows)
        (payload,) = answer.payloads
        return answer.message, payload


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Peer a pushes, peer b watches."""
    rig = Rig(tmp_path)
    rig.attach()
    rig.attach("watch", B)
    rig.events.clear()
    return rig


def errors(slots: Sequence[int], generations: Sequence[int], values: Sequence[float]) -> tuple[bytes, bytes, bytes]:
    return (
        np.array(slots, "<i8").tobytes(),
        np.array(generations, "<u4").tobytes(),
        np.array(values, "<f4").tobytes(),
    )


# -- attach ------------------------------------------------------------------------------------------------------------


def test_the_learner_is_informed_to_which_memories_the_writes_belong(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.requests._n_restored = 40
    rig.requests.set_lineage(b"third", [Ancestor(b"first", 30), Ancestor(b"second", 50)])
    assert [(ancestor.memory, ancestor.writes) for ancestor in rig.attach().lineage] == [
        (b"first", 30),
        (b"second", 40),
        (b"third", 40),
    ]
    for number in range(100):
        rig.requests.set_lineage(b"%d" % number, rig.requests.lineage)
    assert len(rig.attach().lineage) == 64
    assert rig.attach().lineage[-1] == Ancestor(b"99", 40)


def test_a_learner_receives_what_it_needs_to_mirror_the_memory(rig: Rig) -> None:
    rig.insert(5)
    rig.requests.feed.last_closed_episode = 2
    attached = rig.attach(ticket=C)
    expected = Attached(
        "run-1", b"rig: x\n", 64, True, 5, 2, 1, True, memory=attached.memory, why=attached.why, run="4a" * 16
    )
    assert attached == expected
    assert len(attached.memory) == 16
    assert rig.events == ["learner_attached"]


def test_a_learner_of_another_version_is_refused_with_both_versions(rig: Rig) -> None:
    answer = rig.request(Attach(version=99))
    assert isinstance(answer, Refused)
    assert answer.code == VERSION
    assert f"uses version 99 of the link, the rig version {LINK_VERSION}" in answer.reason


# -- pull --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["FIFO[Uniform]", "TDE(1.0)[Uniform]", "Resv[Uniform]"])
@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=6))
def test_a_mirror_that_pulls_in_portions_becomes_the_memory(
    tmp_path: Path, strategy: str, steps: list[tuple[int, int]]
) -> None:
    rig = Rig(tmp_path, strategy, capacity=24)
    rig.attach()
    mirror = Storage(24, Layout(2, 1), cyclic=rig.memory.storage.cyclic)
    for inserted, max_rows in steps:
        rig.insert(inserted)
        while True:
            message, payload = rig.pull(mirror.inserted, max_rows=max_rows)
            words = np.frombuffer(payload, "<u4").reshape(-1, 3 + mirror.layout.width)
            assert len(words) <= max_rows
            mirror.write_rows(words.astype(np.uint32))
            assert mirror.inserted == message.upto
            if message.upto == message.inserted:
                break
        assert mirror.digest() == rig.memory.storage.digest()


def test_a_pull_may_be_repeated(rig: Rig) -> None:
    rig.insert(9)
    assert rig.pull(3) == rig.pull(3)
    rig.insert(1)
    message, payload = rig.pull(3)
    assert (message.upto, len(payload)) == (10, 7 * 4 * (3 + rig.memory.storage.layout.width))


def test_without_news_the_answer_is_empty(rig: Rig) -> None:
    rig.insert(3)
    assert rig.pull(3) == (Rows(upto=3, inserted=3, closed=0), b"")


@pytest.mark.parametrize("since_number", [-1, 4, 2**40])
def test_a_mirror_of_another_memory_is_refused(rig: Rig, since_number: int) -> None:
    rig.insert(3)
    for wait_ms in (0, 1000):
        assert isinstance(rig.request(Pull(since_number, 0, wait_ms)), Refused)
    assert rig.requests.feed.take_due_replies() == []


@pytest.mark.parametrize("max_rows", [0, -5])
def test_at_least_one_row_is_returned_whatever_is_requested(rig: Rig, max_rows: int) -> None:
    rig.insert(3)
    assert rig.pull(0, max_rows=max_rows)[0].upto == 1


def test_an_answer_fits_into_a_message_however_wide_the_rows(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onrig.runtime.replay.learners.feed.MAX_PAYLOAD_BYTES", 200)
    rig.insert(60)
    message, payload = rig.pull(0, max_rows=60)
    assert 0 < len(payload) <= 200 < MAX_PAYLOAD_BYTES
    assert 0 < message.upto < 60


def test_a_waiting_pull_is_answered_on_news(rig: Rig) -> None:
    news_events: tuple[Callable[[], object], ...] = (
        lambda: rig.insert(2),
        lambda: setattr(rig.requests.feed, "last_closed_episode", 1),
        lambda: setattr(rig.requests.feed, "is_ending", True),
    )
    for trigger in news_events:
        inserted_before = rig.memory.storage.inserted
        assert rig.requests.handle(A, Pull(inserted_before, rig.requests.feed.last_closed_episode, 2000), ()) is None
        assert rig.requests.feed.take_due_replies() == []
        trigger()
        ((ticket, answer),) = rig.requests.feed.take_due_replies()
        assert ticket == A
        storage, requests = rig.memory.storage, rig.requests
        assert answer.message == Rows(
            storage.inserted, storage.inserted, requests.feed.last_closed_episode, requests.feed.is_ending
        )
        assert rig.requests.feed.take_due_replies() == [], "once"


def test_a_pull_overtaken_by_news_does_not_wait(rig: Rig) -> None:
    rig.insert(2)
    assert rig.pull(0, wait_ms=2000)[0].upto == 2
    rig.requests.feed.last_closed_episode = 3
    assert rig.pull(2, closed=2, wait_ms=2000)[0].closed == 3


def test_rows_include_the_returns_of_the_latest_episodes_closed_since(rig: Rig) -> None:
    for episode in range(1, 71):
        rig.requests.feed.close(episode, -float(episode))
    rig.requests.feed.close(70, -70.0)  # a restarted process reads its records again
    assert rig.pull(0, closed=68)[0].episodes == (ClosedEpisode(69, -69.0), ClosedEpisode(70, -70.0))
    assert [closed.episode for closed in rig.pull(0)[0].episodes] == list(range(7, 71))
    assert rig.pull(0, closed=70)[0].episodes == ()


def test_without_news_a_pull_is_answered_when_its_wait_elapses_and_after_at_most_two_seconds(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    rig.requests.handle(A, Pull(0, 0, 300), ())
    rig.requests.handle(B, Pull(0, 0, 10**9), ())
    now_s += 0.299
    assert rig.requests.feed.take_due_replies() == []
    now_s += 0.002
    assert [ticket for ticket, _ in rig.requests.feed.take_due_replies()] == [A]
    now_s += 1.7
    assert [ticket for ticket, _ in rig.requests.feed.take_due_replies()] == [B]


def test_a_peer_waits_in_one_place_only(rig: Rig) -> None:
    later_request = A._replace(request_id=b"00000002")
    for ticket in (A, later_request, B):
        assert rig.requests.handle(ticket, Pull(0, 0, 2000), ()) is None
    rig.insert(1)
    assert [ticket for ticket, _ in rig.requests.feed.take_due_replies()] == [later_request, B]


# -- rulings on policies -----------------------------------------------------------------------------------------------


def test_rulings_are_sent_with_the_next_rows_and_only_those_not_yet_received(rig: Rig) -> None:
    rig.requests.add_ruling(4, "passed", "")
    rig.requests.add_ruling(5, "rolled_back", "too slow")
    first = Ruling(1, 4, "passed", ""), Ruling(2, 5, "rolled_back", "too slow")
    assert rig.pull(0)[0].rulings == first
    assert rig.pull(0)[0].rulings == first, "a repeated question has the same answer"
    assert rig.pull(0, heard=1)[0].rulings == first[1:]
    assert rig.pull(0, heard=2)[0].rulings == ()


def test_rulings_alone_are_not_news(rig: Rig) -> None:
    assert rig.requests.handle(A, Pull(0, 0, 2000), ()) is None
    rig.requests.add_ruling(4, "passed", "")
    assert rig.requests.feed.take_due_replies() == [], (
        "in lockstep a learner must not depend on when it receives rulings"
    )
    rig.insert(1)
    ((_, answer),) = rig.requests.feed.take_due_replies()
    assert isinstance(answer.message, Rows)
    assert [r.policy_id for r in answer.message.rulings] == [4]


def test_rulings_fit_into_a_message_and_the_oldest_are_dropped(rig: Rig) -> None:
    for policy_id in range(1, 101):
        rig.requests.add_ruling(policy_id, "passed", "why " * 200)
    heard_number, numbers = 0, []
    while rulings := rig.pull(0, heard=heard_number)[0].rulings:
        assert len(rulings) <= MAX_RULINGS
        assert decode_reply(encode(Rows(0, 0, 0, rulings=rulings)))
        numbers += [r.number for r in rulings]
        heard_number = numbers[-1]
    assert numbers == list(range(37, 101))


@pytest.mark.parametrize("heard_number", [-(2**63), -1, 2**63 - 1])
def test_a_learner_is_answered_whatever_it_claims_to_have_received(rig: Rig, heard_number: int) -> None:
    rig.requests.add_ruling(4, "passed", "")
    assert len(rig.pull(0, heard=heard_number)[0].rulings) == (heard_number < 1)


def test_only_the_pushing_learner_ends_the_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, lockstep=False)
    rig.attach()
    rig.attach("watch", B)
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    rig.request(Pull(0, 0))
    assert rig.requests.peers.last_message_ns == 10**12
    now_s += 5.0
    rig.request(Pull(0, 0), ticket=B)
    assert rig.requests.peers.last_message_ns == 10**12, "a watcher sends no policies"
    rig.request(Done(0, 0, 0.0))
    assert rig.requests.peers.last_message_ns == 1005 * 10**9
    rig.request(Leave())
    now_s += 5.0
    rig.attach(ticket=C)
    assert rig.requests.peers.last_message_ns == 1010 * 10**9


def test_before_anyone_pushes_there_is_silence(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.attach("watch")
    rig.request(Pull(0, 0))
    assert rig.requests.peers.last_message_ns == 0


# -- TD errors ---------------------------------------------------------------------------------------------------------


def test_errors_are_applied_once_however_often_they_arrive(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    values_taken: list[list[float]] = []
    monkeypatch.setattr(
        rig.memory, "take_feedback", lambda signal, slots, generations, values: values_taken.append(values.tolist())
    )
    for batch, value in ((7, 1.0), (7, 1.0), (8, -2.0), (7, 1.0)):
        assert rig.request(Feedback(batch), *errors([0], [1], [value])) == Accepted()
    assert values_taken == [[1.0], [2.0]]


def test_the_next_learner_may_number_its_batches_from_a_clock_that_is_behind(tmp_path: Path) -> None:
    rig = Rig(tmp_path, lockstep=False)
    rig.attach()
    rig.insert(4)
    rig.request(Feedback(10**18), *errors([0], [9], [1.0]))
    rig.request(Leave())
    rig.attach(session=b"the next one")
    rig.request(Feedback(5), *errors([0], [9], [1.0]))
    assert rig.memory.stale_errors == 2


def test_errors_of_experiences_rewritten_since_are_counted(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "TDE(1.0)[Uniform]", capacity=4)
    rig.attach()
    rig.insert(4)
    assert rig.request(Feedback(1), *errors([0, 1, 2, -1, 99], [1, 2, 1, 1, 1], [0.5] * 5)) == Accepted()
    assert rig.memory.stale_errors == 3


@pytest.mark.parametrize(
    "payloads",
    [
        (),
        errors([0], [1], [1.0])[:2],
        (*errors([0], [1], [1.0]), b""),
        errors([0, 1], [1], [1.0]),
        errors([0], [1], [1.0, 2.0]),
        (b"odd", *errors([0], [1], [1.0])[1:]),
    ],
    ids=["none", "too few", "too many", "more slots", "more values", "no whole numbers"],
)
def test_malformed_errors_are_refused_and_may_be_sent_again(rig: Rig, payloads: tuple[bytes, ...]) -> None:
    rig.insert(4)
    assert isinstance(rig.request(Feedback(1), *payloads), Refused)
    assert rig.request(Feedback(1), *errors([0], [3], [1.0])) == Accepted()
    assert rig.memory.stale_errors == 1, "the batch number was not used up"


def test_each_kind_of_feedback_reaches_the_retention_under_its_name(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "MaxKLDiv[Uniform]", capacity=8)
    rig.attach()
    received: list[tuple[Signal, list[float]]] = []
    original_on_feedback = rig.memory.keeper.on_feedback

    def record_feedback(signal: Signal, slots: Slots, values: NDArray[np.float32]) -> None:
        received.append((signal, values.tolist()))
        original_on_feedback(signal, slots, values)

    rig.memory.keeper.on_feedback = record_feedback  # type: ignore[method-assign]
    rig.insert(4)
    slots, generations, values = errors([0, 3], [1, 1], [0.5, 0.25, 2.0, 4.0])
    assert rig.request(Feedback(1, ("td", "kl")), slots, generations, values) == Accepted()
    assert received == [(Signal.TD_ERROR, [0.5, 0.25]), (Signal.KL, [2.0, 4.0])]
    reply = rig.request(Feedback(2, ("td", "surprise")), slots, generations, values)
    assert isinstance(reply, Refused)
    assert reply.reason == "feedback of unknown kind 'surprise'; known kinds are td, far, kl"
    assert isinstance(rig.request(Feedback(2, ("kl",)), slots, generations, values), Refused), "values of two kinds"
    assert rig.request(Feedback(2, ("far",)), *errors([0], [1], [1.0])) == Accepted(), (
        "the batch number was not used up"
    )


# -- lockstep ----------------------------------------------------------------------------------------------------------


def test_a_mirror_is_confirmed_by_its_hash(rig: Rig) -> None:
    rig.insert(7)
    mirror = Storage(64, Layout(2, 1))
    mirror.write_rows(rig.memory.storage.rows(np.arange(7)))
    assert rig.request(Confirm(1, mirror.digest())) == Accepted()
    rig.insert(1)
    assert isinstance(rig.request(Confirm(2, mirror.digest())), Refused)
    assert (rig.requests.mismatches, rig.events) == (1, ["mirror_differs"])


def test_an_episode_is_done_only_once_it_is_closed(rig: Rig) -> None:
    assert rig.requests.last_done_episode == -1, "no episode is done before a learner has attached"
    rig.request(Done(0, 0, 0.0))
    assert rig.requests.last_done_episode == 0
    rig.request(Done(3, 300, 1.0))
    assert rig.requests.last_done_episode == 0, "the barrier does not open before its episode is in the memory"
    rig.requests.feed.last_closed_episode = 2
    rig.request(Done(1, 100, 1.0))
    assert rig.requests.last_done_episode == 1
    rig.request(Done(0, 0, 1.0))
    assert rig.requests.last_done_episode == 1, "an earlier episode changes nothing"
    rig.request(Done(2, 200, 55.5))
    assert (rig.requests.last_done_episode, rig.requests.updates, rig.requests.updates_per_s) == (2, 200, 55.5)


def test_an_offer_is_judged_and_answered_with_the_verdict(rig: Rig) -> None:
    verdict = rig.request(Offer(0), b"no policy")
    assert isinstance(verdict, Verdict)
    assert (verdict.policy_id, verdict.accepted, verdict.stage) == (0, False, "format")
    assert isinstance(rig.request(Offer(0)), Refused)
    assert isinstance(rig.request(Offer(0), b"", b""), Refused)


# -- permissions -------------------------------------------------------------------------------------------------------


def test_a_peer_that_has_not_attached_is_asked_to_attach(rig: Rig) -> None:
    for request in (Pull(0, 0), Feedback(1), Done(0, 0, 0.0), Offer(0), Confirm(0, b""), Leave()):
        answer = rig.request(request, ticket=C)
        assert isinstance(answer, Refused)
        assert answer.code == UNKNOWN


def test_many_may_watch_and_one_pushes(rig: Rig) -> None:
    second = rig.attach("push", C)
    assert not second.pushes
    assert second.why.startswith("another learner pushes (a:key")
    rig.insert(3)
    for ticket in (B, C):
        assert isinstance(rig.request(Pull(0, 0), ticket=ticket), Rows)
        for request in (Feedback(1), Done(0, 0, 0.0), Offer(0), Confirm(0, b"")):
            answer = rig.request(request, ticket=ticket)
            assert isinstance(answer, Refused)
            assert (answer.code, "a:key" in answer.reason) == (LEASE, True)
    assert rig.requests.last_done_episode == -1
    assert rig.request(Done(0, 0, 0.0)) == Accepted()


def test_a_departing_learner_hands_over_to_the_next_that_asks(rig: Rig) -> None:
    rig.attach("push", C)
    assert rig.request(Leave()) == Accepted()
    assert rig.attach("push", C).pushes
    assert rig.events == ["learner_attached", "push_passed"]
    assert not rig.attach("push", A).pushes


def test_a_disconnected_learner_hands_over_only_when_another_asks(rig: Rig) -> None:
    rig.disconnected_peers.add(A.peer)
    assert not rig.attach("watch", C).pushes
    assert rig.attach("push", D).pushes


def test_a_learner_that_returns_in_time_continues_to_push(rig: Rig) -> None:
    rig.request(Leave())
    first = rig.attach(session=b"me")
    rig.request(Feedback(10), *errors([], [], []))
    rig.disconnected_peers.add(A.peer)
    reattached = rig.attach(ticket=C._replace(key=A.key), session=b"me", memory=first.memory)
    assert reattached.pushes
    assert reattached.memory == first.memory
    assert rig.events[-1] == "learner_resumed"
    assert rig.requests.feedback.last_batch == 10, "no batch is applied twice"


def test_a_learner_with_a_mirror_of_another_memory_is_informed_and_counts_once_it_returns(rig: Rig) -> None:
    assert rig.attach("watch", C, session=b"old", memory=b"another one").memory != b"another one"
    assert rig.events == []
    rig.attach("watch", D, session=b"new")
    assert rig.events == ["learner_attached"]


def test_a_session_is_worthless_under_another_key(rig: Rig) -> None:
    rig.request(Leave())
    rig.attach(session=b"me")
    assert not rig.attach(ticket=C, session=b"me").pushes


def test_a_learner_that_is_silent_for_long_hands_over(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    rig.request(Pull(0, 0))
    now_s += 30.0
    assert not rig.attach("push", C).pushes
    rig.request(Pull(0, 0))
    now_s += 30.1
    assert rig.attach("push", C).pushes


def test_only_a_limited_number_of_connections_is_remembered(rig: Rig) -> None:
    for n in range(200):
        rig.attach("watch", B._replace(peer=b"%d" % n))
    assert isinstance(rig.request(Pull(0, 0), ticket=B._replace(peer=b"199")), Rows)
    answer = rig.request(Pull(0, 0), ticket=B._replace(peer=b"9"))
    assert isinstance(answer, Refused)
    assert answer.code == UNKNOWN


def test_the_end_waits_for_recently_active_peers_until_they_leave_or_are_gone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    rig.request(Pull(0, 0))
    rig.requests.handle(B, Pull(0, 0, 2000), ())
    rig.requests.feed.is_ending = True
    ((ticket, _),) = rig.requests.feed.take_due_replies()
    assert ticket == B
    assert rig.requests.peers.has_recent_learner
    rig.disconnected_peers.add(B.peer)
    assert rig.requests.peers.has_recent_learner, "peer a has not been notified of the end"
    assert rig.pull(0)[0].ending
    assert rig.requests.peers.has_recent_learner, "the answer may be lost; it will ask again"
    rig.request(Leave())
    assert not rig.requests.peers.has_recent_learner
    rig.attach("watch", C)
    now_s += 5.1
    assert not rig.requests.peers.has_recent_learner, "silent peers are not waited for"


def test_a_batch_of_errors_has_a_limit(rig: Rig) -> None:
    indices = [0] * (MAX_FEEDBACK_EXPERIENCES + 1)
    assert isinstance(rig.request(Feedback(1), *errors(indices, indices, indices)), Refused)
    assert rig.request(Feedback(1), *errors(indices[1:], indices[1:], indices[1:])) == Accepted()


# -- another learner, in lockstep --------------------------------------------------------------------------------------


def test_another_learner_waits_until_the_run_can_be_resumed_from(rig: Rig) -> None:
    rig.insert(4)
    rig.request(Feedback(7), *errors([0], [1], [1.0]))
    rig.request(Leave())
    attach_request = Attach(session=b"the next one", role="push")
    assert rig.requests.handle(C, attach_request, []) is None
    assert rig.requests.succession.is_replacement_requested
    rig.requests.admit_replacement()
    assert rig.requests.succession.n_deviations == 1
    assert rig.attach(ticket=C, session=b"the next one").pushes
    assert not rig.requests.succession.is_replacement_requested
    rig.request(Feedback(5), *errors([0], [1], [1.0]), ticket=C)
    assert rig.requests.feedback.batches == 2


def test_another_learner_continues_at_once_if_nothing_has_happened_since_the_checkpoint(rig: Rig) -> None:
    rig.requests.feed.last_closed_episode = 1
    rig.request(Feedback(7), *errors([0], [1], [1.0]))
    rig.request(Done(1, 10, 0.0))
    rig.requests.note_checkpoint(1)
    rig.request(Leave())
    attached = rig.attach(ticket=C, session=b"the next one")
    assert (attached.pushes, attached.done, rig.requests.succession.is_replacement_requested) == (True, 1, False)
    rows = rig.request(Pull(0, 0), ticket=C)
    assert isinstance(rows, Rows)
    assert rows.settled == 1


@pytest.mark.parametrize(("updates", "n_departures"), [(10, 0), (9, 1)])
def test_a_learner_without_the_learned_state_of_the_run_is_reported(rig: Rig, updates: int, n_departures: int) -> None:
    rig.requests.feed.last_closed_episode = 1
    rig.request(Done(1, 10, 0.0))
    rig.requests.note_checkpoint(1)
    rig.request(Leave())
    rig.attach(ticket=C, session=b"the next one")
    rig.request(Done(1, updates, 0.0), ticket=C)
    assert rig.requests.succession.n_deviations == n_departures
    assert ("not_reproducible" in rig.events) is bool(n_departures)


def test_whether_the_learner_saved_its_state_is_known_for_the_last_episode(rig: Rig) -> None:
    rig.requests.feed.last_closed_episode = 2
    rig.request(Done(1, 10, 0.0, kept=False))
    assert not rig.requests.learner_state_saved
    rig.request(Done(2, 20, 0.0))
    assert rig.requests.learner_state_saved


# -- arbitrary requests ------------------------------------------------------------------------------------------------

INTS = st.integers(-(2**63), 2**64 - 1) | st.integers(-2, 12)
REQUESTS = st.one_of(
    st.builds(Attach, INTS | st.just(LINK_VERSION), st.binary(max_size=3), st.sampled_from(["push", "watch"])),
    st.builds(Pull, INTS, INTS, INTS, INTS),
    st.builds(Confirm, INTS, st.binary(max_size=20)),
    st.builds(Feedback, INTS, st.sampled_from([("td",), ("td", "far"), ("kl", "kl"), ("td error",)])),
    st.builds(Offer, INTS),
    st.builds(Done, INTS, INTS, st.floats()),
    st.builds(Leave),
)
SLOTS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 4), min_size=3, max_size=3)
VALUES = st.lists(st.floats(width=32), min_size=3, max_size=3)
PAYLOADS = st.lists(st.binary(max_size=24), max_size=4) | st.builds(
    lambda slots, values: list(errors(slots, [1, 1, 2], values)), SLOTS, VALUES
)


@pytest.fixture(scope="module")
def ranked_rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    rig = Rig(tmp_path_factory.mktemp("desk"), "TDE(1.0)[Uniform]", capacity=4)
    rig.attach()
    return rig


@settings(max_examples=150)
@given(st.lists(st.tuples(REQUESTS, PAYLOADS, st.integers(0, 2)), max_size=8))
def test_every_message_of_a_learner_is_answered_or_waits(
    ranked_rig: Rig, requests: list[tuple[RequestMessage, list[bytes], int]]
) -> None:
    for request, payloads, inserted in requests:
        ranked_rig.insert(inserted)
        answer = ranked_rig.requests.handle(A, request, payloads)
        is_deferred = isinstance(request, Pull) or (
            isinstance(request, Attach) and ranked_rig.requests.succession.is_replacement_requested
        )
        assert isinstance(answer, Reply) or (answer is None and is_deferred)
        ranked_rig.requests.feed.take_due_replies()
        assert ranked_rig.requests.last_done_episode <= ranked_rig.requests.feed.last_closed_episode
