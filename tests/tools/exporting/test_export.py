"""``onrig export``: every format holds the contents of the run's files, and a folder appears complete or not at all."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import onrig
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.memory.transitions import TransitionBuilder
from onrig.runtime.record import Kind
from onrig.runtime.run_config import record_layout
from onrig.runtime.run_state.folder_access import FolderBusy, claim
from onrig.tools import cli
from onrig.tools.api.run_data import RunData
from onrig.tools.api.tables import Table, experience_rows, experience_schema
from onrig.tools.exporting.export import FORMATS, export
from onrig.tools.exporting.source import CannotExport
from tests.tools.api import whole_runs

pyarrow = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return onrig.open_run(whole_runs.make_finished_run(tmp_path_factory.mktemp("runs") / "run"))


def are_equal(a: Table, b: Table) -> bool:
    return list(a) == list(b) and all(a[name].tobytes() == b[name].tobytes() for name in a)


def test_parquet_holds_log_and_memory_bit_for_bit(run: RunData, tmp_path: Path) -> None:
    from onrig.tools.exporting.table_formats import read_table

    exported_path = export(run, "parquet", tmp_path / "out")
    assert exported_path.missing == exported_path.never_recorded == ()
    assert are_equal(read_table(tmp_path / "out/records.parquet", run.record_schema), run.records)
    memory = read_table(tmp_path / "out/experiences.parquet", experience_schema(run.config))
    assert (experience_rows(run.config, memory) == np.concatenate(list(run.experience_rows()))).all()
    assert exported_path.counts["records"] == run.records.rows
    schema = pyarrow.parquet.read_schema(tmp_path / "out/records.parquet")
    assert schema.field("observation.velocity").metadata == {b"unit": b"rad/s"}
    provenance = json.loads(schema.metadata[b"onrig.provenance"])
    assert provenance["seed"] == run.config.seed
    assert provenance["git_revision"] == run.meta["git_revision"]
    assert (tmp_path / "out/config.yaml").read_bytes() == (run.folder / "config.yaml").read_bytes()


def test_pandas_reads_parquet_back(run: RunData, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    export(run, "parquet", tmp_path / "out")
    records = pandas.read_parquet(tmp_path / "out/records.parquet")
    for name, values in run.records.flat().items():
        assert records[name].to_numpy().tobytes() == np.ascontiguousarray(values).tobytes(), name
    episodes = pandas.read_parquet(tmp_path / "out/episodes.parquet")
    assert episodes["kind"].tolist() == run.episodes["kind"].tolist()


def test_csv_keeps_every_digit(run: RunData, tmp_path: Path) -> None:
    export(run, "csv", tmp_path / "out")
    with (tmp_path / "out/records.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name, values in run.records.flat().items():
        read_back = np.array([row[name] for row in rows]).astype(values.dtype)
        assert read_back.tobytes() == np.ascontiguousarray(values).tobytes(), name


def test_minari_reads_the_episodes_back_bit_for_bit(run: RunData, tmp_path: Path) -> None:
    minari = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    export(run, "minari", tmp_path / "pendulum-v0")
    data = minari.MinariDataset(tmp_path / "pendulum-v0/data")
    layout = record_layout(run.config)
    read_back = []
    for episode in data.iterate_episodes():
        records = np.empty(len(episode.observations), layout.dtype)
        for name in layout.dtype.names or ():
            records[name] = episode.infos[name]
        assert np.array_equal(episode.observations, records["observation"])
        assert np.array_equal(episode.actions, records["applied"][:-1])
        assert np.array_equal(episode.rewards, records["reward"][:-1])
        assert episode.truncations[-1]
        assert not episode.terminations.any()
        read_back.append(records)
    logged_records = np.empty(run.records.rows, layout.dtype)
    for name in layout.dtype.names or ():
        logged_records[name] = run.records[name]
    assert np.concatenate(read_back).tobytes() == logged_records[logged_records["kind"] != Kind.RESET].tobytes()
    transitions = TransitionBuilder(run.config.rig).add(np.concatenate(read_back))  # all are kept in the memory
    for name in ("observation", "action", "next_observation", "reward", "exploration", "episode", "step"):
        assert np.array_equal(getattr(transitions, name), run.experiences[name]), name
    assert data.storage.metadata["onrig"]["rig"] == "pendulum"
    kinds = [m["options"]["kind"] for m in data.storage.get_episode_metadata(range(data.total_episodes))]
    assert kinds.count("train") == whole_runs.EPISODES


def test_lerobot_has_the_documented_layout(run: RunData, tmp_path: Path) -> None:
    """LeRobot's own reader, which needs torch and image libraries, was run by hand (docs/data.md)."""
    pandas = pytest.importorskip("pandas")
    out = tmp_path / "out"
    export(run, "lerobot", out)
    info = json.loads((out / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert info["fps"] == run.config.rate_hz
    indices = {"chunk_index": 0, "file_index": 0}
    frames = pyarrow.parquet.read_table(out / info["data_path"].format(**indices))
    assert set(frames.column_names) == set(info["features"])
    for name, feature in info["features"].items():
        type_, shape = frames.schema.field(name).type, tuple(feature["shape"])
        is_fixed_size = pyarrow.types.is_fixed_size_list(type_)
        assert (type_.list_size,) == shape if is_fixed_size else shape == (1,), name
        assert is_fixed_size == (shape != (1,)), name  # LeRobot reads a single component as a plain value
        assert feature["dtype"] in (
            str(type_.value_type if is_fixed_size else type_).replace("float", "float32"),
            "float32",
            "bool",
        )
    episodes = pandas.read_parquet(out / "meta/episodes/chunk-000/file-000.parquet")
    assert len(episodes) == info["total_episodes"] == 2 * whole_runs.EPISODES
    assert episodes["length"].sum() == info["total_frames"] == frames.num_rows
    assert episodes["dataset_to_index"].tolist() == np.cumsum(episodes["length"]).tolist()
    assert frames["index"].to_pylist() == list(range(frames.num_rows))
    assert frames["timestamp"][1].as_py() == np.float32(1 / run.config.rate_hz)
    last_indices = np.array(episodes["dataset_to_index"]) - 1
    is_done = frames["next.done"].to_numpy()
    assert np.flatnonzero(is_done).tolist() == last_indices.tolist()
    assert pandas.read_parquet(out / "meta/tasks.parquet").loc["swingup on pendulum", "task_index"] == 0
    state = np.stack(frames["observation.state"].to_pylist())
    final = np.stack(frames["next.observation.state"].to_pylist())
    is_inside = ~is_done[:-1]
    assert np.array_equal(final[:-1][is_inside], state[1:][is_inside])
    stats = json.loads((out / "meta/stats.json").read_text())
    assert np.allclose(stats["observation.state"]["mean"], state.mean(axis=0), atol=1e-6)
    assert np.allclose(stats["observation.state"]["std"], state.std(axis=0), atol=1e-6)
    assert stats["action"]["count"] == [frames.num_rows]


def test_a_killed_run_is_exported_and_missing_data_are_reported(
    run: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = whole_runs.copy_as_killed(run.folder, tmp_path / "killed")
    with (folder / "episodes.csv").open("a") as file:
        file.write("99,train,30,-1.0,-1.0,0.5,0.0,0,0,1,0\n")
    assert cli.main(["export", str(folder), "--format", "parquet"]) == ExitCode.INCOMPLETE
    captured = capsys.readouterr()
    assert "killed-parquet: " in captured.out
    rows = 2 * whole_runs.EPISODES
    assert captured.err.splitlines()[-3:] == [
        f"onrig export: {folder}: the run was killed: it has no summary",
        f"onrig export: {folder}: log.mcap is incomplete; it is read up to its last complete chunk",
        f"onrig export: {folder}: 1 of {rows + 1} episodes in episodes.csv are not complete in the log",
    ]
    provenance = json.loads((tmp_path / "killed-parquet/provenance.json").read_text())
    assert len(provenance["missing"]) == 3


def test_a_run_exported_in_progress_and_then_killed_is_a_prefix_of_the_complete_one(tmp_path: Path) -> None:
    settings = ("episodes=60", "evaluate_every=0")
    complete_run = onrig.open_run(whole_runs.make_finished_run(tmp_path / "whole", *settings))
    folder, n_rows = tmp_path / "killed", 0
    with whole_runs.start(folder, *settings) as process:
        while not n_rows and process.poll() is None:  # until the first chunk of the log is on disk
            if list(folder.glob("log*.mcap")):
                n_rows = onrig.open_run(folder).records.rows
        process.kill()
        process.communicate()
    with contextlib.suppress(FolderBusy):  # its orphans write what they have, and end
        os.close(claim(folder, 30.0))
    exported_path = export(onrig.open_run(folder), "parquet", tmp_path / "out")
    assert exported_path.missing
    read_back = pyarrow.parquet.read_table(tmp_path / "out/records.parquet")
    assert 0 < n_rows <= read_back.num_rows <= complete_run.records.rows
    decision_fields = (
        "tick",
        "episode",
        "observation.angle",
        "explored.voltage",
        "applied.voltage",
        "reward",
        "policy_id",
        "flags",
    )
    flat_records = complete_run.records.flat()
    for name in decision_fields:
        assert np.array_equal(read_back[name].to_numpy(), flat_records[name][: read_back.num_rows]), name


def test_runs_that_cannot_be_exported_are_refused_in_one_line(
    run: RunData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["export", str(tmp_path), "--format", "csv"]) == ExitCode.CONFIGURATION
    assert capsys.readouterr().err == f"onrig export: '{tmp_path}' contains no run (config.yaml)\n"
    words = ["export", str(run.folder), "--format", "csv", "--out", str(tmp_path)]
    assert cli.main(words) == ExitCode.CONFIGURATION
    assert "exists already; choose another folder with --out" in capsys.readouterr().err


def test_a_run_without_a_log_exports_its_memory_and_has_no_episodes(run: RunData, tmp_path: Path) -> None:
    folder = whole_runs.copy_as_killed(run.folder, tmp_path / "run")
    (folder / "log.mcap").unlink()
    run_without_log = onrig.open_run(folder)
    exported_path = export(run_without_log, "parquet", tmp_path / "out")
    assert exported_path.counts["records"] == 0
    assert exported_path.counts["experiences"] == run.experiences.rows
    assert len(exported_path.never_recorded) == 1
    for format_ in ("minari", "lerobot"):
        with pytest.raises(CannotExport, match="export the memory instead: --format parquet"):
            export(run_without_log, format_, tmp_path / format_)


@pytest.mark.parametrize("format_", FORMATS)
def test_an_interrupt_leaves_nothing_behind(run: RunData, tmp_path: Path, format_: str) -> None:
    def raise_interrupt(records: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(run, format_, tmp_path / "out", raise_interrupt)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


_KILL_PROGRAM: Final = """
import os, signal, sys
from pathlib import Path
import onrig
from onrig.tools.exporting import export as module

run, out, format_, moment = sys.argv[1:]

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

if moment == "rename":
    Path.rename = die
elif moment == "sync":
    module.sync = die
elif moment == "end":
    module.shutil.copyfile = die
progress = die if moment == "records" else lambda records: None
module.export(onrig.open_run(run), format_, Path(out), progress)
"""


@pytest.mark.parametrize(
    ("format_", "stage"),
    [*((format_, "records") for format_ in FORMATS), *(("parquet", stage) for stage in ("end", "sync", "rename"))],
)
def test_an_export_killed_at_any_moment_leaves_no_folder_and_the_next_one_succeeds(
    run: RunData, tmp_path: Path, format_: str, stage: str
) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-c", _KILL_PROGRAM, str(run.folder), str(out), format_, stage]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    assert not out.exists()
    export(run, format_, out)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert json.loads((out / "provenance.json").read_text())["format"] == format_


def test_a_link_at_the_name_of_the_temporary_folder_is_not_followed(run: RunData, tmp_path: Path) -> None:
    link_target = tmp_path / "elsewhere"
    link_target.mkdir()
    (link_target / "thesis").write_text("years of work")
    (tmp_path / ".out.partial").symlink_to(link_target)
    with pytest.raises(CannotExport, match=r"\.out\.partial' is a link: remove it"):
        export(run, "csv", tmp_path / "out")
    assert [path.name for path in link_target.iterdir()] == ["thesis"]
    assert not (tmp_path / "out").exists()
