"""Disarming a device in an unknown state."""

from __future__ import annotations

import pytest

from onrig.hw.clock import VirtualClock
from onrig.hw.disarm import DisarmConfirmation, disarm
from onrig.hw.messages import Op, Result, State, Status
from onrig.hw.transport import LinkError
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.loopback import LoopbackDevice
from onrig.sim.twin.main import twin_options
from onrig.tools.load import load
from tests.hw.fake_device import FakeDevice, state_of
from tests.hw.rigs import PENDULUM

SAFE = int(Status.SAFE)
ASKED = [Op.DISARM, Op.DESCRIBE]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(5_000_000_000)


@pytest.fixture
def device(clock: VirtualClock) -> FakeDevice:
    return FakeDevice(PENDULUM, clock)


def safe(frame: int) -> State:
    return state_of(frame)._replace(status=SAFE, u_start=(0,), u_end=(0,))


def stream(device: FakeDevice, *states: State) -> None:
    """Pending frames, one every 20 ms, once the line has been opened."""
    begin_ns = device._clock.monotonic_ns()
    device.arrivals += [(begin_ns + 20_000_000 * n, device.wire(s)) for n, s in enumerate(states, 1)]


def test_a_frame_that_is_no_longer_armed_confirms_the_disarm(device: FakeDevice, clock: VirtualClock) -> None:
    device.before_response = [state_of(7)]
    stream(device, state_of(8), safe(9))
    assert disarm(device.line, clock) == DisarmConfirmation("pendulum", was_configured=False)
    assert [op for op, _ in device.acted] == ASKED


@pytest.mark.rules("H202", "H610")
def test_a_response_without_a_confirming_frame_is_not_believed(device: FakeDevice, clock: VirtualClock) -> None:
    stream(device, *(state_of(n) for n in range(1, 500)))
    with pytest.raises(LinkError, match="answered DISARM, but no state frame shows its safe output in force"):
        disarm(device.line, clock)
    assert [op for op, _ in device.acted] == ASKED


@pytest.mark.parametrize("fault", [0, Status.FAULT])
@pytest.mark.rules("H202", "H629")
def test_a_device_whose_outputs_contradict_its_status_is_reported_as_not_safe(
    device: FakeDevice, clock: VirtualClock, fault: int
) -> None:
    stuck = state_of(1)._replace(status=SAFE | fault, u_start=(30_000,), u_end=(30_000,))
    stream(device, *(stuck._replace(frame=n) for n in range(1, 500)))
    with pytest.raises(LinkError, match=r"its safe output in force, but its outputs were \(30000,\).*cut the power"):
        disarm(device.line, clock)


def test_disarmed_with_an_output_other_than_the_safe_one_is_not_safe(device: FakeDevice, clock: VirtualClock) -> None:
    stream(device, *(state_of(n)._replace(status=0) for n in range(1, 500)))
    with pytest.raises(LinkError, match="no state frame shows its safe output in force"):
        disarm(device.line, clock)


def test_a_freshly_powered_device_is_configured_to_send_the_frame(clock: VirtualClock) -> None:
    config = load("pendulum")
    device = TwinDevice(config.rig, twin_options(config), config.task.start)
    assert disarm(LoopbackDevice(device, clock).transport, clock) == DisarmConfirmation("pendulum", was_configured=True)
    assert not device.armed


@pytest.mark.rules("H611")
def test_a_simulator_whose_time_does_not_advance_is_also_configured(clock: VirtualClock) -> None:
    config = load("pendulum")
    device = TwinDevice(config.rig, twin_options(config), config.task.start, time_scale=0.0)
    assert disarm(LoopbackDevice(device, clock).transport, clock) == DisarmConfirmation("pendulum", was_configured=True)


def test_a_device_that_still_sends_no_frame_is_unconfirmed(device: FakeDevice, clock: VirtualClock) -> None:
    with pytest.raises(LinkError, match="but no state frame arrived"):
        disarm(device.line, clock)
    assert [op for op, _ in device.acted] == [*ASKED, Op.CONFIGURE]


def test_a_response_to_an_older_request_is_not_taken_for_ours(device: FakeDevice, clock: VirtualClock) -> None:
    for _ in range(2):  # the same request, byte for byte: without a hello it would not be executed
        stream(device, safe(1), safe(2), safe(3))
        disarm(device.line, clock)
    assert [op for op, _ in device.acted] == [*ASKED, *ASKED]


def test_lost_frames_are_sent_again_and_the_operation_happens_once(device: FakeDevice, clock: VirtualClock) -> None:
    device.deaf_for, device.mute_for = 2, 2
    stream(device, *(safe(n) for n in range(1, 100)))
    assert disarm(device.line, clock).rig == "pendulum"
    assert [op for op, _ in device.acted] == ASKED


def test_a_silent_line_times_out(device: FakeDevice, clock: VirtualClock) -> None:
    device.deaf_for = 10_000
    before = clock.monotonic_ns()
    with pytest.raises(LinkError, match="no device answered within 2 s"):
        disarm(device.line, clock, 2.0)
    assert clock.monotonic_ns() - before == pytest.approx(2_000_000_000, rel=0.1)


def test_a_device_that_refuses_is_not_reported_disarmed(device: FakeDevice, clock: VirtualClock) -> None:
    device.results[Op.DISARM] = Result.UNKNOWN_OP
    with pytest.raises(LinkError, match="did not answer DISARM"):
        disarm(device.line, clock)


def test_garbage_on_the_line_is_not_a_response(device: FakeDevice, clock: VirtualClock) -> None:
    device.deaf_for = 10_000
    device.babble = lambda: b"\x00\x07garbage\x00"
    with pytest.raises(LinkError):
        disarm(device.line, clock, 0.5)
