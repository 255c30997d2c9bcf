"""A third-party policy, given to a run as a file."""

from __future__ import annotations

from pathlib import Path

from onrig.runtime.exit_codes import ExitCode
from tests.lab.rig.run import UNHURRIED, Run
from tests.tools.examples.test_export_sb3 import CONFIG, ddpg_layers, export_network


def test_a_third_party_policy_drives_the_rig(tmp_path: Path) -> None:
    path = tmp_path / "third.onnx"
    path.write_bytes(export_network(CONFIG, ddpg_layers(2, 1), policy_id=5))
    settings = ("device.pace={scaled: 5}", "task.episode_s=1", "episodes=3", "local_learner=false")
    with Run(tmp_path / "run", "pendulum", *UNHURRIED, *settings, f"policy={path}") as run:
        assert run.ended() == ExitCode.OK
        assert run.leftover_paths() == []
    assert {row["policy_id"] for row in run.rows()} == {"1"}, "the rig assigns its own numbers"
    assert [event["policy"] for event in run.events("policy_admitted")] == [1]
    assert [event["policy"] for event in run.events("policy_probation_passed")] == [1]
    counts = {"offered": 1, "admitted": 1, "refused": 0, "too_soon": 0, "rolled_back": 0, "active": 1}
    assert run.summary()["policies"] == counts
