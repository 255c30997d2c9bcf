"""Making a device safe when nobody knows what it was doing."""

from __future__ import annotations

import pytest

from hw.clock import VirtualClock
from hw.disarm import Disarmed, disarm
from hw.messages import Op, Result, Status
from hw.transport import LinkError
from tests.hw.fake_device import FakeDevice, state_of
from tests.hw.rigs import PENDULUM

SAFE = int(Status.SAFE)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(5_000_000_000)


@pytest.fixture
def device(clock: VirtualClock) -> FakeDevice:
    return FakeDevice(PENDULUM, clock)


def test_a_device_is_disarmed_by_its_word(device: FakeDevice, clock: VirtualClock) -> None:
    assert disarm(device.line, clock) == Disarmed("pendulum", shown=False)
    assert [op for op, _ in device.acted] == [Op.DISARM]


def test_its_frames_show_it_once_they_are_no_longer_armed(device: FakeDevice, clock: VirtualClock) -> None:
    armed, safe = state_of(7), state_of(8)._replace(status=SAFE)
    device.before_response = [armed]
    clock_ns = clock.monotonic_ns()
    device.arrivals = [(clock_ns + 30_000_000, device.wire(armed)), (clock_ns + 50_000_000, device.wire(safe))]
    assert disarm(device.line, clock) == Disarmed("pendulum", shown=True)


def test_the_answer_to_an_older_request_is_not_taken_for_ours(device: FakeDevice, clock: VirtualClock) -> None:
    disarm(device.line, clock)
    disarm(device.line, clock)  # the same request, byte for byte: without a hello it would not be carried out
    assert [op for op, _ in device.acted] == [Op.DISARM, Op.DISARM]


def test_lost_frames_are_sent_again_and_the_operation_happens_once(device: FakeDevice, clock: VirtualClock) -> None:
    device.deaf_for, device.mute_for = 2, 2
    assert disarm(device.line, clock).rig == "pendulum"
    assert [op for op, _ in device.acted] == [Op.DISARM]


def test_a_silent_line_is_given_up(device: FakeDevice, clock: VirtualClock) -> None:
    device.deaf_for = 10_000
    before = clock.monotonic_ns()
    with pytest.raises(LinkError, match="no device answered within 2 s"):
        disarm(device.line, clock, 2.0)
    assert clock.monotonic_ns() - before == pytest.approx(2_000_000_000, rel=0.1)


def test_a_device_that_refuses_is_not_called_disarmed(device: FakeDevice, clock: VirtualClock) -> None:
    device.results[Op.DISARM] = Result.UNKNOWN_OP
    with pytest.raises(LinkError, match="did not answer DISARM"):
        disarm(device.line, clock)


def test_garbage_on_the_line_is_no_answer(device: FakeDevice, clock: VirtualClock) -> None:
    device.deaf_for = 10_000
    device.babble = lambda: b"\x00\x07garbage\x00"
    with pytest.raises(LinkError):
        disarm(device.line, clock, 0.5)
