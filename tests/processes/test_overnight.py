"""The shipped configuration with all limits on exploration enabled, as a complete rig in lockstep."""

from __future__ import annotations

from pathlib import Path

import msgspec

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.explore.settings import OrnsteinUhlenbeck
from onrig.tools.load import load
from tests.lab.rig.run import LOCKSTEP, Run


def test_gates_budgets_quiet_periods_probation_and_staleness_are_all_enabled() -> None:
    config = load("pendulum-overnight")
    exploration = config.exploration
    assert isinstance(exploration, OrnsteinUhlenbeck)
    assert exploration.near_envelope is not None
    assert exploration.back_off is not None
    assert exploration.quiet is not None
    for span in (exploration.budgets.episode, exploration.budgets.hour, exploration.budgets.session):
        assert any(limit is not None for limit in msgspec.structs.asdict(span).values())
    assert config.limits.predicted is not None
    assert config.probation is not None
    assert config.staleness.then == "lower"
    assert config.device.pace == "realtime"


def test_in_lockstep_all_episodes_but_the_quiet_one_are_explored(tmp_path: Path) -> None:
    settings = (*LOCKSTEP, "device.pace=lockstep", "episodes=4", "exploration.quiet={every: 4}")
    with Run(tmp_path / "run", "pendulum-overnight", *settings) as run:
        assert run.ended() == ExitCode.OK
        assert run.leftover_paths() == []
        rows = run.rows()
    noise = [float(row["exploration"]) for row in rows]
    assert [row["kind"] for row in rows] == ["train"] * 4
    assert all(n > 0 for n in noise[:3])
    assert noise[3] == 0.0
