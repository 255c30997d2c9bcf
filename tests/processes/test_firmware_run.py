"""Complete runs on the firmware: identical to those on the twin, bit for bit; also through the pins of a Pico."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import onrig
from onrig.hw.conformance.host import Host
from onrig.hw.messages import Op, Result
from onrig.hw.transport import open_port
from onrig.sim.plants import Pendulum
from onrig.sim.plants.integrate import step
from onrig.tools.load import load
from tests.hw.firmware.emulated import Pico, pico
from tests.hw.firmware.test_boards import device
from tests.lab.rig.run import LOCKSTEP, UNHURRIED

RUN = ("onrig.tools.cli", "run", "pendulum-hardware", "--set", "episodes=2")
SETTINGS = [a for setting in LOCKSTEP for a in ("--set", setting)]


def episodes(folder: Path, *arguments: str) -> bytes:
    """Rows of a short lockstep run."""
    command = [sys.executable, "-m", *RUN, *SETTINGS, "--run-dir", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return (folder / "episodes.csv").read_bytes()


@pytest.fixture(scope="module")
def twin_rows(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return episodes(tmp_path_factory.mktemp("twin") / "run")


@pytest.mark.parametrize("kind", [pytest.param("process", marks=pytest.mark.study), "board"])
def test_a_lockstep_run_on_the_firmware_equals_that_on_the_twin_bit_for_bit(
    kind: str, socket_folder: Path, tmp_path: Path, twin_rows: bytes
) -> None:
    with device(kind, socket_folder, "lockstep") as port:
        assert episodes(tmp_path / "run", "--device", port) == twin_rows


def test_an_environment_on_the_firmware_equals_that_on_the_twin_bit_for_bit(
    socket_folder: Path, tmp_path: Path
) -> None:
    with device("process", socket_folder, "lockstep") as port:
        trajectories = []
        for name, where in (("twin", None), ("firmware", port)):
            env = onrig.make("pendulum-hardware", where, "lockstep", overrides=LOCKSTEP[:1], run_dir=tmp_path / name)
            first, _ = env.reset(seed=4)
            stepped = [env.step(np.full(1, 0.2 * (k % 5), np.float32)) for k in range(30)]
            trajectories.append([first.tolist(), *((step[0].tolist(), step[1]) for step in stepped)])
            if where is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    check_env(env, skip_render_check=True, skip_close_check=True)
            env.close()
    assert trajectories[0] == trajectories[1]


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
        assert host.result(Op.ARM) == Result.NOT_NOW  # no one has even configured it
        host.close()


def swing(board: Pico, run: subprocess.Popen[bytes]) -> float:
    """Simulate a pendulum between the pins of bridge and encoder until the run ends; returns its largest angle, rad."""
    plant, counted, largest_angle, last_s = Pendulum(inertia="hardware"), 0, 0.0, time.monotonic()
    state: tuple[float, ...] = (0.0, 0.0)
    while run.poll() is None:
        out, now_s = board.outputs(), time.monotonic()
        volts = 12.0 * (out[4] - out[5]) / 6250 if out[6] else 0.0
        state, last_s = step(plant, state, (volts,), min(now_s - last_s, 0.02)), now_s
        largest_angle = max(largest_angle, abs(state[0]))
        turned = (round(state[0] / (2 * math.pi) * 16384) - counted + 8192) % 16384 - 8192
        board.tell(f"turn {turned}")
        counted += turned
    return largest_angle


def test_a_run_on_the_pico_image_uses_its_pins(socket_folder: Path, tmp_path: Path) -> None:
    """In real time; the recorded run replays to the same decisions."""
    folder = tmp_path / "run"
    settings = [*UNHURRIED, "device.pace=realtime", "task.episode_s=1", "learner.updates_per_episode=10"]
    with pico("pendulum-hw", socket_folder) as board:
        command = [sys.executable, "-m", *RUN, "--run-dir", str(folder), "--device", str(board.port)]
        for setting in settings:
            command += ["--set", setting]
        with (tmp_path / "told").open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as run:
            largest_angle = swing(board, run)
        assert run.returncode == 0, (tmp_path / "told").read_text()
    assert largest_angle > 0.05
    assert json.loads((folder / "summary.json").read_text())["faults"] == 0
    replayed = subprocess.run(
        [sys.executable, "-m", "onrig.tools.cli", "replay", str(folder)], capture_output=True, check=False, timeout=300
    )
    assert replayed.returncode == 0
