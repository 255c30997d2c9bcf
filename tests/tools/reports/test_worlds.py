"""The report of an experiment in worlds: KLPER's score by origin, performance by capacity, and its page."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from onrig.learner.settings import LearnerSettings
from onrig.learner.trials.step_run import REPLAY_MEASURES, Evaluation, StepRun
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.memory.settings import Selection
from onrig.tools.cli import main
from onrig.tools.experiments.grid import expand_spec
from onrig.tools.experiments.spec import load_spec
from onrig.tools.experiments.store import Trial, WorldCell, write_cells, write_trial
from onrig.tools.reports import style
from onrig.tools.reports.world_plots import cell_styles, draw_capacities
from onrig.tools.reports.world_results import WorldResult, buffer_size_by_rule
from tests.tools.experiments.specs import write_spec


@pytest.fixture(autouse=True)
def lower_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots of few pixels: their content is not checked here."""
    monkeypatch.setattr(style, "DPI", 20)


SPEC = """
    name: sizes
    title: Sizes
    trials: 2
    steps: 400
    evaluation: {every: 100, episodes: 1}
    set: {random_steps: 10, learner.ddpg.batch: 4, learner.klper.sigma: 0.1}
    blocks:
      - world: gym:Pendulum-v1
        set: {strategy: "FULL[Uniform]"}
      - world: gym:Pendulum-v1
        grid: {strategy: ["FIFO[Uniform]", "TDE(1.2)[Uniform]"], capacity: [20, 40, 80]}
    """
SCORE_BY_ORIGIN = {"random": 0.5, "old": 0.6, "present": 0.7}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    spec = write_spec(tmp_path, SPEC, "spec.yaml")
    cells = list(expand_spec(load_spec(spec), lambda config, settings: []))
    write_cells(tmp_path, cells)
    for k, cell in enumerate(cells):
        for seed in range(5):
            measures = np.full((len(REPLAY_MEASURES), 4), 2.0)
            for origin, score in SCORE_BY_ORIGIN.items():
                measures[REPLAY_MEASURES.index(f"kl covariance {origin}")] = score + 0.02 * seed
            measures[REPLAY_MEASURES.index("kl behaviour"), -1] = 0.5 + 0.1 * seed
            measures[REPLAY_MEASURES.index("far share"), -1] = 0.1
            returns = np.array([-900.0, -500.0, -200.0, -100.0]) + k + seed
            write_trial(tmp_path, cell, seed, Trial(returns, returns, None, measures))
    return tmp_path


@pytest.mark.parametrize(("algorithm", "is_applicable"), [("ddpg", True), ("ppo", False)])
def test_the_rule_of_thumb_applies_to_an_algorithm_that_replays_all(algorithm: str, is_applicable: bool) -> None:
    run = StepRun("plant:pendulum", 400, Evaluation(200), learner=LearnerSettings(algorithm=algorithm))
    returns = np.array([[-900.0, -100.0]])
    result = WorldResult(WorldCell("id", {"world": "pendulum"}, run), np.arange(1), returns, 1, None, None)
    assert str(result.strategy) == "FULL[Uniform]"
    assert (buffer_size_by_rule([result]) is not None) is is_applicable


def test_sizes_are_compared_if_nothing_else_differs(tmp_path: Path) -> None:
    def world_result(capacity: int, **label: str) -> WorldResult:
        run = StepRun("plant:pendulum", 400, Evaluation(200), selection=Selection("FIFO[Uniform]", capacity))
        cell = WorldCell("id", {"world": "pendulum", "capacity": capacity, **label}, run)
        return WorldResult(cell, np.arange(2), np.array([[-900.0, -100.0], [-800.0, -90.0]]), 2, None, None)

    assert len(draw_capacities(tmp_path, [world_result(20), world_result(40), world_result(80)])) == 1
    assert (
        draw_capacities(
            tmp_path, [world_result(20, called="PPO"), world_result(40, called="NAF"), world_result(80, called="SAC")]
        )
        == []
    )


def test_a_cell_looks_the_same_in_each_task() -> None:
    def world_result(world: str, label: str) -> WorldResult:
        cell = WorldCell("id", {"world": world, "called": label}, StepRun(f"plant:{world}", 400, Evaluation(200)))
        return WorldResult(cell, np.arange(1), np.zeros((1, 2)), 1, None, None)

    pendulum_results, magman_results = (
        [world_result("pendulum", name) for name in ("DDPG", "DQN", "NAF")],
        [world_result("magman", "DDPG")],
    )
    styles = cell_styles({"pendulum": pendulum_results, "magman": [*magman_results, world_result("magman", "NAF")]})
    assert [*styles] == ["DDPG", "DQN", "NAF"]
    assert len(set(styles.values())) == 3


def test_batches_are_compared_by_their_origin(folder: Path) -> None:
    assert main(["report", str(folder)]) == ExitCode.OK
    tables = (folder / "tables.md").read_text()
    assert re.search(r"FULL\S+ \| covariance \| 0.54 \[.*\] \| 0.64 \[.*\] \| 0.74 \[.*\] \| 100 % \|", tables)
    assert re.search(r"FULL\S+ \| std \| 2.00 .* \| 0 % \|", tables)


def test_the_distance_from_the_behaviour_policies_is_the_last_finite_one(folder: Path) -> None:
    cell = expand_spec(load_spec(folder / "spec.yaml"), lambda config, settings: [])[0]
    measures = np.full((len(REPLAY_MEASURES), 4), np.nan)
    write_trial(folder, cell, 5, Trial(np.zeros(4), np.zeros(4), None, measures))
    assert main(["report", str(folder)]) == ExitCode.OK
    tables = (folder / "tables.md").read_text()
    assert re.search(r"FULL\S+ \| 5 \| 0.7000 \[0.5000, 0.9000\] \| 0.100 \[0.100, 0.100\] \|", tables)


def test_a_page_has_all_plots_next_to_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = folder / "docs" / "pages"
    revisions = [{"git_revision": name * 10, "git_dirty": name == "0123"} for name in ("abcd", "abcd", "0123")]
    (folder / "meta.json").write_bytes(msgspec.json.encode({**revisions[0], "resumed": revisions[1:]}))
    assert main(["report", str(folder), "--pages", str(pages)]) == ExitCode.OK
    assert f"see {pages / 'sizes.md'}" in capsys.readouterr().out
    page = (pages / "sizes.md").read_text()
    image_names = re.findall(r"!\[.*\]\((.*)\)", page)
    assert image_names == [f"sizes-{name}.png" for name in ("capacities", *(f"{k}-Pendulum-v1" for k in CURVES))]
    assert sorted(image_names) == sorted(path.name for path in pages.glob("*.png"))
    assert "| FIFO[Uniform], capacity 20 | 5 |" in page
    assert " Run at revision abcdabcd, then 01230123 (with uncommitted changes).\n" in page
    # 90 % of the way from -900 to -100, at the last of four evaluations.
    assert "| Pendulum-v1 | 400 | still rising: more may be needed |" in page


def test_a_shielded_world_shows_how_often_the_shield_acted(tmp_path: Path) -> None:
    spec = SPEC.replace("gym:Pendulum-v1", "plant:pendulum").replace(
        "set: {random", "set: {options.shield: true, random"
    )
    cells = list(expand_spec(load_spec(write_spec(tmp_path, spec, "spec.yaml")), lambda config, settings: []))
    write_cells(tmp_path, cells)
    returns = np.zeros(4)
    counts = np.array([[40.0, 20.0, 20.0, 10.0], [4.0, 0.0, 0.0, 0.0]])  # of 100 steps each
    for seed in range(2):
        write_trial(tmp_path, cells[0], seed, Trial(returns, returns, None, None, counts))
    write_trial(tmp_path, cells[0], 2, Trial(returns, returns))  # one more than requested, without counts
    assert main(["report", str(tmp_path)]) == ExitCode.OK
    tables = (tmp_path / "tables.md").read_text()
    assert "Incomplete: 2 of 14 trials are finished" in tables
    (row,) = re.findall(r"\| pendulum \| .* \| 2 \| (225.0 .*) \|", tables)
    assert [cell.split()[0] for cell in row.split(" | ")] == ["225.0", "100.0", "10.0", "0.0"]


def test_a_measure_without_any_cell_is_not_plotted(tmp_path: Path) -> None:
    cells = list(expand_spec(load_spec(write_spec(tmp_path, SPEC, "spec.yaml")), lambda config, settings: []))
    write_cells(tmp_path, cells)
    for seed in range(2):
        write_trial(
            tmp_path, cells[0], seed, Trial(np.zeros(4), np.zeros(4), None, np.full((len(REPLAY_MEASURES), 4), np.nan))
        )
    assert main(["report", str(tmp_path)]) == ExitCode.OK
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["returns-Pendulum-v1.png"]


def test_scores_of_a_run_that_has_changed_since_are_not_used(tmp_path: Path) -> None:
    run = tmp_path / "mine.yaml"
    run.write_text(
        "{rig: pendulum, task: swingup, rate_hz: 50, episodes: 9, device: {twin: {plant: {kind: pendulum}}}}\n"
    )
    spec = SPEC.replace("gym:Pendulum-v1", "plant:./mine.yaml")
    cells = list(expand_spec(load_spec(write_spec(tmp_path, spec, "spec.yaml")), lambda config, settings: []))
    write_cells(tmp_path, cells)
    for seed in range(2):
        write_trial(tmp_path, cells[0], seed, Trial(np.zeros(4), np.zeros(4)))
    assert main(["report", str(tmp_path)]) == ExitCode.OK
    assert "## Scores" in (tmp_path / "tables.md").read_text()
    run.write_text(run.read_text().replace("rate_hz: 50", "rate_hz: 100"))
    assert main(["report", str(tmp_path)]) == ExitCode.OK
    tables = (tmp_path / "tables.md").read_text()
    assert "## Scores" not in tables
    assert "has changed since its trials were run" in tables


CURVES = ("returns", "replayed", "scores", "departure")


def test_pages_are_made_for_experiments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("name: x\n")
    assert main(["report", str(tmp_path), "--pages", str(tmp_path / "pages")]) == ExitCode.CONFIGURATION
    assert "--pages is for experiments" in capsys.readouterr().err
