"""The camera of docs/examples/camera: checked, refused, shown on its page; tests/processes runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onrig.hw.rig import Camera
from onrig.runtime.camera.main import _UNCHANGED_IMAGE_NS
from onrig.runtime.policy.session import MAX_WIDTH
from tests.docs.commands import ROOT
from tests.lab.rig.seen import EXAMPLE, copy_example


def check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onrig.tools.cli", "check", "run.yaml", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_page_shows_the_file() -> None:
    page = (ROOT / "docs/cameras.md").read_text(encoding="utf-8")
    assert f"```python\n{(EXAMPLE / 'piped.py').read_text(encoding='utf-8')}```" in page


def test_the_page_states_the_limits_of_the_code() -> None:
    page = (ROOT / "docs/cameras.md").read_text(encoding="utf-8")
    assert f"A policy has at most {MAX_WIDTH} inputs" in page
    assert f"after {_UNCHANGED_IMAGE_NS / 1e9:g} s without" in page
    for side, images in ((128, 1), (110, 2), (64, 4)):
        assert images * Camera("front", side, side).values <= MAX_WIDTH


def test_the_shipped_example_is_valid() -> None:
    done = check(EXAMPLE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def read(", "def look(", "'piped' of cameras does not define read() at device.cameras"),
        (
            "(CameraDriver)",
            "",
            "'piped' of cameras has the home ':PipedDriver', which is not a subclass of CameraDriver",
        ),
        ("import fcntl", "import fcntls", "No module named 'fcntls'"),
    ],
)
def test_camera_mistakes_are_reported_before_anything_moves(tmp_path: Path, old: str, new: str, said: str) -> None:
    copy_example(tmp_path)
    path = tmp_path / "piped.py"
    path.write_text(path.read_text().replace(old, new))
    done = check(tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_example_is_formatted_like_the_code() -> None:
    for how in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *how, "--config", str(ROOT / "pyproject.toml"), str(EXAMPLE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
