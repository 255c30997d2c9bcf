"""The reward term, the device over TCP and the input transform of docs/extending.md, as third-party code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs import outside
from tests.docs.commands import ROOT
from tests.lab.rig.processes import PATIENCE_S, process_of, until
from tests.lab.rig.run import PoweredRun
from tests.processes.power_cut import last_episode


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return outside.install(tmp_path_factory.mktemp("packages"))


@pytest.fixture(params=["package", "file"])
def how(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The examples as packages on the path, or as files next to the run; this folder is the working directory."""
    monkeypatch.chdir(tmp_path)
    if request.param == "package":
        monkeypatch.setenv("PYTHONPATH", str(request.getfixturevalue("installed")))
    else:
        outside.write_files(tmp_path)
    return str(request.param)


def written(folder: Path, how: str, **changes: object) -> Path:
    """The run of the page, with its examples of the other two pieces."""
    run: dict[str, Any] = yaml.safe_load(outside.block("A reward term", "yaml"))
    run["task"]["inputs"] = [
        {"observation": "angle", "form": {"kind": "bins", "width": 0.2}},
        {"observation": "velocity"},
    ]
    if how == "file":
        named = outside.GROUPS.items()
        run["python"] = {
            group: {outside.KINDS[module]: f"{module}.py:{outside.CLASSES[module]}"} for module, group in named
        }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**run, **changes}, sort_keys=False), encoding="utf-8")
    return path


def run_verb(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onrig.tools.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def onrig(*arguments: object) -> str:
    done = run_verb(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def finished() -> dict[str, Path]:
    return {}


@pytest.fixture
def uninterrupted(how: str, tmp_path: Path, finished: dict[str, Path]) -> Path:
    """Folder of the run, made once for each way of providing the examples."""
    run = written(tmp_path, how)
    if how not in finished:
        assert ": valid" in onrig("check", run)
        assert "data complete" in onrig("run", run, "--run-dir", tmp_path / "whole")
        finished[how] = tmp_path / "whole"
    return finished[how]


def assert_replays(folder: Path, how: str) -> None:
    replayed = run_verb("replay", folder, *trust(how))
    assert replayed.returncode in (0, 6), replayed.stderr  # 6: a truncated log lacks its last chunk
    assert re.search(r"ticks that differ +0\n", replayed.stdout), replayed.stdout + replayed.stderr


def trust(how: str) -> list[str]:
    return ["--trust"] if how == "file" else []


def test_terms_and_transforms_run_and_replay(how: str, uninterrupted: Path) -> None:
    assert_replays(uninterrupted, how)
    pieces = json.loads((uninterrupted / "meta.json").read_text())["pieces"]
    assert {(piece["group"], piece["name"]) for piece in pieces} == {
        ("onrig.rewards", "lean"),
        ("onrig.input_transforms", "bins"),
    }


def rows(folder: Path) -> list[str]:
    """The rows of ``episodes.csv`` without their times: the device's clock continued while the run was dead."""
    return [line.rpartition(",")[0] for line in (folder / "episodes.csv").read_text().splitlines()]


@pytest.mark.parametrize("how", ["file", pytest.param("package", marks=pytest.mark.study)], indirect=True)
def test_a_tcp_run_resumes_after_a_kill_to_the_same_bits_as_a_pty_run(
    how: str, uninterrupted: Path, tmp_path: Path
) -> None:
    link, folder = tmp_path / "link", tmp_path / "tcp"
    with process_of("onrig.tools.cli", "twin", written(tmp_path, how), "--link", link) as twin:
        until(lambda: link.exists() and link.read_text().strip(), "the twin", twin)
        with outside.on_tcp(link.read_text().strip()) as port:
            line = {"kind": "my_tcp", "host": "127.0.0.1", "port": port}
            config = written(tmp_path, how, device={"transport": line, "pace": "lockstep"})
            assert f"device on 127.0.0.1:{port}" in onrig("check", config)
            with PoweredRun(tmp_path / "out", config, "--run-dir", folder) as run:
                for _ in range(round(2 * PATIENCE_S / 0.01)):
                    if last_episode(folder) >= 2:
                        break
                    assert run.ended(0.01) is None, "the run ended before its second episode"
                run.cut()
            with PoweredRun(tmp_path / "out", "--resume", folder, *trust(how)) as run:
                assert run.ended(4 * PATIENCE_S) == 0
            assert f"127.0.0.1:{port}: device 'pendulum' is disarmed" in onrig("disarm", config)
    assert rows(folder) == rows(uninterrupted)
    assert_replays(folder, how)


@pytest.mark.parametrize("how", ["package"], indirect=True)
def test_settings_of_the_examples_are_documented_like_built_in_ones(how: str) -> None:
    assert "Half the cost of hanging down at rest." in onrig("settings", "task.reward")
    assert "Timeout of the connection." in onrig("settings", "device.transport")
    assert "In the unit of the observation." in onrig("settings", "task.inputs")


def test_the_examples_are_formatted_like_the_code(tmp_path: Path) -> None:
    outside.write_files(tmp_path)
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml"), str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
