"""A line that closes during a run: the run waits for the device and for an operator, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from onrig.hw.identity import DeviceMismatch
from onrig.hw.transport import LineClosed, LinkError
from onrig.runtime.control import connection
from onrig.runtime.control.connection import connect
from onrig.runtime.control.frames import Stopped
from onrig.runtime.record import Flag
from onrig.runtime.run_config import Device, Port
from onrig.runtime.run_state.faults import FaultName, Halted
from onrig.runtime.run_state.states import State
from onrig.runtime.shm.board import Word
from onrig.sim.twin.loopback import LoopbackDevice
from tests.runtime.control.cable import LIMIT_S, PORT, Cable
from tests.runtime.control.test_loop import EPISODE, STEPS, Bench

OUTAGE = ["unplugged:disconnected", "plugged_in:fault", "rearm:ready"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch, lockstep=False)


@pytest.fixture
def cable(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Cable:
    return make_cable(bench, monkeypatch)


def make_cable(bench: Bench, monkeypatch: pytest.MonkeyPatch, *, n_polls: int = 3, limit_s: float = LIMIT_S) -> Cable:
    return Cable(bench.loop, bench.device, bench.clock, monkeypatch, n_polls=n_polls, limit_s=limit_s)


def resume_by_hand(bench: Bench) -> None:
    def resume() -> None:
        assert not bench.device.armed
        assert bench.board[Word.STATE] == State.FAULT
        bench.board[Word.RESUME_OUTSIDE] += 1

    on_prompt(bench, resume)


def on_prompt(bench: Bench, resume: Callable[[], None]) -> None:
    """Act on each message that asks for an operator."""
    bench.on_warning = lambda: resume() if "onrig resume" in bench.reports[-1][1] else None


def pull_at_record(bench: Bench, cable: Cable, record: int) -> None:
    bench.ring.at_push = lambda n: cable.pull() if n == record else None


def rows_of(bench: Bench) -> np.ndarray:
    return np.frombuffer(bytes(bench.ring._records[: len(bench.ring) * bench.layout.size]), bench.layout.dtype)


@pytest.mark.parametrize("event", ["lease", "reboot"])
def test_a_pulled_cable_ends_the_episode_and_an_operator_rearms_after_reconnection(
    bench: Bench, cable: Cable, event: str
) -> None:
    if event == "reboot":
        cable.on_unplugged = bench.device.reboot
    resume_by_hand(bench)
    pull_at_record(bench, cable, 10)
    bench.loop.run()
    assert bench.transitions == ["connected:ready", *EPISODE[:2], *OUTAGE, *EPISODE * 2, "completed:disconnected"]
    assert [kind for kind, _ in bench.reports] == ["fault", "warning", "warning"]
    assert bench.reports[0][1].startswith("the connection to the device has closed: cable unplugged")
    assert f"waiting 10 s for {PORT}" in bench.reports[0][1]
    assert ("restarted" in bench.reports[1][1]) is (event == "reboot")
    assert "`onrig resume`" in bench.reports[2][1]
    assert bench.board[Word.SAFE_NS] > 0


def test_the_episode_is_closed_at_its_last_step_and_nothing_before_it_is_lost(bench: Bench, cable: Cable) -> None:
    resume_by_hand(bench)
    pull_at_record(bench, cable, 10)
    bench.loop.run()
    rows = rows_of(bench)
    first = rows[rows["episode"] == 1]
    closing_flags = Flag.NO_ACTION | Flag.TRUNCATED | Flag.CUT_OFF
    assert first["tick"].tolist() == list(range(len(first)))
    assert (first["flags"][:-1] & Flag.NO_ACTION == 0).all()
    assert first["flags"][-1] & closing_flags == closing_flags
    assert len(first) in (11, 12), "the step after the tenth record was in progress"
    assert rows["tick"].tolist() == list(range(len(rows)))
    assert bench.board[Word.ROWS] == bench.board[Word.CLOSED] == 3
    assert [len(rows[rows["episode"] == n]) for n in (2, 3)] == [STEPS + 1] * 2


def test_the_limits_of_the_configuration_are_set_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, "limits.range={voltage: [-1, 1]}", "limits.predicted=null", lockstep=False)
    cable = make_cable(bench, monkeypatch)
    cable.on_unplugged = bench.device.reboot
    resume_by_hand(bench)
    pull_at_record(bench, cable, 10)
    bench.loop.run()
    assert bench.device._output.limits == [(-10_000, 10_000)]


def test_without_an_operator_the_run_ends_disarmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, "supervision.resume_timeout_s=0", lockstep=False)
    pull_at_record(bench, make_cable(bench, monkeypatch), 10)
    with pytest.raises(Halted) as error:
        bench.loop.run()
    assert error.value.fault is FaultName.LINK_UNPLUGGED
    assert bench.transitions[-3:] == ["unplugged:disconnected", "plugged_in:fault", "expired:disconnected"]
    assert not bench.device.armed


def test_a_cable_pulled_as_the_run_expires_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch, "supervision.resume_timeout_s=0", lockstep=False)
    cable = make_cable(bench, monkeypatch)
    on_prompt(bench, cable.pull)
    pull_at_record(bench, cable, 10)
    with pytest.raises(LineClosed):
        bench.loop.run()
    assert cable.n_pulls == 2
    assert bench.transitions[-3:] == ["unplugged:disconnected", "plugged_in:fault", "expired:disconnected"]
    assert [name for name, _ in bench.reports].count("fault") == 1


def test_the_run_gives_up_on_a_device_that_does_not_come_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    cable = make_cable(bench, monkeypatch, n_polls=1000)
    pull_at_record(bench, cable, 10)
    with pytest.raises(LinkError, match=r"no such port; waited 10 s \(device.reconnect_s\)"):
        bench.loop.run()
    assert LIMIT_S <= cable.now_s < LIMIT_S + 1.0
    assert bench.transitions[-1] == "unplugged:disconnected"
    assert bench.board[Word.SAFE_NS] == 0, "no frame shows the state of the device"


def test_a_run_that_must_not_wait_ends_as_soon_as_the_line_closes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull_at_record(bench, make_cable(bench, monkeypatch, limit_s=0.0), 10)
    with pytest.raises(LineClosed):
        bench.loop.run()
    assert bench.transitions[-1] == "link_lost:disconnected"
    assert bench.board[Word.ROWS] == 0


def test_a_stop_is_obeyed_while_the_device_is_disconnected(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    cable = make_cable(bench, monkeypatch, n_polls=1000)

    def sleep(seconds: float) -> None:
        cable.now_s += seconds
        if cable.now_s > 3.0:
            bench.board[Word.STOP_OUTSIDE] = 1

    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: cable.now_s, sleep=sleep))
    pull_at_record(bench, cable, 10)
    with pytest.raises(Stopped):
        bench.loop.run()
    assert 3.0 < cable.now_s < 3.2
    assert bench.transitions[-1] == "unplugged:disconnected"


def test_another_device_on_the_port_ends_the_run(bench: Bench, cable: Cable) -> None:
    def exchange() -> None:
        bench.device.rig = msgspec.structs.replace(bench.device.rig, name="other")

    cable.on_unplugged = exchange
    pull_at_record(bench, cable, 10)
    with pytest.raises(DeviceMismatch, match="rig name: the device has other"):
        bench.loop.run()
    assert bench.transitions[-1] == "unplugged:disconnected"
    assert bench.board[Word.SAFE_NS] == 0, "frames of another device say nothing about the run's own"


def test_a_cable_pulled_as_the_episode_ends_costs_no_episode(bench: Bench, cable: Cable) -> None:
    resume_by_hand(bench)
    pull_at_record(bench, cable, STEPS + 1)
    bench.loop.run()
    assert bench.transitions[:6] == ["connected:ready", *EPISODE[:2], "episode_over:ready", *OUTAGE[:2]]
    assert bench.board[Word.ROWS] == 3
    assert len(rows_of(bench)) == 3 * (STEPS + 1)
    assert not (rows_of(bench)["flags"] & Flag.CUT_OFF).any()


def test_an_episode_without_a_frame_is_restarted(bench: Bench, cable: Cable) -> None:
    resume_by_hand(bench)
    reset = bench.session.reset

    def reset_and_pull(seed: int) -> int:
        frame = reset(seed)
        if not cable.n_pulls:
            cable.pull()
        return frame

    bench.session.reset = reset_and_pull  # type: ignore[method-assign]
    bench.loop.run()
    assert bench.transitions[:7] == ["connected:ready", *EPISODE[:2], *OUTAGE, EPISODE[0]]
    assert len(rows_of(bench)) == 3 * (STEPS + 1)


def test_a_cable_pulled_while_arming_costs_nothing(bench: Bench, cable: Cable) -> None:
    resume_by_hand(bench)
    arm = bench.session.arm

    def pull_and_arm() -> None:
        if not cable.n_pulls:
            cable.pull()
        arm()

    bench.session.arm = pull_and_arm  # type: ignore[method-assign]
    bench.loop.run()
    assert bench.transitions[:6] == ["connected:ready", EPISODE[0], *OUTAGE, EPISODE[0]]
    assert len(rows_of(bench)) == 3 * (STEPS + 1)


def test_a_cable_pulled_again_before_an_operator_acts_is_waited_for_again(bench: Bench, cable: Cable) -> None:
    n_prompts = 0

    def resume() -> None:
        nonlocal n_prompts
        n_prompts += 1
        if n_prompts == 1:
            cable.pull()
        else:
            bench.board[Word.RESUME_OUTSIDE] += 1

    on_prompt(bench, resume)
    pull_at_record(bench, cable, 10)
    bench.loop.run()
    assert cable.n_pulls == n_prompts == 2
    assert bench.transitions[3:8] == [*OUTAGE[:2], *OUTAGE]
    assert bench.transitions[-1] == "completed:disconnected"


def test_an_emergency_stop_pressed_meanwhile_is_named_when_the_device_refuses(bench: Bench, cable: Cable) -> None:
    prompts: list[str] = []

    def resume() -> None:
        prompts.append(bench.reports[-1][1])
        bench.session.wait_state(bench.clock.monotonic_ns() + 10**9)
        if len(prompts) == 2:
            bench.device.press_estop(pressed=False)
        bench.board[Word.RESUME_OUTSIDE] += 1

    cable.on_unplugged = lambda: bench.device.press_estop(pressed=True)
    on_prompt(bench, resume)
    pull_at_record(bench, cable, 10)
    bench.loop.run()
    assert prompts[0].startswith("stopped: the connection to the device has closed")
    assert prompts[1].startswith("stopped: the emergency stop at the device was pressed")


def test_after_a_cable_pulled_in_a_pause_rearming_ends_the_pause(bench: Bench, cable: Cable) -> None:
    bench.loop.arming.machine.state = State.READY
    n_warnings = 0

    def resume() -> None:
        nonlocal n_warnings
        n_warnings += 1
        if n_warnings == 1:
            cable.pull()
        else:
            bench.board[Word.RESUME_OUTSIDE] += 1

    on_prompt(bench, resume)
    bench.loop.arming.pause("budget spent", "wait")
    bench.loop.arming.reports.send()
    assert bench.transitions == ["pause:paused", *OUTAGE]


def test_a_cable_pulled_during_homing_is_followed_by_another_homing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, lockstep=False, reset=False)
    pull_at_record(bench, make_cable(bench, monkeypatch), 5)
    resume_by_hand(bench)
    bench.loop.run()
    assert bench.transitions[:6] == ["connected:ready", EPISODE[0], *OUTAGE, EPISODE[0]]
    assert bench.board[Word.ROWS] == 3


def test_connecting_leaves_the_device_configured_and_disarmed(bench: Bench) -> None:
    bench.device.reboot()
    bench.session.switch_transport(LoopbackDevice(bench.device, bench.clock).transport)
    hello = connect(bench.config, bench.session)
    assert hello.boot_id == bench.device.boot_id
    assert (bench.device.period_us, bench.device.armed) == (bench.config.period_us, False)


def test_only_a_run_in_real_time_on_a_port_waits_for_its_device() -> None:
    assert Device(port=Port(PORT)).reconnect_limit_s == 60.0
    assert Device(port=Port(PORT), reconnect_s=5.0).reconnect_limit_s == 5.0
    assert Device(port=Port(PORT), pace="lockstep").reconnect_limit_s == 0.0
    assert Device(twin={}).reconnect_limit_s == 0.0
