"""``onrig experiment`` from the outside: folders, exit codes, stopping and resuming, with the real trials engine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pytest

from onrig.hw.native import executor, executor_of, read_executor
from onrig.learner.trials.supported import trials_problems
from onrig.tools.cli import main
from onrig.tools.experiments.grid import expand_spec
from onrig.tools.experiments.options import ExperimentOptions, _create_workers
from onrig.tools.experiments.spec import load_spec
from onrig.tools.experiments.store import Trial, read_cells, read_spec, read_trials, write_cells, write_trial
from onrig.tools.experiments.workers import ExecutorMismatch
from onrig.tools.machine import Machine
from tests.tools.experiments import specs
from tests.tools.experiments.specs import write_spec

PATIENCE_S: Final = 60.0
SPEC: Final = """
    name: tiny
    title: A tiny one
    trials: 3
    episodes: 12
    set: {task.episode_s: 0.4, noise: 0.01}
    blocks:
      - config: pendulum
        grid: {strategy: ["FIFO[Uniform]", "FULL[PER]"]}
    """
LONGER_SPEC: Final = SPEC.replace("trials: 3", "trials: 5").replace("episodes: 12", "episodes: 25")


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return specs.write_spec(tmp_path, SPEC, "tiny.yaml")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Results of the longer experiment if it is never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    spec = specs.write_spec(folder, LONGER_SPEC)
    assert experiment(spec, "--out", folder / "out", "--workers", 1, "--chunk", 3) == 0
    return specs.trial_files(folder / "out")


def experiment(*arguments: object) -> int:
    return main(["experiment", *map(str, arguments)])


def start_experiment(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "onrig.tools.cli", "experiment", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_trials(folder: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not specs.trial_files(folder):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.01)


def test_a_finished_experiment_can_be_read(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert experiment(spec, "--workers", 1) == 0
    folder = tmp_path / "runs" / "tiny-1"
    assert "6 of 6 trials are in runs/tiny-1" in capsys.readouterr().out
    assert read_spec(folder).title == "A tiny one"
    for cell in read_cells(folder):
        trials = read_trials(folder, cell)
        assert trials.seeds.tolist() == [0, 1, 2]
        assert trials.train.shape == trials.evaluation.shape == (3, 12)
        assert trials.batch_noise is not None
        assert trials.batch_noise.shape == (3, 3)
    meta = msgspec.json.decode((folder / "meta.json").read_bytes(), type=dict[str, object])
    assert {"git_revision", "versions", "cpus", "started"} <= meta.keys()
    files_before = specs.trial_files(folder)
    assert experiment(spec, "--resume", "--trials", 4, "--only", "strategy=FULL[PER]", "--chunk", 1) == 0
    files_after = specs.trial_files(folder)
    assert len(files_after) == 7
    assert files_before.items() <= files_after.items(), "existing trials are unchanged"
    assert len(msgspec.json.decode((folder / "meta.json").read_bytes())["resumed"]) == 1


@pytest.mark.parametrize(
    ("stop_signal", "workers"),
    [
        (signal.SIGKILL, 2),
        pytest.param(signal.SIGINT, 2, marks=pytest.mark.study),
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.study),
    ],
)
def test_a_stopped_experiment_continues_to_the_same_files(
    tmp_path: Path, stop_signal: signal.Signals, workers: int, uninterrupted: dict[str, bytes]
) -> None:
    spec = specs.write_spec(tmp_path, LONGER_SPEC)
    stopped_folder = tmp_path / "stopped"
    process = start_experiment(spec, "--out", stopped_folder, "--workers", workers, "--chunk", 1)
    wait_for_trials(stopped_folder, process)
    process.send_signal(stop_signal)
    _, err = process.communicate(timeout=PATIENCE_S)
    n_finished = len(specs.trial_files(stopped_folder))
    assert 0 < n_finished < 10
    if stop_signal == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130
        assert err.splitlines() == [
            f"onrig experiment: stopped; continue with `onrig experiment {spec} --out {stopped_folder} --resume`"
        ]
    assert experiment(spec, "--out", stopped_folder, "--resume", "--workers", 1) == 0
    assert specs.trial_files(stopped_folder) == uninterrupted
    assert len(uninterrupted) == 10


def test_trials_computed_by_another_executor_are_left_unchanged(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert experiment(spec, "--out", folder, "--trials", 1, "--workers", 1) == 0
    meta = msgspec.json.decode((folder / "meta.json").read_bytes(), type=dict[str, object])
    assert read_executor(meta["executor"]) == executor()
    files_before = specs.trial_files(folder)
    (folder / "meta.json").write_bytes(msgspec.json.encode({**meta, "executor": executor_of("riscv64")}))
    capsys.readouterr()
    for arguments in ((), ("--dry-run",)):
        assert experiment(spec, "--out", folder, "--resume", *arguments) == 2
        assert capsys.readouterr().err == (
            f"onrig experiment: the trials in '{folder}' were computed by the C library (riscv64); here it would be "
            f"{executor()}, which rounds differently: only a machine with the C library (riscv64) gives the same "
            "results; or choose another folder\n"
        )
    assert specs.trial_files(folder) == files_before


def test_trials_of_an_earlier_version_are_continued_and_the_executor_is_reported(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert experiment(spec, "--out", folder, "--trials", 1, "--workers", 1) == 0
    meta = msgspec.json.decode((folder / "meta.json").read_bytes(), type=dict[str, object])
    del meta["executor"]
    (folder / "meta.json").write_bytes(msgspec.json.encode(meta))
    capsys.readouterr()
    assert experiment(spec, "--out", folder, "--resume", "--trials", 2, "--workers", 1) == 0
    message = f"'{folder}/meta.json' does not record the executor of its trials; the missing trials are computed by"
    message = f"{message} {executor()}\n"
    assert message in capsys.readouterr().err
    assert experiment(spec, "--out", folder, "--resume", "--workers", 1) == 0
    assert capsys.readouterr().err == "", "the second start has already reported it"


def test_a_worker_with_another_executor_ends_it_with_2(
    spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class StubWorkers:
        slots = 1

        def run(self, units: object) -> Iterator[None]:
            raise ExecutorMismatch("the worker on node7 does not fit")
            yield

        def close(self) -> None:
            pass

    monkeypatch.setattr("onrig.tools.experiments.options._create_workers", lambda args: StubWorkers())
    assert experiment(spec) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("onrig experiment: the worker on node7 does not fit; continue with `onrig experiment ")


def test_a_folder_in_use_needs_resume(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    assert experiment(spec, "--out", folder, "--trials", 1, "--workers", 1) == 0
    capsys.readouterr()
    assert experiment(spec, "--out", folder) == 2
    assert capsys.readouterr().err == (
        f"onrig experiment: '{folder}' already contains an experiment; add --resume to continue it, or choose another\n"
    )
    other = specs.write_spec(tmp_path, SPEC.replace("episodes: 12", "episodes: 13"), "other.yaml")
    assert experiment(other, "--out", folder, "--resume") == 2
    assert "contains a cell that is not in this spec (pendulum, FIFO[Uniform])" in capsys.readouterr().err
    larger_spec = specs.write_spec(tmp_path, SPEC.replace('"FULL[PER]"', '"FULL[PER]", "Resv[PER]"'), "more.yaml")
    assert experiment(larger_spec, "--out", folder, "--resume", "--trials", 1) == 0
    assert len(specs.trial_files(folder)) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "tiny.yaml"], "'tiny.yaml' is not a folder"),
        (["--out", "full"], "'full' is not empty but contains no experiment; choose another folder"),
        (["--out", "tiny.yaml/deeper"], "'tiny.yaml/deeper' cannot be written: Not a directory"),
        (["--out", "none", "--resume"], "'none' does not exist; omit --resume to start the experiment"),
        (["--resume"], "--resume: no folder runs/tiny-N; omit --resume to start the experiment"),
        (["--workers", "0"], "--workers: expected 1 to 100000, got 0"),
        (["--only", "colour=red"], "--only: the grid has no axis 'colour' (one of config, strategy)"),
        (["--only", "strategy=FIFO"], "--only: no cell has 'strategy' FIFO (one of FIFO[Uniform], FULL[PER])"),
        (
            ["--cluster", "nowhere"],
            "--cluster: 'nowhere' is not an address: expected HOST:PORT, ray://HOST:PORT or auto",
        ),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    assert experiment(spec, *arguments) == 2
    assert capsys.readouterr().err == f"onrig experiment: {message}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "tiny.yaml"]


def test_an_invalid_spec_starts_nothing(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec.write_text(spec.read_text().replace("FULL[PER]", "FULL[BEST]"), encoding="utf-8")
    assert experiment(spec) == 2
    assert capsys.readouterr().err.startswith(f"{spec}:8:40: unknown sampling 'BEST'")
    assert not (tmp_path / "runs").exists()


def test_an_unknown_experiment_is_refused_with_the_shipped_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert experiment("figure-99") == 2
    assert "no 'figure-99' (did you mean 'figure-9'?); shipped with Onrig: cicek-" in capsys.readouterr().err


def test_a_dry_run_lists_the_cells_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("onrig.tools.experiments.cost.PROBE_S", 0.0)
    spec = write_spec(tmp_path, "{name: one, title: A, trials: 2, episodes: 9, blocks: [{config: pendulum}]}")
    assert experiment(spec, "--dry-run") == 0
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert last_line.startswith("1 cells of 2 trials, 9 episodes each, about ")
    estimate_text = "estimated from at least 1 updates of 2 trials for each kind of cell (1 in all)"
    assert last_line.endswith(f" CPUs available to this process ({estimate_text}); would run in runs/one-1")
    assert list(tmp_path.iterdir()) == [spec]


def test_a_dry_run_knows_the_cpu_share_of_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("onrig.tools.experiments.cost.PROBE_S", 0.0)
    monkeypatch.setattr(Machine, "cpu_quota", lambda machine: 0.5)
    spec = write_spec(tmp_path, "{name: one, title: A, trials: 2, episodes: 9, blocks: [{config: pendulum}]}")
    assert experiment(spec, "--dry-run") == 0
    assert " on the 0.5 CPUs available to this process (" in capsys.readouterr().out.splitlines()[-1]
    assert _create_workers(ExperimentOptions()).slots == 1


def test_a_dry_run_of_a_resumed_experiment_counts_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onrig.tools.experiments.cost.PROBE_S", 0.0)
    spec = write_spec(tmp_path, "{name: one, title: A, trials: 2, episodes: 9, blocks: [{config: pendulum}]}")
    (cell,) = expand_spec(load_spec(spec), lambda config, settings: [])
    folder = tmp_path / "out"
    folder.mkdir()
    write_cells(folder, [cell])
    for seed in range(2):
        write_trial(folder, cell, seed, Trial(np.zeros(9), np.zeros(9)))
    assert experiment(spec, "--dry-run", "--resume", "--out", folder) == 0
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert last_line.startswith(
        "1 cells of 2 trials, 9 episodes each, 2 trials are finished, about 0 s on one core, 0 s on the "
    )


def test_a_full_disk_is_reported_in_one_line(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_write(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("onrig.tools.experiments.runner.write_trial", fail_write)
    assert experiment(spec, "--out", tmp_path / "out", "--workers", 1, "--trials", 2) == 3
    assert capsys.readouterr().err == (
        f"onrig experiment: '{tmp_path}/out' cannot be written: No space left on device; "
        f"continue with `onrig experiment {spec} --out {tmp_path}/out --workers 1 --trials 2 --resume`\n"
    )


def test_two_experiments_cannot_share_a_folder(spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fcntl

    folder = tmp_path / "out"
    folder.mkdir()
    fd = os.open(folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert experiment(spec, "--out", folder) == 2
    os.close(fd)
    assert capsys.readouterr().err == f"onrig experiment: '{folder}' is in use by another `onrig experiment`\n"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("n_diverged", "code"), [(6, 6), (5, 0)])
def test_an_experiment_whose_trials_have_all_diverged_is_not_a_success(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], n_diverged: int, code: int
) -> None:
    cells, out = expand_spec(load_spec(spec), trials_problems), tmp_path / "out"
    out.mkdir()
    write_cells(out, cells)
    for number, (cell, seed) in enumerate((cell, seed) for cell in cells for seed in range(3)):
        scores = np.linspace(-1.0, 0.0, cell.points)
        if number < n_diverged:
            scores[3:] = np.nan
        write_trial(out, cell, seed, Trial(scores, scores))
    assert experiment(spec, "--out", out, "--resume") == code
    trials = "all 6" if n_diverged == 6 else "5 of 6"
    assert capsys.readouterr().err == f"onrig experiment: {trials} trials diverged: their rewards are non-finite\n"
