"""A run of docs/examples/python-device on its emulated motor controller, whose processes can be disturbed."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from onrig.runtime.run_config import RunConfig
from onrig.tools.load import load
from tests.docs.commands import ROOT
from tests.lab.rig.processes import CONTROL, until
from tests.lab.rig.rig import steady_policy
from tests.lab.rig.run import Run

EXAMPLE: Final = ROOT / "docs" / "examples" / "python-device"
DRIVER: Final = "onrig.runtime.driver.main"
VICTIMS: Final[dict[str, tuple[str, ...]]] = {"loop": (CONTROL,), "driver": (DRIVER,), "both": (CONTROL, DRIVER)}
_SETTLED_S: Final = 0.05


class Output(NamedTuple):
    """A change of the motor's torque, as its controller logs it."""

    at_s: float
    torque: float
    pause_s: float
    """Longest time so far for which the machine kept the controller from running."""


class Motor:
    """The emulated controller, which keeps running whatever happens to its driver."""

    def __init__(self, port: str, log: Path, pid: int) -> None:
        self.port, self.pid, self._log = port, pid, log

    @property
    def outputs(self) -> list[Output]:
        """Every change of the torque."""
        lines = self._log.read_text().splitlines(keepends=True) if self._log.exists() else []
        return [Output(*map(float, line.split())) for line in lines if line.endswith("\n")]

    @property
    def is_driving(self) -> bool:
        """Whether the motor has a torque now."""
        outputs = self.outputs
        return bool(outputs) and outputs[-1].torque != 0.0


@contextlib.contextmanager
def motor(folder: Path) -> Iterator[Motor]:
    """Start the controller."""
    log = folder / "outputs.log"
    command = [sys.executable, str(EXAMPLE / "controller.py"), str(log)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Motor(process.stdout.readline().strip(), log, process.pid)
        finally:
            process.kill()


def copy_example(folder: Path) -> Path:
    """The example's configuration and driver in a folder of their own."""
    for name in ("run.yaml", "my_motor.py"):
        shutil.copy(EXAMPLE / name, folder / name)
    return folder / "run.yaml"


def driven_run(folder: Path, port: str, *settings: str, replacement: tuple[str, str] = ("", "")) -> Run:
    """A run of it under a steady policy, without a learner; ``replacement``: (old, new) text in the driver."""
    config = copy_example(folder)
    driver = folder / "my_motor.py"
    driver.write_text(driver.read_text().replace(*replacement) if replacement[0] else driver.read_text())
    given = [
        "realtime.priority=0",
        "realtime.lock_memory=false",
        "local_learner=false",
        "task.episode_s=1000",
        *settings,
    ]
    policy = folder / "steady.onnx"
    policy.write_bytes(steady_policy(_on_a_port(config)))
    arguments = ["--trust"]
    given += [f"policy={policy}", *settings]
    return Run(folder / "run", str(config), *given, environment={"MOTOR_PORT": port}, arguments=arguments)


def _on_a_port(config: Path) -> RunConfig:
    """The same rig without its driver, whose code need not run in this process."""
    run = yaml.safe_load(config.read_text(encoding="utf-8"))
    del run["python"]
    path = config.with_name("on-a-port.yaml")
    path.write_text(yaml.safe_dump({**run, "device": {"port": {"path": "/dev/null"}}}), encoding="utf-8")
    return load(str(path))


def release_time_s(run: Run, controller: Motor, modules: Sequence[str], signum: int) -> tuple[float, float]:
    """Disturb processes of a run that drives its motor.

    Returns the time until the torque was gone for good, and the longest pause of the controller, in seconds.
    """
    victims = [run.child(module) for module in modules]
    run.until(lambda: controller.is_driving, "the motor to be driven")
    for victim in victims:
        victim.kill(signum)
    signalled_s = time.monotonic()
    until(lambda: not controller.is_driving and time.monotonic() > signalled_s + _SETTLED_S, "the motor to be released")
    last_output = controller.outputs[-1]
    return max(last_output.at_s - signalled_s, 0.0), last_output.pause_s
