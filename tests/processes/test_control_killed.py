"""A loop that dies or hangs: the device becomes safe by itself, and the run ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onrig.hw.messages import Fault, State, Status
from onrig.hw.session import DeviceSession, RequestRefused
from onrig.hw.transport import open_port
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.record import RecordLayout
from onrig.runtime.run_loading import load_resolved, save_resolved
from onrig.runtime.shm.board import BOARD_BYTES, BOARD_SCHEMA, Word
from onrig.runtime.shm.latest import SLOT_BYTES, SLOT_SCHEMA, PolicySlot
from onrig.runtime.shm.ring import ring_bytes
from onrig.runtime.shm.segment import Segment
from onrig.tools.load import load
from tests.lab.rig.processes import CONTROL, PATIENCE_S, TWIN, Process, process_of, until
from tests.lab.rig.rig import steady_policy
from tests.lab.rig.run import ENDLESS, Run
from tests.processes.tap import Tap

LEASE = 20
"""Periods; longer than a busy machine delays the loop."""
SAFE = (0,)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder and its shared memory with a policy in the slot, without a supervisor or a reader of the ring."""
    settings = [
        "realtime.priority=0",
        "realtime.lock_memory=false",
        f"rig.lease_periods={LEASE}",
        "limits.predicted=null",
    ]
    config = load("pendulum", [*settings, "device.pace=realtime", "task.episode_s=1000"])
    save_resolved(config, tmp_path / "config.yaml")
    rig = config.rig
    layout = RecordLayout.for_rig(rig)
    Segment.create(tmp_path / "ring", ring_bytes(layout, 8192), layout.schema).close()
    Segment.create(tmp_path / "board", BOARD_BYTES, BOARD_SCHEMA).close()
    segment = Segment.create(tmp_path / "slot", SLOT_BYTES, SLOT_SCHEMA)
    slot = PolicySlot(segment)
    slot.put(1, steady_policy(config))
    slot.close()
    segment.close()
    return tmp_path


@pytest.fixture
def tap() -> Iterator[Tap]:
    with Tap(2, 1) as tap:
        yield tap


@pytest.fixture
def twin(folder: Path, tap: Tap) -> Iterator[Process]:
    with process_of(TWIN, folder / "config.yaml", "--port", tap.ports.device) as twin:
        yield twin


@pytest.fixture
def control(folder: Path, tap: Tap, twin: Process) -> Iterator[Process]:
    with process_of(CONTROL, folder, folder, tap.ports.host) as control:
        tap.until_frame(lambda s: is_driven(s) and s.u_end != SAFE, "the loop to act", twin, control)
        tap.until_frame(lambda s: is_driven(s) and s.frame >= tap.states[0].frame + 20, "it to go on", twin, control)
        yield control


def is_driven(state: State) -> bool:
    return bool(state.status & Status.ARMED) and state.answers > 0


def check_lease(states: list[State]) -> None:
    """Check that the last state is the first one with a fault, exactly one lease after the last command."""
    state = states[-1]
    answered = max(s.answers for s in states)
    assert state.frame == answered + 1 + LEASE
    assert Fault(state.fault) is Fault.LEASE
    assert Status(state.status) == Status.FAULT | Status.SAFE
    held = next(s.u_end for s in states if s.answers == answered)
    assert held != SAFE
    assert all(s.u_end == held for s in states if s.frame > answered)  # held until that sample and no longer


def test_a_killed_loop_leaves_the_device_safe_one_lease_after_its_last_command(
    tap: Tap, twin: Process, control: Process
) -> None:
    control.kill()
    control.wait()
    tap.until_frame(lambda s: s.fault != Fault.NONE, "the fault", twin)
    check_lease(tap.states)
    after = tap.until_frame(lambda s: True, "the frame after it", twin)
    assert (after.u_start, after.u_end, after.answers) == (SAFE, SAFE, 0)


def test_the_fault_persists_until_the_next_host_clears_it_and_arms(
    folder: Path, tap: Tap, twin: Process, control: Process
) -> None:
    control.kill()
    control.wait()
    tap.until_frame(lambda s: s.fault != Fault.NONE, "the fault", twin)
    session = DeviceSession(tap.take_over(), load_resolved(folder / "config.yaml").rig, time)
    session.connect()
    session.wait_state(time.monotonic_ns() + round(PATIENCE_S * 1e9))
    with pytest.raises(RequestRefused, match=r"NOT_NOW.*fault LEASE"):
        session.arm()
    session.clear_fault()
    session.arm()
    session.disarm()
    session.close()


def test_a_hung_loop_finds_the_device_safe_and_starts_over(tap: Tap, twin: Process, control: Process) -> None:
    control.kill(signal.SIGSTOP)
    tap.until_frame(lambda s: s.fault != Fault.NONE, "the fault", twin)
    check_lease(tap.states)
    control.kill(signal.SIGCONT)
    tap.until_frame(is_driven, "the next episode", twin, control)
    first = next(s for s in tap.states if s.status & Status.FIRST and s.answers == 0 and s.frame > tap.states[0].frame)
    assert first.fault == Fault.NONE


def test_a_device_that_detects_hang_ups_becomes_safe_when_the_loop_hangs_up(folder: Path) -> None:
    link = folder / "link"
    config = load_resolved(folder / "config.yaml")
    with process_of(TWIN, folder / "config.yaml", "--link", link) as twin:
        path = until(lambda: link.exists() and link.read_text().strip(), "the twin", twin)
        with process_of(CONTROL, folder, folder, path) as control:
            board = Segment.attach(folder / "board", BOARD_SCHEMA)
            until(lambda: board.body[8 * Word.TICK] > 20, "the loop to go on", twin, control)
            board.close()
            control.kill()
            control.wait()
        for _ in range(100):  # until the twin was fast enough to see the line without a host
            session = DeviceSession(open_port(path), config.rig, time)
            session.connect()
            state = session.wait_state(time.monotonic_ns() + round(PATIENCE_S * 1e9))
            if state is not None and state.fault:  # its frame reports the command held until then
                state = session.wait_state(time.monotonic_ns() + round(PATIENCE_S * 1e9))
            session.close()
            if state is None or state.fault:
                break
    assert state is not None
    assert Fault(state.fault) is Fault.LEASE
    assert Status(state.status) == Status.FAULT | Status.SAFE
    assert state.u_end == SAFE


def test_a_run_whose_loop_is_killed_ends_with_70_and_leaves_nothing_behind(tmp_path: Path) -> None:
    policy = tmp_path / "policy.onnx"
    policy.write_bytes(steady_policy(load("pendulum")))
    with Run(tmp_path / "run", "pendulum", *ENDLESS, "local_learner=false", f"policy={policy}") as run:
        control = run.child(CONTROL)
        run.until(lambda: run.word(Word.TICK) > 20, "the loop to go on")
        control.kill()
        assert run.ended() == ExitCode.INTERNAL
        assert run.leftover_paths() == []
        assert "onrig run: control was killed by signal 9" in run.output
        summary = run.summary()
        assert summary["exit_reason"] == "control was killed by signal 9"
        assert int(str(summary["ticks"])) >= 20
