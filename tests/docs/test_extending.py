"""The worked examples of docs/extending.md, applied to a copy of the tree and run there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.commands import ROOT

pytest.importorskip("torch")

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## An? ([a-z]+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
EXPERIMENT = """
name: extended
title: "Extended"
figures: []
trials: 2
episodes: 4
set: {capacity: 300}
blocks:
  - config: pendulum
    grid: {strategy: ["Rand[PER]", "FIFO[CER]"], algorithm: [ddpg, twin_ddpg]}
"""
STATES = """
import numpy as np
from onrig.learner.algorithm_settings import TwinDdpgConfig
from onrig.learner.algorithms import Minibatches
from onrig.learner.algorithms.twin_ddpg import TwinDdpg

def made(*seeds):
    return TwinDdpg(TwinDdpgConfig(), 3, 2, [np.random.default_rng(seed) for seed in seeds])

rng = np.random.default_rng(0)
columns = [rng.normal(size=(8, 2, 16, *width)) for width in ((3,), (2,), (), (3,))]
columns.append(rng.random((8, 2, 16)) < 0.1)

def batches(part):
    return Minibatches(*(column[part] for column in columns))

both, resumed, alone = made(5, 6), made(7, 8), made(6)
first, second = batches(np.s_[:4]), batches(np.s_[4:])
both.update(first)
resumed.restore(both.state())
td = both.update(second).td
assert np.array_equal(resumed.update(second).td, td)
assert all(np.array_equal(resumed.state()[key], values) for key, values in both.state().items())
alone.update(batches(np.s_[:4, 1:]))
assert np.allclose(alone.update(batches(np.s_[4:, 1:])).td, td[:, 1:], 0, 1e-5)
"""


class Block(NamedTuple):
    """A file, or a change of one."""

    language: str
    path: str
    text: str


def blocks(section: str) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w+)\n# (\S+)\n(.*?)^```", section, re.DOTALL | re.MULTILINE)]


def patched(text: str, change: str) -> str:
    """The text after a change: pieces set apart by dots, each with lines that stay, go and come."""
    for piece in change.split("...\n"):
        lines = piece.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if not line.startswith("+"))
        after = "".join(line[1:] for line in lines if not line.startswith("-"))
        assert text.count(before) == 1, f"the page changes lines that are not there, or not once:\n{before}"
        text = text.replace(before, after)
    return text


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ``onrig`` is the tree with all that the page adds."""
    folder = tmp_path_factory.mktemp("extended")
    for name in ("runtime", "hw", "sim", "learner", "configs", "tools"):
        shutil.copytree(ROOT / name, folder / "onrig" / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder / "onrig")
    for block in blocks(PAGE):
        path = folder / "onrig" / block.path
        text = patched(path.read_text(encoding="utf-8"), block.text) if block.language == "diff" else block.text
        path.write_text(text, encoding="utf-8")
    _as_installed(folder)
    return folder


def _as_installed(folder: Path) -> None:
    """Write what an installation of the tree in a folder would say of its entry points."""
    project = tomllib.loads((folder / "onrig" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines: list[str] = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {home}" for name, home in points.items())]
    metadata = folder / "onrig-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: onrig\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("\n".join(lines))


def onrig(extended: Path, folder: Path, *arguments: object) -> str:
    command = [sys.executable, "-m", "onrig.tools.cli", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(extended)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_algorithm_in_torch_resumes_to_the_same_bits_and_its_trials_do_not_mix(extended: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(extended), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", STATES], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_each_example_touches_as_many_files_as_the_page_says() -> None:
    told = dict(re.findall(r"^\| \[an? (\w+)\]\([^)]*\)[^|]*\| (\d+) \|", PAGE, re.MULTILINE))
    touched = {name: len({block.path for block in blocks(section)}) for name, section in SECTIONS.items()}
    assert {name: int(n) for name, n in told.items()} == touched
    assert set(told) == {"retention", "sampler", "algorithm", "plant"}


def test_the_examples_are_formatted_as_the_code_is(extended: Path) -> None:
    paths = [extended / "onrig" / block.path for block in blocks(PAGE) if block.path.endswith(".py")]
    for how in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *how, "--config", str(ROOT / "pyproject.toml"), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_retention_sampler_and_algorithm_train_side_by_side(extended: Path, tmp_path: Path) -> None:
    (tmp_path / "extended.yaml").write_text(EXPERIMENT)
    onrig(extended, tmp_path, "experiment", "extended.yaml", "--out", "out", "--workers", "1")
    assert len(list((tmp_path / "out" / "trials").rglob("*.npz"))) == 4 * 2


def test_all_of_them_drive_a_rig(extended: Path, tmp_path: Path) -> None:
    strategy = ("selection.strategy=Rand[CER]", "selection.capacity=100")
    settings = ("learner.algorithm=twin_ddpg", *strategy, "episodes=3", "task.episode_s=1")
    words = [word for setting in settings for word in ("--set", setting)]
    assert "data complete" in onrig(extended, tmp_path, "run", "oscillator", "--run-dir", "run", *words)
