"""A run of docs/examples/camera on a twin at a port, whose camera can be disturbed."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from onrig.tools.load import load
from tests.docs.commands import ROOT
from tests.lab.rig.processes import process_of, until
from tests.lab.rig.rig import steady_policy
from tests.lab.rig.run import UNHURRIED, Run

EXAMPLE: Final = ROOT / "docs" / "examples" / "camera"
CAMERA: Final = "onrig.runtime.camera.main"
MAX_AGE_S: Final = 0.5
"""Maximum age of an image, even on a busy machine."""


def copy_example(folder: Path) -> Path:
    """The example in a folder of its own, with the emulated camera."""
    for file in EXAMPLE.iterdir():
        shutil.copy(file, folder / file.name)
    run = yaml.safe_load((EXAMPLE / "run.yaml").read_text(encoding="utf-8"))
    command = [sys.executable, str(folder / "images.py"), "64", "64", "50"]
    run["device"]["cameras"]["front"] |= {"command": command, "image_bytes": 4096}
    rig = yaml.safe_load((ROOT / "configs/rigs/pendulum-camera.yaml").read_text(encoding="utf-8"))
    rig["cameras"][0]["max_age_ms"] = 1e3 * MAX_AGE_S
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run | {"rig": rig}), encoding="utf-8")
    return path


@contextlib.contextmanager
def twin(folder: Path) -> Iterator[str]:
    """The pendulum's twin, in a process of its own; yields its port."""
    link = folder / "link"
    settings = ("device.pace=realtime", *UNHURRIED)
    words = [word for setting in settings for word in ("--set", setting)]
    with process_of("onrig.tools.cli", "twin", "pendulum-camera", "--link", link, *words) as process:
        yield until(lambda: link.exists() and link.read_text().strip(), "the twin", process)


def camera_run(folder: Path, port: str, *settings: str, replacement: tuple[str, str] = ("", "")) -> Run:
    """A run of it under a steady policy, without a learner, in one long episode; ``replacement``: (old, new) text
    in the camera's code."""
    config, code = copy_example(folder), folder / "piped.py"
    code.write_text(code.read_text().replace(*replacement) if replacement[0] else code.read_text())
    policy = folder / "steady.onnx"
    policy.write_bytes(steady_policy(load("pendulum-camera")))
    settings_given = (*UNHURRIED, "local_learner=false", "task.episode_s=1000", f"policy={policy}", *settings)
    return Run(folder / "run", str(config), *settings_given, port=port, arguments=["--trust"])
