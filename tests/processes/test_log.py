"""Logs of whole rigs: they are replayed to the same decisions, also after the replay process was killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.tools import cli
from tests.processes.rig import LOCKSTEP, REPLAY, UNHURRIED, Run

BRIEF = ("episodes=2", "task.episode_s=1", "learner.updates_per_episode=10")
REAL_TIME = (*UNHURRIED, "device.pace={scaled: 10}", "task.episode_s=0.5", "learner.updates_per_episode=5")


@pytest.mark.parametrize("config", ["pendulum", "magman"])
def test_a_lockstep_run_replays_without_a_difference(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path / "run", config, *BRIEF) as run:
        assert run.ended() == ExitCode.OK
        [closed] = run.events("log_closed")
    assert closed["steps"] == run.summary()["ticks"] == 2 * 2 * 51
    assert cli.main(["replay", str(run.folder)]) == ExitCode.OK
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["ticks", "compared", "204", "(102", "train,", "102", "eval)"] in lines


def test_a_killed_replay_process_costs_the_log_a_second_at_most_and_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path / "run", "pendulum", *REAL_TIME, "episodes=100000") as run:
        run.until(lambda: len(run.rows()) > 20, "some episodes")
        first = run.child(REPLAY)
        first.kill()
        run.child(REPLAY, other_than=first)
        after = len(run.rows())
        run.until(lambda: len(run.rows()) > after + 20, "more episodes")
        run.process.kill(signal.SIGTERM)
        run.ended()
    assert (run.folder / "log-2.mcap").exists()
    assert cli.main(["replay", str(run.folder)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "log.mcap was not finished: read to its last whole chunk" in out
    assert ["sessions", "1"] in [line.split() for line in out.splitlines()]


def test_without_a_log_there_is_no_file(tmp_path: Path) -> None:
    with Run(tmp_path / "run", "pendulum", *LOCKSTEP, "episodes=1", "log.mcap=false") as run:
        assert run.ended() == ExitCode.OK
    assert list(run.folder.glob("*.mcap")) == []
