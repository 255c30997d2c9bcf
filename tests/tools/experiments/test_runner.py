"""Units in worker processes: results do not depend on their distribution, and failures are reported and skipped."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from onrig.hw.native import executor_of
from onrig.learner.trials.step_run import StepRun
from onrig.learner.trials.supported import trial_bytes
from onrig.tools.experiments.jobs import Unit, create_job, load_engine, run_job
from onrig.tools.experiments.runner import (
    MAX_JOINT_TRIALS,
    Outcome,
    Tally,
    max_joint_trials,
    missing_units,
    run_units,
    split_units,
)
from onrig.tools.experiments.store import Cell, WorldCell, read_trials
from onrig.tools.experiments.workers import ExecutorMismatch, LocalWorkers, NoWorkers
from onrig.tools.workers import Unavailable
from tests.tools.experiments import specs
from tests.tools.experiments.fake_engine import CRASHING_SEED, FAILING_SEED

ENGINE = "tests.tools.experiments.fake_engine"


class SilentDisplay:
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.lines: list[str] = []

    def show(self, tally: Tally) -> None:
        self.lines.append(tally.line())

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def close(self) -> None:
        pass


def run(
    folder: Path,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    slots: int,
    n_joint_trials: int,
    display: SilentDisplay | None = None,
) -> Outcome:
    missing = missing_units(folder, cells, seeds)
    n_present = len(cells) * len(seeds) - sum(len(unit.seeds) for unit in missing)
    workers = LocalWorkers(slots, ENGINE)
    try:
        return run_units(
            folder, split_units(missing, slots, n_joint_trials), n_present, workers, display or SilentDisplay()
        )
    finally:
        workers.close()


@pytest.fixture
def cells(tmp_path: Path) -> list[Cell]:
    return specs.small_cells(tmp_path)


def test_results_depend_neither_on_workers_nor_on_chunks(tmp_path: Path, cells: list[Cell]) -> None:
    outcome = run(tmp_path / "a", cells, range(4), 1, 16)
    assert outcome == Outcome(20, 20, [])
    run(tmp_path / "b", cells, range(4), 3, 1)
    assert specs.trial_files(tmp_path / "a") == specs.trial_files(tmp_path / "b")
    assert len(specs.trial_files(tmp_path / "a")) == 20


def test_the_results_of_a_trial_are_kept(tmp_path: Path, cells: list[Cell]) -> None:
    noisy_cell = cells[-1]
    run(tmp_path, [noisy_cell], [3, 4], 1, 16)
    trials = read_trials(tmp_path, noisy_cell)
    assert trials.train.tolist() == [[-seed - e / 7 - 50.0 for e in (1, 2, 3)] for seed in (3.0, 4.0)]
    assert trials.batch_noise is not None
    assert trials.batch_noise.tolist() == [[3.0, 5.5], [4.0, 6.5]], "the mean over the episodes that replayed anything"


def test_only_missing_trials_are_run(tmp_path: Path, cells: list[Cell]) -> None:
    run(tmp_path, cells[:2], range(2), 1, 16)
    missing = missing_units(tmp_path, cells[:3], range(3))
    assert [(unit.cell.id, unit.seeds) for unit in missing] == [
        (cells[0].id, (2,)),
        (cells[1].id, (2,)),
        (cells[2].id, (0, 1, 2)),
    ]


def test_a_worker_that_dies_costs_only_its_unit(tmp_path: Path, cells: list[Cell]) -> None:
    display = SilentDisplay()
    outcome = run(tmp_path, cells[:1], range(CRASHING_SEED - 2, CRASHING_SEED + 3), 2, 1, display)
    assert [lost_unit.unit.seeds for lost_unit in outcome.lost_units] in (
        [(CRASHING_SEED,), (FAILING_SEED,)],
        [(14,), (13,)],
    )
    reasons = {lost_unit.unit.seeds[0]: lost_unit.reason for lost_unit in outcome.lost_units}
    assert reasons[CRASHING_SEED] == "the worker was killed (out of memory?)"
    assert reasons[FAILING_SEED] == "ValueError: not with this seed"
    assert read_trials(tmp_path, cells[0]).seeds.tolist() == [11, 12, 15]
    assert (outcome.trials, outcome.total) == (3, 5)
    assert any(f"pendulum, FIFO[Uniform], rate_hz 50, seed 13 ({cells[0].id})" in line for line in display.warnings)


def test_workers_that_do_not_start_are_reported(tmp_path: Path, cells: list[Cell]) -> None:
    workers = LocalWorkers(1, "tests.tools.experiments.no_such_engine")
    with pytest.raises(NoWorkers, match=r"could not start.*No module named"):
        list(workers.run([Unit(cells[0], (0,))]))
    workers.close()


def test_a_full_disk_ends_it_and_leaves_complete_files(
    tmp_path: Path, cells: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([None, None])

    def fail_write(fd: int) -> None:
        if next(left, "full") == "full":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("onrig.tools.experiments.store.os.fsync", fail_write)
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path, cells, range(4), 1, 16)
    assert len(specs.trial_files(tmp_path)) == 2
    monkeypatch.undo()
    run(tmp_path, cells, range(4), 1, 16)
    run(tmp_path / "whole", cells, range(4), 1, 16)
    assert specs.trial_files(tmp_path) == specs.trial_files(tmp_path / "whole")


@pytest.mark.parametrize(
    ("slots", "n_joint_trials", "sizes"), [(1, 16, [13, 13, 12, 12]), (8, 16, [7, 7, 7, 7, 7, 7, 7, 1])]
)
def test_units_are_of_equal_size_and_enough_for_all(
    cells: list[Cell], slots: int, n_joint_trials: int, sizes: list[int]
) -> None:
    units = split_units([Unit(cells[0], tuple(range(50)))], slots, n_joint_trials)
    assert sum((unit.seeds for unit in units), ()) == tuple(range(50))
    assert max(len(unit.seeds) for unit in units) <= n_joint_trials
    assert len(units) == len(sizes)
    assert max(len(u.seeds) for u in units) - min(len(u.seeds) for u in units) <= 1


def test_the_first_seeds_of_all_cells_come_first(cells: list[Cell]) -> None:
    units = split_units([Unit(cell, (0, 1, 2, 3)) for cell in cells[:2]], 1, 2)
    assert [(unit.cell.id, unit.seeds) for unit in units] == [
        (cells[0].id, (0, 1)),
        (cells[1].id, (0, 1)),
        (cells[0].id, (2, 3)),
        (cells[1].id, (2, 3)),
    ]


def test_a_tally_reports_trials_rate_and_remaining_time(cells: list[Cell]) -> None:
    clock = iter([0.0, 10.0])
    first_unit, second_unit = Unit(cells[0], (0, 1)), Unit(cells[0], (2, 3))
    tally = Tally([first_unit, second_unit], 1, lambda: next(clock))
    tally.advance(first_unit, 1)
    tally.finish_unit(first_unit, is_done=True)
    tally.advance(second_unit, 1)
    assert tally.line() == "3 of 5 trials, 1 episodes/s, 5 s left"


def test_a_lost_unit_counts_as_no_work(cells: list[Cell]) -> None:
    clock = iter([0.0, 10.0])
    first_unit, second_unit = Unit(cells[0], (0, 1)), Unit(cells[0], (2, 3))
    tally = Tally([first_unit, second_unit], 0, lambda: next(clock))
    tally.finish_unit(first_unit, is_done=False)
    tally.advance(second_unit, 1)
    assert tally.line() == "0 of 4 trials, 0 episodes/s, 20 s left"


def test_as_many_trials_run_at_once_as_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onrig.tools.experiments.runner.machine_bytes", lambda: 10 << 30)
    run = StepRun("gym:Pendulum-v1", 20_000_000)
    bytes_per_trial = trial_bytes(run)
    assert bytes_per_trial >= 20_000_000 * 4 * (3 + 1 + 3 + 1)
    cell = WorldCell("id", {"world": "Pendulum-v1"}, run)
    assert max_joint_trials([cell], 1) == int(0.6 * (10 << 30) / bytes_per_trial) > max_joint_trials([cell], 2) >= 1
    assert max_joint_trials([WorldCell("id", {}, StepRun("gym:Pendulum-v1", 1000))], 2) == MAX_JOINT_TRIALS


def test_a_job_of_another_executor_is_refused_and_named(cells: list[Cell]) -> None:
    job = msgspec.structs.replace(create_job(Unit(cells[0], (0,))), executor=executor_of("riscv64"))
    message = f"the worker on {platform.node()} is unsuitable: trials are computed by the C library (riscv64); here it"
    with pytest.raises(Unavailable, match=re.escape(message)):
        run_job(job, load_engine(ENGINE), lambda episodes: pytest.fail("it began"))


def test_a_worker_with_another_executor_ends_the_experiment(
    tmp_path: Path, cells: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onrig.tools.experiments.jobs.executor", lambda: executor_of("riscv64"))
    workers = LocalWorkers(1, ENGINE)
    with pytest.raises(ExecutorMismatch, match=r"C library \(riscv64\); here"):
        run_units(tmp_path, split_units(missing_units(tmp_path, cells, range(2)), 1, 1), 0, workers, SilentDisplay())
    workers.close()
    assert missing_units(tmp_path, cells, range(2))[0].seeds == (0, 1)


def test_an_interrupt_ends_the_workers(tmp_path: Path, cells: list[Cell]) -> None:
    workers = LocalWorkers(2, ENGINE)

    class InterruptedDisplay(SilentDisplay):
        def show(self, tally: Tally) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_units(
            tmp_path, split_units(missing_units(tmp_path, cells, range(4)), 2, 1), 0, workers, InterruptedDisplay()
        )
    pids = workers.pids
    assert pids
    workers.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
