"""Initial rig, task, run and README, generated from a shipped configuration."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path
from typing import Final, NamedTuple

from onrig.hw.messages import NAME_BYTES
from onrig.runtime.config.document import find
from onrig.runtime.exit_codes import ExitCode
from onrig.tools.first_rig_page import BENCHES, page
from onrig.tools.terminal import complain

_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9_]+")
_PORT: Final = """\
  # On hardware, in place of the twin, with pace: realtime (`onrig ports` lists the ports):
  # port: {path: /dev/serial/by-id/usb-..., baud: 921600}
"""


class Source(NamedTuple):
    """Names of the shipped configurations from which a plant's files are generated."""

    run: str
    rig: str
    task: str
    purpose: str
    """Last part of the new task's name."""


SOURCES: Final = {
    "pendulum": Source("pendulum-hardware", "pendulum-hardware", "swingup-hardware", "swingup"),
    "magman": Source("magman", "magman", "positioning", "positioning"),
}


def write(folder: Path, plant: str) -> int:
    """Write the files; returns the exit code."""
    begun: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            return complain("init", f"'{folder}' is not empty, and files are never overwritten; choose a new folder")
        for name, text in texts(plant, rig_name(folder, plant)).items():
            begun.append(folder / name)
            begun[-1].write_text(text, encoding="utf-8")
    except OSError as error:
        with contextlib.suppress(OSError):  # a partial folder would block the next attempt
            for path in begun:
                path.unlink(missing_ok=True)
        return complain("init", f"'{error.filename or folder}' cannot be written: {error.strerror or error}")
    print(f"{folder}: wrote rig.yaml, task.yaml, run.yaml and README.md")
    run = shlex.quote(str(folder / "run.yaml"))
    print(f"try it on its twin: onrig run {run} --set episodes=20; then follow {folder / 'README.md'}")
    return ExitCode.OK


def rig_name(folder: Path, plant: str) -> str:
    """Name of the rig: that of its folder, truncated to the device's hello."""
    return _NOT_PLAIN.sub("-", folder.resolve().name).strip("-")[:NAME_BYTES].strip("-") or plant


def texts(plant: str, name: str) -> dict[str, str]:
    """Return the files by name: the shipped ones with comments, under new names, and the README."""
    source = SOURCES[plant]
    rig = _with(
        _shipped(source.rig, "rigs", name),
        r"^name: .*\n",
        f'name: "{name}"  # the firmware must report the same name\n',
    )
    task = _with(_shipped(source.task, "tasks", name), r"^name: .*\n", f'name: "{name}-{source.purpose}"\n')
    run = _with(_shipped(source.run, "", name), r"^rig: .*\n", "rig: rig.yaml    # beside this file\n")
    run = _with(run, r"^task: .*\n", "task: task.yaml\n")
    run = _with(run, r"^(  twin: .*\n)", rf"\1{_PORT}")
    return {"rig.yaml": rig, "task.yaml": task, "run.yaml": run, "README.md": page(BENCHES[plant], name)}


def _shipped(source: str, folder: str, name: str) -> str:
    """Text of a shipped configuration, with its origin in the first line."""
    origin = f"{folder}/{source}".lstrip("/")
    return f"# {name}: from `onrig init`, after the shipped {origin}.yaml:\n" + find(source, folder).read_text("utf-8")


def _with(text: str, pattern: str, replacement: str) -> str:
    changed, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"expected one {pattern!r} in a shipped configuration, found {count}")
    return changed
