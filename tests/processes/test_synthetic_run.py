"""A run with synthetic experiences: its replay process has the plant, and everything else is unchanged."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onrig.runtime.exit_codes import ExitCode
from tests.lab.rig.run import Run

SYNTHETIC_REPLAY = "onrig.sim.replay"
SETTINGS = (
    "episodes=4",
    "task.episode_s=2",
    "learner.updates_per_episode=10",
    "evaluate_every=0",
    "selection={strategy: 'FIFO[Uniform]', capacity: 300, synthetic: {states: 0.2, actions: 0.2, refresh: 0.5}}",
)


def buffer_of(run: Run) -> dict[str, object]:
    return msgspec.convert(run.summary()["buffer"], dict[str, object])


def outcome(folder: Path) -> tuple[dict[str, object], bytes]:
    """Memory and episodes of a run."""
    with Run(folder, "pendulum", *SETTINGS) as run:
        run.child(SYNTHETIC_REPLAY)
        assert run.ended() == ExitCode.OK
        assert run.leftover_paths() == []
        assert run.summary()["mirror_mismatches"] == 0
        return buffer_of(run), (run.folder / "episodes.csv").read_bytes()


def test_a_share_of_the_memory_is_synthetic(tmp_path: Path) -> None:
    memory, _ = outcome(tmp_path / "run")
    synthetic = memory["synthetic"]
    assert isinstance(synthetic, int)
    assert 80 <= synthetic <= 160, "40 % of 300 are expected"


@pytest.mark.study
def test_equal_runs_with_synthetic_experiences_are_identical_bit_for_bit(tmp_path: Path) -> None:
    assert outcome(tmp_path / "first") == outcome(tmp_path / "again")
