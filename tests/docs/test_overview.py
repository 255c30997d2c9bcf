"""The numbers of docs/overview.md, compared with the run that they come from."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onrig.runtime.log.reading import read_log
from onrig.runtime.memory.transitions import TransitionBuilder
from onrig.runtime.run_loading import load_run

PAGE = Path(__file__).parents[2] / "docs" / "overview.md"
TICK = 460


def test_the_sample_in_the_overview_comes_from_the_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "onrig.tools.cli", "run", "pendulum", "--set", "episodes=2", "--run-dir", "one"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    rig = load_run("pendulum").rig
    parts = [part for part in read_log(tmp_path / "one", rig) if isinstance(part, np.ndarray)]
    records = np.concatenate(parts)
    transitions = TransitionBuilder(rig).add(records)
    (slot,) = np.flatnonzero((transitions.episode == 2) & (transitions.step == 58))
    record = records[TICK]
    found: dict[str, list[float]] = {"slot": [float(slot)], "margin": [record["margin"]], "reward": [record["reward"]]}
    names = {"sensors": [s.name for s in rig.sensors], "observation": [o.name for o in rig.observations]}
    for field in ("sensors", "observation", "policy", "explored", "commanded", "command", "applied"):
        of = names.get(field, [a.name for a in rig.actuators])
        for name, value in zip(of, record[field].tolist(), strict=True):
            found[f"{field}.{name}"] = [value]
    for field in ("observation", "action", "reward", "next_observation"):
        found[f"transition.{field}"] = np.atleast_1d(getattr(transitions, field)[slot]).tolist()
    sample_rows = re.findall(
        r"^(\S+)  +(\S.*)$", "\n".join(re.findall(r"```sample\n(.*?)```", PAGE.read_text(), re.S)), re.M
    )
    assert len(sample_rows) == 16
    for name, values in sample_rows:
        assert [float(v) for v in values.split()] == pytest.approx(found[name], abs=6e-6), name
