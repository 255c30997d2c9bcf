"""The program of docs/wiring.md that shows the sign of an actuator, run on a twin."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onrig.runtime.run_loading import save_resolved
from onrig.tools.load import load
from tests.lab.rig.processes import TWIN, Process, process_of, until

PAGE = Path(__file__).parents[2] / "docs" / "wiring.md"
UNHURRIED = ["device.pace=realtime", "rig.lease_periods=255", "limits.predicted=null"]


@contextlib.contextmanager
def bench(folder: Path) -> Iterator[tuple[Process, Callable[[str], subprocess.CompletedProcess[str]]]]:
    """A twin, and a function that runs the page's program on it with a value."""
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (folder / "sign.py").write_text(program)
    save_resolved(load("pendulum-hardware", UNHURRIED), folder / "rig.yaml")
    link = folder / "port"
    with process_of(TWIN, folder / "rig.yaml", "--link", link) as twin:
        port = until(lambda: link.exists() and link.read_text().strip(), "the twin's port", twin)
        words = [sys.executable, str(folder / "sign.py"), str(folder / "rig.yaml"), port]
        yield (
            twin,
            lambda value: subprocess.run([*words, value], capture_output=True, text=True, timeout=60, env={}),
        )


@pytest.mark.parametrize(("value", "sign"), [("0.5", 1), ("-0.5", -1)])
def test_the_arm_is_seen_to_turn_in_the_direction_of_the_voltage(value: str, sign: int, tmp_path: Path) -> None:
    with bench(tmp_path) as (_, run):
        done = run(value)
    assert done.returncode == 0, done.stderr
    speeds = [float(x) for x in re.findall(r"velocity (\S+) rad/s", done.stdout)]
    assert next(x for x in speeds if abs(x) > 0.02) * sign > 0


def test_a_pressed_emergency_stop_is_reported_in_one_line_and_needs_no_power_cycle(tmp_path: Path) -> None:
    with bench(tmp_path) as (twin, run):
        twin.kill(signal.SIGUSR1)
        pressed = run("0")
        twin.kill(signal.SIGUSR2)
        released = run("0")
    assert pressed.returncode == 1
    assert pressed.stderr.startswith("the device refused CLEAR_FAULT: NOT_NOW")
    assert "fault ESTOP" in pressed.stderr
    assert pressed.stderr.count("\n") == 1
    assert released.returncode == 0, released.stderr
