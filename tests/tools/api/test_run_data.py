"""``onrig.open_run``: a run's folder as arrays, bit for bit the contents of its files."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import onrig
from onrig.runtime.log.reading import read_log
from onrig.runtime.record import Flag, Kind
from onrig.runtime.run_config import layout_of, record_layout
from onrig.runtime.run_loading import load_run
from onrig.runtime.run_state.running import announce
from onrig.runtime.shm.segment import create_folder, remove_folder
from onrig.runtime.view.run_view import RunView
from onrig.tools.api.run_data import DataMissing, NoRun, RunData
from onrig.tools.api.tables import experience_rows, experience_table
from tests.tools.api import whole_runs
from tests.tools.replaying.runs import LoggedRun


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_runs.make_finished_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def run(folder: Path) -> RunData:
    return onrig.open_run(folder)


def test_the_records_equal_those_of_the_log_bit_for_bit(run: RunData) -> None:
    parts = [part for part in read_log(run.folder, run.config.rig) if isinstance(part, np.ndarray)]
    logged_records = np.concatenate(parts)
    reread = np.empty(run.records.rows, record_layout(run.config).dtype)
    for name in reread.dtype.names or ():
        reread[name] = run.records[name]
    assert reread.tobytes() == logged_records.tobytes()
    assert run.records.units["observation"] == ("rad", "rad/s")
    assert run.records.units["t_mono_ns"] == "ns"
    assert run.records["observation"].shape == (run.records.rows, 2)


def test_the_experiences_equal_those_of_the_memory_bit_for_bit(run: RunData) -> None:
    memory = RunView(run.folder, run.config).memory()
    assert not isinstance(memory, str)
    storage = memory.storage
    rows = experience_rows(run.config, run.experiences)
    assert (rows == storage.rows(storage.changed_since(0))).all()
    assert run.experiences.rows == storage.stored > 0
    si = run.observations.to_si(run.experiences["observation"])
    assert np.abs(si[:, 0]).max() <= np.pi + 1e-6


def test_every_experience_has_its_records(run: RunData) -> None:
    """The memory keeps all transitions of training episodes: the same rewards and actions as in the log."""
    records = run.records
    has_action = (records["kind"] == Kind.TRAIN) & (records["flags"] & (Flag.NO_ACTION | Flag.INVALID) == 0)
    assert np.array_equal(run.experiences["reward"], records["reward"][has_action].astype(np.float32))
    action = run.actions.normalise(records["applied"][has_action]).astype(np.float32)
    assert np.array_equal(run.experiences["action"], action)


def test_episodes_policies_and_events(run: RunData) -> None:
    with (run.folder / "episodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(run.episodes) == list(rows[0])
    assert run.episodes["return"].tolist() == [float(row["return"]) for row in rows]
    assert run.episodes["kind"].tolist() == [row["kind"] for row in rows]
    assert run.policies["present"].all()
    assert len(run.policy(int(run.policies["policy_id"][-1]))) == run.policies["bytes"][-1]
    assert "policy_admitted" in run.events["kind"].tolist()
    assert run.events["fields"][0].keys()
    assert run.state == "finished"
    assert run.missing == ()
    assert run.meta["seed"] == run.config.seed
    assert run.summary["exit_reason"] == "completed"
    with pytest.raises(DataMissing, match=r"999\.onnx"):
        run.policy(999)


def test_pandas_reads_the_tables(run: RunData) -> None:
    pytest.importorskip("pandas")
    frame = run.records.to_pandas()
    assert frame["observation.angle"].to_numpy().tobytes() == run.records["observation"][:, 0].tobytes()
    assert len(run.episodes.to_pandas()) == run.episodes.rows


def test_a_killed_run_is_read_up_to_its_last_complete_record(folder: Path, run: RunData, tmp_path: Path) -> None:
    killed_run = onrig.open_run(whole_runs.copy_as_killed(folder, tmp_path / "killed"))
    assert killed_run.state == "killed"
    assert killed_run.missing == (
        "the run was killed: it has no summary",
        "log.mcap is incomplete; it is read up to its last complete chunk",
    )
    assert 0 < killed_run.records.rows <= run.records.rows  # chunks close by the wall clock
    for name in killed_run.records:
        assert np.array_equal(killed_run.records[name], run.records[name][: killed_run.records.rows])
    assert killed_run.experiences.rows == run.experiences.rows


def test_a_run_in_progress_is_read_too(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("summary.json"))
    shm = create_folder()
    try:
        announce(shm, tmp_path / "run")
        running = onrig.open_run(tmp_path / "run")
        assert running.state == "running"
        assert running.missing[0] == "the run is in progress"
        assert running.experiences.rows
    finally:
        remove_folder(shm)


def test_missing_data_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NoRun, match="contains no run"):
        onrig.open_run(tmp_path)
    shutil.copy(folder / "config.yaml", tmp_path)
    empty_folder = onrig.open_run(tmp_path)
    assert empty_folder.episodes.rows == empty_folder.events.rows == empty_folder.policies.rows == 0
    assert empty_folder.state == "killed"
    with pytest.raises(DataMissing, match="no log"):
        _ = empty_folder.records
    with pytest.raises(DataMissing, match="no checkpoint"):
        _ = empty_folder.experiences


@pytest.mark.parametrize("session", ["session", "resumed"])
def test_each_record_counts_once(tmp_path: Path, session: str) -> None:
    """Another replay process writes some records again; a run resumed in lockstep repeats those after a checkpoint."""

    def log_again(run: LoggedRun) -> None:
        run._log_pending()
        run.log.close()
        run.log = run.open_log(session)
        run.log.add(np.array(run.records[-9:]).astype(run.layout.dtype))

    run = LoggedRun(tmp_path / "run", "pendulum", "episodes=1", actions_at={20: log_again}).run()
    records = onrig.open_run(run.folder).records
    assert records["tick"].tolist() == [int(record["tick"]) for record in run.records]


STOCHASTIC = load_run("pendulum", ["recipe=pendulum-sac"])


@given(st.data())
def test_rows_of_the_memory_survive_as_a_table(data: st.DataObject) -> None:
    width = layout_of(STOCHASTIC).width + 3
    rows = data.draw(arrays(np.uint32, (5, width), elements=st.integers(0, (1 << 32) - 1)))
    rows[:, 2] >>= 1  # numbers are signed
    assert (experience_rows(STOCHASTIC, experience_table(STOCHASTIC, rows)) == rows).all()
