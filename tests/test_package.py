"""The installed package: complete, only ``onrig``, and not shadowed by the user's files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("runtime", "hw", "sim", "learner", "configs", "tools")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_list_of_packages_is_the_tree() -> None:
    folders = {path.parent for top in FOLDERS for path in (ROOT / top).rglob("*.py")}
    names = {".".join(("onrig", *folder.relative_to(ROOT).parts)) for folder in folders}
    assert PROJECT["tool"]["setuptools"]["packages"] == ["onrig", *sorted(names)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built without its leftovers of earlier builds."""
    source = tmp_path_factory.mktemp("source")
    for name in (*FOLDERS, "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "py.typed"):
        shutil.copy(ROOT / name, source)
    out = source / "dist"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "--no-index", "-w", out, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of an environment that has the wheel, and from this one the libraries alone."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin" / "python")]
    install = [*pip, "install", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (site,) = (folder / "lib").glob("python3*/site-packages")
    # A folder named by a .pth file is searched, but its own .pth files, such as an editable install's, are not read.
    (site / "libraries.pth").write_text(str(Path(numpy.__file__).parents[1]))
    return folder / "bin"


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """The folder of a user who has modules of their own."""
    for name in (*FOLDERS, "tests"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('a file of its user\\'s')\n")
    return tmp_path


def in_folder(folder: Path, *command: object) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_one_package_with_all_that_its_messages_point_to(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"onrig"}
    assert not [name for name in names if "tests" in name.split("/")]
    there = {"onrig/py.typed", "onrig/configs/pendulum.yaml", "onrig/runtime/SAFETY.md", "onrig/hw/PROTOCOL.md"}
    assert there <= set(names)
    pages = {f"onrig/docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert pages
    assert pages <= set(names)


def test_a_run_where_its_user_has_files_of_our_names(installed: Path, desk: Path) -> None:
    short = ("episodes=2", "task.episode_s=1", "learner.updates_per_episode=5")
    settings = [word for setting in short for word in ("--set", setting)]
    out = in_folder(desk, installed / "onrig", "run", "pendulum", "--run-dir", "run", *settings)
    assert "data complete" in out
    assert len((desk / "run" / "episodes.csv").read_text().splitlines()) >= 3
    in_folder(desk, installed / "onrig", "replay", "run")


def test_a_page_that_a_message_points_to_is_there(installed: Path, desk: Path) -> None:
    code = "from pathlib import Path; from onrig.tools.doctor.finding import PAGE; print(Path(PAGE).is_file(), PAGE)"
    there, page = in_folder(desk, installed / "python", "-c", code).split()
    assert there == "True"
    assert Path(page).is_relative_to(installed.parent)


def test_an_environment_is_made_where_its_user_has_a_file_of_our_name(installed: Path, desk: Path) -> None:
    pytest.importorskip("gymnasium")
    code = "import gymnasium as g; print(g.make('onrig.sim.envs:onrig/PendulumTwin-v0').reset(seed=0)[0].shape)"
    assert in_folder(desk, installed / "python", "-c", code).strip() == "(2,)"
