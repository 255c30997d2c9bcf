"""Mirror and TD errors over a network that delays, stalls and disconnects: no duplicates, no losses, no restart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.learner.attachment import Attachment, LearnerMismatchError, LeaseLost, LinkVersionError, MemoryChanged, Role
from onrig.runtime.inputs import PolicyInput
from onrig.runtime.link import client as client_module
from onrig.runtime.link.client import LinkClient
from onrig.runtime.link.endpoint import parse_tcp
from onrig.runtime.link.keys import load_learner_keys, load_rig_keys
from onrig.runtime.link.messages import LINK_VERSION, Accepted, Feedback, Leave, Ruling
from onrig.runtime.replay.learners.learner_requests import LearnerRequests
from onrig.runtime.replay.learners.succession import FromCheckpoint
from onrig.tools.bench.link.network import LossyLink
from onrig.tools.bench.link.rig_end import RigEnd, with_memory
from onrig.tools.key_folder import make_keys
from tests.runtime.samples import PENDULUM

PATIENCE_S = 60.0
SMALL_RUN = with_memory(PENDULUM, "FIFO[Uniform]", 500)


class Rig:
    """A rig's end, served by the test; learners run in threads."""

    def __init__(self, end: RigEnd) -> None:
        self.end = end
        self.threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []

    def learner(self, action: Callable[[], object]) -> None:
        def run() -> None:
            try:
                action()
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()

    @property
    def is_idle(self) -> bool:
        return not any(thread.is_alive() for thread in self.threads)

    def serve_until_idle(self, on_poll: Callable[[], object] = lambda: None) -> None:
        while not self.is_idle:
            on_poll()
            self.end.serve_once()
        assert self.failures == []


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with RigEnd(SMALL_RUN, tmp_path) as end:
        yield Rig(end)


def make_client(endpoint: str, keys: object = None) -> LinkClient:
    return LinkClient(endpoint, lambda: False, keys, patience_s=PATIENCE_S)  # type: ignore[arg-type]


def make_attachment(endpoint: str, role: Role = "push") -> Attachment:
    return Attachment(SMALL_RUN, make_client(endpoint), role)


@pytest.mark.parametrize("strategy", ["FIFO[Uniform]", "Resv[Uniform]"])
def test_over_a_network_that_stalls_and_disconnects_the_mirror_becomes_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    n_total, n_cuts = 6000, 3
    monkeypatch.setattr(client_module, "_RECONNECT_INTERVAL_MS", 5)
    monkeypatch.setattr(client_module, "_MAX_RECONNECT_INTERVAL_MS", 20)
    make_keys(tmp_path / "keys")
    keys = load_learner_keys(tmp_path / "keys")
    config = with_memory(PENDULUM, strategy, 2000)
    messages: list[str] = []
    writes_seen: list[int] = []
    with (
        RigEnd(config, tmp_path, load_rig_keys(tmp_path / "keys")) as end,
        LossyLink(parse_tcp(end.endpoints[1]).port, delay_s=0.001, loss=0.02, stall_s=0.01) as wire,
    ):
        rig = Rig(end)
        client = make_client(wire.endpoint, keys)
        link = Attachment(config, client, "push", messages.append)

        def mirror() -> None:
            link.attach()
            rows, slots = link.pull(0, 200)
            while not rows.ending or rows.upto < rows.inserted:
                writes_seen.append(0 if slots is None else len(slots))
                rows, slots = link.pull(rows.closed, 200)

        end.fill(1000)
        rig.learner(mirror)
        wire.cut_after(20_000)
        n_made = 1000

        def on_poll() -> None:
            nonlocal n_made
            if wire.is_cut and wire.n_rejected >= 2:
                wire.restore()
                wire.n_rejected = 0
                if wire.n_cuts < n_cuts:
                    wire.cut_after(20_000)
            if n_made < n_total:
                end.fill(10)
                n_made += 10
            end.desk.feed.is_ending = n_made >= n_total and wire.n_cuts >= n_cuts and not wire.is_cut

        rig.serve_until_idle(on_poll)
        assert wire.n_cuts >= n_cuts
        assert link.mirror is not None
        assert link.mirror.storage.inserted == end.memory.storage.inserted
        assert link.mirror.storage.digest() == end.memory.storage.digest()
        assert len(messages) >= n_cuts
        assert all("continuing from write" in note for note in messages)
        assert sum(writes_seen) <= end.memory.storage.inserted, "nothing was mirrored twice"
        client.close()


def test_td_errors_arrive_once_and_in_order_however_often_the_link_is_cut(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_RECONNECT_INTERVAL_MS", 5)
    monkeypatch.setattr(client_module, "RETRY_INTERVAL_MS", 20)
    values_taken: list[float] = []
    monkeypatch.setattr(
        rig.end.memory, "take_feedback", lambda signal, slots, generations, values: values_taken.extend(values.tolist())
    )
    rig.end.fill(100)
    with LossyLink(parse_tcp(rig.end.endpoints[1]).port) as wire:
        link = make_attachment(wire.endpoint)

        def push() -> None:
            link.attach()
            for n in range(1, 121):
                slot, generation_bytes = np.zeros(1, "<i8").tobytes(), np.ones(1, "<u4").tobytes()
                assert link.ask(Feedback(n), slot, generation_bytes, np.full(1, n, "<f4").tobytes()) == Accepted()

        rig.learner(push)
        n_seen = 0

        def on_poll() -> None:
            nonlocal n_seen
            if len(values_taken) >= n_seen + 10 and not wire.is_cut:
                n_seen += 10
                wire.cut()
            if wire.is_cut and wire.n_rejected:
                wire.restore()
                wire.n_rejected = 0

        rig.serve_until_idle(on_poll)
        assert wire.n_cuts >= 3
        assert values_taken == [float(n) for n in range(1, 121)]
        link._client.close()


def test_a_frozen_line_is_waited_out_and_its_repeated_requests_do_no_harm(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RETRY_INTERVAL_MS", 5)
    rig.end.fill(300)
    with LossyLink(parse_tcp(rig.end.endpoints[1]).port) as wire:
        link = make_attachment(wire.endpoint)
        rig.learner(link.attach)
        rig.serve_until_idle()
        wire.freeze()
        rig.learner(lambda: link.pull(0, 0))
        rig.serve_until_idle(lambda: wire.restore() if link._client.n_retries >= 3 else None)
        assert link.mirror is not None
        assert link.mirror.storage.digest() == rig.end.memory.storage.digest()
        link._client.close()


def test_a_slow_learner_skips_overwritten_experiences_and_becomes_exact_again(rig: Rig) -> None:
    """Unfetched data are not queued: the mirror catches up from the buffer itself."""
    link = make_attachment(rig.end.endpoints[0])
    rig.learner(link.attach)
    rig.serve_until_idle()
    rig.end.fill(5000)
    rig.learner(lambda: link.pull(0, 0))
    rig.serve_until_idle()
    assert link.mirror is not None
    assert link.mirror.storage.inserted == 5000
    assert link.mirror.storage.digest() == rig.end.memory.storage.digest()
    link._client.close()


def test_the_second_learner_mirrors_and_takes_over_when_the_first_leaves(rig: Rig) -> None:
    rig.end.fill(50)
    first, second = make_attachment(rig.end.endpoints[0]), make_attachment(rig.end.endpoints[0])
    outcomes: list[object] = []

    def attach_in_turn() -> None:
        outcomes.append(first.attach().pushes)
        attached = second.attach()
        outcomes.append((attached.pushes, attached.why.split("(")[0]))
        second.pull(0, 0)
        with pytest.raises(LeaseLost, match="another learner pushes"):
            second.ask(Feedback(1), b"", b"", b"")
        first.ask(Leave())
        outcomes.append(second.attach().pushes)

    rig.learner(attach_in_turn)
    rig.serve_until_idle()
    assert outcomes == [True, (False, "another learner pushes "), True]
    assert second.mirror is not None
    assert second.mirror.storage.digest() == rig.end.memory.storage.digest()
    for link in (first, second):
        link._client.close()


def test_another_memory_is_not_mistaken_for_the_mirrored_one(rig: Rig) -> None:
    link = make_attachment(rig.end.endpoints[0])
    rig.learner(link.attach)
    rig.serve_until_idle()
    old_desk = rig.end.desk
    rig.end.desk = LearnerRequests(
        rig.end.memory,
        old_desk._policies,
        old_desk._identity,
        FromCheckpoint(),
        lambda kind, **w: None,
    )

    def pull() -> None:
        with pytest.raises(MemoryChanged):
            link.pull(0, 0)

    rig.learner(pull)
    rig.serve_until_idle()
    link._client.close()


def test_another_version_and_another_rig_are_distinguished(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    other = msgspec.structs.replace(SMALL_RUN, rig=msgspec.structs.replace(SMALL_RUN.rig, name="another"))
    inputs = (PolicyInput("angle"),)
    other_inputs = msgspec.structs.replace(SMALL_RUN, task=msgspec.structs.replace(SMALL_RUN.task, inputs=inputs))
    links = [make_attachment(rig.end.endpoints[0])]
    links += [Attachment(config, make_client(rig.end.endpoints[0]), "push") for config in (other, other_inputs)]

    def fail_to_attach() -> None:
        with pytest.raises(LearnerMismatchError, match=r"have different inputs \(task.inputs\)"):
            links[2].attach()
        with pytest.raises(LearnerMismatchError, match="connected rig, 'pendulum', differs from this"):
            links[1].attach()
        monkeypatch.setattr("onrig.learner.attachment.LINK_VERSION", 1)
        with pytest.raises(
            LinkVersionError, match=f"the learner uses version 1 of the link, the rig version {LINK_VERSION}; install"
        ):
            links[0].attach()

    rig.learner(fail_to_attach)
    rig.serve_until_idle()
    for link in links:
        link._client.close()


def test_rulings_on_policies_are_received_once_in_order_and_without_gaps(rig: Rig) -> None:
    rulings: list[Ruling] = []
    link = Attachment(SMALL_RUN, make_client(rig.end.endpoints[0]), "push", on_ruling=rulings.append)
    desk = rig.end.desk
    for policy_id in range(1, 31):
        desk.add_ruling(policy_id, "passed", "")
    desk.add_ruling(31, "rolled_back", "its output is non-finite")

    def poll_rulings() -> None:
        link.attach()
        for _ in range(4):
            link.pull(0, 0)
        desk.add_ruling(32, "failed", "it was slow")
        link.pull(0, 0)

    rig.learner(poll_rulings)
    rig.serve_until_idle()
    assert [r.number for r in rulings] == list(range(1, 33))
    assert [(r.policy_id, r.verdict, r.reason) for r in rulings[-2:]] == [
        (31, "rolled_back", "its output is non-finite"),
        (32, "failed", "it was slow"),
    ]
    link._client.close()


def test_the_returns_of_closed_episodes_are_received_and_the_latest_is_kept(rig: Rig) -> None:
    link = make_attachment(rig.end.endpoints[0])
    for episode in range(1, 61):
        rig.end.desk.feed.close(episode, -float(episode))

    def poll_episodes() -> None:
        link.attach()
        link.pull(0, 0)
        for episode in range(61, 91):
            rig.end.desk.feed.close(episode, -float(episode))
        link.pull(60, 0)

    rig.learner(poll_episodes)
    rig.serve_until_idle()
    assert [link.episode_return(episode) for episode in (27, 60, 90)] == [-27.0, -60.0, -90.0]
    assert np.isnan([link.episode_return(episode) for episode in (0, 26, 91)]).all()
    link._client.close()


def test_schedules_run_over_the_episodes_of_the_rigs_run(rig: Rig) -> None:
    shorter_run = msgspec.structs.replace(SMALL_RUN, episodes=7)
    link = Attachment(shorter_run, make_client(rig.end.endpoints[0]), "push")
    rig.learner(link.attach)
    rig.serve_until_idle()
    assert link.config == SMALL_RUN
    assert SMALL_RUN.episodes > 7
    link._client.close()
