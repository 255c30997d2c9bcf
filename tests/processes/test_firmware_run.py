"""Whole runs on the firmware: the same as on the twin, bit for bit."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from onrig.hw.messages import Op, Result
from onrig.hw.transport import open_port
from onrig.tools.load import load
from tests.conformance.host import Host
from tests.hw.firmware.test_boards import device
from tests.processes.rig import LOCKSTEP

RUN = ("onrig.tools.cli", "run", "pendulum-hardware", "--set", "episodes=2")
SETTINGS = [a for setting in LOCKSTEP for a in ("--set", setting)]


def episodes(folder: Path, *arguments: str) -> bytes:
    """What a short run in lockstep writes."""
    command = [sys.executable, "-m", *RUN, *SETTINGS, "--run-dir", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return (folder / "episodes.csv").read_bytes()


@pytest.fixture(scope="module")
def on_the_twin(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return episodes(tmp_path_factory.mktemp("twin") / "run")


@pytest.mark.parametrize("kind", ["process", "board"])
def test_a_run_in_lockstep_on_the_firmware_is_bit_for_bit_that_on_the_twin(
    kind: str, socket_folder: Path, tmp_path: Path, on_the_twin: bytes
) -> None:
    with device(kind, socket_folder, "lockstep") as port:
        assert episodes(tmp_path / "run", "--device", port) == on_the_twin


def test_a_dry_run_energises_nothing(socket_folder: Path, tmp_path: Path) -> None:
    with device("process", socket_folder, "lockstep") as port:
        command = [
            sys.executable,
            "-m",
            *RUN,
            *SETTINGS,
            "--dry-run",
            "--run-dir",
            str(tmp_path / "run"),
            "--device",
            port,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode == 0, done.stderr
        host = Host(open_port(port), load("pendulum-hardware", []).rig, time)
        assert host.result(Op.ARM) == Result.NOT_NOW  # nobody has so much as configured it
        host.close()
