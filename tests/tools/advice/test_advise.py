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

QUICK = "learner: {ddpg: {batch: 4, reward_scale: 1.0e-3}, updates_per_episode: 2}"
BUDGET = "40"


class Here:
    """Workers in this process, which fail after ``most`` units."""

    slots = 2

    def __init__(self, most: int) -> None:
        self.most = most
        self.done = 0

    def run(self, units: Sequence[Unit]) -> Iterator[Event | None]:
        for unit in units:
            if self.done == self.most:
                raise KeyboardInterrupt
            self.done += 1
            yield UnitDone(unit, decode_trials(run_job(create_job(unit), load_engine(ENGINE), lambda episodes: None)))

    def close(self) -> None:
        pass


def few(config: Any) -> Iterator[Candidate]:
    """The configuration and two like it."""
    yield next(candidates(config))
    learner = {"ddpg": {"batch": 4, "reward_scale": 1e-3}, "updates_per_episode": 2}
    kept = {"strategy": "FIFO[Uniform]", "capacity": 10}
    noise = {"process": "ou", "gain": 0.3, "friction": 0.15, "amplitude": [[1, 1.0]]}
    yield Candidate("few", "keeps little", {"learner": learner, "selection": kept, "exploration": noise})
    slow = {**learner, "ddpg": {**learner["ddpg"], "gamma": 0.5}}  # type: ignore[dict-item]
    yield Candidate("short-sighted", "discounts much", {"learner": slow, "selection": kept, "exploration": noise})
    yield Candidate("wrong", "cannot be", {"learner": {**learner, "updates_per_episode": 0}})


@pytest.fixture(scope="module")
def workers() -> Iterator[Here]:
    here = Here(10_000)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(advise, "start_workers", lambda manner, folder, again: contextlib.nullcontext(here))
        patched.setattr(advise, "candidates", few)
        yield here


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pendulum with episodes of ten steps."""
    folder = tmp_path_factory.mktemp("advice")
    text, task = find_config("pendulum").read_text(), find_config("swingup", "tasks").read_text()
    text = text.replace("episodes: 500", "episodes: 2").replace("task: swingup", "task: t.yaml")
    first, last = text.index("learner:"), text.index("exploration:")
    (folder / "t.yaml").write_text(task.replace("episode_s: 4.0", "episode_s: 0.2"))
    (folder / "run.yaml").write_text(f"{text[:first]}{QUICK}\n{text[last:]}")
    return folder / "run.yaml"


@pytest.fixture(scope="module")
def whole(run: Path, workers: Here) -> Path:
    """Folder of a finished race."""
    assert advised(run, "whole") == 0
    return run.parent / "whole"


def advised(run: Path, out: str, *more: str) -> int:
    return main(["advise", str(run), "--trials", BUDGET, "--out", str(run.parent / out), *more])


def bits(folder: Path) -> dict[str, bytes]:
    names = ("advice.json", "advised.yaml", "cells.json")
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.npz"))} | {
        name: (folder / name).read_bytes().replace(folder.name.encode(), b"") for name in names
    }


def test_a_race_ends_with_an_answer_that_a_run_can_take(run: Path, whole: Path) -> None:
    advice = json.loads((whole / "advice.json").read_text())
    assert advice["low"] < advice["mean"] < advice["high"]
    assert advice["run_low"] < advice["low"]
    assert advice["undecided"]
    names = {path.stem for path in (whole / "candidates").iterdir()}
    assert any(name.endswith("-1") for name in names)
    assert len(list(whole.rglob("*.npz"))) <= int(BUDGET)
    assert main(["check", str(whole / "advised.yaml")]) == 0
    assert main(["report", str(whole)]) == 0
    assert main(["run", str(run), "--advised", str(whole), "--dry-run", "--run-dir", str(run.parent / "r")]) == 0


def test_an_advice_for_another_rig_is_refused(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "magman", "--advised", str(whole), "--dry-run"]) == 2
    assert "is for rig pendulum, not magman: run `onrig advise magman`" in capsys.readouterr().err
    assert main(["run", "pendulum", "--advised", str(whole.parent), "--dry-run"]) == 2
    assert "contains no advice (advice.json): create it with `onrig advise CONFIG" in capsys.readouterr().err


def test_a_stopped_race_says_what_it_knows_and_goes_on_to_the_same_bits(
    run: Path, whole: Path, workers: Here, capsys: pytest.CaptureFixture[str]
) -> None:
    for stop in (1, 7):
        out = f"stopped-{stop}"
        workers.done, workers.most = 0, stop
        assert advised(run, out) == 130
        told = capsys.readouterr()
        assert "onrig advise: stopped; continue with `onrig advise" in told.err
        assert ("the first rung is not complete" in told.out) == (stop == 1)
        workers.most = 10_000
        assert advised(run, out, "--resume") == 0
        assert bits(run.parent / out) == bits(whole)


def test_another_objective_or_a_larger_budget_goes_on_from_the_finished_trials(
    run: Path, whole: Path, workers: Here, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run.parent / "more"
    shutil.copytree(whole, folder)
    trials = len(list(folder.rglob("*.npz")))
    more = ["--trials", "60", "--objective", "regret", "--resume"]
    assert main(["advise", str(run), "--out", str(folder), *more]) == 0
    assert "Excluded: wrong: " in capsys.readouterr().out
    assert trials < len(list(folder.rglob("*.npz"))) <= trials + 60


def test_refusals_are_one_line_with_the_remedy(run: Path, workers: Here, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str) -> str:
        assert main(["advise", *words]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    out, done = ["--out", str(run.parent / "out")], workers.done
    assert "set --trials 20" in refused(str(run), "--trials", "11", *out)
    assert workers.done == done
    (run.parent / "out" / "other").touch()
    assert "is not empty; add --resume" in refused(str(run), "--trials", "40", *out)
    assert "either --minutes or --trials" in refused(str(run), "--trials", "40", "--minutes", "1")
    none = ["--out", str(run.parent / "none")]
    assert "contains no race; leave out --resume" in refused(str(run), "--resume", *none)
    assert "run `onrig identify CONFIG`" in refused(str(run), "--set", "limits.predicted=null", *none)
    assert "`onrig baseline CONFIG`" in refused(str(run), "--set", "task.normalization=null", *none)
    assert "trials have no cameras" in refused("pendulum-camera", *none)


def test_a_candidate_with_more_trips_than_allowed_is_out(
    run: Path, workers: Here, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        advise, "describe_excess_trips", lambda folder, entry, pairs: "4 trips" if "few" in str(entry) else None
    )
    assert advised(run, "race") == 0
    assert "Excluded: few: 4 trips." in capsys.readouterr().out


def test_a_race_goes_on_only_with_the_plugins_of_its_trials(
    run: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run.parent / "upgraded"
    shutil.copytree(whole, folder)
    meta = json.loads((folder / "meta.json").read_text())
    old = Plugin("onrig.samplers", "Uniform", "lab", "1.0", "a" * 64)
    (folder / "meta.json").write_text(json.dumps({**meta, **plugin_records([old])}))
    assert advised(run, "upgraded", "--resume") == 2
    assert "'Uniform' of samplers was lab 1.0 (sha256 aaaaaaaaaaaa) and is built-in here" in capsys.readouterr().err
