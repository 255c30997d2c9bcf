"""Conformance of a device when its e-stop is pressed or its sensors or host fail (``hw/PROTOCOL.md`` §3)."""

from __future__ import annotations

from typing import Literal

from onrig.hw.conformance.check import CheckSkipped, cases, rules
from onrig.hw.conformance.host import Host
from onrig.hw.messages import Fault, Op, Result, State, Status

_MAX_TRIES = 50


class FaultConformance:
    """Checks with external faults; a check is skipped if the test cannot cause its fault on the device."""

    period_us: int
    is_hand_operated: bool = False
    """Whether a person operates the e-stop, sensors and power, which takes longer than a lease."""

    def press_estop(self, *, pressed: bool) -> None:
        """Press or release the connected device's emergency stop, if the test can do so."""
        raise CheckSkipped("the emergency stop must be pressed by hand")

    def kill_sensors(self, *, dead: bool) -> None:
        """Disconnect or reconnect the sensors, if the test can do so."""
        raise CheckSkipped("the sensors' cable must be unplugged by hand")

    def reboot(self) -> None:
        """Power-cycle the device while the connection stays open, if the test can do so."""
        raise CheckSkipped("the device must be power-cycled by hand")

    def hang_up(self, host: Host) -> Host:
        """Close the connection and reconnect, if the device can detect a closed connection."""
        raise CheckSkipped("the device cannot detect a closed connection")

    @rules("P313", "P407")
    @cases("state", ["disarmed", "armed"])
    def test_the_estop_applies_the_safe_output_and_latches_until_cleared(
        self, host: Host, state: Literal["disarmed", "armed"]
    ) -> None:
        applied_state = host.begin(self.period_us, host.long_lease, arm=state == "armed")
        if state == "armed":
            applied_state = host.act(host.latest_state(), host.setpoint(2))
        self.press_estop(pressed=True)
        try:
            first = wait_for_fault(host, Fault.ESTOP)
            assert (first.u_end, first.answers) == (host.safe, 0)
            if not (host.lockstep or self.is_hand_operated):
                assert first.u_start == applied_state.u_end
            assert host.result(Op.ARM) == Result.NOT_NOW
            assert host.result(Op.CLEAR_FAULT) == Result.NOT_NOW
        finally:
            self.press_estop(pressed=False)
        for _ in range(3):
            assert Fault(host.fresh_state().fault) is Fault.ESTOP
        assert clear_all_faults(host)

    @rules("P242", "P312", "P601")
    @cases("state", ["disarmed", "armed"])
    def test_dead_sensors_latch_a_fault_and_apply_the_safe_output(
        self, host: Host, state: Literal["disarmed", "armed"]
    ) -> None:
        host.begin(self.period_us, host.long_lease, arm=state == "armed")
        self.kill_sensors(dead=True)
        try:
            wait_for_fault(host, Fault.SENSOR)
            assert host.result(Op.ARM) == Result.NOT_NOW
        finally:
            self.kill_sensors(dead=False)
        host.fresh_state()
        assert Fault(host.fresh_state().fault) is Fault.SENSOR
        assert clear_all_faults(host)

    @rules("P251", "P252", "P312")
    def test_a_more_severe_fault_replaces_a_less_severe_one_but_not_vice_versa(self, host: Host) -> None:
        host.begin(self.period_us, host.long_lease)
        self.kill_sensors(dead=True)
        try:
            wait_for_fault(host, Fault.SENSOR)
            self.press_estop(pressed=True)
            wait_for_fault(host, Fault.ESTOP)
            for _ in range(3):
                assert Fault(host.fresh_state().fault) is Fault.ESTOP
        finally:
            self.kill_sensors(dead=False)
            self.press_estop(pressed=False)
        host.fresh_state()
        assert Fault(host.fresh_state().fault) is Fault.ESTOP
        assert clear_all_faults(host)

    @rules("P220", "P301", "P306", "P310")
    def test_a_restart_is_detected_within_three_periods_and_disarms(self, host: Host) -> None:
        last_state = host.begin(self.period_us, host.long_lease)
        last_state = host.act(last_state, host.setpoint(2))
        self.reboot()
        start_ns = host.now_ns
        host.wait_for_reboot()
        if host.is_virtual:
            assert host.now_ns - start_ns <= 3 * host.period_ns
        host.send(host.command(last_state.frame, host.setpoint(2)))
        assert host.result(Op.ARM) == Result.NOT_NOW
        second_host = host.reconnect()
        second_host.begin(self.period_us, second_host.long_lease, arm=False)
        state = second_host.wire.states[0]
        assert (state.frame, state.answers, state.u_start, state.u_end) == (1, 0, host.safe, host.safe)
        assert Status(state.status) & ~Status.FIRST == Status.SAFE
        assert second_host.result(Op.ARM) == Result.OK
        second_host.act(second_host.fresh_state(), second_host.setpoint(2))

    @rules("P314")
    def test_an_armed_device_latches_a_fault_when_its_host_hangs_up(self, host: Host) -> None:
        host.begin(self.period_us, host.long_lease)
        host.act(host.latest_state(), host.setpoint(2))
        host = self.hang_up(host)
        state = host.fresh_state()
        assert Status(state.status) & ~Status.FIRST == Status.FAULT | Status.SAFE
        assert (Fault(state.fault), state.u_end) == (Fault.LEASE, host.safe)
        assert host.result(Op.ARM) == Result.NOT_NOW
        assert clear_all_faults(host)
        host.close()


def wait_for_fault(host: Host, fault: Fault) -> State:
    """Wait for a fault and return the first frame that reports it."""
    for _ in range(_MAX_TRIES):
        n_before = len(host.wire.states)
        host.fresh_state()
        for state in host.wire.states[n_before:]:
            if state.fault == fault:
                assert Status(state.status) & ~Status.FIRST == Status.FAULT | Status.SAFE
                return state
    raise AssertionError(f"no {fault.name} in {_MAX_TRIES} frames")


def clear_all_faults(host: Host) -> bool:
    """Send CLEAR_FAULT and return whether it released all faults."""
    result = host.result(Op.CLEAR_FAULT) == Result.OK
    state = host.fresh_state()
    return result and state.fault == Fault.NONE and not state.status & (Status.FAULT | Status.ARMED)
