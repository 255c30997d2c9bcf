"""A run with synthetic experiences: its replay process has the plant, and everything else is unchanged."""

from __future__ import annotations

from pathlib import Path

import msgspec

from onrig.runtime.exit_codes import ExitCode
from tests.processes.rig import Run

SYNTHETIC_REPLAY = "onrig.sim.synthetic.replay"
SETTINGS = (
    "episodes=4",
    "learner.updates_per_episode=10",
    "selection={strategy: 'FIFO[Uniform]', capacity: 300, synthetic: {states: 0.2, actions: 0.2, refresh: 0.5}}",
)


def buffer_of(run: Run) -> dict[str, object]:
    return msgspec.convert(run.summary()["buffer"], dict[str, object])


def test_equal_runs_with_synthetic_experiences_are_equal_bit_for_bit(tmp_path: Path) -> None:
    memories, episodes = [], []
    for name in ("first", "again"):
        with Run(tmp_path / name, "pendulum", *SETTINGS) as run:
            run.child(SYNTHETIC_REPLAY)
            assert run.ended() == ExitCode.OK
            assert run.leftovers() == []
            memories.append(buffer_of(run))
            episodes.append((run.folder / "episodes.csv").read_bytes())
            assert run.summary()["mirror_mismatches"] == 0
    assert memories[0] == memories[1]
    assert episodes[0] == episodes[1]
    synthetic = memories[0]["synthetic"]
    assert isinstance(synthetic, int)
    assert 80 <= synthetic <= 160, "of 300, 40 % are to be"
