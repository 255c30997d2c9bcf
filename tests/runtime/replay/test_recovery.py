"""Recovery of a resumed run: files found, files cut, and where it continues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from onrig.runtime.control.loop_state import LoopState
from onrig.runtime.control.policy_switch import SeatedState, SwitchState
from onrig.runtime.policy.probation import TenureState
from onrig.runtime.replay.accounts.figures import Durations
from onrig.runtime.replay.checkpoint import CheckpointError
from onrig.runtime.replay.learners.policy_watch import RolledBackList
from onrig.runtime.replay.recovery import Point, Recovery, encode_point, recover
from onrig.runtime.run_state.episodes import EpisodeFile, EpisodeRow, read_rows

ROW = EpisodeRow(1, "train", 200, -0.1, 1 / 3, -0.0, 1e-17, 4, 2, 5, 10**18)
LOOP = LoopState(3, False, 700, 14_000_000, {"training_steps": 600.0}, SwitchState((SeatedState(3, TenureState(50)),)))
DURATIONS = Durations((5, [(1, 2)]), (0, []), (1, 2, 3))
NOTE = encode_point(Point(LOOP, DURATIONS))


def counts(rows: int, next_policy: int = 4, rolled_back: int = 0) -> dict[str, int]:
    return {"rows": rows, "next_policy": next_policy, "rolled_back_policies": rolled_back}


def fill_run_folder(folder: Path, episodes: int) -> None:
    """A run folder with a number of training episodes, each evaluated, and as many policies."""
    file = EpisodeFile(folder / "episodes.csv")
    (folder / "policies").mkdir()
    for n in range(1, episodes + 1):
        file.append(ROW._replace(episode=n))
        file.append(ROW._replace(episode=n, kind="eval"))
        (folder / "policies" / f"{n}.onnx").write_bytes(b"policy")
    file.close()
    (folder / "summary.json").write_text("{}")


def recover_files(
    folder: Path, restored: Mapping[str, int] | None, note: bytes = NOTE, *, lockstep: bool
) -> tuple[Recovery, list[str]]:
    warnings: list[str] = []
    return recover(folder, restored, note, lockstep=lockstep, warn=warnings.append), warnings


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "policies").iterdir())


def test_a_lockstep_run_is_rewound_to_its_checkpoint(tmp_path: Path) -> None:
    fill_run_folder(tmp_path, 5)
    (tmp_path / "policies" / "5.tmp").write_bytes(b"half")
    recovery, warnings = recover_files(tmp_path, counts(rows=5), lockstep=True)
    assert recovery.start == LOOP
    assert recovery.durations == DURATIONS
    assert recovery.cut == {"rows": 5, "policies": 2, "bytes": 0}
    assert [(r.episode, r.kind) for r in read_rows(tmp_path / "episodes.csv").rows][-1] == (3, "train")
    assert names(tmp_path) == ["1.onnx", "2.onnx", "3.onnx"]
    assert not (tmp_path / "summary.json").exists()
    assert warnings == []
    assert recovery.summary_line == "continues after episode 3; 5 later rows of episodes.csv are repeated"
    # A crash in the middle of that, and it is repeated.
    second_recovery, _ = recover_files(tmp_path, counts(rows=5), lockstep=True)
    assert second_recovery.start == recovery.start
    assert second_recovery.cut == {"rows": 0, "policies": 0, "bytes": 0}


def test_rollbacks_after_the_checkpoint_are_undone(tmp_path: Path) -> None:
    fill_run_folder(tmp_path, 3)
    for n in (1, 3):
        RolledBackList(tmp_path / "policies").add(n, bytes([n]) * 16, "too slow")
    recover_files(tmp_path, counts(rows=5, rolled_back=1), lockstep=True)
    left = RolledBackList(tmp_path / "policies")
    assert (left.contains_id(1), left.contains_id(3)) == (True, False)


def test_without_a_checkpoint_a_lockstep_run_starts_over(tmp_path: Path) -> None:
    fill_run_folder(tmp_path, 2)
    recovery, _ = recover_files(tmp_path, None, lockstep=True)
    assert recovery.start == LoopState()
    assert recovery.rows == []
    assert names(tmp_path) == []
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) == 1
    assert recovery.summary_line == "returns to the start of the run"


def test_a_real_time_run_continues_after_its_last_row(tmp_path: Path) -> None:
    fill_run_folder(tmp_path, 5)
    with (tmp_path / "episodes.csv").open("ab") as file:
        file.write(b"6,train,20")
    recovery, _ = recover_files(tmp_path, counts(rows=5), lockstep=False)
    assert (recovery.start.episode, recovery.start.evaluated) == (5, True)
    assert recovery.start.tick == LOOP.tick + 5 * 201
    assert recovery.start.explorer == LOOP.explorer
    assert len(recovery.rows) == 10
    assert [r.episode for r in recovery.unrecorded] == [3, 4, 4, 5, 5]
    assert recovery.cut == {"rows": 0, "policies": 0, "bytes": 10}
    assert len(names(tmp_path)) == 5
    assert "a broken row of episodes.csv (10 bytes) is removed" in recovery.summary_line


def test_rows_counted_by_the_checkpoint_and_missing_in_the_file_are_reported(tmp_path: Path) -> None:
    fill_run_folder(tmp_path, 1)
    recovery, warnings = recover_files(tmp_path, counts(rows=5), lockstep=True)
    assert warnings == [f"{tmp_path / 'episodes.csv'}: 3 rows of the last checkpoint are missing"]
    assert len(recovery.rows) == 2


@pytest.mark.parametrize("note", [b"null", b'{"loop": 3}', b"{"])
def test_a_checkpoint_without_the_runs_position_is_refused_and_nothing_is_truncated(
    tmp_path: Path, note: bytes
) -> None:
    fill_run_folder(tmp_path, 5)
    content_before = (tmp_path / "episodes.csv").read_bytes()
    with pytest.raises(CheckpointError, match="another version wrote its checkpoint"):
        recover_files(tmp_path, counts(rows=5), note, lockstep=True)
    assert (tmp_path / "episodes.csv").read_bytes() == content_before
    assert (tmp_path / "summary.json").exists()
    assert len(names(tmp_path)) == 5


def test_an_invalid_line_among_rows_is_left_to_the_user_to_repair(tmp_path: Path) -> None:
    fill_run_folder(tmp_path, 5)
    path = tmp_path / "episodes.csv"
    path.write_text(path.read_text().replace("\n3,train", "\n3,tr"))
    with pytest.raises(CheckpointError, match=r"episodes\.csv:6: invalid row"):
        recover_files(tmp_path, counts(rows=10), lockstep=False)


def test_in_real_time_a_policy_rolled_back_since_the_checkpoint_does_not_act_again(tmp_path: Path) -> None:
    fill_run_folder(tmp_path, 3)
    seats = (SeatedState(2, TenureState(90)), SeatedState(3, TenureState(50)))
    note = encode_point(Point(LoopState(3, switch=SwitchState(seats, (1,))), DURATIONS))
    RolledBackList(tmp_path / "policies").add(3, bytes([3]) * 16, "too slow")
    recovery, _ = recover_files(tmp_path, counts(rows=5), note, lockstep=False)
    assert recovery.start.switch == SwitchState(seats[:1], (1, 3))
