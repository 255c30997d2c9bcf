"""The Pico's image in an emulator of its chip.  Skipped if node has no rp2040js (hw/firmware/README.md)."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import pytest

from tests.hw.firmware.build import PRODUCTS, SOURCES, built, need

_SCRIPT: Final = SOURCES / "boards" / "pico" / "emulate.cjs"


@functools.cache
def need_emulator() -> None:
    """Skip without the emulator, which is optional."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    if subprocess.run(["node", "-e", "require('rp2040js')"], capture_output=True, check=False, timeout=60).returncode:
        pytest.skip("needs the npm package rp2040js on NODE_PATH")


class Pico:
    """A board; ``port`` is the Unix socket behind its USB port, ``ready`` the first report of the bus about it."""

    def __init__(self, port: Path, stdin: IO[str], stdout: IO[str]) -> None:
        self.port, self._stdin, self._stdout = port, stdin, stdout
        self.ready = self.hear()

    def hear(self) -> str:
        return self._stdout.readline().strip()

    def tell(self, command: str) -> str:
        """Give a command and return its answer."""
        self._stdin.write(f"{command}\n")
        self._stdin.flush()
        return self.hear()

    def outputs(self) -> dict[int, int]:
        """Level of each pin that is driven: 0, 1, or cycles of a PWM's period."""
        levels: dict[str, int] = json.loads(self.tell("outputs"))
        return {int(pin): level for pin, level in levels.items()}


@contextlib.contextmanager
def pico(rig: str, folder: Path) -> Iterator[Pico]:
    """Start a board; ``folder`` has a short name and holds its socket."""
    need("arm-none-eabi-gcc")
    need_emulator()
    built("pico")
    command = ["node", str(_SCRIPT), str(PRODUCTS / f"pico-{rig}.bin"), str(folder / "usb")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as popen:
        assert popen.stdin is not None
        assert popen.stdout is not None
        try:
            yield Pico(folder / "usb", popen.stdin, popen.stdout)
        finally:
            popen.kill()
