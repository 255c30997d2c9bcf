"""A device that reports contradictions: nothing crashes, each fault is named, and the device ends disarmed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from onrig.hw.framing import encode_frame
from onrig.hw.messages import State, StateLayout, Status, encode_hello
from onrig.hw.session import RequestRefused
from onrig.runtime.control.frames import Stopped
from onrig.runtime.run_state.faults import FaultName, Halted, LinkFault
from onrig.runtime.shm.board import Word
from tests.runtime.control.test_loop import STEPS, Bench

FIRST_ALTERED_FRAME = 20
"""Frame from which the device lies."""
Alteration = Callable[[State], State]


def alter_frames(bench: Bench, alter: Alteration, *, until_frame: int = 1 << 30) -> None:
    """Alter the device's frames on their way out."""
    rig = bench.config.rig
    layout = StateLayout(len(rig.sensors), len(rig.actuators))
    sample = bench.device.sample

    def sample_altered() -> bytes:
        body = sample()
        state = layout.decode(body)
        return layout.encode(alter(state)) if FIRST_ALTERED_FRAME <= state.frame < until_frame else body

    bench.device.sample = sample_altered  # type: ignore[method-assign]


EXTREMES: dict[str, Alteration] = {
    "status": lambda s: s._replace(status=s.status | 0xFFE0),
    "fault": lambda s: s._replace(fault=255),
    "lease_left": lambda s: s._replace(lease_left=255),
    "frame": lambda s: s._replace(frame=0xFFFF_FFFF),
    "frame far ahead": lambda s: s._replace(frame=s.frame + 0x7000_0000),
    "answers": lambda s: s._replace(answers=0xFFFF_FFFF),
    "tau": lambda s: s._replace(tau_us=0xFFFF_FFFF),
    "time": lambda s: s._replace(t_us=2**64 - 1),
    "time for ever": lambda s: s._replace(t_us=s.t_us + 2**53 - 10**9),
    "sensors": lambda s: s._replace(sensors=(2**31 - 1, -(2**31))),
    "outputs": lambda s: s._replace(u_start=(-(2**31),), u_end=(2**31 - 1,)),
    "everything": lambda s: s._replace(status=0xFFFF, fault=255, answers=0xFFFF_FFFF, tau_us=0xFFFF_FFFF),
}


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "paced"])
@pytest.mark.parametrize("field", EXTREMES)
@pytest.mark.rules("H609", "H633")
def test_no_number_from_a_device_crashes_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, lockstep: bool
) -> None:
    monkeypatch.setattr("onrig.runtime.control.frames._LOCKSTEP_LINK_SILENCE_NS", 1)
    monkeypatch.setattr("onrig.runtime.control.frames._MIN_LINK_SILENCE_NS", 1)
    bench = Bench(tmp_path, monkeypatch, "supervision.resume_timeout_s=0", lockstep=lockstep)
    if not lockstep:
        bench.wait_virtually(monkeypatch)
    alter_frames(bench, EXTREMES[field], until_frame=FIRST_ALTERED_FRAME + 60)
    with contextlib.suppress(Halted, LinkFault, RequestRefused, Stopped):
        bench.loop.run()
    assert not bench.device.armed


def test_unused_bits_of_the_status_are_recorded_and_change_nothing(bench: Bench) -> None:
    alter_frames(bench, EXTREMES["status"])
    bench.loop.run()
    assert bench.transitions[-1] == "completed:disconnected"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch, "supervision.resume_timeout_s=0")


def fault_of_halted_run(bench: Bench) -> FaultName:
    with pytest.raises(Halted) as error:
        bench.loop.run()
    assert not bench.device.armed
    assert bench.board[Word.SAFE_NS] > 0, "a frame shows it"
    return error.value.fault


@pytest.mark.rules("H622")
def test_the_fault_bit_without_a_code_is_a_fault_that_waits_for_an_operator(bench: Bench) -> None:
    alter_frames(bench, lambda s: s._replace(status=s.status | Status.FAULT), until_frame=FIRST_ALTERED_FRAME + 3)
    assert fault_of_halted_run(bench) is FaultName.DEVICE_UNNAMED
    assert bench.transitions[-2:] == ["trip:fault", "expired:disconnected"]


def test_a_device_that_is_faulted_without_a_code_from_the_start_is_not_waited_for(bench: Bench) -> None:
    armed_bit = Status.ARMED
    alter_frames(bench, lambda s: s._replace(status=s.status & ~armed_bit | Status.FAULT | Status.SAFE))
    bench.ring.at_push = lambda n: None
    assert fault_of_halted_run(bench) is FaultName.DEVICE_UNNAMED


@pytest.mark.rules("H629")
def test_a_device_that_declares_another_safe_output_ends_the_run(bench: Bench) -> None:
    alter_frames(
        bench,
        lambda s: s._replace(status=int(Status.SAFE), u_start=(30_000,), u_end=(30_000,)),
        until_frame=FIRST_ALTERED_FRAME + 1,
    )
    assert fault_of_halted_run(bench) is FaultName.DEVICE_UNSAFE


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "paced"])
@pytest.mark.rules("H202", "H629")
def test_a_disarmed_device_whose_frames_show_another_output_is_never_reported_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lockstep: bool
) -> None:
    bench = Bench(tmp_path, monkeypatch, lockstep=lockstep)
    if not lockstep:
        bench.wait_virtually(monkeypatch)
    alter_frames(bench, lambda s: s if s.status & Status.ARMED else s._replace(u_start=(30_000,), u_end=(30_000,)))
    with pytest.raises(Halted) as error:
        bench.loop.run()
    assert error.value.fault is FaultName.DEVICE_UNSAFE
    assert bench.transitions[-1] == "trip:fault"
    assert bench.board[Word.SAFE_NS] == 0, "no frame shows it"


@pytest.mark.rules("H624")
def test_a_device_at_twice_the_rate_ends_the_run(bench: Bench) -> None:
    alter_frames(
        bench, lambda s: s._replace(t_us=s.t_us - (s.frame - FIRST_ALTERED_FRAME) * bench.config.period_us // 2)
    )
    assert fault_of_halted_run(bench) is FaultName.DEVICE_RATE
    assert "100 Hz by its clock instead of the configured 50 Hz" in " ".join(message for _, message in bench.reports)


@pytest.mark.rules("H625")
def test_sensors_that_freeze_under_swinging_commands_wait_for_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("task.episode_s=6", "supervision.resume_timeout_s=0", "supervision.frozen_s=1")
    bench = Bench(tmp_path, monkeypatch, *settings)

    def freeze_sensors(s: State) -> State:
        volts = 30_000 if s.frame % 8 < 4 else -30_000
        return s._replace(sensors=(5, 5), u_end=(volts,) if s.status & Status.ARMED else s.u_end)

    alter_frames(bench, freeze_sensors)
    assert fault_of_halted_run(bench) is FaultName.SENSORS_FROZEN
    assert FIRST_ALTERED_FRAME + 50 <= bench.ring.n_pushed <= FIRST_ALTERED_FRAME + 55


@pytest.mark.parametrize("phase", ["episode", "pause"])
@pytest.mark.rules("H607", "H626")
def test_a_hello_with_another_boot_id_is_a_restart_even_if_frames_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    bench = Bench(tmp_path, monkeypatch, lockstep=False)
    hello = bench.session.hello
    assert hello is not None
    other_hello = encode_frame(encode_hello(hello._replace(boot_id=hello.boot_id + 1)))
    line = bench.session._transport
    read = line.read

    def read_with_other_hello(timeout_ns: int) -> bytes:
        data = read(timeout_ns)
        return data + other_hello if bench.device.frame == FIRST_ALTERED_FRAME else data

    monkeypatch.setattr(line, "read", read_with_other_hello)
    if phase == "pause":
        bench.loop.arming.machine.state = bench.loop.arming.machine.state.READY
        bench.device.frame = FIRST_ALTERED_FRAME - 2
        with pytest.raises(LinkFault) as error:
            bench.loop.arming.pause("budget spent", "wait")
    else:
        with pytest.raises(LinkFault) as error:
            bench.loop.run()
        assert bench.ring.n_pushed < STEPS
        assert bench.transitions[-1] == "link_lost:disconnected"
    assert error.value.fault is FaultName.DEVICE_REBOOTED
