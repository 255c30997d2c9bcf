"""The program of docs/wiring.md that shows an actuator's sign, run against a twin."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from onrig.runtime.run_loading import save_resolved
from onrig.tools.load import load
from tests.processes.rig import TWIN, process_of, until

PAGE = Path(__file__).parents[2] / "docs" / "wiring.md"
UNHURRIED = ["device.pace=realtime", "rig.lease_periods=255", "limits.predicted=null"]


@pytest.mark.parametrize(("value", "sign"), [("0.5", 1), ("-0.5", -1)])
def test_the_arm_is_seen_to_turn_the_way_of_the_voltage(value: str, sign: int, tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "sign.py").write_text(program)
    save_resolved(load("pendulum-hardware", UNHURRIED), tmp_path / "rig.yaml")
    link = tmp_path / "port"
    with process_of(TWIN, tmp_path / "rig.yaml", "--link", link) as twin:
        port = until(lambda: link.exists() and link.read_text().strip(), "the twin's port", twin)
        done = subprocess.run(
            [sys.executable, str(tmp_path / "sign.py"), str(tmp_path / "rig.yaml"), port, value],
            capture_output=True,
            text=True,
            timeout=60,
            env={},
        )
    assert done.returncode == 0, done.stderr
    speeds = [float(x) for x in re.findall(r"velocity (\S+) rad/s", done.stdout)]
    assert next(x for x in speeds if abs(x) > 0.02) * sign > 0
