"""The examples of docs/examples: checked, run to the end, replayed, reported; a study measures what they learn."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from onrig.runtime import registry
from onrig.runtime.exit_codes import ExitCode
from onrig.tools.cli import main
from onrig.tools.drawings import drawing_of
from onrig.tools.load import load
from tests.docs.commands import ROOT
from tests.lab.rig.run import UNHURRIED
from tests.studies.examples import MEASURES

EXAMPLES = ROOT / "docs/examples"
NAMES = sorted(MEASURES)
BRIEF = (
    *("episodes=2", "task.episode_s=0.5", "evaluate_every=2"),
    *("learner.updates_per_episode=5", "learner.updates_per_transition=null", "learner.learning_starts=32"),
    "learner.td3.batch=32",
)


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo after each test: plants in files are registered for the process, and their trust is in its environment."""
    monkeypatch.setattr(registry, "_plugin_files", {group: {} for group in registry.GROUPS})
    monkeypatch.setenv("ONRIG_TRUST", "")


@pytest.fixture(params=NAMES)
def example(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of an example as the working directory."""
    name = str(request.param)
    if "mujoco" in (EXAMPLES / name / "run.yaml").read_text():
        pytest.importorskip("mujoco")
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder)
    monkeypatch.chdir(folder)
    return folder


def test_check_accepts_the_example_without_warnings(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "run.yaml"]) == ExitCode.OK
    said = capsys.readouterr()
    assert said.out.startswith("run.yaml: valid: rig ")
    assert said.err == ""
    assert main(["experiment", "experiment.yaml", "--dry-run"]) == ExitCode.OK


def test_the_example_runs_replays_bit_for_bit_and_is_reported(example: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = [word for setting in (*UNHURRIED, *BRIEF) for word in ("--set", setting)]
    assert main(["run", "run.yaml", "--run-dir", "runs/first", *settings]) == ExitCode.OK, capfd.readouterr().err
    capfd.readouterr()
    assert main(["replay", "runs/first"]) == ExitCode.OK
    assert re.search(r"ticks that differ +0\n", capfd.readouterr().out)
    assert main(["report", "runs/first"]) == ExitCode.OK
    assert "not applicable: it needs normalised rewards" in capfd.readouterr().out
    assert (example / "runs/first/report.html").is_file()


def test_the_example_has_a_drawing(example: Path) -> None:
    data = drawing_of(load("run.yaml"))
    assert data["kind"] == {"motor": "wheel", "inverted-double-pendulum": "shapes"}.get(example.name, example.name)
    assert msgspec.json.encode(data)


def test_the_readme_states_how_far_the_example_learned(example: Path) -> None:
    text = " ".join((example / "README.md").read_text().split())
    assert re.search(rf"`python -m tests\.studies\.examples {example.name}`, 20\d\d-\d\d-\d\d", text)
    assert re.search(r"\*\*(9|10) of 10 seeds\*\*", text)


def test_the_motor_needs_no_python_and_the_cart_pole_at_most_80_lines() -> None:
    assert not list((EXAMPLES / "motor").glob("*.py"))
    assert len((EXAMPLES / "cartpole/plant.py").read_text().splitlines()) <= 80


def test_python_files_of_the_examples_are_formatted_like_the_code() -> None:
    for how in (["check"], ["format", "--check"]):
        files = [str(path) for path in EXAMPLES.glob("*/*.py")]
        command = [sys.executable, "-m", "ruff", *how, "--config", str(ROOT / "pyproject.toml"), *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_examples_page_lists_all_examples() -> None:
    page = (EXAMPLES / "README.md").read_text()
    for folder in EXAMPLES.iterdir():
        if folder.is_dir() and folder.name != "__pycache__":
            assert f"]({folder.name})" in page
