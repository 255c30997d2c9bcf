from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onrig.runtime.record import Flag, Kind, Rule
from onrig.runtime.run_state.episodes import (
    COLUMNS,
    EpisodeAccounts,
    EpisodeFile,
    EpisodeRow,
    EpisodeSums,
    read_rows,
    truncate_rows,
)
from onrig.runtime.scoring import normalized
from onrig.runtime.task import Task, episode_steps
from tests.runtime.samples import PENDULUM, Records, episode

TASK = PENDULUM.task


def rows_of(*batches: Records) -> list[EpisodeRow]:
    accounts = EpisodeAccounts(TASK, 50.0, PENDULUM.rig)
    return [row for batch in batches for row in accounts.add(batch)]


def test_an_episode_is_recorded_when_its_last_record_arrives() -> None:
    records = episode(4, episode=3)
    records["reward"][:4] = [-1.0, -2.0, -3.0, -6.0]
    records["reward"][4] = -1e9  # the last record starts no transition
    records["exploration"][:4] = [0.5, 0.25, 0.25, 1.0]
    records["rule"][1:3] = Rule.RATE, Rule.FALLBACK
    records["missed"][2] = 3
    records["policy_id"] = [6, 6, 7, 7, 0]
    records["t_mono_ns"] = 1000 * np.arange(5)
    accounts = EpisodeAccounts(TASK, 50.0, PENDULUM.rig)
    assert accounts.add(records[:-1]) == []
    (row,) = accounts.add(records[-1:])
    assert row == EpisodeRow(3, "train", 4, -12.0, -3.0, normalized(TASK, -12.0, 4), 0.5, 2, 3, 7, 4000)


def test_training_and_evaluation_are_labelled() -> None:
    rows = rows_of(episode(2), episode(2, tick=3, frame=4, kind=Kind.EVAL))
    assert [(r.episode, r.kind, r.steps) for r in rows] == [(1, "train", 2), (1, "eval", 2)]


def test_incompletely_observed_steps_count_for_nothing() -> None:
    records = episode(4)
    records["reward"][:4] = [-1.0, 0.0, -3.0, -6.0]
    records["flags"][1] |= Flag.INVALID
    (row,) = rows_of(records)
    assert (row.steps, row.reward_sum) == (3, -10.0)
    assert row.mean_reward == pytest.approx(-10 / 3)


def task_with_reward(**reward: float) -> Task:
    reward_with = msgspec.structs.replace(TASK.reward, **reward)
    return msgspec.structs.replace(TASK, terminate={"velocity": (-1.0, 1.0)}, reward=reward_with)


def set_last_flag(records: Records, flag: Flag) -> Records:
    records["flags"][-1] = Flag.NO_ACTION | flag
    return records


@pytest.mark.parametrize(
    ("terminal", "cut_off_steps"), [({}, -163.51), ({"terminal": -500.0}, -500.0), ({"terminal": 7.0}, -163.51)]
)
def test_steps_cut_off_by_a_termination_count_as_random_or_as_the_terminal_reward(
    terminal: dict[str, float], cut_off_steps: float
) -> None:
    task, n_steps = task_with_reward(**terminal), episode_steps(TASK, 50.0)
    records = set_last_flag(episode(10), Flag.TERMINATED)
    records["reward"][:10] = -43.1  # as good as the reference, until it falls
    (row,) = EpisodeAccounts(task, 50.0, PENDULUM.rig).add(records)
    assert row.steps == 10
    assert row.mean_reward == pytest.approx(-43.1)
    mean = (10 * -43.1 + (n_steps - 10) * cut_off_steps) / n_steps
    assert TASK.normalization is not None
    assert row.normalized == pytest.approx(TASK.normalization.performance(mean), rel=1e-5)
    assert row.score == row.normalized


def test_steps_cut_off_by_a_fault_or_a_time_limit_do_not_count() -> None:
    records = set_last_flag(episode(10), Flag.TRUNCATED)
    records["reward"][:10] = -43.1
    (row,) = EpisodeAccounts(task_with_reward(), 50.0, PENDULUM.rig).add(records)
    assert row.normalized == pytest.approx(1.0, abs=1e-6)


def test_invalid_steps_still_count_as_lived() -> None:
    n_steps = episode_steps(TASK, 50.0)
    records = set_last_flag(episode(n_steps), Flag.TERMINATED)
    records["reward"][:n_steps] = -43.1
    records["flags"][: n_steps // 2] = Flag.INVALID
    (row,) = EpisodeAccounts(task_with_reward(), 50.0, PENDULUM.rig).add(records)
    assert row.normalized == pytest.approx(1.0, abs=1e-6)


def test_a_task_without_references_has_an_empty_column_and_its_return_as_its_score(tmp_path: Path) -> None:
    (row,) = EpisodeAccounts(msgspec.structs.replace(TASK, normalization=None), 50.0, PENDULUM.rig).add(episode(4))
    assert row.normalized is None
    assert row.score == row.reward_sum
    file = EpisodeFile(tmp_path / "episodes.csv")
    file.append(row)
    file.close()
    assert (tmp_path / "episodes.csv").read_text().splitlines()[1].split(",")[COLUMNS.index("normalized")] == ""
    assert read_rows(tmp_path / "episodes.csv").rows == [row]


def test_an_episode_that_ended_before_its_first_transition_has_no_score() -> None:
    (row,) = rows_of(episode(0))
    assert (row.steps, row.reward_sum, row.exploration) == (0, 0.0, 0.0)
    assert math.isnan(row.mean_reward)
    assert row.normalized is not None
    assert math.isnan(row.normalized)


def test_an_episode_whose_last_record_was_dropped_does_not_add_to_the_next() -> None:
    (row,) = rows_of(episode(5)[:-1], episode(2, tick=6, frame=7, episode=2))
    assert (row.episode, row.steps) == (2, 2)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.lists(st.integers(0, 30), max_size=6))
def test_the_batching_of_records_does_not_matter(lengths: list[int], boundaries: list[int]) -> None:
    records = np.concatenate([episode(n, episode=i, tick=10 * i) for i, n in enumerate(lengths, 1)])
    edges = [0, *sorted(min(c, len(records)) for c in boundaries), len(records)]
    rows_in_batches = rows_of(*[records[a:b] for a, b in itertools.pairwise(edges)])
    assert [repr(row) for row in rows_in_batches] == [repr(row) for row in rows_of(records)]
    assert [row.steps for row in rows_in_batches] == lengths


@given(st.integers(0, 12), st.integers(0, 5))
def test_a_successor_with_the_sums_of_an_open_episode_gives_the_same_row(boundary: int, n_aborted: int) -> None:
    records = np.concatenate([episode(5, episode=1)[:n_aborted], episode(6, episode=2, tick=10)])
    records["reward"], records["exploration"] = (
        np.linspace(-1.1, 0.3, len(records)),
        np.linspace(0.1, 0.7, len(records)),
    )
    uninterrupted, resumed = EpisodeAccounts(TASK, 50.0, PENDULUM.rig), EpisodeAccounts(TASK, 50.0, PENDULUM.rig)
    boundary = min(boundary, len(records) - 1)
    assert uninterrupted.add(records[:boundary]) == []
    resumed.restore(msgspec.json.decode(msgspec.json.encode(uninterrupted.state()), type=tuple[EpisodeSums, ...]))
    assert [repr(row) for row in resumed.add(records[boundary:])] == [repr(row) for row in rows_of(records)]
    assert resumed.is_between_episodes


def test_a_non_finite_sum_remains_non_finite_in_a_checkpoint() -> None:
    records = episode(3)
    records["reward"][1] = math.nan
    uninterrupted, resumed = EpisodeAccounts(TASK, 50.0, PENDULUM.rig), EpisodeAccounts(TASK, 50.0, PENDULUM.rig)
    uninterrupted.add(records[:2])
    resumed.restore(msgspec.json.decode(msgspec.json.encode(uninterrupted.state()), type=tuple[EpisodeSums, ...]))
    (row,) = resumed.add(records[2:])
    assert math.isnan(row.reward_sum)


def test_an_episode_of_hours_takes_no_more_memory_than_one_of_a_second() -> None:
    accounts = EpisodeAccounts(TASK, 50.0, PENDULUM.rig)
    for tick in range(300):
        accounts.add(episode(50, tick=50 * tick)[:-1])
    assert len(msgspec.json.encode(accounts.state())) < 300


ROW = EpisodeRow(1, "train", 200, -0.1, 1 / 3, -0.0, 1e-17, 0, 2, 5, 10**18)


def test_the_file_has_the_promised_columns(tmp_path: Path) -> None:
    path = tmp_path / "episodes.csv"
    EpisodeFile(path).close()
    promised_columns = (
        "episode,kind,steps,return,mean_reward,normalized,exploration,interventions,missed_ticks,policy_id,t_mono_ns"
    )
    assert path.read_text() == f"{promised_columns}\n"
    assert ",".join(COLUMNS) == promised_columns


def test_rows_are_complete_as_soon_as_they_are_written_and_keep_every_digit(tmp_path: Path) -> None:
    file = EpisodeFile(tmp_path / "episodes.csv")
    for n in (1, 2):
        file.append(ROW._replace(episode=n))
        with (tmp_path / "episodes.csv").open(newline="") as stream:
            read_back = list(csv.DictReader(stream))
        assert len(read_back) == n
        assert [float(read_back[-1][name]) for name in ("return", "mean_reward", "exploration")] == [-0.1, 1 / 3, 1e-17]
        assert read_back[-1]["t_mono_ns"] == str(10**18)
    file.close()


def test_a_process_that_takes_over_continues_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "episodes.csv"
    for n in (1, 2):
        file = EpisodeFile(path)
        file.append(ROW._replace(episode=n))
        file.close()
    lines = path.read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["episode", "1", "2"]


def write_rows(path: Path, rows: int) -> list[EpisodeRow]:
    file = EpisodeFile(path)
    written_rows = [ROW._replace(episode=n, mean_reward=math.nan if n == 2 else 1 / n) for n in range(1, rows + 1)]
    for row in written_rows:
        file.append(row)
    assert (file.count, file.last) == (rows, written_rows[-1] if written_rows else None)
    file.close()
    return written_rows


def test_rows_are_read_back_with_every_digit(tmp_path: Path) -> None:
    path = tmp_path / "episodes.csv"
    assert read_rows(path).rows == []
    written_rows = write_rows(path, 3)
    read_back = read_rows(path)
    assert repr(read_back.rows) == repr(written_rows)
    assert (read_back.ends[-1], read_back.n_partial_bytes) == (path.stat().st_size, 0)


@pytest.mark.parametrize("tail", [b"4,train,2", b"4,train,2\n", b"\0" * 30, b"\xff\xfe,\n"])
def test_a_partial_row_is_truncated_and_the_file_continues(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "episodes.csv"
    write_rows(path, 3)
    content = path.read_bytes()
    path.write_bytes(content + tail)
    assert read_rows(path).n_partial_bytes == len(tail)
    file = EpisodeFile(path)
    assert file.count == 3
    assert path.read_bytes() == content
    file.append(ROW._replace(episode=4))
    file.close()
    assert [row.episode for row in read_rows(path).rows] == [1, 2, 3, 4]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_file_is_truncated_after_a_row(tmp_path: Path, count: int) -> None:
    path = tmp_path / "episodes.csv"
    write_rows(path, 3)
    truncate_rows(path, read_rows(path), count)
    assert [row.episode for row in read_rows(path).rows] == list(range(1, count + 1))
    assert path.read_text().startswith("episode,kind")


def test_a_partial_header_is_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "episodes.csv"
    path.write_bytes(b"episode,ki")
    write_rows(path, 1)
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS)


def test_an_invalid_line_among_rows_is_left_to_the_user(tmp_path: Path) -> None:
    path = tmp_path / "episodes.csv"
    write_rows(path, 3)
    text = path.read_text().replace("\n2,", "\nmy note\n2,")
    path.write_text(text)
    with pytest.raises(ValueError, match=r"episodes\.csv:3: invalid row"):
        read_rows(path)
    EpisodeFile(path).close()
    assert path.read_text() == text
