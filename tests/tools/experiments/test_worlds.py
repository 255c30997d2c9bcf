"""Experiments in worlds: their cells, trials, report and refusals."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from onrig.learner.trials.step_run import REPLAY_MEASURES, SHIELD_COUNTS, StepRun
from onrig.runtime.config.document import find_config
from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.tools.cli import main
from onrig.tools.experiments.cost import cost_key
from onrig.tools.experiments.folder import UnsuitableFolder, check_folder
from onrig.tools.experiments.grid import expand_spec
from onrig.tools.experiments.jobs import ENGINE, Unit, create_job, decode_trials, load_engine, run_job
from onrig.tools.experiments.runner import Tally
from onrig.tools.experiments.spec import equal_settings, load_spec
from onrig.tools.experiments.store import (
    Trial,
    WorldCell,
    missing_seeds,
    read_cells,
    read_trials,
    write_cells,
    write_trial,
)
from tests.tools.experiments.specs import write_spec

SMALL_SPEC = """
    name: small
    title: Two algorithms
    trials: 3
    steps: 40
    evaluation: {every: 20, episodes: 2}
    set:
      random_steps: 10
      horizon: 15
      learner.td3: {hidden: [4], batch: 4}
    blocks:
      - world: gym:Pendulum-v1
        set: {algorithm: td3}
        grid: {strategy: ["FIFO[Uniform]", "Expl(1.0)[Uniform]"], capacity: [30]}
      - world: gym:CartPole-v1
        set: {algorithm: dqn, learner.dqn.levels: 2}
    """


def _cells(path: Path) -> list[WorldCell]:
    expanded = expand_spec(load_spec(path), lambda config, settings: [])
    return [cell for cell in expanded if isinstance(cell, WorldCell)]


def _problems(folder: Path, old: str, new: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        _cells(write_spec(folder, SMALL_SPEC.replace(old, new)))
    return [str(problem).removeprefix(f"{folder / 'small.yaml'}:") for problem in error.value.problems]


def test_cells_are_combinations_in_each_world(tmp_path: Path) -> None:
    first_cell, second_cell, third_cell = _cells(write_spec(tmp_path, SMALL_SPEC))
    common_label = {"world": "Pendulum-v1", "algorithm": "td3", "capacity": 30}
    assert first_cell.label == common_label | {"strategy": "FIFO[Uniform]"}
    assert second_cell.config.selection.strategy == "Expl(1.0)[Uniform]"
    assert third_cell.label["world"] == "CartPole-v1"
    assert (third_cell.config.steps, third_cell.config.evaluation.every, third_cell.points) == (40, 20, 2)
    write_cells(tmp_path, [first_cell, third_cell])
    assert read_cells(tmp_path) == [first_cell, third_cell]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gym:Pendulum-v1", "gym:Penduluum-v1", "11:12: gymnasium has no task 'Penduluum-v1'"),
        ("gym:Pendulum-v1", "plane:Pendulum-v1", "11:12: 'plane:Pendulum-v1' is not a world"),
        ("horizon: 15", "options: {g: abc}", "8:12: 'Pendulum-v1' fails at its first step: TypeError: "),
        ("capacity: [30]", "capacity: [4000000000]", "keep fewer (selection.capacity) at selection.capacity"),
        ("every: 20", "every: 15", "5:21: expected a divisor of the 40 steps, got 15 at evaluation.every"),
        ("steps: 40", "episodes: 40", "expected at least 1, got 0 at steps"),
        ("steps: 40", "steps: 40\n    figures: [12]", "a report of worlds draws all available ones at figures"),
        ("random_steps: 10", "random_stepps: 10", "7:3: unknown axis 'random_stepps'"),
        ("random_steps: 10", "random_steps: -1", "7:17: expected 0 or more, got -1 at random_steps"),
        ("FIFO[Uniform]", "FIFO[Unifrom]", "13:23: unknown sampling 'Unifrom'"),
        ("set: {algorithm: td3}", "set: {algorithm: td3, network: small}", "learner.td3.network, which does not exist"),
        ("FIFO[Uniform]", "FULL[Uniform]", "13:74: FULL keeps all 40 experiences of the run; 30 are too few"),
        ("levels: 2", "levels: 3", "15:47: 'CartPole-v1' has 2 discrete actions, got 3 at learner.dqn.levels"),
        (
            "algorithm: dqn",
            "algorithm: sac",
            "has discrete actions, which sac does not support: use dqn, rainbow at learner.algorithm",
        ),
        ("world: gym:Pendulum-v1", "config: pendulum", "an experiment consists of either runs or worlds"),
        ("world: gym:Pendulum-v1", "config: null", "expected either 'config' or 'world' at blocks[0]"),
    ],
)
def test_mistakes_are_found_at_their_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    problems = _problems(tmp_path, old, new)
    assert any(message in problem for problem in problems), problems


def test_trials_are_run_kept_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_spec(tmp_path, SMALL_SPEC, "spec.yaml")
    cells = _cells(spec)
    write_cells(tmp_path, cells)
    progress: list[int] = []
    for cell in cells[:2]:
        unit = Unit(cell, (0, 1, 2))
        result = run_job(create_job(unit), load_engine("onrig.learner.trials.engine"), progress.append)
        for seed, trial in zip(unit.seeds, decode_trials(result), strict=True):
            assert trial.evaluation.shape == (2,)
            assert trial.batch_noise is None
            assert trial.replayed is not None
            assert trial.replayed.shape == (len(REPLAY_MEASURES), 2)
            assert trial.shield is not None
            assert not trial.shield.any(), "a task of gymnasium has no shield"
            write_trial(tmp_path, cell, seed, trial)
        assert not missing_seeds(tmp_path, cell, unit.seeds)
    assert progress == [1, 2, 1, 2]
    tally = Tally([Unit(cells[2], (0, 1, 2))], 6, lambda: 1.0)
    assert "evaluations/s" in tally.line()
    write_trial(tmp_path, cells[2], 0, Trial(np.full(2, np.nan), np.array([9.0, np.nan]), None))

    assert main(["report", str(tmp_path)]) == ExitCode.OK
    assert "Expl(1.0)[Uniform]" in capsys.readouterr().out
    tables = (tmp_path / "tables.md").read_text()
    assert "| Expl(1.0)[Uniform] − FIFO[Uniform] | 3 |" in tables
    assert "Incomplete: 7 of 9 trials are finished" in tables
    assert "1 trials are omitted because their networks diverged" in tables
    assert "As figure" not in (tmp_path / "report.html").read_text()
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["replayed-Pendulum-v1.png", "returns-Pendulum-v1.png"]
    (path,) = (tmp_path / "curves").glob(f"*{cells[0].id}.csv")
    header_row, *rows = csv.reader(path.read_text().splitlines())
    measure_kinds = ("evaluation", "training", *REPLAY_MEASURES, *SHIELD_COUNTS)
    assert header_row == ["step", *(f"{kind} {seed}" for kind in measure_kinds for seed in range(3))]
    evaluation = read_trials(tmp_path, cells[0]).evaluation
    assert [[float(row[1 + seed]) for row in rows] for seed in range(3)] == evaluation.tolist()
    assert [row[0] for row in rows] == ["20", "40"]
    assert all(float(error) > 0.0 for error in rows[1][7:10])


def test_a_cell_is_recognised_whatever_defaults_are_written_out(tmp_path: Path) -> None:
    (first_cell, *_) = _cells(write_spec(tmp_path, SMALL_SPEC))
    (spelled_out, *_) = _cells(
        write_spec(tmp_path, SMALL_SPEC.replace("horizon: 15", "horizon: 15\n      updates_per_step: 1"))
    )
    assert first_cell.id == spelled_out.id
    assert isinstance(first_cell.config, StepRun)


def test_a_plants_run_may_be_next_to_the_spec_and_its_content_determines_the_cell(tmp_path: Path) -> None:
    spec = write_spec(
        tmp_path,
        """
        name: small
        title: A plant of one's own
        trials: 3
        steps: 1000
        blocks: [{world: "plant:./mine.yaml", set: {algorithm: td3, learner.td3.batch: 16, random_steps: 100}}]
        """,
    )
    with pytest.raises(ConfigError, match="no file"):
        _cells(spec)
    shipped_text = find_config("pendulum").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(shipped_text, encoding="utf-8")
    (cell,) = _cells(spec)
    assert cell.label["world"] == "./mine.yaml"
    rig_folder = tmp_path / "crane"
    rig_folder.mkdir()
    (rig_folder / "run.yaml").write_text(shipped_text, encoding="utf-8")
    (rig_cell,) = _cells(write_spec(rig_folder, spec.read_text(encoding="utf-8").replace("./mine.yaml", "run.yaml")))
    assert (rig_cell.label["world"], rig_cell.id) == ("crane", cell.id)
    nested_text = spec.read_text(encoding="utf-8").replace("./mine.yaml", "../crane/run.yaml")
    (other_cell,) = _cells(write_spec(rig_folder, nested_text))
    assert other_cell.label["world"] == "../crane", "as written, because two folders may have the same name"
    named_folder = tmp_path / "named"
    named_folder.mkdir()
    (namesake,) = _cells(write_spec(named_folder, spec.read_text(encoding="utf-8").replace("./mine.yaml", "pendulum")))
    assert namesake.id == cell.id
    assert equal_settings(namesake.config, cell.config)
    (tmp_path / "mine.yaml").write_text(shipped_text.replace("rate_hz: 50", "rate_hz: 40"), encoding="utf-8")
    (changed_cell,) = _cells(spec)
    assert changed_cell.id != cell.id
    with pytest.raises(ValueError, match="has changed since the experiment began"):
        run_job(create_job(Unit(cell, (0,))), load_engine(ENGINE), lambda episodes: None)
    (tmp_path / "out").mkdir()
    write_cells(tmp_path / "out", [cell])
    with pytest.raises(
        UnsuitableFolder, match=r"started with other settings in the run of 'plant:.*mine.yaml'; restore it"
    ):
        check_folder(tmp_path / "out", [changed_cell], resume=True)


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ("hidden: [4], batch: 4, lr: 0.1", True),
        ("hidden: [4], batch: 8", False),
        ("hidden: [5], batch: 4", False),
        ("hidden: [4], batch: 4, delay: 1", False),
    ],
)
def test_cells_that_differ_only_in_fractions_are_probed_once(tmp_path: Path, change: str, is_same: bool) -> None:
    first_cell, other_cell, _ = _cells(write_spec(tmp_path, SMALL_SPEC))
    changed_cell, *_ = _cells(write_spec(tmp_path, SMALL_SPEC.replace("hidden: [4], batch: 4", change)))
    assert (cost_key(first_cell.config) == cost_key(changed_cell.config)) is is_same
    assert cost_key(first_cell.config) != cost_key(other_cell.config)
    larger_cell, *_ = _cells(write_spec(tmp_path, SMALL_SPEC.replace("capacity: [30]", "capacity: [35]")))
    assert cost_key(first_cell.config) == cost_key(larger_cell.config)


def test_check_and_dry_run_report_contents_and_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_spec(tmp_path, SMALL_SPEC)
    assert main(["check", str(path)]) == ExitCode.OK
    assert capsys.readouterr().out.endswith("valid: an experiment of 3 cells, 3 trials of 40 steps each\n")
    assert main(["check", str(path), "--explain"]) == ExitCode.CONFIGURATION
    monkeypatch.setattr("onrig.tools.experiments.cost.PROBE_S", 0.0)
    assert main(["experiment", str(path), "--dry-run", "--out", str(tmp_path / "out")]) == ExitCode.OK
    assert "3 cells of 3 trials, 40 steps each, about" in capsys.readouterr().out
    write_spec(tmp_path, SMALL_SPEC.replace("CartPole-v1", "CartPole-v7"))
    assert main(["check", str(path)]) == ExitCode.CONFIGURATION
    assert f"{path}:14:12: gymnasium has no task 'CartPole-v7'" in capsys.readouterr().err
