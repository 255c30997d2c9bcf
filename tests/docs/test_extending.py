"""The pieces of docs/extending.md, as an installed package, as files next to a configuration, and in Onrig's tree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.commands import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
PIECES = [name for name in BLOCKS if name.endswith(".py")]
SHORT = ("episodes=40", "task.episode_s=1", "learner.updates_per_episode=10", "selection.capacity=100")
EXPERIMENT = """
name: extended
title: "Extended"
figures: []
trials: 2
episodes: 2
set: {capacity: 300}
blocks:
  - config: lab.yaml
    grid: {strategy: ["Dullest(4)[PER]", "FIFO[Newest]"], algorithm: [ddpg, fourier]}
"""


class Lab:
    """A folder with the configuration, and the pieces that run in it."""

    def __init__(self, folder: Path, site: Path | None) -> None:
        self.folder = folder
        paths = [str(site)] if site is not None else []
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
        self._environment.pop("ONRIG_TRUST", None)

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "onrig.tools.cli", *map(str, arguments)]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def onrig(self, *arguments: object, code: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate()
        assert process.returncode == code, out + err
        return out + err

    def run(self, *arguments: object) -> str:
        return self.onrig("run", *arguments, *(word for setting in SHORT for word in ("--set", setting)))

    def python(self, code: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def kill_in_mid_run(self) -> None:
        words = [word for setting in SHORT for word in ("--set", setting)]
        process = self.start("run", "lab.yaml", "--run-dir", "run", *words)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("episode"):
                    break
            else:
                pytest.fail(f"the run ended by itself: {process.communicate()[1]}")
        finally:
            process.kill()
            process.communicate()


def written(folder: Path, names: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(BLOCKS[name], encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The pieces as an installed package, and a finished run with them."""
    folder = tmp_path_factory.mktemp("package")
    site, source = folder / "site", written(folder / "source", [*PIECES, "pyproject.toml"])
    install = ["pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([sys.executable, "-m", *install, str(source)], check=True, capture_output=True)
    text = BLOCKS["lab.yaml"]
    (folder / "lab.yaml").write_text(text[: text.index("python:")])
    lab = Lab(folder, site)
    lab.run("lab.yaml", "--run-dir", "run")
    return lab


@pytest.fixture
def files(tmp_path: Path) -> Lab:
    """The pieces as files next to the configuration."""
    return Lab(written(tmp_path / "files", [*PIECES, "lab.yaml"]), None)


pytestmark = pytest.mark.usefixtures("no_plots")


def test_the_page_has_one_piece_of_each_kind() -> None:
    assert sorted(PIECES) == ["dullest.py", "fourier.py", "newest.py", "oscillator.py"]
    points = tomllib.loads(BLOCKS["pyproject.toml"])["project"]["entry-points"]
    assert [*points] == ["onrig.algorithms", "onrig.samplers", "onrig.retentions", "onrig.plants", "onrig.drawings"]


def test_the_examples_are_formatted_like_the_code(tmp_path: Path) -> None:
    folder = written(tmp_path, PIECES)
    for how in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *how, "--config", str(ROOT / "pyproject.toml"), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_package_is_checked_replayed_and_shown(package: Lab) -> None:
    assert ": valid" in package.onrig("check", "lab.yaml")
    assert "ticks that differ  0" in package.onrig("replay", "run")
    assert "features: whole number 1 to 4096" in package.onrig("settings", "learner.fourier")
    package.onrig("report", "run")
    page = (package.folder / "run" / "report.html").read_text()
    assert "Dullest(4)[Newest]" in page
    about = "from pathlib import Path; from onrig.runtime.run_loading import load_resolved; import json; "
    about += "from onrig.tools.web.about import about; "
    about += "print(json.dumps(about(load_resolved(Path('run/config.yaml')), Path('run'))['drawing']))"
    drawing = json.loads(package.python(about))
    assert drawing["kind"] == "block"
    assert drawing["shapes"][2]["motions"] == [
        {"by": ["observation", 0], "turn": 0.0, "about": [0.0, 0.0], "shift": [1.0, 0.0]}
    ]
    pieces = json.loads((package.folder / "run" / "meta.json").read_text())["pieces"]
    assert {(p["source"], p["version"]) for p in pieces} == {("my-lab", "1.0")}
    assert {p["name"] for p in pieces} == {"fourier", "Newest", "Dullest", "oscillator"}


def test_replay_refuses_a_package_that_has_changed(package: Lab) -> None:
    module = package.folder / "site" / "my_lab" / "newest.py"
    before = module.read_text()
    try:
        module.write_text(before + "\n")
        message = package.onrig("replay", "run", code=2)
    finally:
        module.write_text(before)
    assert re.search(r"'\w+' of \w+ was my-lab 1\.0 \(sha256 \w+\) and is my-lab 1\.0 \(sha256 \w+\) here", message)


def test_files_resume_after_a_kill_to_the_same_bits_as_the_package(files: Lab, package: Lab) -> None:
    assert ": valid" in files.onrig("check", "lab.yaml")
    files.kill_in_mid_run()
    refused = files.onrig("run", "--resume", "run", code=2)
    assert re.search(r"its Python code runs only with --trust; read it first: \S+/fourier\.py, \S+", refused)
    files.onrig("run", "--resume", "run", "--trust")
    whole, resumed = ((lab.folder / "run" / "episodes.csv").read_text() for lab in (package, files))
    assert resumed == whole
    assert "ticks that differ  0" in files.onrig("replay", "run", "--trust")
    assert "only with --trust" in files.onrig("report", "run", code=2)
    assert "features: " in files.onrig("settings", "--of", "lab.yaml", "learner.fourier")
    with (files.folder / "dullest.py").open("a") as file:
        file.write("# changed\n")
    assert "dullest.py' has changed since the run began" in files.onrig("replay", "run", "--trust", code=2)


def test_an_error_in_a_file_is_shown_to_the_user(files: Lab) -> None:
    path = files.folder / "dullest.py"
    path.write_text(path.read_text().replace("self._error[slot] = np.inf", "self._error[slot] = self.nothing"))
    line = path.read_text()[: path.read_text().index("self.nothing")].count("\n") + 1
    message = files.onrig("check", "lab.yaml", code=2)
    assert re.search(rf"'Dullest' of retentions raises AttributeError: .* \(\S+/dullest\.py, line {line}\)", message)


def test_pieces_moved_into_the_tree_train_together(tmp_path: Path) -> None:
    for name in ("runtime", "hw", "sim", "learner", "configs", "tools"):
        shutil.copytree(ROOT / name, tmp_path / "onrig" / name, ignore=shutil.ignore_patterns("__pycache__"))
    written(tmp_path / "onrig" / "learner" / "lab", PIECES)
    points = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    for group, added in tomllib.loads(BLOCKS["pyproject.toml"])["project"]["entry-points"].items():
        points[group] |= {name: place.replace("my_lab.", "onrig.learner.lab.") for name, place in added.items()}
    lines = [line for group in points for line in (f"[{group}]", *(f"{n} = {at}" for n, at in points[group].items()))]
    metadata = tmp_path / "onrig-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: onrig\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    text = BLOCKS["lab.yaml"]
    (tmp_path / "lab.yaml").write_text(
        text[: text.index("  newest:")] + text[text.index("  updates_") : text.index("python:")]
    )
    (tmp_path / "extended.yaml").write_text(EXPERIMENT)
    Lab(tmp_path, tmp_path).onrig("experiment", "extended.yaml", "--out", "out", "--workers", "1")
    assert len(list((tmp_path / "out" / "trials").rglob("*.npz"))) == 4 * 2
