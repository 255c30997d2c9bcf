"""The end of a run that is interrupted or whose supervisor is killed: actuators, then processes, then files."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.hw.messages import Fault, State, Status
from onrig.hw.session import DeviceSession
from onrig.hw.transport import open_port
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.shm.board import Word
from onrig.tools.load import load
from tests.lab.rig.processes import CONTROL, LEARNER, PATIENCE_S, REPLAY, TWIN, Process, process_of, until
from tests.lab.rig.rig import steady_policy
from tests.lab.rig.run import ENDLESS, Run


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """Override that starts a run with a fixed policy, so that it needs no learner."""
    path = tmp_path / "policy.onnx"
    path.write_bytes(steady_policy(load("pendulum")))
    return f"policy={path}"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[str]:
    """A device that outlives the run."""
    link = tmp_path / "link"
    settings = [word for setting in ENDLESS for word in ("--set", setting)]
    with process_of("onrig.tools.cli", "twin", "pendulum", "--link", link, *settings) as twin:
        yield until(lambda: link.exists() and link.read_text().strip(), "the twin", twin)


def state_of(port: str, run: Run) -> State:
    """State that the device reports to the next host."""
    session = DeviceSession(open_port(port), load_resolved(run.folder / "config.yaml").rig, time)
    session.connect()
    state = session.wait_state(time.monotonic_ns() + round(PATIENCE_S * 1e9))
    session.close()
    assert state is not None
    return state


def order_of_ending(processes: dict[str, Process]) -> list[set[str]]:
    """Names of the processes in the order of their end; those found to have ended together are in one set."""
    order: list[set[str]] = []
    running = {process.fd: name for name, process in processes.items()}
    while running:
        ended, _, _ = select.select(list(running), (), (), PATIENCE_S)
        assert ended, f"{sorted(running.values())} did not end"
        order.append({running.pop(fd) for fd in ended})
    return order


def test_an_interrupted_run_ends_its_processes_starting_with_the_actuators_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS) as run:
        names = (CONTROL, REPLAY, LEARNER, TWIN)
        processes = {name: run.child(name) for name in names}
        run.until(lambda: run.word(Word.POLICY) >= 2, "a second policy to act")
        run.process.kill(signal.SIGINT)
        first, *_, last = [name for group in order_of_ending(processes) for name in names if name in group]
        # The learner ends by itself when the rig's run is over, while the replay process writes its summary.
        assert (first, last) == (CONTROL, TWIN)
        assert run.ended() == ExitCode.INTERRUPTED
        assert run.leftover_paths() == []
        assert run.summary()["exit_reason"] == "interrupted"
        assert run.events("ended")[0]["code"] == ExitCode.INTERRUPTED
        assert len(run.rows()) == run.summary()["episodes"]
        assert list((run.folder / "learner").glob("learner-*.npz"))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_disarms_the_device(tmp_path: Path, policy: str, port: str, signum: int) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS, "local_learner=false", policy, port=port) as run:
        run.until(lambda: run.word(Word.TICK) > 20, "the loop to go on")
        run.process.kill(signum)
        assert run.ended() == ExitCode.INTERRUPTED
        assert run.leftover_paths() == []
        state = state_of(port, run)
    # No fault: it received a DISARM before the line was closed.
    assert (Status(state.status), Fault(state.fault), state.u_end) == (Status.SAFE, Fault.NONE, (0,))


def test_if_the_supervisor_is_killed_the_others_end_safely_and_the_next_run_cleans_up(
    tmp_path: Path, policy: str, port: str
) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS, port=port) as run:
        processes = {name: run.child(name) for name in (CONTROL, REPLAY, LEARNER)}
        run.until(lambda: run.word(Word.TICK) > 20, "the loop to go on")
        stale = run.shm
        run.process.kill()
        order_of_ending(processes)
        state = state_of(port, run)
        assert (Status(state.status), Fault(state.fault), state.u_end) == (Status.SAFE, Fault.NONE, (0,))
    assert stale is not None
    assert stale.exists()
    with Run(tmp_path / "next", "pendulum", "episodes=1", "local_learner=false", policy) as run:
        run.child(TWIN)
        assert not stale.exists()


def test_a_second_interrupt_ends_the_wait_for_a_hung_process(tmp_path: Path, policy: str) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS, "local_learner=false", policy) as run:
        control, replay = run.child(CONTROL), run.child(REPLAY)
        run.until(lambda: run.word(Word.TICK) > 20, "the loop to go on")
        replay.kill(signal.SIGSTOP)
        run.process.kill(signal.SIGINT)
        control.wait()
        run.process.kill(signal.SIGINT)
        replay.wait()
        assert run.ended() == ExitCode.INCOMPLETE, "unwritten data of the replay process are lost, and this is reported"
        assert run.leftover_paths() == []
        assert run.summary()["exit_reason"] == "interrupted"


def test_a_run_whose_device_vanishes_ends_with_4_and_leaves_nothing_behind(tmp_path: Path, policy: str) -> None:
    with Run(tmp_path / "run", "pendulum", *ENDLESS, "local_learner=false", policy) as run:
        twin = run.child(TWIN)
        run.until(lambda: run.word(Word.TICK) > 20, "the loop to go on")
        twin.kill()
        assert run.ended() == ExitCode.HARDWARE
        assert run.leftover_paths() == []
        assert "the device hung up" in str(run.summary()["exit_reason"])


def test_a_run_continues_when_no_one_reads_its_output(tmp_path: Path, policy: str) -> None:
    with Run(
        tmp_path / "run", "pendulum", *ENDLESS, "episodes=20", "local_learner=false", policy, keep_output=False
    ) as run:
        run.ended()
        assert run.leftover_paths() == []
        assert run.summary()["exit_reason"] == "completed"
        assert len(run.rows()) == 20
