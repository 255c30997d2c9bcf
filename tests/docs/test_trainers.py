"""The trainers of docs/examples/trainers, at small sizes."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import onrig
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.running import find_running
from onrig.tools import cli
from tests.docs.commands import ROOT
from tests.lab.rig.processes import PATIENCE_S
from tests.lab.rig.run import ENDLESS, Run

pytest.importorskip("torch")
FOLDER = ROOT / "docs" / "examples" / "trainers"
MOST_LINES = 60


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if request.param == "sb3_sac":
        pytest.importorskip("stable_baselines3")
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(request.param)


def test_each_example_is_short() -> None:
    for path in FOLDER.glob("*.py"):
        assert len(path.read_text().splitlines()) <= MOST_LINES, path


@pytest.mark.parametrize("example", ["on_environment"], indirect=True)
def test_td3_on_the_environment(example: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    returns = example.main("pendulum", steps=620, pace="lockstep", folder=folder)
    assert len(returns) == 3
    assert cli.main(["replay", str(folder)]) == ExitCode.OK
    assert cli.main(["report", str(folder)]) == ExitCode.OK


@pytest.mark.parametrize("example", ["sb3_sac"], indirect=True)
@pytest.mark.filterwarnings("ignore")
def test_stable_baselines_on_the_environment(example: Any, tmp_path: Path) -> None:
    scores = example.main("pendulum", steps=250, pace="lockstep", folder=tmp_path / "run")
    assert len(scores) == example.EVALUATIONS
    assert all(-1 < score < 1 for score in scores)


@pytest.mark.parametrize("example", ["on_link"], indirect=True)
def test_sac_on_the_memory_of_a_rig(example: Any, tmp_path: Path) -> None:
    settings = (*ENDLESS, "local_learner=false", "link.admissions_per_s=1000")
    with Run(tmp_path / "run", "pendulum", *settings) as run:
        run.until(lambda: find_running(run.folder), "the run")
        verdicts = example.main(run.folder, most=1000)
        assert verdicts[0].accepted
        assert [verdict.accepted or verdict.stage == "rate" for verdict in verdicts] == [True] * 3
        assert any(event["learner"] for event in run.events("learner_attached"))


@pytest.mark.parametrize("example", ["off_line"], indirect=True)
@pytest.mark.skipif(not hasattr(onrig, "open_run"), reason="needs onrig.open_run")
def test_td3_offline(example: Any, tmp_path: Path) -> None:
    with Run(tmp_path / "run", "pendulum", "episodes=2", "evaluate_every=0", "task.episode_s=2") as run:
        assert run.ended(PATIENCE_S) == ExitCode.OK
    example.main(tmp_path / "run", tmp_path / "policy.onnx", updates=20)
    assert cli.main(["policy", "check", str(tmp_path / "policy.onnx"), "pendulum"]) == ExitCode.OK
