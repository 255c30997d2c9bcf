"""The firmware as built for the tests, once for all of them."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from onrig.runtime.files import replace_file
from onrig.tools.policy_to_c.source import source_of
from tests.lab.rig.processes import Process, until

ROOT: Final = Path(__file__).parents[3]
SOURCES: Final = ROOT / "hw" / "firmware"
PRODUCTS: Final = ROOT / "build" / "firmware"
_PSRAM_BYTES: Final = 16 << 20


def need(*tools: str) -> None:
    """Skip if a tool is missing; in CI, where it must exist, fail."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if not missing:
        return
    message = f"needs {', '.join(missing)}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@functools.cache
def built(target: str = "host", **variables: str) -> str:
    """Make a target; returns the output of make.  Workers take turns."""
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


SWING_UP: Final = Path(__file__).with_name("swing_up.onnx")
"""A policy of the pendulum: TD3 with two layers of 32 units after 226 episodes, normalized 0.908 on the twin."""
WITH_POLICY: Final = PRODUCTS.with_name("firmware-policy")


@functools.cache
def built_with_policy(product: str) -> Path:
    """Make one product of the firmware with ``SWING_UP`` built in."""
    WITH_POLICY.mkdir(parents=True, exist_ok=True)
    source, text = WITH_POLICY / "swing_up.c", source_of(SWING_UP.read_bytes(), "swing_up").text
    if not source.exists() or source.read_text() != text:
        replace_file(source, text.encode())
    built(str(WITH_POLICY / product), OUT=str(WITH_POLICY), POLICY=str(source))
    return WITH_POLICY / product


class Board:
    """The firmware on a board that QEMU emulates; ``line`` is the Unix socket of its UART."""

    def __init__(self, process: Process, line: Path, memory: Path) -> None:
        self.process, self.line, self._memory = process, line, memory

    def restart(self) -> None:
        """Press the board's reset button."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as monitor, monitor.makefile("rw") as lines:
            monitor.connect(str(self._memory.with_name("monitor")))
            for command in ("qmp_capabilities", "system_reset"):
                lines.write(f'{{"execute": "{command}"}}\n')
                lines.flush()
            while "RESET" not in lines.readline():
                pass

    def set_pin(self, word: int, value: int) -> None:
        """Write a word of the memory shared with the board (``boards/mps2/main.c``)."""
        with self._memory.open("r+b") as memory:
            memory.seek(4 * word)
            memory.write(value.to_bytes(4, "little"))

    def word(self, word: int) -> int:
        """Read a word of that memory."""
        with self._memory.open("rb") as memory:
            memory.seek(4 * word)
            return int.from_bytes(memory.read(4), "little")


@contextlib.contextmanager
def qemu(image: str, folder: Path, seed: int = 1, *, policy: bool = False) -> Iterator[Board]:
    """Start a board; ``folder`` has a short name and holds its socket and its memory.

    ``policy``: with ``SWING_UP`` built in.
    """
    need("qemu-system-arm", "arm-none-eabi-gcc")
    if policy:
        kernel = built_with_policy(f"mps2-{image}.elf")
    else:
        built("qemu")
        kernel = PRODUCTS / f"mps2-{image}.elf"
    line, memory = folder / "uart", folder / "memory"
    shared = f"memory-backend-file,id=psram,size={_PSRAM_BYTES},mem-path={memory},share=on"
    command = ["qemu-system-arm", "-M", "mps2-an386,memory-backend=psram", "-object", shared]
    command += ["-display", "none", "-monitor", "none", "-serial", f"unix:{line},server=on,wait=off"]
    command += ["-qmp", f"unix:{folder / 'monitor'},server=on,wait=off"]
    command += ["-kernel", str(kernel)]
    memory.write_bytes(seed.to_bytes(4, "little"))
    os.truncate(memory, _PSRAM_BYTES)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as popen:
        process = Process(popen.pid)
        try:
            until(lambda: line.exists() and connects(line), "QEMU", process)
            yield Board(process, line, memory)
        finally:
            process.kill()
            popen.wait()
            process.close()


def connects(line: Path) -> bool:
    """Whether a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as host:
        return host.connect_ex(str(line)) == 0


def device_program() -> Path:
    """The firmware as a program with a pty."""
    built()
    return PRODUCTS / "onrig-device"


@contextlib.contextmanager
def device_process(rig: str, pace: str) -> Iterator[tuple[Process, str]]:
    """Start that program; returns its process, and the path of its pty."""
    command = [str(device_program()), "--rig", rig, "--pace", pace]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as popen:
        process = Process(popen.pid)
        try:
            assert popen.stdout is not None
            yield process, popen.stdout.readline().strip()
        finally:
            process.kill(signal.SIGTERM)
            process.wait()
            process.close()
    assert popen.returncode == 0


def device_library() -> Path:
    """The firmware as a library."""
    built()
    return PRODUCTS / "onrig-device.so"


def pico_library() -> Path:
    """The parts of the Pico's firmware that need no Pico, as a library."""
    built()
    return PRODUCTS / "onrig-pico.so"
