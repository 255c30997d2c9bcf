"""A complete run that dies and is resumed: only data after the last checkpoint are lost."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_state.episodes import read_rows
from tests.lab.rig.processes import PATIENCE_S
from tests.lab.rig.run import ENDLESS, PoweredRun
from tests.processes.power_cut import last_episode, resumptions_of

SHORT = ("task.episode_s=0.6", "learner.updates_per_episode=5", "checkpoint_s=1.2")
"""A checkpoint after every second episode."""


def settings(*overrides: str) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def until(cable: PoweredRun, condition: Callable[[], bool], description: str) -> None:
    for _ in range(round(2 * PATIENCE_S / 0.01)):
        if condition():
            return
        assert cable.ended(0.01) is None, f"the run ended before {description}"
    raise AssertionError(f"waited too long for {description}")


def test_a_real_time_run_resumes_after_its_last_row_with_its_newest_policy(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments: list[str | Path] = ["pendulum", *settings(*ENDLESS, "checkpoint_s=0.2"), "--run-dir", folder]
    policies = folder / "policies"
    with PoweredRun(tmp_path / "out", *arguments) as cable:
        until(cable, lambda: last_episode(folder) >= 5 and len(list(policies.glob("*.onnx"))) >= 3, "five episodes")
        until(cable, lambda: bool(list((folder / "buffer").glob("manifest-*.json"))), "a checkpoint")
        cable.cut()
    last_recorded, newest = last_episode(folder), max(int(path.stem) for path in policies.glob("*.onnx"))
    with (folder / "episodes.csv").open("ab") as file:
        file.write(b"77,train,2")
    with PoweredRun(tmp_path / "out", "--resume", folder) as cable:
        until(cable, lambda: last_episode(folder) >= last_recorded + 3, "three more episodes")
        cable.stop(signal.SIGINT)
        code = cable.ended(2 * PATIENCE_S)
        was_newer = "were newer than the checkpoint when the run was killed" in cable.output
    rows = read_rows(folder / "episodes.csv").rows
    assert [row.episode for row in rows] == list(range(1, len(rows) + 1))
    assert rows[last_recorded].policy_id >= newest
    (resumption,) = resumptions_of(folder)
    assert (resumption["episode"], resumption["policy"], resumption["bytes_cut"]) == (last_recorded, newest, 10)
    assert was_newer is bool(resumption["episodes_newer_than_memory"])
    assert code == (ExitCode.INCOMPLETE if was_newer else ExitCode.INTERRUPTED)


@pytest.mark.parametrize("after", [pytest.param("nothing", marks=pytest.mark.study), "a policy"])
def test_a_run_killed_before_its_first_checkpoint_reports_that_it_starts_over(tmp_path: Path, after: str) -> None:
    folder = tmp_path / "run"
    arguments: list[str | Path] = ["pendulum", *settings(*SHORT, "episodes=2"), "--run-dir", folder]
    with PoweredRun(tmp_path / "out", *arguments) as cable:
        until(cable, lambda: (folder / "policies").exists(), "the replay process")
        if after == "a policy":
            until(cable, lambda: bool(list((folder / "policies").glob("*.onnx"))), "a policy")
        cable.cut()
    for manifest in (folder / "buffer").glob("*"):
        manifest.unlink()
    with PoweredRun(tmp_path / "out", "--resume", folder) as cable:
        assert cable.ended(4 * PATIENCE_S) == ExitCode.OK
        assert "no policy was admitted before the run ended" in cable.output
        assert "returns to the start of the run" in cable.output
    assert [(row.episode, row.kind) for row in read_rows(folder / "episodes.csv").rows] == [
        (episode, kind) for episode in (1, 2) for kind in ("train", "eval")
    ]
