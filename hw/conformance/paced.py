"""Conformance of a device that has its own clock: samples, lease, faults (``hw/PROTOCOL.md`` §3, §4)."""

from __future__ import annotations

from itertools import pairwise

from onrig.hw import messages as m
from onrig.hw.conformance.check import CheckSkipped, cases, rules
from onrig.hw.conformance.device import DeviceConformance, status_without_clamped
from onrig.hw.conformance.host import Host, reports_safe_truthfully
from onrig.hw.conformance.states import valid_payload
from onrig.hw.messages import Fault, MessageType, Op, Result, State, Status

_MAX_RESPONSE_US = 50_000
_MAX_TRIES = 50


class PacedConformance(DeviceConformance):
    """Checks of a device with its own clock: hardware, or a twin in real or scaled time."""

    lease: int = 5

    @rules("P251", "P252", "P313")
    def test_the_most_severe_fault_is_reported_and_one_clear_releases_all(self, host: Host) -> None:
        host.begin(self.period_us, self.lease)
        self.wait_until_fault(host)
        self.press_estop(pressed=True)
        host.wait()
        assert Fault(host.wait().fault) is Fault.ESTOP
        assert host.result(Op.CLEAR_FAULT) == Result.NOT_NOW
        assert host.result(Op.ARM, b"\0") == Result.BAD_LENGTH
        assert host.result(Op.ARM) == Result.NOT_NOW
        self.press_estop(pressed=False)
        host.wait()
        assert Fault(host.wait().fault) is Fault.ESTOP
        assert host.result(Op.CLEAR_FAULT) == Result.OK
        host.wait()
        assert Fault(host.wait().fault) is Fault.NONE

    def latch_fault(self, host: Host) -> None:
        host.begin(self.period_us, self.lease)
        self.wait_until_fault(host)

    def wait_until_fault(self, host: Host) -> State:
        """Send nothing until a fault latches; return the first frame that reports it."""
        while not host.latest_state().fault:
            host.wait()
        return next(s for s in host.wire.states if s.fault)

    @rules("P003", "P401", "P501")
    def test_samples_arrive_without_commands(self, host: Host) -> None:
        start = host.begin(self.period_us, 1, arm=False)
        while host.wait().frame < start.frame + 20:
            pass
        states = host.wire.states
        assert {b.frame - a.frame for a, b in pairwise(states)} == {1}
        assert {b.t_us - a.t_us for a, b in pairwise(states)} == {self.period_us}
        assert {(s.tau_us, s.fault) for s in states} == {(self.period_us, 0)}

    @rules("P267")
    @cases("op", list(Op))
    def test_every_operation_is_answered_within_50_ms(self, host: Host, op: Op) -> None:
        """Measure from the frame before the request to the frame after the response; retry if the host was late."""
        if op is Op.RESET and not host.can_reset:
            raise CheckSkipped("not a simulator")
        durations_us: list[int] = []
        while len(durations_us) < _MAX_TRIES:
            host.begin(self.period_us, host.long_lease, arm=False)
            request_frame, n_read = host.fresh_state(), len(host.wire.bodies)
            assert host.result(op, valid_payload(op, host, self.period_us)) == Result.OK
            host.fresh_state()
            kinds = [body[0] for body in host.wire.bodies[n_read:]]
            response_index = n_read + kinds.index(MessageType.RESPONSE)
            state_body = next(b for b in host.wire.bodies[response_index:] if b[0] == MessageType.STATE)
            durations_us.append(host.wire.layout.decode(state_body).t_us - request_frame.t_us)
            if durations_us[-1] <= _MAX_RESPONSE_US:
                return
        raise AssertionError(f"{op.name} took {min(durations_us)} us at best")

    @rules("P236", "P407")
    def test_a_switch_lies_within_its_period(self, armed: Host) -> None:
        for _ in range(10):
            armed.act(armed.latest_state(), armed.setpoint(2))
        for s in armed.wire.states:
            assert 0 <= s.tau_us <= self.period_us
            assert s.answers in (0, s.frame - 1) or s.tau_us == self.period_us  # otherwise the output is held

    @rules("P234", "P253", "P311", "P411", "P412", "P414", "P415")
    def test_the_lease_expires_exactly_its_periods_after_the_last_accepted_command(self, host: Host) -> None:
        host.begin(self.period_us, self.lease)
        n_read = len(host.wire.states) - 1
        host.act(host.latest_state(), host.setpoint(2))
        fault_state = self.wait_until_fault(host)
        states = [s for s in host.wire.states[n_read:] if s.frame <= fault_state.frame]
        reply_frame = max(s.answers for s in states)
        later_states = [s for s in states if s.frame > reply_frame]
        assert len(later_states) == 1 + self.lease
        assert [s.lease_left for s in later_states[:-1]] == list(range(self.lease, 0, -1))
        assert {status_without_clamped(s) for s in later_states[:-1]} == {Status.ARMED}
        assert {s.u_end for s in later_states} == {host.setpoint(2)}  # held until the sample at which the lease expired
        assert Fault(fault_state.fault) is Fault.LEASE
        assert status_without_clamped(fault_state) == Status.FAULT | Status.SAFE
        host.wait()
        next_state = next(s for s in host.wire.states if s.frame == fault_state.frame + 1)
        assert (next_state.u_start, next_state.u_end, next_state.answers) == (host.safe, host.safe, 0)
        assert status_without_clamped(next_state) == Status.FAULT | Status.SAFE
        assert Fault(next_state.fault) is Fault.LEASE
        assert reports_safe_truthfully(host)

    @rules("P422", "P423")
    def test_without_renewals_the_policy_acts_only_until_the_lease_expires(self, host: Host) -> None:
        self.configure_for_policy(host, self.lease)
        applied_state = self.renew_until_active(host, host.latest_state())
        fault = self.wait_until_fault(host)
        states = [s for s in host.wire.states if applied_state.frame <= s.frame <= fault.frame]
        assert len(states) <= 1 + self.lease
        assert [s.lease_left for s in states[:-1]] == list(range(applied_state.lease_left, 0, -1))
        assert max(s.answers for s in states) > applied_state.answers  # the policy continues to act
        assert (Fault(fault.fault), status_without_clamped(fault)) == (Fault.LEASE, Status.FAULT | Status.SAFE)
        dead = host.fresh_state()
        assert (dead.u_start, dead.u_end, dead.answers) == (host.safe, host.safe, 0)
        assert reports_safe_truthfully(host)

    @rules("P422")
    def test_a_late_renewal_counts_from_the_frame_that_it_answers(self, host: Host) -> None:
        self.configure_for_policy(host, self.lease)
        for _ in range(_MAX_TRIES):
            answered_frame = self.renew_until_active(host, host.latest_state()).frame
            while host.latest_state().frame < answered_frame + 2:
                host.wait()
            host.send(self.renewal_body(answered_frame))
            later = host.fresh_state()
            if later.frame == answered_frame + 3:  # otherwise the renewal arrived a period later than intended
                assert later.lease_left == self.lease - 2
                return
        raise AssertionError(f"the host was late {_MAX_TRIES} times")

    @rules("P306", "P319", "P413")
    def test_arming_starts_a_fresh_lease(self, host: Host) -> None:
        host.begin(self.period_us, self.lease)
        fault = self.wait_until_fault(host)
        armed = [s for s in host.wire.states if s.status & Status.ARMED and s.frame < fault.frame]
        assert len(armed) == self.lease  # the period in which ARM arrived does not count
        assert [s.lease_left for s in armed] == list(range(self.lease, 0, -1))
        assert {s.u_end for s in armed} == {host.safe}

    @rules("P325", "P406")
    def test_a_reset_drops_commands_until_its_first_frame(self, armed: Host) -> None:
        if not armed.can_reset:
            raise CheckSkipped("not a simulator")
        for _ in range(5):
            state = armed.act(armed.latest_state(), armed.setpoint(2))
            number = armed.session.reset(1)
            armed.session.send_command(number - 1, armed.setpoint(4))  # the latest frame, but older than RESET's
            while (state := armed.wait()).frame < number:
                pass
            first = next(s for s in armed.wire.states if s.frame == number)
            assert Status(first.status) == Status.ARMED | Status.SAFE | Status.FIRST
            assert (first.u_start, first.u_end) == (armed.safe, armed.safe)
            armed.act(state, armed.setpoint(2))

    @rules("P320", "P322", "P413")
    @cases("op", [Op.ARM, Op.RESET])
    def test_arm_and_reset_renew_the_lease(self, host: Host, op: Op) -> None:
        if op == Op.RESET and not host.can_reset:
            raise CheckSkipped("not a simulator")
        host.begin(self.period_us, self.lease)
        applied_state = host.act(host.latest_state(), host.setpoint(2))
        while host.latest_state().frame < applied_state.frame + 2:
            host.wait()
        assert host.result(op, m.RESET_LAYOUT.pack(1) if op == Op.RESET else b"") == Result.OK
        leases_left = [s.lease_left for s in host.wire.states if s.frame > applied_state.frame]
        fault_state = self.wait_until_fault(host)
        leases_left = [s.lease_left for s in host.wire.states if applied_state.frame <= s.frame < fault_state.frame]
        renewal_index = max(i for i in range(len(leases_left)) if leases_left[i] == self.lease)
        assert renewal_index > 0
        assert leases_left[renewal_index:] == list(range(self.lease, 0, -1))

    @rules("P413")
    def test_every_accepted_command_renews_the_lease(self, host: Host) -> None:
        host.begin(self.period_us, host.long_lease)
        for _ in range(30):
            applied_state = host.act(host.latest_state(), host.setpoint(2))
            assert applied_state.lease_left == host.long_lease
        assert {s.fault for s in host.wire.states} == {0}

    @rules("P304", "P306", "P307", "P308", "P309", "P310", "P323")
    def test_only_clear_fault_releases_a_fault(self, host: Host) -> None:
        host.begin(self.period_us, self.lease)
        fault_state = self.wait_until_fault(host)
        assert host.result(Op.ARM) == Result.NOT_NOW
        assert host.result(Op.DISARM) == Result.OK
        assert host.result(Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(self.period_us, self.lease)) == Result.OK
        assert host.result(Op.ARM) == Result.NOT_NOW
        if host.can_reset:
            assert host.result(Op.RESET, m.RESET_LAYOUT.pack(1)) == Result.OK
        state = host.wait()
        for _ in range(3):
            host.session.send_command(state.frame, host.setpoint(2))
            state = host.wait()
        later_states = [s for s in host.wire.states if s.frame > fault_state.frame]
        assert {Fault(s.fault) for s in later_states} == {Fault.LEASE}
        assert {status_without_clamped(s) & ~Status.FIRST for s in later_states} == {Status.FAULT | Status.SAFE}
        assert {s.u_end for s in later_states} == {host.safe}
        assert host.result(Op.CLEAR_FAULT) == Result.OK
        first_frame = host.fresh_state().frame
        assert host.result(Op.ARM) == Result.OK
        host.wait()
        states = [s for s in host.wire.states if s.frame >= first_frame]
        assert {(s.fault, bool(s.status & Status.FAULT)) for s in states} == {(0, False)}

    @rules("P270")
    def test_a_repeated_arm_gets_the_stored_response_and_does_not_arm_again(self, host: Host) -> None:
        host.begin(self.period_us, self.lease, arm=False)
        arm_request = host.request(Op.ARM)
        response = host.exchange(arm_request)
        assert response.result == Result.OK
        fault = self.wait_until_fault(host)
        assert host.exchange(arm_request) == response  # although ARM would now be refused
        assert host.replies() == []
        assert host.exchange(arm_request).result == Result.NOT_NOW  # the HELLO cleared the stored response
        host.wait()
        assert all(not s.status & Status.ARMED for s in host.wire.states if s.frame >= fault.frame)

    @rules("P321", "P326")
    def test_disarming_acts_within_the_period(self, armed: Host) -> None:
        applied_state = armed.act(armed.latest_state(), armed.setpoint(2))
        armed.session.disarm()
        state = armed.wait()
        while state.status & Status.ARMED:
            state = armed.wait()
        first = next(s for s in armed.wire.states if s.frame > applied_state.frame and not s.status & Status.ARMED)
        assert (first.u_start, first.u_end, first.answers) == (armed.setpoint(2), armed.safe, 0)
        assert first.tau_us <= self.period_us

    @rules("P282", "P315")
    def test_another_period_takes_effect_with_configure(self, host: Host) -> None:
        for period_us in (self.period_us, 2 * self.period_us, self.period_us // 2):
            start = host.begin(period_us, host.long_lease)
            while host.latest_state().frame < start.frame + 5:
                host.wait()
            times = [s.t_us for s in host.wire.states if s.frame >= start.frame]
            assert {b - a for a, b in pairwise(times)} == {period_us}

    @rules("P409")
    def test_the_last_of_two_switches_in_a_period_is_reported(self, armed: Host) -> None:
        for _ in range(5):
            applied_state = armed.act(armed.latest_state(), armed.setpoint(2))
            state = armed.latest_state()
            armed.send(armed.command(state.frame, armed.setpoint(4)), armed.request(Op.DISARM))
            while armed.latest_state().status & Status.ARMED:
                armed.wait()
            first = next(s for s in armed.wire.states if s.frame > applied_state.frame and not s.status & Status.ARMED)
            assert (first.u_end, first.answers) == (armed.safe, 0)
            assert first.u_start in (armed.setpoint(2), armed.setpoint(4))
            assert first.tau_us <= self.period_us
            armed.begin(self.period_us, armed.long_lease)

    @rules("P236")
    def test_reapplying_the_safe_output_is_not_a_switch(self, host: Host) -> None:
        host.begin(self.period_us, host.long_lease, arm=False)
        for op in (Op.DISARM, Op.CLEAR_FAULT, Op.ARM, Op.DISARM):
            assert host.result(op) == Result.OK
            host.fresh_state()
        assert {s.tau_us for s in host.wire.states} == {self.period_us}
