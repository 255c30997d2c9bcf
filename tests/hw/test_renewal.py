"""A host that renews the lease of the firmware's own policy, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import pytest

from onrig.hw.clock import VirtualClock
from onrig.hw.messages import Fault, State, Status, WireError
from onrig.hw.renewal import PolicyStopped, Renewal, decode_renewal, encode_renewal, policy_name, renew, stop
from onrig.hw.session import DeviceSession
from onrig.hw.transport import LinkError
from onrig.tools.load import load
from tests.hw.firmware.build import SWING_UP
from tests.hw.firmware.loop import FirmwareLoop

PERIOD_US = 20_000
LEASE = 5
POLICY = policy_name(SWING_UP.read_bytes())
RIG = load("pendulum", []).rig
PER_SWING_UP = 150
"""Frames."""


class Bench:
    """A pendulum on firmware with a policy, and a configured session."""

    def __init__(self, *, policy: bool = True, time_scale: float = 1.0, period_us: int = PERIOD_US) -> None:
        self.clock = VirtualClock()
        self.device = FirmwareLoop("pendulum", self.clock, policy=policy, time_scale=time_scale)
        self.session = DeviceSession(self.device.transport, RIG, self.clock)
        self.session.connect()
        self.session.configure(period_us, LEASE)
        self.period_us = period_us

    def renewed(self, policy: bytes = POLICY) -> Iterator[State]:
        return renew(self.session, policy, self.period_us, self.clock)

    def ignored(self, frames: int) -> list[State]:
        """Frames that the host does not answer."""
        deadline_ns = self.clock.monotonic_ns() + (frames + 2) * PERIOD_US * 1000
        return list(islice(iter(lambda: self.session.wait_state(deadline_ns), None), frames))


def up(state: State) -> bool:
    """Within 0.2 rad of the upright position."""
    return math.cos(state.sensors[0] * RIG.sensors[0].resolution) < -math.cos(0.2)


@pytest.mark.parametrize("time_scale", [1.0, 0.0], ids=["paced", "lockstep"])
def test_the_pendulum_swings_up_and_is_balanced_with_renewals_only(time_scale: float) -> None:
    states = list(islice(Bench(time_scale=time_scale).renewed(), PER_SWING_UP + 500))
    assert not up(states[0])
    assert all(up(state) for state in states[PER_SWING_UP:])  # for 10 s
    assert {Fault(state.fault) for state in states} == {Fault.NONE}


def test_without_renewals_it_is_safe_after_the_lease_and_a_period() -> None:
    for phase in range(20):
        bench = Bench()
        frames = bench.renewed()
        last = list(islice(frames, 40 + phase))[-1]  # the last renewal answers this frame
        later = bench.ignored(LEASE + 3)
        assert all(state.status & Status.ARMED for state in later[:LEASE])
        fault = later[LEASE]
        assert (fault.frame, Fault(fault.fault)) == (last.frame + LEASE + 1, Fault.LEASE)
        assert fault.t_us - last.t_us <= (LEASE + 1) * PERIOD_US
        assert later[LEASE + 1].u_start == later[LEASE + 1].u_end == (0,)
        assert bench.device.output(1) == (0.0,)
        with pytest.raises(PolicyStopped, match="the device stopped: LEASE: no command arrived"):
            next(frames)


def test_the_policy_keeps_acting_while_renewals_are_late() -> None:
    """The host is late in four of five periods, without an effect on the pendulum."""
    bench = Bench()
    frames = bench.renewed()
    states = list(islice(frames, 200))
    for _ in range(50):
        states += bench.ignored(LEASE - 1)
        states.append(next(frames))
    assert all(up(state) for state in states[PER_SWING_UP:])
    assert len(states) == 200 + 50 * LEASE


def test_a_host_that_is_always_late_keeps_it_balanced_and_the_lease_counts_from_the_frame_it_has_seen() -> None:
    """Each renewal answers a frame that is two periods older than the latest."""
    bench, late = Bench(), 3
    states = list(islice(bench.renewed(), 10))
    for _ in range(400):
        bench.session.send(encode_renewal(Renewal(states[-late].frame, POLICY)))
        states += bench.ignored(1)
    assert all(up(state) for state in states[PER_SWING_UP:])
    assert {state.lease_left for state in states[20:]} == {LEASE - late + 1}
    answered = states[-late - 1]
    fault = next(state for state in bench.ignored(LEASE + 3) if state.fault)
    assert fault.t_us - answered.t_us == (LEASE + 1) * PERIOD_US


def test_the_host_stops_it_and_confirms_that_it_is_safe() -> None:
    for time_scale in (1.0, 0.0):
        bench = Bench(time_scale=time_scale)
        list(islice(bench.renewed(), 30))
        assert stop(bench.session, RIG, PERIOD_US, bench.clock)
        assert bench.device.output(1) == (0.0,)


def test_a_missing_policy_or_another_one_on_the_device_is_named() -> None:
    with pytest.raises(PolicyStopped, match="no built-in policy"):
        next(Bench(policy=False).renewed())
    with pytest.raises(
        PolicyStopped, match="no renewal of policy 0000000000000000 at 20000 us: the device was built with an"
    ):
        list(islice(Bench().renewed(bytes(8)), 20))
    with pytest.raises(PolicyStopped, match="at 10000 us"):
        list(islice(Bench(period_us=10_000).renewed(), 20))


def test_a_fault_a_restart_or_silence_ends_it() -> None:
    bench = Bench()
    frames = bench.renewed()
    next(frames)
    bench.device.press_estop(pressed=True)
    with pytest.raises(PolicyStopped, match="ESTOP"):
        list(islice(frames, 5))
    bench = Bench()
    frames = bench.renewed()
    next(frames)
    bench.session.disarm()
    with pytest.raises(PolicyStopped, match="it was disarmed"):
        list(islice(frames, 5))
    bench = Bench()
    frames = bench.renewed()
    next(frames)
    bench.device.restart()  # unconfigured: it sends nothing
    with pytest.raises(LinkError, match=r"no frame arrived for 1\.2 s"):
        list(islice(frames, 5))


def test_the_limits_of_the_session_apply_to_the_policy() -> None:
    bench = Bench()
    bench.session.limit(0, -5000, 7000)
    states = list(islice(bench.renewed(), 100))
    outputs = {state.u_end[0] for state in states}
    assert (min(outputs), max(outputs)) == (-5000, 7000)
    assert any(state.status & Status.CLAMPED for state in states)


def test_a_renewal_of_another_length_is_not_accepted() -> None:
    body = encode_renewal(Renewal(7, POLICY))
    assert decode_renewal(body) == Renewal(7, POLICY)
    for wrong in (body[:-1], body + b"\0"):
        with pytest.raises(WireError, match=r"renewal of 1[24] bytes, expected 13"):
            decode_renewal(wrong)
