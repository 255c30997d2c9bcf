"""Dockerfile and devcontainer, as far as they can be checked without building them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from onrig.tools.cli import main
from onrig.tools.web.guard import FIRST_PORT
from onrig.tools.web.view import FOXGLOVE, PAGE

ROOT = Path(__file__).parents[1]
DOCKERFILE = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
INSTRUCTIONS = [tuple(line.split(None, 1)) for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
DEVCONTAINER: dict[str, Any] = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())


def of(name: str) -> list[str]:
    return [text for instruction, text in INSTRUCTIONS if instruction == name]


def make_targets(command: str) -> list[str]:
    return re.findall(r"\bmake (\w+)", command)


def test_its_base_is_pinned_to_a_supported_python() -> None:
    first, *later = of("FROM")
    found = re.fullmatch(r"python:3\.(\d+)\.\d+-slim-\w+ AS base", first)
    assert found is not None
    assert int(found[1]) >= 11
    assert later == ["base"]
    assert (DEVCONTAINER["build"]["target"], DEVCONTAINER["remoteUser"]) == ("base", of("USER")[0])


def test_its_commands_exist() -> None:
    targets = {line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if re.match(r"\w+:", line)}
    for command in (*of("RUN"), DEVCONTAINER["postCreateCommand"]):
        assert set(make_targets(command)) <= targets
    assert make_targets(of("RUN")[-1]) == make_targets(DEVCONTAINER["postCreateCommand"]) == ["setup"]
    [constraints] = re.findall(r"--constraint (\S+)", of("RUN")[-1])
    assert (ROOT / constraints).is_file()


def test_it_starts_a_valid_run_whose_port_is_exposed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("foxglove")
    from onrig.tools.foxglove.process import FIRST_PORT as FOXGLOVE_PORT

    program, *arguments = json.loads(of("CMD")[0])
    assert program == "onrig"
    assert main([*arguments, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("pendulum: valid")
    ports = {PAGE: FIRST_PORT, FOXGLOVE: FOXGLOVE_PORT}
    assert [int(port) for port in of("EXPOSE")[0].split()] == DEVCONTAINER["forwardPorts"] == [*ports.values()]
    assert arguments[-1].endswith(f":{ports[PAGE]}")


def test_it_copies_all_tracked_files_and_no_build_products() -> None:
    assert [shlex.split(text)[-2:] for text in of("COPY")] == [[".", "."]]
    ignored = (ROOT / ".dockerignore").read_text().split()
    if (ROOT / ".git").exists():
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for path in (Path(line) for line in tracked.splitlines()):
            steps = [str(path), *(str(parent) for parent in path.parents)]
            assert not [i for i in ignored for step in steps if fnmatch(step, i.removeprefix("**/"))], path
    assert {".venv*", "build", "hw/native/*.so"} <= set(ignored)
