"""The firmware as the tests build it, once for all of them."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
SOURCES: Final = ROOT / "hw" / "firmware"
PRODUCTS: Final = ROOT / "build" / "firmware"


def need(*tools: str) -> None:
    """Skip where a tool is missing; in CI, where it must not be, fail."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if not missing:
        return
    message = f"needs {', '.join(missing)}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@functools.cache
def built(target: str = "host", **variables: str) -> str:
    """Make a target; what make printed.  Workers take turns."""
    need("gcc", "make")
    PRODUCTS.mkdir(parents=True, exist_ok=True)
    with (PRODUCTS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(
            ["make", "-C", SOURCES, f"OUT={PRODUCTS}", target, *(f"{k}={v}" for k, v in variables.items())],
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def device_program() -> Path:
    """The firmware as a process with a pty."""
    built()
    return PRODUCTS / "onrig-device"


def device_library() -> Path:
    """The firmware as a library."""
    built()
    return PRODUCTS / "onrig-device.so"
