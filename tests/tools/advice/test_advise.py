"""Races of small candidates on the pendulum, through the verb."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from onrig.runtime.config.document import find_config
from onrig.tools.advice import advise
from onrig.tools.advice.candidates import Candidate, candidates
from onrig.tools.cli import main
from onrig.tools.experiments.jobs import ENGINE, Unit, create_job, decode_trials, load_engine, run_job
from onrig.tools.experiments.workers import Event, UnitDone
from onrig.tools.plugins import Plugin, plugin_records

QUICK_LEARNER = "learner: {ddpg: {batch: 4, reward_scale: 1.0e-3}, updates_per_episode: 2}"
BUDGET = "40"


class InProcessWorkers:
    """Workers in this process, which fail after ``max_units``."""

    slots = 2

    def __init__(self, max_units: int) -> None:
        self.max_units = max_units
        self.n_done = 0

    def run(self, units: Sequence[Unit]) -> Iterator[Event | None]:
        for unit in units:
            if self.n_done == self.max_units:
                raise KeyboardInterrupt
            self.n_done += 1
            yield UnitDone(unit, decode_trials(run_job(create_job(unit), load_engine(ENGINE), lambda episodes: None)))

    def close(self) -> None:
        pass


def few_candidates(config: Any) -> Iterator[Candidate]:
    """The configuration and two similar ones."""
    yield next(candidates(config))
    learner = {"ddpg": {"batch": 4, "reward_scale": 1e-3}, "updates_per_episode": 2}
    selection = {"strategy": "FIFO[Uniform]", "capacity": 10}
    noise = {"process": "ou", "gain": 0.3, "friction": 0.15, "amplitude": [[1, 1.0]]}
    yield Candidate("few", "keeps little", {"learner": learner, "selection": selection, "exploration": noise})
    slow_learner = {**learner, "ddpg": {**learner["ddpg"], "gamma": 0.5}}  # type: ignore[dict-item]
    yield Candidate(
        "short-sighted", "discounts much", {"learner": slow_learner, "selection": selection, "exploration": noise}
    )
    yield Candidate("wrong", "cannot be", {"learner": {**learner, "updates_per_episode": 0}})


@pytest.fixture(scope="module")
def workers() -> Iterator[InProcessWorkers]:
    in_process = InProcessWorkers(10_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advise, "start_workers", lambda options, folder, resume: contextlib.nullcontext(in_process))
        patch.setattr(advise, "candidates", few_candidates)
        yield in_process


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pendulum with episodes of ten steps."""
    folder = tmp_path_factory.mktemp("advice")
    text, task = find_config("pendulum").read_text(), find_config("swingup", "tasks").read_text()
    text = text.replace("episodes: 500", "episodes: 2").replace("task: swingup", "task: t.yaml")
    first, last = text.index("learner:"), text.index("exploration:")
    (folder / "t.yaml").write_text(task.replace("episode_s: 4.0", "episode_s: 0.2"))
    (folder / "run.yaml").write_text(f"{text[:first]}{QUICK_LEARNER}\n{text[last:]}")
    return folder / "run.yaml"


@pytest.fixture(scope="module")
def finished_race(run: Path, workers: InProcessWorkers) -> Path:
    """Folder of a finished race."""
    assert run_advise(run, "whole") == 0
    return run.parent / "whole"


def run_advise(run: Path, out_option: str, *arguments: str) -> int:
    return main(["advise", str(run), "--trials", BUDGET, "--out", str(run.parent / out_option), *arguments])


def bits(folder: Path) -> dict[str, bytes]:
    names = ("advice.json", "advised.yaml", "cells.json")
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.npz"))} | {
        name: (folder / name).read_bytes().replace(folder.name.encode(), b"") for name in names
    }


def test_a_race_ends_with_a_result_that_a_run_can_use(run: Path, finished_race: Path) -> None:
    advice = json.loads((finished_race / "advice.json").read_text())
    assert advice["low"] < advice["mean"] < advice["high"]
    assert advice["run_low"] < advice["low"]
    assert advice["undecided"]
    names = {path.stem for path in (finished_race / "candidates").iterdir()}
    assert any(name.endswith("-1") for name in names)
    assert len(list(finished_race.rglob("*.npz"))) <= int(BUDGET)
    assert main(["check", str(finished_race / "advised.yaml")]) == 0
    assert main(["report", str(finished_race)]) == 0
    assert (
        main(["run", str(run), "--advised", str(finished_race), "--dry-run", "--run-dir", str(run.parent / "r")]) == 0
    )


def test_an_advice_for_another_rig_is_refused(finished_race: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "magman", "--advised", str(finished_race), "--dry-run"]) == 2
    assert "is for rig pendulum, not magman: run `onrig advise magman`" in capsys.readouterr().err
    assert main(["run", "pendulum", "--advised", str(finished_race.parent), "--dry-run"]) == 2
    assert "contains no advice (advice.json): create it with `onrig advise CONFIG" in capsys.readouterr().err


def test_a_stopped_race_reports_its_results_and_continues_to_the_same_bits(
    run: Path, finished_race: Path, workers: InProcessWorkers, capsys: pytest.CaptureFixture[str]
) -> None:
    for max_units_done in (1, 7):
        out_option = f"stopped-{max_units_done}"
        workers.n_done, workers.max_units = 0, max_units_done
        assert run_advise(run, out_option) == 130
        captured = capsys.readouterr()
        assert "onrig advise: stopped; continue with `onrig advise" in captured.err
        assert ("the first rung is not complete" in captured.out) == (max_units_done == 1)
        workers.max_units = 10_000
        assert run_advise(run, out_option, "--resume") == 0
        assert bits(run.parent / out_option) == bits(finished_race)


def test_another_objective_or_a_larger_budget_continues_from_the_finished_trials(
    run: Path, finished_race: Path, workers: InProcessWorkers, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run.parent / "more"
    shutil.copytree(finished_race, folder)
    trials = len(list(folder.rglob("*.npz")))
    arguments = ["--trials", "60", "--objective", "regret", "--resume"]
    assert main(["advise", str(run), "--out", str(folder), *arguments]) == 0
    assert "Excluded: wrong: " in capsys.readouterr().out
    assert trials < len(list(folder.rglob("*.npz"))) <= trials + 60


def test_refusals_are_one_line_with_the_remedy(
    run: Path, workers: InProcessWorkers, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal_message(*words: str) -> str:
        assert main(["advise", *words]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    out_option, n_done = ["--out", str(run.parent / "out")], workers.n_done
    assert "set --trials 20" in refusal_message(str(run), "--trials", "11", *out_option)
    assert workers.n_done == n_done
    (run.parent / "out" / "other").touch()
    assert "is not empty; add --resume" in refusal_message(str(run), "--trials", "40", *out_option)
    assert "either --minutes or --trials" in refusal_message(str(run), "--trials", "40", "--minutes", "1")
    missing_folder = ["--out", str(run.parent / "none")]
    assert "contains no race; leave out --resume" in refusal_message(str(run), "--resume", *missing_folder)
    assert "run `onrig identify CONFIG`" in refusal_message(str(run), "--set", "limits.predicted=null", *missing_folder)
    assert "`onrig baseline CONFIG`" in refusal_message(str(run), "--set", "task.normalization=null", *missing_folder)
    assert "trials have no cameras" in refusal_message("pendulum-camera", *missing_folder)


def test_a_candidate_with_more_trips_than_allowed_is_excluded(
    run: Path, workers: InProcessWorkers, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        advise, "describe_excess_trips", lambda folder, entry, pairs: "4 trips" if "few" in str(entry) else None
    )
    assert run_advise(run, "race") == 0
    assert "Excluded: few: 4 trips." in capsys.readouterr().out


def test_a_race_continues_only_with_the_plugins_of_its_trials(
    run: Path, finished_race: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run.parent / "upgraded"
    shutil.copytree(finished_race, folder)
    meta = json.loads((folder / "meta.json").read_text())
    old_plugin = Plugin("onrig.samplers", "Uniform", "lab", "1.0", "a" * 64)
    (folder / "meta.json").write_text(json.dumps({**meta, **plugin_records([old_plugin])}))
    assert run_advise(run, "upgraded", "--resume") == 2
    assert "'Uniform' of samplers was lab 1.0 (sha256 aaaaaaaaaaaa) and is built-in here" in capsys.readouterr().err
