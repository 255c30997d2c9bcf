"""A lockstep run whose replay process or learner is killed or stopped ends like an undisturbed one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.shm.board import Word
from onrig.tools import cli
from tests.lab.rig.processes import LEARNER, REPLAY, Process
from tests.lab.rig.run import ENDLESS, LOCKSTEP, Run

ARGUMENTS = (
    *LOCKSTEP,
    "episodes=8",
    "evaluate_every=2",
    "checkpoint_s=3",
    "supervision.hang_s=3",
    "selection={strategy: 'TDE(1.0)[PER]', capacity: 300}",
)
"""TD errors decide what is kept, and only every third episode has a checkpoint: a successor has much to repeat."""

FolderContents = tuple[bytes, str, dict[str, bytes], object]


def read_folder(run: Run) -> FolderContents:
    """Rows, memory, policies and updates of a finished run."""
    summary = run.summary()
    buffer, learner = summary["buffer"], summary["learner"]
    assert isinstance(buffer, dict)
    assert isinstance(learner, dict)
    policies = {path.name: path.read_bytes() for path in (run.folder / "policies").glob("*.onnx")}
    return (run.folder / "episodes.csv").read_bytes(), str(buffer["digest"]), policies, learner["updates"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> FolderContents:
    with Run(tmp_path_factory.mktemp("alone") / "run", "pendulum", *ARGUMENTS) as run:
        assert run.ended() == ExitCode.OK
        return read_folder(run)


def assert_ends_like(run: Run, undisturbed: FolderContents) -> None:
    assert run.ended() == ExitCode.OK
    assert read_folder(run) == undisturbed
    completeness = run.summary()["whole"]
    assert isinstance(completeness, dict)
    assert completeness["complete"]
    assert completeness["reproducible"]
    assert not run.leftover_paths()


def wait_past(run: Run, barrier: int) -> None:
    run.until(lambda: run.word(Word.BARRIER) > barrier, f"the barrier after episode {barrier}")


KILLED, TERMINATED = signal.SIGKILL, signal.SIGTERM
ENDS = (
    (0, LEARNER, KILLED),
    (2, REPLAY, KILLED),
    (2, LEARNER, KILLED),
    (4, LEARNER, TERMINATED),
    (5, REPLAY, TERMINATED),
)
FIRST_ENDS = ENDS[1:4]


@pytest.mark.parametrize(
    "ends", [FIRST_ENDS, pytest.param(ENDS, marks=pytest.mark.study)], ids=["three times", "five times"]
)
def test_the_run_is_unaffected_by_killed_or_terminated_processes_at_any_time(
    ends: tuple[tuple[int, str, signal.Signals], ...], tmp_path: Path, undisturbed: FolderContents
) -> None:
    with Run(tmp_path / "run", "pendulum", *ARGUMENTS) as run:
        before: dict[str, Process] = {}
        for barrier, module, signum in ends:
            wait_past(run, barrier)
            before[module] = run.child(module, other_than=before.get(module))
            before[module].kill(signum)
            before[module].wait()
        assert_ends_like(run, undisturbed)


def test_a_briefly_stopped_process_continues_and_one_stopped_for_long_is_detected_and_replaced(
    tmp_path: Path, undisturbed: FolderContents
) -> None:
    with Run(tmp_path / "run", "pendulum", *ARGUMENTS) as run:
        for barrier, module, signals in (
            (1, REPLAY, (signal.SIGSTOP, signal.SIGCONT)),
            (2, LEARNER, (signal.SIGSTOP, signal.SIGCONT)),
            (4, REPLAY, (signal.SIGSTOP,)),
            (6, LEARNER, (signal.SIGSTOP,)),
        ):
            wait_past(run, barrier)
            process = run.child(module)
            for signum in signals:
                process.kill(signum)
            if signal.SIGCONT not in signals:
                process.wait()
        assert_ends_like(run, undisturbed)
        hung = run.summary()["hung"]
        assert isinstance(hung, dict)
        assert min(hung.values()) >= 1
        assert run.summary()["started_again"] == {"replay": 1, "learner": 1}


@pytest.mark.study  # tests/processes/test_replay_killed.py also kills one in real time
def test_in_real_time_a_killed_replay_process_costs_at_most_a_second_of_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS, "checkpoint_s=1") as run:
        last = None
        for episode in (10, 25):
            run.until(lambda episode=episode: run.word(Word.EPISODE) > episode, f"episode {episode}")  # type: ignore[misc]
            last = run.child(REPLAY, other_than=last)
            last.kill()
            last.wait()
        run.until(lambda: run.word(Word.EPISODE) > 40, "episode 40")
        run.process.kill(signal.SIGINT)
        assert run.ended() == ExitCode.INTERRUPTED
        completeness = run.summary()["whole"]
        assert isinstance(completeness, dict)
        assert completeness["complete"], completeness
        assert [int(row["episode"]) for row in run.rows()] == list(range(1, len(run.rows()) + 1))
        assert completeness["experiences"]["expected"] == run.word(Word.FIRST_UNREPORTED)
    assert (run.folder / "log-2.mcap").exists()
    assert cli.main(["replay", str(run.folder)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "log.mcap is incomplete; it is read up to its last complete chunk" in out
    assert ["sessions", "1"] in [line.split() for line in out.splitlines()]
