"""A custom learner on the rig's memory: what it mirrors, sends back and offers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onrig
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.link.client import LinkClosed
from onrig.runtime.policy.contract import ModelRefused
from onrig.runtime.run_state.running import find_running
from onrig.tools.load import load
from tests.lab.rig.processes import PATIENCE_S
from tests.lab.rig.rig import steady_policy
from tests.lab.rig.run import LOCKSTEP, Run

EPISODES = 3
BARE = ("local_learner=false", f"episodes={EPISODES}", "selection={strategy: 'TDE(1.0)[Uniform]', capacity: 100}")


def test_a_custom_learner_completes_a_lockstep_run(tmp_path: Path) -> None:
    with Run(tmp_path / "run", "pendulum", *LOCKSTEP, *BARE) as run:
        run.until(lambda: find_running(run.folder), "the run")
        with onrig.connect(run.folder) as rig:
            assert rig.attached.pushes
            with pytest.raises(ModelRefused):
                rig.offer(b"no model")
            without_metadata = steady_policy(load("pendulum")).replace(b"onrig.contract", b"other.contract")
            verdict = rig.offer(without_metadata, updates=0)
            assert verdict.accepted, verdict.reason
            rig.done(0, updates=0)
            for episode in range(1, EPISODES + 1):
                while rig.pull().closed < episode:
                    pass
                drawn = rig.sample(8, np.random.default_rng(episode))
                assert drawn.observation.shape == (8, 2)
                assert not drawn.terminated.any()
                rig.feedback(drawn, {"td": np.full(8, 0.1 * episode)})
                rig.done(episode, updates=8 * episode)
            assert rig.stored == 100
        assert run.ended(PATIENCE_S) == ExitCode.OK
        assert run.summary()["learner"]["updates"] == 8 * EPISODES  # type: ignore[index]
        assert not run.events("mirror_differs")


def test_a_missing_rig_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run is active"), onrig.connect(tmp_path):
        pass
    with pytest.raises(LinkClosed, match="did not answer"), onrig.connect(f"ipc://{tmp_path}/x", patience_s=0.1):
        pass
