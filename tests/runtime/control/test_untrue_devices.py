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

FROM = 20
"""Frame from which the device lies."""
Lie = Callable[[State], State]


def lying(bench: Bench, lie: Lie, *, until: int = 1 << 30) -> None:
    """Have the device's frames altered on their way out."""
    rig = bench.config.rig
    layout = StateLayout(len(rig.sensors), len(rig.actuators))
    sample = bench.device.sample

    def altered() -> bytes:
        body = sample()
        state = layout.decode(body)
        return layout.encode(lie(state)) if FROM <= state.frame < until else body

    bench.device.sample = altered  # type: ignore[method-assign]


EXTREMES: dict[str, Lie] = {
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
def test_no_number_of_a_device_crashes_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, lockstep: bool
) -> None:
    monkeypatch.setattr("onrig.runtime.control.frames._LOCKSTEP_LINK_SILENCE_NS", 1)
    monkeypatch.setattr("onrig.runtime.control.frames._MIN_LINK_SILENCE_NS", 1)
    bench = Bench(tmp_path, monkeypatch, "supervision.resume_timeout_s=0", lockstep=lockstep)
    if not lockstep:
        bench.wait_virtually(monkeypatch)
    lying(bench, EXTREMES[field], until=FROM + 60)
    with contextlib.suppress(Halted, LinkFault, RequestRefused, Stopped):
        bench.loop.run()
    assert not bench.device.armed


def test_unused_bits_of_the_status_are_recorded_and_change_nothing(bench: Bench) -> None:
    lying(bench, EXTREMES["status"])
    bench.loop.run()
    assert bench.moves[-1] == "completed:disconnected"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch, "supervision.resume_timeout_s=0")


def halted(bench: Bench) -> FaultName:
    with pytest.raises(Halted) as ended:
        bench.loop.run()
    assert not bench.device.armed
    assert bench.board[Word.SAFE_NS] > 0, "a frame shows it"
    return ended.value.fault


@pytest.mark.rules("H622")
def test_the_fault_bit_without_a_code_is_a_fault_that_waits_for_a_person(bench: Bench) -> None:
    lying(bench, lambda s: s._replace(status=s.status | Status.FAULT), until=FROM + 3)
    assert halted(bench) is FaultName.DEVICE_UNNAMED
    assert bench.moves[-2:] == ["trip:fault", "expired:disconnected"]


def test_a_device_that_is_faulted_without_a_code_from_the_start_is_not_waited_for(bench: Bench) -> None:
    unarmed = Status.ARMED
    lying(bench, lambda s: s._replace(status=s.status & ~unarmed | Status.FAULT | Status.SAFE))
    bench.ring.at_push = lambda n: None
    assert halted(bench) is FaultName.DEVICE_UNNAMED


@pytest.mark.rules("H629")
def test_a_device_that_calls_another_output_its_safe_one_ends_the_run(bench: Bench) -> None:
    lying(bench, lambda s: s._replace(status=int(Status.SAFE), u_start=(30_000,), u_end=(30_000,)), until=FROM + 1)
    assert halted(bench) is FaultName.DEVICE_UNSAFE


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "paced"])
@pytest.mark.rules("H202", "H629")
def test_a_disarmed_device_whose_frames_show_another_output_is_never_called_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lockstep: bool
) -> None:
    bench = Bench(tmp_path, monkeypatch, lockstep=lockstep)
    if not lockstep:
        bench.wait_virtually(monkeypatch)
    lying(bench, lambda s: s if s.status & Status.ARMED else s._replace(u_start=(30_000,), u_end=(30_000,)))
    with pytest.raises(Halted) as ended:
        bench.loop.run()
    assert ended.value.fault is FaultName.DEVICE_UNSAFE
    assert bench.moves[-1] == "trip:fault"
    assert bench.board[Word.SAFE_NS] == 0, "no frame shows it"


@pytest.mark.rules("H624")
def test_a_device_at_twice_the_rate_ends_the_run(bench: Bench) -> None:
    lying(bench, lambda s: s._replace(t_us=s.t_us - (s.frame - FROM) * bench.config.period_us // 2))
    assert halted(bench) is FaultName.DEVICE_RATE
    assert "100 Hz by its clock, configured 50 Hz" in " ".join(message for _, message in bench.said)


@pytest.mark.rules("H625")
def test_sensors_that_freeze_under_swinging_commands_wait_for_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("task.episode_s=6", "supervision.resume_timeout_s=0", "supervision.frozen_s=1")
    bench = Bench(tmp_path, monkeypatch, *settings)

    def frozen(s: State) -> State:
        volts = 30_000 if s.frame % 8 < 4 else -30_000
        return s._replace(sensors=(5, 5), u_end=(volts,) if s.status & Status.ARMED else s.u_end)

    lying(bench, frozen)
    assert halted(bench) is FaultName.SENSORS_FROZEN
    assert FROM + 50 <= bench.ring.pushed <= FROM + 55


@pytest.mark.parametrize("when", ["episode", "pause"])
@pytest.mark.rules("H607", "H626")
def test_a_hello_with_another_boot_id_is_a_restart_though_frames_flow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    bench = Bench(tmp_path, monkeypatch, lockstep=False)
    hello = bench.session.hello
    assert hello is not None
    stranger = encode_frame(encode_hello(hello._replace(boot_id=hello.boot_id + 1)))
    line = bench.session._transport
    read = line.read

    def foreign(timeout_ns: int) -> bytes:
        data = read(timeout_ns)
        return data + stranger if bench.device.frame == FROM else data

    monkeypatch.setattr(line, "read", foreign)
    if when == "pause":
        bench.loop.arming.machine.state = bench.loop.arming.machine.state.READY
        bench.device.frame = FROM - 2
        with pytest.raises(LinkFault) as ended:
            bench.loop.arming.pause("budget spent", "wait")
    else:
        with pytest.raises(LinkFault) as ended:
            bench.loop.run()
        assert bench.ring.pushed < STEPS
        assert bench.moves[-1] == "link_lost:disconnected"
    assert ended.value.fault is FaultName.DEVICE_REBOOTED
