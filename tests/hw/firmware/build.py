"""The firmware as the tests build it, once for all of them."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.processes.rig import until

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


@contextlib.contextmanager
def qemu(image: str, folder: Path, seed: int = 1) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The firmware on a board that QEMU emulates: its process, and the Unix socket that is its serial line."""
    need("qemu-system-arm", "arm-none-eabi-gcc")
    built("qemu")
    line = folder / "uart"
    command = ["qemu-system-arm", "-M", "mps2-an386", "-display", "none", "-monitor", "none"]
    command += ["-serial", f"unix:{line},server=on,wait=off", "-kernel", str(PRODUCTS / f"mps2-{image}.elf")]
    command += ["-device", f"loader,addr=0x20010000,data={seed:#x},data-len=4"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            until(lambda: line.exists() and connects(line), "QEMU")
            yield process, line
        finally:
            process.kill()
            process.wait()
            line.unlink(missing_ok=True)


def connects(line: Path) -> bool:
    """Whether somebody listens at a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as host:
        return host.connect_ex(str(line)) == 0


def device_program() -> Path:
    """The firmware as a process with a pty."""
    built()
    return PRODUCTS / "onrig-device"


def device_library() -> Path:
    """The firmware as a library."""
    built()
    return PRODUCTS / "onrig-device.so"
