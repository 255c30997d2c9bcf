"""What a session reports to its tap: every complete frame, in both directions."""

from __future__ import annotations

import pytest

from onrig.hw.clock import VirtualClock
from onrig.hw.framing import encode_frame
from onrig.hw.messages import CommandLayout, MessageType, StateLayout
from onrig.hw.session import DeviceSession
from tests.hw.fake_device import FakeDevice, state_of
from tests.hw.rigs import PENDULUM

MS = 1_000_000
STATES, COMMANDS = StateLayout(2, 1), CommandLayout(1)


class Bench:
    """A connected session whose frames are recorded."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.clock = VirtualClock(5_000 * MS)
        self.device = FakeDevice(PENDULUM, self.clock)
        self.session = DeviceSession(self.device.line, PENDULUM, self.clock, tap=self._hear)
        self.session.connect()
        self.frames.clear()

    def _hear(self, t_ns: int, body: bytes) -> None:
        self.frames.append((t_ns, body))

    def types(self) -> list[int]:
        return [body[0] for _, body in self.frames]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_states_and_commands_are_reported_as_they_passed_over_the_line(bench: Bench) -> None:
    bench.device.send(state_of(1))
    assert bench.session.wait_state(bench.clock.monotonic_ns() + 20 * MS) == state_of(1)
    bench.session.send_command(1, (-250,))
    assert [body for _, body in bench.frames] == [STATES.encode(state_of(1)), COMMANDS.encode(1, (-250,))]
    assert all(t_ns > 0 for t_ns, _ in bench.frames)


def test_a_frame_received_twice_is_reported_twice(bench: Bench) -> None:
    bench.device.send(state_of(1), state_of(1))
    bench.session.wait_state(bench.clock.monotonic_ns() + 20 * MS)
    assert bench.types() == [MessageType.STATE] * 2
    assert bench.session.counters.not_advancing == 1


def test_requests_and_responses_are_reported(bench: Bench) -> None:
    bench.session.disarm()
    assert bench.types() == [MessageType.REQUEST, MessageType.RESPONSE]


def test_damaged_data_are_not_reported(bench: Bench) -> None:
    frame = bytearray(encode_frame(STATES.encode(state_of(1))))
    frame[9] ^= 0x55
    bench.device.send_raw(bytes(frame))
    bench.session.wait_state(bench.clock.monotonic_ns() + 20 * MS)
    assert bench.frames == []
