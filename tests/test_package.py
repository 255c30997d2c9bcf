"""The installed package: complete, only ``onrig``, and not shadowed by the user's files."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("runtime", "hw", "sim", "learner", "configs", "tools")
LINKS = (*FOLDERS, "docs")


def test_the_package_links_to_each_folder_by_a_relative_path() -> None:
    links = {path.name: os.readlink(path) for path in (ROOT / "onrig").iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in LINKS}
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"onrig", "tests"}
    assert rooms == set(FOLDERS)
    assert {path for room in FOLDERS for path in (ROOT / room).rglob("*.py")} == {
        path for room in FOLDERS for path in (ROOT / room).rglob("*.py") if (path.parent / "__init__.py").exists()
    }, "a module outside a package would not be installed"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")
def test_git_preserves_the_links_and_so_do_its_archives(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-s", "onrig"], cwd=ROOT, capture_output=True, text=True, check=True)
    modes = {line.split("\t")[1]: line.split()[0] for line in listed.stdout.splitlines()}
    assert {path for path, mode in modes.items() if mode == "120000"} == {f"onrig/{name}" for name in LINKS}
    archive = subprocess.run(["git", "archive", "HEAD", "onrig"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        links = {member.name: member.linkname for member in packed.getmembers() if member.issym()}
    assert links == {f"onrig/{name}": f"../{name}" for name in LINKS}


def test_a_plain_clone_resolves_its_own_imports(source: Path, tmp_path: Path) -> None:
    """Without an installation: from its root, and from other folders through PYTHONPATH."""
    code = "import onrig.runtime.run_config as r, onrig.tools.cli as c; print(r.__file__, c.__file__)"
    for folder, path in ((source, "."), (tmp_path, str(source))):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        files = [(folder / file).resolve() for file in done.stdout.split()]
        assert files == [(source / "runtime/run_config.py").resolve(), (source / "tools/cli.py").resolve()]


PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
NO_COMPILER = {"CC": "/no/such/compiler"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree without the leftovers of its builds."""
    source = tmp_path_factory.mktemp("source")
    for name in (*FOLDERS, "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copytree(ROOT / "onrig", source / "onrig", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return source


def built(source: Path, out: Path, **environment: str) -> Path:
    """The wheel of a folder or of a source distribution."""
    pip = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(out), str(source)]
    done = subprocess.run(pip, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, with unoptimised libraries: optimising them takes most of a minute."""
    folder = tmp_path_factory.mktemp("wheel")
    if (gcc := shutil.which("gcc")) is None:
        return built(source, folder)
    quick = tmp_path_factory.mktemp("compiler") / "cc"
    quick.write_text(f'#!/bin/sh\nexec {gcc} "$@" -O0\n', encoding="utf-8")
    quick.chmod(0o755)
    return built(source, folder, CC=str(quick))


@pytest.fixture(scope="module")
def sources(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of this tree."""
    out = tmp_path_factory.mktemp("sources")
    code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, out], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = out.glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of an environment that has the wheel, with only the libraries of this one."""
    return environment_with(wheel, tmp_path_factory.mktemp("environment"))


def environment_with(wheel: Path, folder: Path) -> Path:
    """Make an environment in a folder; returns that of its scripts."""
    venv.create(folder, with_pip=False)
    pip = [*PIP, "--python", str(folder / "bin" / "python")]
    install = [*pip, "install", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (site,) = (folder / "lib").glob("python3*/site-packages")
    # A folder named by a .pth file is searched, but its own .pth files, such as an editable install's, are not read.
    (site / "libraries.pth").write_text(str(Path(numpy.__file__).parents[1]))
    return folder / "bin"


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """The folder of a user with their own modules."""
    for name in (*FOLDERS, "tests"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('a file of its user\\'s')\n")
    return tmp_path


def in_folder(folder: Path, *command: object) -> str:
    return said_in(folder, *command).stdout


def said_in(folder: Path, *command: object, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run a command; ``code``: the required exit code, None for any."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done


def test_the_wheel_holds_one_package_with_everything_its_messages_point_to(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"onrig"}
    assert not [name for name in names if "tests" in name.split("/")]
    there = {"onrig/py.typed", "onrig/configs/pendulum.yaml", "onrig/runtime/SAFETY.md", "onrig/hw/PROTOCOL.md"}
    assert there <= set(names)
    pages = {f"onrig/docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert pages
    assert pages <= set(names)
    modules = {f"onrig/{path.relative_to(ROOT)}" for top in FOLDERS for path in (ROOT / top).rglob("*.py")}
    examples = {
        f"onrig/{path.relative_to(ROOT)}"
        for path in (ROOT / "docs/examples").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "runs" not in path.parts
    }
    assert {name for name in names if name.startswith("onrig/docs/examples/")} == examples, "templates of onrig init"
    modules |= {name for name in examples if name.endswith(".py")}
    assert {name for name in names if name.endswith(".py")} == {"onrig/__init__.py", *modules}
    assert len(names) == len(set(names)), "a file twice"


def test_a_wheel_from_the_sdist_equals_one_from_the_tree(sources: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sources) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym()], "the sources are whole without links"
    assert len({member.name for member in members}) == len(members)
    again = zipfile.ZipFile(built(sources, tmp_path, **NO_COMPILER)).namelist()
    libraries = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")}
    there = {name for name in again if ".dist-info/" not in name}
    assert there == {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} - libraries


SHORT = [w for s in ("episodes=2", "task.episode_s=1", "learner.updates_per_episode=5") for w in ("--set", s)]


def test_without_a_compiler_it_installs_runs_on_numpy_and_reports_it(sources: Path, tmp_path: Path, desk: Path) -> None:
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"onrig/hw/native/{path.name}" for path in (ROOT / "hw" / "native").glob("*.[ch]")} <= names
    wheel = built(sources, tmp_path / "wheel", **NO_COMPILER)
    assert wheel.name.endswith("-py3-none-any.whl")
    scripts = environment_with(wheel, tmp_path / "environment")
    run = said_in(desk, scripts / "onrig", "run", "pendulum", "--run-dir", "run", *SHORT)
    assert "data complete" in run.stdout
    [line] = [line for line in run.stderr.splitlines() if "C library" in line]
    assert line.startswith("onrig run: no C library (not built: no libonrig-")
    assert "updates take 5 to 9 times as long" in line
    assert json.loads((desk / "run" / "meta.json").read_text())["executor"] == {
        "kind": "numpy",
        "variant": "",
        "torch": "",
    }
    in_folder(desk, scripts / "onrig", "replay", "run")
    checked = said_in(desk, scripts / "onrig", "doctor", "--quick", "--json", code=None)
    [check] = [check for check in json.loads(checked.stdout)["checks"] if check["name"] == "c-library"]
    assert check["verdict"] == "WARN"
    assert "updates take 5 to 9 times as long" in check["found"]


def test_a_run_works_where_its_user_has_files_with_our_names(installed: Path, desk: Path) -> None:
    out = in_folder(desk, installed / "onrig", "run", "pendulum", "--run-dir", "run", *SHORT)
    assert "data complete" in out
    assert len((desk / "run" / "episodes.csv").read_text().splitlines()) >= 3
    in_folder(desk, installed / "onrig", "replay", "run")


def test_pages_that_messages_point_to_exist(installed: Path, desk: Path) -> None:
    code = (
        "from pathlib import Path; from onrig.tools.doctor.finding import REAL_TIME_PAGE as page; "
        "print(Path(page).is_file(), page)"
    )
    there, page = in_folder(desk, installed / "python", "-c", code).split()
    assert there == "True"
    assert Path(page).is_relative_to(installed.parent)


def test_an_environment_works_where_its_user_has_a_file_with_our_name(installed: Path, desk: Path) -> None:
    pytest.importorskip("gymnasium")
    code = "import gymnasium as g; print(g.make('onrig.sim.envs:onrig/PendulumTwin-v0').reset(seed=0)[0].shape)"
    assert in_folder(desk, installed / "python", "-c", code).strip() == "(2,)"
