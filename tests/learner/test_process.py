from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.learner import backlog
from onrig.learner.attachment import Connection, LearnerMismatchError, LeaseLost
from onrig.learner.backlog import Backlog
from onrig.learner.mirror import Mirror
from onrig.learner.process import LearnerProcess
from onrig.learner.states import States, StatesConflictError
from onrig.learner.work import Heartbeat
from onrig.runtime.explore.settings import OwnNoise
from onrig.runtime.link.client import RequestRejected
from onrig.runtime.link.messages import (
    Accepted,
    Attached,
    Done,
    Feedback,
    Offer,
    ReplyMessage,
    RequestMessage,
    Rows,
    Verdict,
)
from onrig.runtime.memory.layout import Layout, Slots
from onrig.runtime.memory.settings import SeedFrom, Selection
from onrig.runtime.memory.storage import Storage
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_run

CAPACITY = 32
WRITES_PER_EPISODE = 60
"""Writes per episode, so that slots are rewritten within one."""
EPISODES = 2


@pytest.fixture(autouse=True)
def disable_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all updates at once, however long they take."""
    monkeypatch.setattr(backlog, "PORTION_DURATION_S", 1e6)
    monkeypatch.setattr(backlog, "_INITIAL_PORTION", 1_000_000)


class Rig:
    """The other end of the link: its memory grows by ``steps`` writes between two pulls."""

    def __init__(self, steps: list[int], *, lockstep: bool = True) -> None:
        self.lockstep = lockstep
        self.config: RunConfig | None = None
        """Set when it has a learner."""
        self.now_s = 0.0
        self.memory_id = b""
        self.run_identity = ""
        self.offers: list[Offer] = []
        self.feedback_counts: list[int] = []
        """Number of experiences in each feedback message."""
        self.done_requests: list[Done] = []
        self.refuses_results = False
        """Whether it refuses feedback."""
        self.memory = Storage(CAPACITY, Layout(2, 1), cyclic=False)
        self.mirror = Mirror(CAPACITY, Layout(2, 1), cyclic=False)
        self._pull_ends = [*np.cumsum(steps).tolist()]
        self._rng = np.random.default_rng(3)

    def attach(self) -> Attached:
        attached = Attached("run", b"", CAPACITY, False, 0, 0, 1, self.lockstep, done=0, pushes=True)
        return msgspec.structs.replace(attached, memory=self.memory_id, run=self.run_identity)

    def pull(self, closed: int, wait_ms: int) -> tuple[Rows, Slots | None]:
        pull_end = self._pull_ends.pop(0) if wait_ms and self._pull_ends else self.memory.inserted
        while self.memory.inserted < pull_end:
            self._write(self.memory.inserted, self._rng.uniform(-1, 1, 6).tolist())
        slots = self.memory.changed_since(self.mirror.storage.inserted)
        payload = self.memory.rows(slots).astype("<u4").tobytes()
        is_ending = wait_ms > 0 and closed == EPISODES
        return Rows(pull_end, pull_end, pull_end // WRITES_PER_EPISODE, is_ending), self.mirror.apply(
            payload, pull_end
        ) if payload else None

    def _write(self, number: int, x: list[float]) -> None:
        slot = number if number < CAPACITY else int(self._rng.integers(CAPACITY))
        self.memory.insert(slot, x[:2], x[2:3], x[5], x[3:5])

    def ask(self, request: RequestMessage, *payloads: bytes) -> ReplyMessage:
        if isinstance(request, Offer):
            self.offers.append(request)
            return Verdict(1, True)
        if isinstance(request, Feedback):
            if self.refuses_results:
                raise RequestRejected("malformed feedback")
            self.feedback_counts.append(len(payloads[0]) // 8)
        if isinstance(request, Done):
            self.done_requests.append(request)
            self.now_s += 0.4
        return Accepted()

    def episode_return(self, episode: int) -> float:
        return float(episode)


def learner(rig: Rig, strategy: str, folder: Path, **settings: float) -> LearnerProcess:
    """A learner that will run on ``rig`` and shares its clock."""
    config = load_run("pendulum")
    config = msgspec.structs.replace(config, episodes=EPISODES, selection=Selection(strategy, CAPACITY))
    update_schedule = {} if "updates_per_transition" in settings else {"updates_per_episode": 3}
    learner_settings = {name: value for name, value in config.learner.items() if name != "updates_per_episode"}
    config = msgspec.structs.replace(config, learner={**learner_settings, **update_schedule, **settings})
    process = LearnerProcess(config, Connection(f"ipc://{folder}/nobody"), folder, [False])
    process._link = process._offers._link = process._update_runner._link = rig  # type: ignore[assignment]
    rig.config = config
    process._offers._clock_s = lambda: rig.now_s
    return process


def run_learner(rig: Rig, strategy: str, folder: Path, **learner_settings: float) -> LearnerProcess:
    """A learner after its run on ``rig``."""
    process = learner(rig, strategy, folder, **learner_settings)
    process.run()
    return process


def save_state_after(steps: list[int], strategy: str, folder: Path) -> dict[str, object]:
    """State saved by a learner in lockstep when the memory grows in these steps."""
    process = run_learner(Rig(steps), strategy, folder)
    path = folder / "last.npz"
    process.agent.save(path)
    process.close()
    with np.load(path) as archive:
        return {name: archive[name].tobytes() for name in archive.files}


@pytest.mark.parametrize("strategy", ["Resv[ERO]", "Resv[PER]"])
def test_in_lockstep_the_size_of_each_pull_does_not_matter(strategy: str, tmp_path: Path) -> None:
    states = []
    for i, steps in enumerate([[WRITES_PER_EPISODE, WRITES_PER_EPISODE], [7, 40, 13, 1, 58, 1], [59, 1, 30, 30]]):
        (tmp_path / str(i)).mkdir()
        states.append(save_state_after(steps, strategy, tmp_path / str(i)))

    for state, next_state in pairwise(states):
        assert [name for name in state if state[name] != next_state[name]] == []


def test_a_learner_that_is_behind_offers_a_policy_every_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.EPISODES", 10)
    rig = Rig([WRITES_PER_EPISODE * 10], lockstep=False)  # ten episodes have ended at its first poll
    run_learner(rig, "FIFO[Uniform]", tmp_path).close()
    # The first one at the start; then every third, since each takes 0.4 s; and the last.
    assert [offer.updates for offer in rig.offers] == [0, 9, 18, 27, 30]


@pytest.mark.parametrize(("lockstep", "messages"), [(False, [16] * 3), (True, [48])])
def test_a_busy_learner_sends_the_rig_something_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lockstep: bool, messages: list[int]
) -> None:
    monkeypatch.setattr(Heartbeat, "send_if_due", lambda self: True)  # as if each update took a second
    rig = Rig([WRITES_PER_EPISODE, WRITES_PER_EPISODE], lockstep=lockstep)
    run_learner(rig, "Resv[PER]", tmp_path).close()
    assert rig.feedback_counts == messages * EPISODES


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_learner_whose_first_result_is_refused_has_no_accepted_result(tmp_path: Path, has_begun: bool) -> None:
    rig = Rig([WRITES_PER_EPISODE, WRITES_PER_EPISODE], lockstep=False)
    rig.refuses_results = True
    if has_begun:
        run_learner(Rig([WRITES_PER_EPISODE * EPISODES], lockstep=False), "FIFO[Uniform]", tmp_path).close()
        rig.memory_id = b"another"
    process = learner(rig, "FIFO[Uniform]", tmp_path)
    with pytest.raises(RequestRejected):
        process.run()
    assert rig.done_requests
    assert not process.result_accepted
    process.close()


@pytest.mark.parametrize("lockstep", [False, True])
def test_networks_of_another_run_are_neither_used_nor_deleted(tmp_path: Path, lockstep: bool) -> None:
    run_learner(Rig([WRITES_PER_EPISODE, WRITES_PER_EPISODE], lockstep=lockstep), "FIFO[Uniform]", tmp_path).close()
    left = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert left
    rig = Rig([WRITES_PER_EPISODE, WRITES_PER_EPISODE], lockstep=lockstep)
    rig.run_identity = "second"
    process = learner(rig, "FIFO[Uniform]", tmp_path)
    with pytest.raises(StatesConflictError, match="belongs to another run"):
        process.run()
    process.close()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == left
    assert rig.offers == []


def test_in_real_time_it_saves_during_an_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onrig.learner.process._SAVE_INTERVAL_S", 0.0)
    saved_updates: list[int] = []
    monkeypatch.setattr(States, "save", lambda self, agent, is_settled=None: saved_updates.append(agent.updates))
    rig = Rig(
        [WRITES_PER_EPISODE // 2, WRITES_PER_EPISODE // 4, WRITES_PER_EPISODE, WRITES_PER_EPISODE // 4], lockstep=False
    )
    run_learner(rig, "FIFO[Uniform]", tmp_path, updates_per_transition=1.0).close()
    assert saved_updates[1:3] == [30, 45]


def test_updates_follow_incoming_experiences(tmp_path: Path) -> None:
    rig = Rig([WRITES_PER_EPISODE, WRITES_PER_EPISODE // 2, WRITES_PER_EPISODE // 2], lockstep=False)
    run_learner(rig, "FIFO[Uniform]", tmp_path, updates_per_transition=0.5).close()
    assert [offer.updates for offer in rig.offers] == [0, 30, 60]


def test_in_lockstep_experiences_of_an_earlier_run_need_no_updates(tmp_path: Path) -> None:
    rig = Rig([WRITES_PER_EPISODE, WRITES_PER_EPISODE])
    process = learner(rig, "FIFO[Uniform]", tmp_path, updates_per_transition=0.5)
    assert rig.config is not None
    seeded_selection = msgspec.structs.replace(rig.config.selection, seed_from=SeedFrom("earlier", most=40))
    rig.config = msgspec.structs.replace(rig.config, selection=seeded_selection)
    process.run()
    process.close()
    assert process.agent.updates == (WRITES_PER_EPISODE * EPISODES - 40) // 2


def test_experiences_before_the_first_update_are_not_a_backlog(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rig = Rig([20] * (WRITES_PER_EPISODE * EPISODES // 20), lockstep=False)
    settings = {"updates_per_transition": 0.5, "backlog": 10, "learning_starts": 30}
    run_learner(rig, "FIFO[Uniform]", tmp_path, **settings).close()
    assert rig.offers[-1].updates == WRITES_PER_EPISODE * EPISODES // 2
    assert "keep up" not in capfd.readouterr().out


def test_updates_of_experiences_beyond_the_backlog_are_dropped_and_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rig = Rig([WRITES_PER_EPISODE * EPISODES], lockstep=False)
    run_learner(rig, "FIFO[Uniform]", tmp_path, updates_per_transition=0.5, backlog=14).close()
    assert rig.offers[-1].updates == 7
    backlog_lines = [line for line in capfd.readouterr().out.splitlines() if "keep up" in line]
    assert "the learner cannot keep up: updates beyond learner.backlog are dropped" in backlog_lines[0]
    n_dropped = WRITES_PER_EPISODE * EPISODES // 2 - 7
    assert f"the learner could not keep up: {n_dropped} updates beyond learner.backlog were dropped" in backlog_lines[1]


def test_sixty_four_updates_per_experience_are_all_made_even_after_a_burst(tmp_path: Path) -> None:
    rig = Rig([WRITES_PER_EPISODE * EPISODES], lockstep=False)
    run_learner(rig, "FIFO[Uniform]", tmp_path, updates_per_transition=64.0).close()
    assert rig.offers[-1].updates == 64 * WRITES_PER_EPISODE * EPISODES > 2000


def test_it_polls_the_rig_between_portions_and_waits_only_if_no_update_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "_INITIAL_PORTION", 8)
    monkeypatch.setattr(Backlog, "record_duration", lambda self, updates, duration_s: None)
    rig = Rig([WRITES_PER_EPISODE * EPISODES], lockstep=False)
    pull_counts: list[int] = []
    pull = rig.pull

    def record_pull(closed: int, wait_ms: int) -> tuple[Rows, Slots | None]:
        pull_counts.append(wait_ms)
        return pull(closed, wait_ms)

    rig.pull = record_pull  # type: ignore[method-assign]
    process = run_learner(rig, "FIFO[Uniform]", tmp_path, updates_per_transition=1.0)
    process.close()
    assert process.agent.updates == WRITES_PER_EPISODE * EPISODES
    first_count, *other_counts = pull_counts[pull_counts.index(200) :]
    assert first_count == 200
    assert other_counts[:14] == [0] * 14, "15 portions of 8"
    assert other_counts[14] == 200


def test_long_updates_after_an_episode_send_heartbeats_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "_INITIAL_PORTION", 8)
    monkeypatch.setattr(Backlog, "record_duration", lambda self, updates, duration_s: None)
    rig = Rig([WRITES_PER_EPISODE * EPISODES], lockstep=False)
    run_learner(rig, "FIFO[Uniform]", tmp_path, updates_per_episode=20).close()
    batch = 16
    assert rig.feedback_counts == [8 * batch, 8 * batch, 4 * batch] * EPISODES


def test_after_another_run_only_new_experiences_make_updates_due(tmp_path: Path) -> None:
    run_learner(
        Rig([WRITES_PER_EPISODE * EPISODES], lockstep=False), "FIFO[Uniform]", tmp_path, updates_per_transition=0.5
    ).close()
    rig = Rig([WRITES_PER_EPISODE, WRITES_PER_EPISODE], lockstep=False)
    rig.memory_id = b"another"
    process = run_learner(rig, "FIFO[Uniform]", tmp_path, updates_per_transition=0.5)
    process.close()
    assert process.agent.updates == 60 + 60


def test_a_memory_restored_from_its_checkpoint_makes_updates_due_only_for_later_experiences(tmp_path: Path) -> None:
    run_learner(
        Rig([WRITES_PER_EPISODE * EPISODES], lockstep=False), "FIFO[Uniform]", tmp_path, updates_per_transition=0.5
    ).close()
    rig = Rig([100, 20], lockstep=False)
    rig.pull(0, 1)
    restored_attachment = Attached(
        "run", b"", CAPACITY, True, 100, 1, 2, False, memory=b"next", restored=100, pushes=True
    )
    rig.attach = lambda: restored_attachment  # type: ignore[method-assign]
    process = run_learner(rig, "FIFO[Uniform]", tmp_path, updates_per_transition=0.5)
    process.close()
    assert process.agent.updates == 60 + 10


class PolicyRig(Rig):
    """A rig whose experiences include the behaviour policies, each of which acts from the next experience."""

    CAPACITY = 100

    def __init__(self, steps: list[int], *, lockstep: bool = True) -> None:
        super().__init__(steps, lockstep=lockstep)
        layout = Layout(2, 1, behaviour=True)
        self.memory, self.mirror = Storage(self.CAPACITY, layout), Mirror(self.CAPACITY, layout, cyclic=True)

    def _write(self, number: int, x: list[float]) -> None:
        behaviour, policy = (0.1 * x[1], 1.0, x[2]), len(self.offers)
        slot, episode, step = number % self.CAPACITY, 1 + number // WRITES_PER_EPISODE, number % WRITES_PER_EPISODE
        self.memory.insert(
            slot, x[:2], x[2:3], x[5], x[3:5], policy_id=policy, episode=episode, step=step, behaviour=behaviour
        )


def run_on_policy(rig: PolicyRig, folder: Path) -> LearnerProcess:
    """A learner with batches of 24 after its run on ``rig``."""
    ppo = {"hidden": [4], "steps": 24, "batch": 8, "epochs": 1}
    config = msgspec.structs.replace(
        load_run("pendulum"),
        episodes=EPISODES,
        exploration=OwnNoise(),
        selection=Selection("FIFO[Uniform]", PolicyRig.CAPACITY),
        learner={"algorithm": "ppo", "ppo": ppo},
    )
    process = LearnerProcess(config, Connection(f"ipc://{folder}/nobody"), folder, [False])
    process._link = process._offers._link = process._update_runner._link = rig  # type: ignore[assignment]
    rig.config = config
    try:
        process.run()
    except LearnerMismatchError:
        process.close()
        raise
    return process


def test_in_lockstep_batches_consist_of_complete_episodes_for_any_size_of_pull(tmp_path: Path) -> None:
    states = []
    for i, steps in enumerate([[WRITES_PER_EPISODE, WRITES_PER_EPISODE], [7, 40, 13, 1, 58, 1], [59, 1, 30, 30]]):
        rig, folder = PolicyRig(steps), tmp_path / str(i)
        folder.mkdir()
        process = run_on_policy(rig, folder)
        process.agent.save(folder / "last.npz")
        process.close()
        # Two batches of 24 after each episode, 3 gradient steps each; 12 of the first 60 are left out.
        assert [offer.updates for offer in rig.offers] == [0, 6, 12]
        batches = process.agent.batches
        assert (batches.n_learned, batches.n_dropped) == (4, 12)
        with np.load(folder / "last.npz") as archive:
            states.append({name: archive[name].tobytes() for name in archive.files})
    for state, next_state in pairwise(states):
        assert [name for name in state if state[name] != next_state[name]] == []


def test_in_real_time_a_batch_is_learned_as_soon_as_it_is_complete(tmp_path: Path) -> None:
    rig = PolicyRig([20, 5, 30, 65], lockstep=False)
    process = run_on_policy(rig, tmp_path)
    process.close()
    # At 25, 55 (24 of the second policy's 30 are complete), twice at 120 (65 of the third, after the rest of two).
    assert [offer.updates for offer in rig.offers] == [0, 3, 6, 12]
    assert process.agent.batches.n_dropped == 1 + 6


@pytest.mark.parametrize("lockstep", [False, True])
def test_a_learner_busy_with_a_batch_sends_heartbeats_in_real_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lockstep: bool
) -> None:
    monkeypatch.setattr(Heartbeat, "send_if_due", lambda self: True)
    rig = PolicyRig([WRITES_PER_EPISODE, WRITES_PER_EPISODE], lockstep=lockstep)
    run_on_policy(rig, tmp_path).close()
    signs = [] if lockstep else [(0, 3), (0, 6), (1, 9), (1, 12)]  # one for each epoch
    assert [(done.episode, done.updates) for done in rig.done_requests] == sorted([(0, 0), (1, 6), (2, 12), *signs])


def test_a_learner_without_a_state_starts_over_and_skips_the_experiences_of_others(tmp_path: Path) -> None:
    rig = PolicyRig([30], lockstep=False)
    rig.pull(0, 1)
    rig.attach = lambda: Attached("run", b"", 100, True, 30, 0, 5, False, done=0, pushes=True)  # type: ignore[method-assign]
    rig._pull_ends = [120]
    process = run_on_policy(rig, tmp_path)
    process.close()
    assert rig.offers[0].updates == 0
    assert process.agent.batches.n_learned == (120 - 30) // 24
    assert process.agent.batches.n_dropped == 0


def test_a_rig_whose_memory_has_no_order_is_refused_by_an_on_policy_learner(tmp_path: Path) -> None:
    rig = PolicyRig([30])
    rig.mirror = Mirror(PolicyRig.CAPACITY, Layout(2, 1, behaviour=True), cyclic=False)
    with pytest.raises(LearnerMismatchError, match="cannot hold 24 in insertion order"):
        run_on_policy(rig, tmp_path)


@pytest.mark.parametrize(("next_policy_id", "n_more"), [(2, 2), (9, 0)])
def test_a_returning_learner_skips_experiences_gathered_by_others_meanwhile(
    tmp_path: Path, next_policy_id: int, n_more: int
) -> None:
    rig = PolicyRig([WRITES_PER_EPISODE, WRITES_PER_EPISODE], lockstep=False)
    first_run = run_on_policy(rig, tmp_path)
    first_run.close()
    n_learned, n_offers = first_run.agent.batches.n_learned, len(rig.offers)
    rig._pull_ends = [2 * WRITES_PER_EPISODE + 48]
    rig.pull(0, 1)
    attached = Attached("run", b"", 100, True, 168, 2, next_policy_id, False, done=2, pushes=True)
    rig.attach = lambda: attached  # type: ignore[method-assign]
    second_run = run_on_policy(rig, tmp_path)
    second_run.close()
    assert second_run.agent.batches.n_learned == n_learned + n_more
    assert len(rig.offers) == n_offers + 1, "its own policy, or the one that it has now learned"


def test_a_policy_that_was_never_offered_successfully_is_offered_after_a_restart(tmp_path: Path) -> None:
    rig = PolicyRig([WRITES_PER_EPISODE, WRITES_PER_EPISODE], lockstep=False)
    first_run = run_on_policy(rig, tmp_path)
    first_run.agent.updates_when_offered -= 3
    first_run.save()
    first_run.close()
    n_offers = len(rig.offers)
    attached = Attached("run", b"", 100, True, 120, 2, 2, False, done=2, pushes=True)
    rig.attach = lambda: attached  # type: ignore[method-assign]
    run_on_policy(rig, tmp_path).close()
    assert [offer.updates for offer in rig.offers[n_offers:]] == [first_run.agent.updates]


def test_an_error_of_a_heartbeat_during_a_batch_is_raised_when_the_batch_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Heartbeat, "send_if_due", lambda self: True)
    rig = PolicyRig([WRITES_PER_EPISODE, WRITES_PER_EPISODE], lockstep=False)
    original_ask, has_failed = rig.ask, [True]

    def fail_once(request: RequestMessage, *payloads: bytes) -> ReplyMessage:
        if isinstance(request, Done) and request.updates == 3 and has_failed.pop():
            raise LeaseLost("another learner has it")
        return original_ask(request, *payloads)

    rig.ask = fail_once  # type: ignore[method-assign]
    process = run_on_policy(rig, tmp_path)
    process.close()
    assert not has_failed
    assert process.agent.updates == 12, "no gradient step of any batch is missing"
    assert rig.offers[-1].updates == 12
