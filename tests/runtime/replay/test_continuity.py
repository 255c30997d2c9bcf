"""State from which a run continues, and when a checkpoint may be its last."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from onrig.runtime.control.loop_state import LoopState, decode_state, encode_state
from onrig.runtime.link.messages import Ancestor
from onrig.runtime.log.sink import NoLog
from onrig.runtime.record import Kind
from onrig.runtime.replay import beginning
from onrig.runtime.replay.accounts.figures import Durations
from onrig.runtime.replay.beginning import Start, StartState, recover_files
from onrig.runtime.replay.checkpoint import CheckpointError
from onrig.runtime.replay.continuity import Continuity
from onrig.runtime.replay.intake import last_complete_episode
from onrig.runtime.replay.recovery import Point, encode_point
from onrig.runtime.run_state.checksums import FileChecksum, extent_of
from onrig.runtime.run_state.completeness import LogAccount
from onrig.runtime.run_state.episodes import EpisodeAccounts, EpisodeRow, EpisodeSums
from tests.runtime.samples import PENDULUM

LIFE_NUMBER = 5
N_EPISODES = 100
"""Episodes of the run."""


def make_ring(*queued: tuple[int, Kind], dropped: int = 0, tail: int = 0, n_taken: int = 0) -> Any:
    records = np.array([(e, k) for e, k in queued], [("episode", "u4"), ("kind", "u1")])
    ring_stub = SimpleNamespace(n_dropped=dropped, tail=tail, n_taken=n_taken, n_waiting=len(queued), n_damaged=0)
    ring_stub.peek = lambda n: records[:n]
    ring_stub.retained = lambda: list(range(ring_stub.tail, ring_stub.n_taken))
    ring_stub.take = lambda n: setattr(ring_stub, "n_taken", ring_stub.n_taken + n)
    return ring_stub


class StoredLoopState:
    def __init__(self, data: bytes | None) -> None:
        self.data = data

    def take(self) -> bytes | None:
        return self.data

    def put(self, data: bytes) -> None:
        self.data = data


class AdmissionStub:
    """A desk that has filed some policies."""

    def __init__(self) -> None:
        self.unsynced: list[Path] = []
        self.resumed_counts: list[dict[str, int]] = []
        self.reserved_after = self.n_prunes = self.waiting = self.n_submitted = 0

    def resume(self, counts: dict[str, int]) -> None:
        self.resumed_counts.append(counts)

    rolled_back_crc32 = 0

    def reserve_ids(self, policy_id: int) -> None:
        self.reserved_after = policy_id

    def reinstate(self) -> int:
        return 6

    def submit_filed(self) -> None:
        self.n_submitted += 1

    def repeat_after(self, newest: int) -> None:
        self.reserved_after = newest

    def counts(self) -> dict[str, int]:
        return {"next_policy": 1 << 31}

    def prune(self) -> None:
        self.n_prunes += 1

    def mark_synced(self, paths: list[Path]) -> None:
        self.unsynced = [path for path in self.unsynced if path not in paths]


COUNTS = {
    "closed": 7,
    "error_batch": 3,
    "error_batches": 9,
    "gaps": 2,
    "updates": 40,
    "mismatches": 1,
    "dropped": 5,
    "dropped_before": 2,
    "next_policy": 7,
    "rows": 0,
    "life": LIFE_NUMBER,
    "taken": 50,
    "since": 40,
}


def make_parts(
    state: LoopState | None = None,
    *,
    done_episode: int = 4,
    closed_episode: int = 4,
    last_kind: str = "train",
    is_complete: bool = True,
    has_room: bool = True,
    learner_state_saved: bool = True,
) -> Any:
    episode = (state or LoopState()).episode
    accounts, lineages = EpisodeAccounts(PENDULUM.task, PENDULUM.rate_hz, PENDULUM.rig), []  # type: tuple[EpisodeAccounts, list[Any]]
    accounts.restore(() if is_complete else (SUMS,))
    return SimpleNamespace(
        ring=make_ring(dropped=11),
        requests=SimpleNamespace(
            feed=SimpleNamespace(last_closed_episode=closed_episode),
            feedback=SimpleNamespace(last_batch=0, batches=0),
            succession=SimpleNamespace(n_deviations=0),
            last_done_episode=done_episode,
            memory_name=b"this one",
            lineage=(),
            set_lineage=lambda memory, lineage: lineages.append((memory, lineage)),
            learner_state_saved=learner_state_saved,
            updates=0,
            mismatches=0,
            updates_per_s=0.0,
        ),
        figures=SimpleNamespace(
            resume=lambda counts: None,
            restore_durations=lambda durations: None,
            add_earlier_rows=lambda rows, unrecorded=(), n_counted=0: None,
            ticks=48,
            counts=dict,
            durations=lambda: None,
        ),
        promise=None,
        builder=SimpleNamespace(gaps=0, episode_start=(-1, -1, 0), add=lambda records: None),
        memory=SimpleNamespace(storage=SimpleNamespace(inserted=100)),
        policies=AdmissionStub(),
        loop_state=StoredLoopState(None if state is None else encode_state(state)),
        rows=SimpleNamespace(
            count=12,
            last=SimpleNamespace(episode=episode, kind=last_kind),
            flush=lambda: has_room,
            waiting=0 if has_room else 3,
        ),
        accounts=accounts,
        descent=lineages,
    )


SUMS = EpisodeSums(5, int(Kind.TRAIN), 20_000, -12.5, 3.25, interventions=7, missed=1, policy_id=4)
EPISODE_START = 5, int(Kind.TRAIN), 900
NOTE = encode_point(
    Point(
        LoopState(), Durations((0, []), (0, []), ()), (SUMS,), EPISODE_START, b"that one", (Ancestor(b"the first", 30),)
    )
)


class UpkeepStub:
    """Records whether it was given something to write."""

    def __init__(self, restored: dict[str, int] | None = None) -> None:
        self.restored, self.note, self.damaged = restored, NOTE, ()
        self.durable_counts = restored
        self.written: list[Any] = []
        self.collects_files = True

    def close(self, make_checkpoint: Any) -> None:
        self.written.append(None if make_checkpoint is None else make_checkpoint())

    def checkpoint_episode(self, episode: int, make_checkpoint: Any) -> bool:
        self.written.append(episode)
        return self.collects_files

    def checkpoint_if_due(self, now_s: float, make_checkpoint: Any) -> bool:
        self.written.append(make_checkpoint())
        return self.collects_files


def make_continuity(
    tmp_path: Path, stubs: Any, upkeep: UpkeepStub | None = None, *, lockstep: bool = True, took_over: bool = False
) -> tuple[Continuity, UpkeepStub, list[tuple[str, dict[str, object]]]]:
    events: list[tuple[str, dict[str, object]]] = []
    upkeep = upkeep or UpkeepStub()
    config: Any = SimpleNamespace(lockstep=lockstep, checkpoint_episodes=2, episodes=N_EPISODES)
    keeper: Any = upkeep
    note = lambda name, **values: events.append((name, values))  # noqa: E731
    continuity = Continuity(
        config, tmp_path, StartState(Start(LIFE_NUMBER, took_over), keeper, None, True), stubs, NoLog(), note
    )
    return continuity, upkeep, events


@pytest.mark.parametrize(
    ("queued", "closed_episode"),
    [
        ([], 9),
        ([(5, Kind.TRAIN)], 4),
        ([(5, Kind.EVAL)], 5),
        ([(5, Kind.RESET)], 5),
        ([(5, Kind.TRAIN), (6, Kind.TRAIN)], 4),
    ],
)
def test_records_in_the_ring_are_still_pending(queued: list[tuple[int, Kind]], closed_episode: int) -> None:
    assert last_complete_episode(make_ring(*queued), 9) == closed_episode


def test_a_file_that_cannot_be_truncated_ends_the_resumption_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "episodes.csv"))

    monkeypatch.setattr(beginning, "recover", fail)
    upkeep: Any = UpkeepStub()
    with pytest.raises(CheckpointError, match=r"episodes\.csv: Permission denied; the run was not resumed"):
        recover_files(tmp_path, upkeep, lockstep=True, warn=print)


def test_next_to_a_running_loop_a_failure_to_truncate_a_file_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "episodes.csv"))

    monkeypatch.setattr(beginning, "recover", fail)
    upkeep: Any = UpkeepStub()
    with pytest.raises(OSError, match="No space left on device"):
        recover_files(tmp_path, upkeep, lockstep=True, warn=print, is_loop_running=True)


def test_in_real_time_a_successor_reads_again_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    stubs = make_parts()
    stubs.ring.tail = stubs.ring.n_taken = 40
    continuity, _, events = make_continuity(tmp_path, stubs, UpkeepStub(COUNTS), lockstep=False, took_over=True)
    assert continuity.begin(None) == 0
    assert (
        stubs.requests.feed.last_closed_episode,
        stubs.requests.feedback.last_batch,
        stubs.requests.feedback.batches,
        stubs.builder.gaps,
    ) == (7, 3, 9, 2)
    replayed_ticks: Any = continuity.context
    assert (stubs.ring.n_taken, replayed_ticks, continuity.n_lost) == (50, list(range(40, 50)), 0)
    assert continuity.n_dropped == 2 + 11, "the ring itself counts those of this lifetime"
    assert stubs.descent == [(b"that one", (Ancestor(b"the first", 30),))]
    assert (stubs.accounts.state(), stubs.builder.episode_start) == ((SUMS,), EPISODE_START), (
        "whatever remains in the ring"
    )
    assert events == [("memory_restored", {"inserted": 100, "closed": 7, "again": 0, "lost": 0})]
    assert stubs.policies.n_submitted == 1


def test_records_in_neither_the_checkpoint_nor_the_ring_are_lost_and_counted(tmp_path: Path) -> None:
    stubs = make_parts()
    stubs.ring.tail = stubs.ring.n_taken = 58
    continuity, _, events = make_continuity(
        tmp_path, stubs, UpkeepStub({**COUNTS, "lost": 1}), lockstep=False, took_over=True
    )
    continuity.begin(None)
    assert (stubs.ring.n_taken, continuity.n_lost) == (58, 1 + 8)
    assert events[0][1]["lost"] == 8


def test_in_lockstep_a_successor_starts_after_the_checkpoint_with_everything_before_it_done(tmp_path: Path) -> None:
    stubs = make_parts()
    stubs.ring.tail = stubs.ring.n_taken = 49
    continuity, upkeep, _ = make_continuity(tmp_path, stubs, UpkeepStub(COUNTS), took_over=True)
    continuity.begin(recovery(8))
    assert (
        stubs.requests.feed.last_closed_episode,
        stubs.requests.last_done_episode,
        stubs.requests.updates,
        stubs.ring.n_taken,
    ) == (8, 8, 40, 50)
    assert stubs.loop_state.data is None, "the loop knows its own position"
    assert stubs.policies.reserved_after == 6, "the loop has seen later policies"
    assert stubs.policies.n_submitted == 0, "the learner offers it again"
    for episode in (7, 8, 9):
        continuity.checkpoint_episode(episode)
    assert upkeep.written == [9]


def test_in_lockstep_a_run_without_a_checkpoint_starts_over(tmp_path: Path) -> None:
    stubs = make_parts()
    continuity, _, _ = make_continuity(tmp_path, stubs, took_over=True)
    continuity.begin(recovery(0))
    assert (stubs.requests.feed.last_closed_episode, stubs.requests.last_done_episode, stubs.ring.n_taken) == (0, -1, 0)


def test_a_new_run_has_nothing_to_resume_from(tmp_path: Path) -> None:
    continuity, _, events = make_continuity(tmp_path, make_parts())
    assert continuity.begin(None) == 0
    assert (events, continuity.n_dropped) == ([], 11)


def test_no_checkpoint_is_written_before_the_rows_it_counts(tmp_path: Path) -> None:
    stubs = make_parts(LoopState(4), has_room=False)
    continuity, _, _ = make_continuity(tmp_path, stubs)
    with pytest.raises(CheckpointError, match="3 rows and 0 policies are waiting for disk space"):
        continuity.close()


NEWER = [EpisodeRow(episode, "train", 20, *(0.0,) * 4, 0, 0, 1, 0) for episode in (8, 9)]
"""Two episodes of 21 records each."""


def recovery(episode: int) -> Any:
    return SimpleNamespace(
        start=LoopState(episode, True, 4000),
        durations=None,
        rows=[SimpleNamespace(policy_id=n) for n in (3, 21, 20)],
        unrecorded=NEWER,
        n_checkpointed_records=7,
        cut={"rows": 1, "policies": 2, "bytes": 3},
    )


@pytest.mark.parametrize("has_loop", [False, True])
def test_a_resumed_run_gives_the_loop_its_position_unless_it_is_already_there(tmp_path: Path, has_loop: bool) -> None:
    stubs = make_parts(LoopState(99) if has_loop else None)
    continuity, upkeep, events = make_continuity(tmp_path, stubs, UpkeepStub({**COUNTS, "life": LIFE_NUMBER - 1}))
    assert continuity.begin(recovery(8)) == 6
    assert decode_state(stubs.loop_state.data).episode == (99 if has_loop else 8)
    assert (
        stubs.requests.feed.last_closed_episode,
        stubs.requests.updates,
        stubs.requests.mismatches,
        stubs.requests.feedback.last_batch,
    ) == (
        8,
        40,
        1,
        0,
    )
    assert stubs.policies.reserved_after == 21, "no id is assigned twice, even if files were lost"
    assert continuity.n_dropped == 5 + 11, "those before this process, and its own"
    (name, values) = events[0]
    assert name == "resumed"
    assert (values["episode"], values["policy"], values["episodes_newer_than_memory"]) == (8, 6, 2)
    for episode in (7, 8, 9):
        continuity.checkpoint_episode(episode)
    assert upkeep.written == [9], "the initial checkpoint is not written again"


@pytest.mark.parametrize(
    ("lockstep", "overrides", "is_expected"),
    [
        (True, {}, True),
        (True, {"is_complete": False}, False),
        (True, {"done_episode": 3}, False),
        (True, {"closed_episode": 5}, False),
        (True, {"last_kind": "eval"}, False),
        (True, {"learner_state_saved": False}, False),
        (False, {"is_complete": False, "done_episode": 3, "last_kind": "eval"}, True),
    ],
)
def test_the_last_checkpoint_can_be_resumed_from(
    tmp_path: Path, lockstep: bool, overrides: dict[str, Any], is_expected: bool
) -> None:
    continuity, upkeep, _ = make_continuity(tmp_path, make_parts(LoopState(4), **overrides), lockstep=lockstep)
    continuity.close()
    assert (upkeep.written[0] is not None) is is_expected


def test_after_the_last_episode_the_checkpoint_does_not_wait_for_the_learners_state(tmp_path: Path) -> None:
    continuity, upkeep, _ = make_continuity(
        tmp_path,
        make_parts(
            LoopState(N_EPISODES), done_episode=N_EPISODES, closed_episode=N_EPISODES, learner_state_saved=False
        ),
    )
    continuity.close()
    assert upkeep.written[0] is not None, "nothing that needs it is repeated"


@pytest.mark.parametrize(
    ("lockstep", "episode", "overrides", "on_disk", "is_covered"),
    [
        (True, 4, {"learner_state_saved": False}, 0, True),
        (True, 4, {"is_complete": False}, 0, True),
        (True, 4, {}, 0, False),
        (True, 4, {}, 50, True),
        (True, N_EPISODES, {"learner_state_saved": False}, 0, False),
        (True, N_EPISODES, {"learner_state_saved": False}, 49, False),
        (True, N_EPISODES, {"learner_state_saved": False}, 50, True),
        (True, N_EPISODES, {"is_complete": False}, 49, False),
        (True, N_EPISODES, {"done_episode": N_EPISODES - 1}, 49, False),
        (False, 4, {"is_complete": False}, 0, False),
        (False, 4, {"is_complete": False}, 49, False),
        (False, 4, {"is_complete": False}, 50, True),
    ],
)
def test_records_that_were_read_are_covered_by_the_checkpoint_or_by_repeated_episodes(
    tmp_path: Path, lockstep: bool, episode: int, overrides: dict[str, Any], on_disk: int, is_covered: bool
) -> None:
    """In lockstep a run before its last episode repeats what is not on disk."""
    stubs = make_parts(LoopState(episode), **{"done_episode": episode, "closed_episode": episode, **overrides})
    stubs.ring.n_taken = 50
    continuity, _, _ = make_continuity(
        tmp_path, stubs, UpkeepStub({**COUNTS, "taken": on_disk} if on_disk else None), lockstep=lockstep
    )
    assert continuity.is_covered is is_covered


def test_a_checkpoint_of_another_lifetime_covers_nothing(tmp_path: Path) -> None:
    stubs = make_parts(LoopState(N_EPISODES), done_episode=N_EPISODES, closed_episode=N_EPISODES)
    stubs.ring.n_taken = COUNTS["taken"]
    continuity, _, _ = make_continuity(tmp_path, stubs, UpkeepStub({**COUNTS, "life": LIFE_NUMBER - 1}))
    assert not continuity.is_covered


def test_records_that_were_never_completed_are_lost_and_not_read(tmp_path: Path) -> None:
    stubs = make_parts(LoopState(4))
    stubs.ring.n_taken, stubs.ring.n_damaged = 50, 2
    continuity, upkeep, _ = make_continuity(tmp_path, stubs, lockstep=False)
    account = continuity.account(rows=12)
    assert (account.read, account.lost) == (48, 2)
    continuity.checkpoint_if_due(0.0)
    assert upkeep.written[0].extra["lost"] == 2, "a successor continues the count"


def test_losses_are_counted_over_all_processes_and_lifetimes(tmp_path: Path) -> None:
    """However many processes have taken over since: each begins with its predecessor's checkpoint."""
    counts = {**COUNTS, "life": LIFE_NUMBER - 1, "lost": 100}
    stubs = make_parts(LoopState(4))
    stubs.ring.tail = stubs.ring.n_taken = 8
    second, upkeep, _ = make_continuity(tmp_path, stubs, UpkeepStub(counts), lockstep=False, took_over=True)
    second.begin(None)
    stubs.ring.n_taken, stubs.ring.n_damaged = 58, 2
    assert second.account(rows=12).lost == 100 + 8 + 2
    second.checkpoint_if_due(0.0)
    stubs = make_parts(LoopState(4))
    stubs.ring.tail = stubs.ring.n_taken = 60
    third, _, _ = make_continuity(
        tmp_path, stubs, UpkeepStub({**COUNTS, **upkeep.written[0].extra}), lockstep=False, took_over=True
    )
    third.begin(None)
    assert third.account(rows=12).lost == 100 + 8 + 2 + 2


def test_data_of_a_killed_run_newer_than_its_checkpoint_are_missing_for_good(tmp_path: Path) -> None:
    stubs, upkeep = make_parts(), UpkeepStub({**COUNTS, "life": LIFE_NUMBER - 1})
    stubs.figures.ticks = 100  # with the 42 of the two rows, of which 7 had been counted
    continuity, _, _ = make_continuity(tmp_path, stubs, upkeep, lockstep=False)
    continuity.begin(recovery(9))
    account = continuity.account(rows=12)
    assert (account.newer, account.read) == (42 - 7, 100 - (42 - 7))
    continuity.checkpoint_if_due(0.0)
    successor, _, _ = make_continuity(
        tmp_path, make_parts(), UpkeepStub({**COUNTS, **upkeep.written[0].extra}), lockstep=False, took_over=True
    )
    successor.begin(None)
    assert successor.account(rows=12).newer == 42 - 7


def files_in(checkpoint: Any) -> dict[str, FileChecksum]:
    return msgspec.convert(msgspec.json.decode(checkpoint.note)["files"], dict[str, FileChecksum])


def test_a_checkpoint_has_the_checksums_of_the_files_that_the_run_resumes_from(tmp_path: Path) -> None:
    stubs = make_parts(LoopState(4))
    continuity, upkeep, _ = make_continuity(tmp_path, stubs, lockstep=False)
    content = {"episodes.csv": b"a,b\n", "log.mcap": b"chunk", "events.jsonl": b"{}\n"}
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": "hal')  # another process is writing it
    continuity.checkpoint_if_due(0.0)
    first_files = files_in(upkeep.written[0])
    assert first_files == {name: extent_of(data) for name, data in content.items()}

    (tmp_path / "log.mcap").unlink()  # its earlier state is remembered
    (tmp_path / "log-2.mcap").write_bytes(b"another")
    with (tmp_path / "episodes.csv").open("ab") as file:
        file.write(b"1,2\n")
    continuity.checkpoint_if_due(1.0)
    second_files = files_in(upkeep.written[1])
    changed_files = {"episodes.csv": extent_of(b"a,b\n1,2\n"), "log-2.mcap": extent_of(b"another")}
    assert second_files == first_files | changed_files


def test_in_lockstep_a_checkpoint_requires_that_the_learner_has_saved_its_state(tmp_path: Path) -> None:
    continuity, upkeep, _ = make_continuity(tmp_path, make_parts(LoopState(5), done_episode=5, closed_episode=5))
    continuity.close()
    assert upkeep.written == [None], "one is due after every second episode"


def test_the_file_of_each_policy_is_made_durable_once(tmp_path: Path) -> None:
    """The existing files count, not the next id, which may be anything."""
    stubs = make_parts(LoopState(4))
    continuity, upkeep, _ = make_continuity(tmp_path, stubs, lockstep=False)
    policies = tmp_path / "policies"
    stubs.policies.unsynced = [policies / "1.onnx", policies / "5.onnx"]
    continuity.checkpoint_if_due(0.0)
    stubs.policies.unsynced.append(policies / "6.onnx")
    continuity.checkpoint_if_due(1.0)
    continuity.checkpoint_if_due(2.0)
    rows = [tmp_path / "episodes.csv", tmp_path / "events.jsonl"]
    assert [checkpoint.required_files for checkpoint in upkeep.written] == [
        [*rows, tmp_path, policies / "1.onnx", policies / "5.onnx", policies / "index.csv", policies],
        [*rows, policies / "6.onnx", policies / "index.csv", policies],
        rows,
    ]
    assert stubs.policies.n_prunes == 3


def test_files_that_no_checkpoint_included_go_into_the_next(tmp_path: Path) -> None:
    stubs = make_parts(LoopState(4))
    continuity, upkeep, _ = make_continuity(tmp_path, stubs, lockstep=False)
    stubs.policies.unsynced = [tmp_path / "policies" / "1.onnx"]
    upkeep.collects_files = False  # the previous one is not on disk yet
    continuity.checkpoint_if_due(0.0)
    upkeep.collects_files = True
    continuity.checkpoint_if_due(1.0)
    first, second = upkeep.written
    assert first.required_files == second.required_files
    assert stubs.policies.unsynced == []


def test_at_each_barrier_policies_are_settled_whether_or_not_a_checkpoint_is_due(tmp_path: Path) -> None:
    stubs = make_parts(LoopState(4))
    continuity, _, _ = make_continuity(tmp_path, stubs)
    for episode in (1, 2, 3):
        continuity.checkpoint_episode(episode)
    assert stubs.policies.n_prunes == 3


@pytest.mark.parametrize(("life_number", "n_offered"), [(LIFE_NUMBER - 1, 1001 + 7000), (LIFE_NUMBER, 1001 + 6000)])
def test_records_missing_in_a_log_are_counted_among_those_it_should_have(
    tmp_path: Path, life_number: int, n_offered: int
) -> None:
    stubs = make_parts()
    stubs.accounts.n_deviations = stubs.requests.succession.n_deviations = ()
    counts = {**COUNTS, "life": life_number, "unlogged": 4801, "given": 7000, "given_before": 6000}
    continuity, upkeep, _ = make_continuity(tmp_path, stubs, UpkeepStub(counts), lockstep=False)
    log: Any = SimpleNamespace(account=lambda: LogAccount(1001, 0))
    continuity._log = log
    continuity.begin(None)
    stubs.ring.n_taken = 1001
    account = continuity.account(12).log
    assert account is not None
    assert (account.offered, account.missing, account.reason) == (n_offered, 4801, "before the run was resumed")
    continuity.close()
    extra = upkeep.written[0].extra
    assert (extra["unlogged"], extra["given"]) == (4801, n_offered)
