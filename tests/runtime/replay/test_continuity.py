"""What a run goes on from, and when a checkpoint may be its last."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runtime.control.loop_state import LoopState, decode_state, encode_state
from runtime.log.sink import NoLog
from runtime.record import Kind
from runtime.replay import continuity
from runtime.replay.checkpoint import CheckpointError
from runtime.replay.continuity import Continuity, Standing, closed_before, recovered
from runtime.replay.recovery import Point, encode_point
from runtime.replay.run_figures import Durations

LIFE = 5


def ring(*waiting: tuple[int, Kind], dropped: int = 0, tail: int = 0, taken: int = 0) -> Any:
    records = np.array([(e, k) for e, k in waiting], [("episode", "u4"), ("kind", "u1")])
    made = SimpleNamespace(dropped=dropped, tail=tail, taken=taken, waiting=len(waiting))
    made.peek = lambda n: records[:n]
    made.kept = lambda: list(range(made.tail, made.taken))
    made.take = lambda n: setattr(made, "taken", made.taken + n)
    return made


class Keepsake:
    def __init__(self, data: bytes | None) -> None:
        self.data = data

    def take(self) -> bytes | None:
        return self.data

    def put(self, data: bytes) -> None:
        self.data = data


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
    "life": LIFE,
    "taken": 50,
    "since": 40,
}


def parts(
    state: LoopState | None = None,
    *,
    done: int = 4,
    closed: int = 4,
    last: str = "train",
    whole: bool = True,
    room: bool = True,
) -> Any:
    episode = (state or LoopState()).episode
    return SimpleNamespace(
        ring=ring(dropped=11),
        desk=SimpleNamespace(
            closed=closed, done=done, error_batch=0, error_batches=0, updates=0, mismatches=0, updates_per_s=0.0
        ),
        figures=SimpleNamespace(
            resume=lambda counts: None,
            restore_durations=lambda durations: None,
            follow=lambda rows, unrecorded=(): None,
            counts=dict,
            durations=lambda: None,
        ),
        builder=SimpleNamespace(gaps=0, add=lambda records: None),
        memory=SimpleNamespace(storage=SimpleNamespace(inserted=100)),
        policies=SimpleNamespace(resume=lambda counts: None, reinstate=lambda: 6, counts=lambda: {"next_policy": 7}),
        keepsake=Keepsake(None if state is None else encode_state(state)),
        rows=SimpleNamespace(count=12, last=SimpleNamespace(episode=episode, kind=last), flush=lambda: room, waiting=3),
        accounts=SimpleNamespace(whole=whole, first_seq=None, add=lambda records: []),
    )


NOTE = encode_point(Point(LoopState(), Durations((0, []), (0, []), ())))


class Upkeep:
    """Notes whether it was given something to write."""

    def __init__(self, restored: dict[str, int] | None = None) -> None:
        self.restored, self.note, self.damaged = restored, NOTE, ()
        self.durable = restored
        self.written: list[Any] = []

    def close(self, present: Any) -> None:
        self.written.append(None if present is None else present())

    def at_episode(self, episode: int, present: Any) -> None:
        self.written.append(episode)


def made(
    tmp_path: Path, of: Any, upkeep: Upkeep | None = None, *, lockstep: bool = True, took_over: bool = False
) -> tuple[Continuity, Upkeep, list[tuple[str, dict[str, object]]]]:
    told: list[tuple[str, dict[str, object]]] = []
    upkeep = upkeep or Upkeep()
    config: Any = SimpleNamespace(lockstep=lockstep)
    keeper: Any = upkeep
    note = lambda name, **values: told.append((name, values))  # noqa: E731
    made = Continuity(config, tmp_path, keeper, of, NoLog(), note, Standing(LIFE, took_over))
    return made, upkeep, told


@pytest.mark.parametrize(
    ("waiting", "closed"),
    [
        ([], 9),
        ([(5, Kind.TRAIN)], 4),
        ([(5, Kind.EVAL)], 5),
        ([(5, Kind.RESET)], 5),
        ([(5, Kind.TRAIN), (6, Kind.TRAIN)], 4),
    ],
)
def test_what_lies_in_the_ring_is_still_to_come(waiting: list[tuple[int, Kind]], closed: int) -> None:
    assert closed_before(ring(*waiting), 9) == closed


def test_a_file_that_cannot_be_cut_ends_the_resumption_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*args: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "episodes.csv"))

    monkeypatch.setattr(continuity, "recover", cannot)
    upkeep: Any = Upkeep()
    with pytest.raises(CheckpointError, match=r"episodes\.csv: Permission denied; the run is not resumed"):
        recovered(tmp_path, upkeep, lockstep=True, warn=print)


def test_in_real_time_a_process_that_takes_over_takes_in_again_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    of = parts()
    of.ring.tail = of.ring.taken = 40
    went_on, _, told = made(tmp_path, of, Upkeep(COUNTS), lockstep=False, took_over=True)
    assert went_on.begin(None) == 0
    assert (of.desk.closed, of.desk.error_batch, of.desk.error_batches, of.builder.gaps) == (7, 3, 9, 2)
    again: Any = went_on.context
    assert (of.ring.taken, again, went_on.lost) == (50, list(range(40, 50)), 0)
    assert went_on.dropped == 2 + 11, "the ring counts those of this life itself"
    assert told == [("memory_restored", {"inserted": 100, "closed": 7, "again": 0, "lost": 0})]


def test_what_neither_the_checkpoint_nor_the_ring_has_is_lost_and_counted(tmp_path: Path) -> None:
    of = parts()
    of.ring.tail = of.ring.taken = 58
    went_on, _, told = made(tmp_path, of, Upkeep({**COUNTS, "lost": 1}), lockstep=False, took_over=True)
    went_on.begin(None)
    assert (of.ring.taken, went_on.lost) == (58, 1 + 8)
    assert told[0][1]["lost"] == 8


def test_in_lockstep_whoever_takes_over_begins_behind_the_checkpoint_with_all_done_before_it(tmp_path: Path) -> None:
    of = parts()
    of.ring.tail = of.ring.taken = 49
    went_on, upkeep, _ = made(tmp_path, of, Upkeep(COUNTS), took_over=True)
    went_on.begin(recovery(8))
    assert (of.desk.closed, of.desk.done, of.desk.updates, of.ring.taken) == (8, 8, 40, 50)
    assert of.keepsake.data is None, "the loop itself knows where it is"
    for episode in (7, 8, 9):
        went_on.at_episode(episode)
    assert upkeep.written == [9]


def test_in_lockstep_a_run_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    of = parts()
    went_on, _, _ = made(tmp_path, of, took_over=True)
    went_on.begin(recovery(0))
    assert (of.desk.closed, of.desk.done, of.ring.taken) == (0, -1, 0)


def test_a_new_run_has_nothing_to_go_on_from(tmp_path: Path) -> None:
    new, _, told = made(tmp_path, parts())
    assert new.begin(None) == 0
    assert (told, new.dropped) == ([], 11)


def test_no_checkpoint_is_written_before_the_rows_it_counts(tmp_path: Path) -> None:
    of = parts(LoopState(4), room=False)
    ending, _, _ = made(tmp_path, of)
    with pytest.raises(CheckpointError, match="3 rows wait for room"):
        ending.close()


def recovery(episode: int) -> Any:
    return SimpleNamespace(
        start=LoopState(episode, True, 4000),
        durations=None,
        rows=[],
        unrecorded=[1, 2],
        cut={"rows": 1, "policies": 2, "bytes": 3},
    )


@pytest.mark.parametrize("there_is_a_loop", [False, True])
def test_a_resumed_run_tells_the_loop_where_it_is_unless_that_is_there_already(
    tmp_path: Path, there_is_a_loop: bool
) -> None:
    of = parts(LoopState(99) if there_is_a_loop else None)
    resumed, upkeep, told = made(tmp_path, of, Upkeep({**COUNTS, "life": LIFE - 1}))
    assert resumed.begin(recovery(8)) == 6
    assert decode_state(of.keepsake.data).episode == (99 if there_is_a_loop else 8)
    assert (of.desk.closed, of.desk.updates, of.desk.mismatches, of.desk.error_batch) == (8, 40, 1, 0)
    assert resumed.dropped == 5 + 11, "those before this process, and its own"
    (name, values) = told[0]
    assert name == "resumed"
    assert (values["episode"], values["policy"], values["episodes_newer_than_memory"]) == (8, 6, 2)
    for episode in (7, 8, 9):
        resumed.at_episode(episode)
    assert upkeep.written == [9], "what it began with is not written again"


@pytest.mark.parametrize(
    ("lockstep", "changed", "may"),
    [
        (True, {}, True),
        (True, {"whole": False}, False),
        (True, {"done": 3}, False),
        (True, {"closed": 5}, False),
        (True, {"last": "eval"}, False),
        (False, {"whole": False, "done": 3, "last": "eval"}, True),
    ],
)
def test_the_last_checkpoint_is_one_that_can_be_gone_on_from(
    tmp_path: Path, lockstep: bool, changed: dict[str, Any], may: bool
) -> None:
    ending, upkeep, _ = made(tmp_path, parts(LoopState(4), **changed), lockstep=lockstep)
    ending.close()
    assert (upkeep.written[0] is not None) is may


def test_each_policy_s_file_is_made_durable_once(tmp_path: Path) -> None:
    of = parts(LoopState(4))
    ending, upkeep, _ = made(tmp_path, of)
    ending.close()
    of.policies.counts = lambda: {"next_policy": 9}
    ending.close()
    policies = tmp_path / "policies"
    first, second = (present.beside for present in upkeep.written)
    assert first == [tmp_path / "episodes.csv", tmp_path, *(policies / f"{n}.onnx" for n in range(1, 7)), policies]
    assert second == [tmp_path / "episodes.csv", policies / "7.onnx", policies / "8.onnx", policies]
