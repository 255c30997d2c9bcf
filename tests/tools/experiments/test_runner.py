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
from tests.tools.experiments.fake_engine import DEADLY_SEED, FAULTY_SEED

ENGINE = "tests.tools.experiments.fake_engine"


class Silent:
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
    display: Silent | None = None,
) -> Outcome:
    todo = missing_units(folder, cells, seeds)
    there = len(cells) * len(seeds) - sum(len(unit.seeds) for unit in todo)
    workers = LocalWorkers(slots, ENGINE)
    try:
        return run_units(folder, split_units(todo, slots, n_joint_trials), there, workers, display or Silent())
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


def test_what_a_trial_came_to_is_kept(tmp_path: Path, cells: list[Cell]) -> None:
    noisy = cells[-1]
    run(tmp_path, [noisy], [3, 4], 1, 16)
    found = read_trials(tmp_path, noisy)
    assert found.train.tolist() == [[-seed - e / 7 - 50.0 for e in (1, 2, 3)] for seed in (3.0, 4.0)]
    assert found.batch_noise is not None
    assert found.batch_noise.tolist() == [[3.0, 5.5], [4.0, 6.5]], "the mean over the episodes that replayed anything"


def test_only_what_is_missing_is_done(tmp_path: Path, cells: list[Cell]) -> None:
    run(tmp_path, cells[:2], range(2), 1, 16)
    todo = missing_units(tmp_path, cells[:3], range(3))
    assert [(unit.cell.id, unit.seeds) for unit in todo] == [
        (cells[0].id, (2,)),
        (cells[1].id, (2,)),
        (cells[2].id, (0, 1, 2)),
    ]


def test_a_worker_that_dies_costs_its_unit_alone(tmp_path: Path, cells: list[Cell]) -> None:
    display = Silent()
    outcome = run(tmp_path, cells[:1], range(DEADLY_SEED - 2, DEADLY_SEED + 3), 2, 1, display)
    assert [lost.unit.seeds for lost in outcome.lost_units] in ([(DEADLY_SEED,), (FAULTY_SEED,)], [(14,), (13,)])
    reasons = {lost.unit.seeds[0]: lost.reason for lost in outcome.lost_units}
    assert reasons[DEADLY_SEED] == "the worker was killed (out of memory?)"
    assert reasons[FAULTY_SEED] == "ValueError: not with this seed"
    assert read_trials(tmp_path, cells[0]).seeds.tolist() == [11, 12, 15]
    assert (outcome.trials, outcome.total) == (3, 5)
    assert any(f"pendulum, FIFO[Uniform], rate_hz 50, seed 13 ({cells[0].id})" in line for line in display.warnings)


def test_workers_that_do_not_start_are_told_of(tmp_path: Path, cells: list[Cell]) -> None:
    workers = LocalWorkers(1, "tests.tools.experiments.no_such_engine")
    with pytest.raises(NoWorkers, match=r"could not start.*No module named"):
        list(workers.run([Unit(cells[0], (0,))]))
    workers.close()


def test_a_full_disk_ends_it_and_leaves_what_was_whole(
    tmp_path: Path, cells: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([None, None])

    def filling(fd: int) -> None:
        if next(left, "full") == "full":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("onrig.tools.experiments.store.os.fsync", filling)
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
    found = split_units([Unit(cells[0], tuple(range(50)))], slots, n_joint_trials)
    assert sum((unit.seeds for unit in found), ()) == tuple(range(50))
    assert max(len(unit.seeds) for unit in found) <= n_joint_trials
    assert len(found) == len(sizes)
    assert max(len(u.seeds) for u in found) - min(len(u.seeds) for u in found) <= 1


def test_the_first_seeds_of_all_cells_come_first(cells: list[Cell]) -> None:
    found = split_units([Unit(cell, (0, 1, 2, 3)) for cell in cells[:2]], 1, 2)
    assert [(unit.cell.id, unit.seeds) for unit in found] == [
        (cells[0].id, (0, 1)),
        (cells[1].id, (0, 1)),
        (cells[0].id, (2, 3)),
        (cells[1].id, (2, 3)),
    ]


def test_a_tally_tells_trials_rate_and_time_left(cells: list[Cell]) -> None:
    now = iter([0.0, 10.0])
    one, other = Unit(cells[0], (0, 1)), Unit(cells[0], (2, 3))
    tally = Tally([one, other], 1, lambda: next(now))
    tally.advance(one, 1)
    tally.finish_unit(one, is_done=True)
    tally.advance(other, 1)
    assert tally.line() == "3 of 5 trials, 1 episodes/s, 5 s left"


def test_a_lost_unit_is_no_work_done(cells: list[Cell]) -> None:
    now = iter([0.0, 10.0])
    one, other = Unit(cells[0], (0, 1)), Unit(cells[0], (2, 3))
    tally = Tally([one, other], 0, lambda: next(now))
    tally.finish_unit(one, is_done=False)
    tally.advance(other, 1)
    assert tally.line() == "0 of 4 trials, 0 episodes/s, 20 s left"


def test_as_many_trials_run_at_once_as_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onrig.tools.experiments.runner.machine_bytes", lambda: 10 << 30)
    run = StepRun("gym:Pendulum-v1", 20_000_000)
    each = trial_bytes(run)
    assert each >= 20_000_000 * 4 * (3 + 1 + 3 + 1)
    cell = WorldCell("id", {"world": "Pendulum-v1"}, run)
    assert max_joint_trials([cell], 1) == int(0.6 * (10 << 30) / each) > max_joint_trials([cell], 2) >= 1
    assert max_joint_trials([WorldCell("id", {}, StepRun("gym:Pendulum-v1", 1000))], 2) == MAX_JOINT_TRIALS


def test_a_job_of_another_executor_is_refused_and_named(cells: list[Cell]) -> None:
    job = msgspec.structs.replace(create_job(Unit(cells[0], (0,))), executor=executor_of("riscv64"))
    said = f"the worker on {platform.node()} is unsuitable: trials are computed by the C library (riscv64); here it"
    with pytest.raises(Unavailable, match=re.escape(said)):
        run_job(job, load_engine(ENGINE), lambda episodes: pytest.fail("it began"))


def test_a_worker_with_another_executor_ends_the_experiment(
    tmp_path: Path, cells: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onrig.tools.experiments.jobs.executor", lambda: executor_of("riscv64"))
    workers = LocalWorkers(1, ENGINE)
    with pytest.raises(ExecutorMismatch, match=r"C library \(riscv64\); here"):
        run_units(tmp_path, split_units(missing_units(tmp_path, cells, range(2)), 1, 1), 0, workers, Silent())
    workers.close()
    assert missing_units(tmp_path, cells, range(2))[0].seeds == (0, 1)


def test_an_interrupt_ends_the_workers(tmp_path: Path, cells: list[Cell]) -> None:
    workers = LocalWorkers(2, ENGINE)

    class Interrupted(Silent):
        def show(self, tally: Tally) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_units(tmp_path, split_units(missing_units(tmp_path, cells, range(4)), 2, 1), 0, workers, Interrupted())
    pids = workers.pids
    assert pids
    workers.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
