"""Conformance of a device in lockstep, whose time advances only with commands (``hw/PROTOCOL.md`` §5)."""

from __future__ import annotations

from onrig.hw import messages as m
from onrig.hw.conformance.check import rules
from onrig.hw.conformance.device import DeviceConformance
from onrig.hw.conformance.host import Counts, Host
from onrig.hw.messages import MessageType, Op, Result, Status


class LockstepConformance(DeviceConformance):
    """Checks of a twin in lockstep: its time advances only with commands, renewals and resets (§5)."""

    def latch_fault(self, host: Host) -> None:
        host.begin(self.period_us, host.long_lease)
        self.press_estop(pressed=True)
        host.fresh_state()
        self.press_estop(pressed=False)

    @rules("P224")
    def test_the_time_scale_announces_lockstep(self, host: Host) -> None:
        assert host.hello.time_scale == 0.0
        assert host.can_reset

    @rules("P503")
    def test_each_command_acts_for_a_complete_period_and_yields_one_frame(self, armed: Host) -> None:
        start = armed.latest_state()
        for k in range(20):
            values: Counts = armed.setpoint(2 + k % 3)
            latest_state = armed.latest_state()
            armed.session.send_command(latest_state.frame, values)
            state = armed.wait()
            assert (state.frame, state.t_us) == (latest_state.frame + 1, latest_state.t_us + self.period_us)
            assert (state.answers, state.tau_us, state.u_end) == (latest_state.frame, 0, values)
        assert len([s for s in armed.wire.states if s.frame > start.frame]) == 20

    @rules("P267", "P502", "P504")
    def test_only_accepted_commands_advance_time(self, armed: Host) -> None:
        state = armed.act(armed.latest_state(), armed.setpoint(2))
        armed.send(armed.command(state.frame - 1, armed.setpoint(4)), armed.command(state.frame + 1, armed.setpoint(4)))
        for _ in range(armed.long_lease + 1):
            assert armed.result(Op.DESCRIBE, b"\0") == Result.OK
        assert armed.latest_state() == state
        next_state = armed.act(state, armed.setpoint(2))
        assert next_state.frame == state.frame + 1
        assert next_state.lease_left == armed.long_lease

    @rules("P506")
    def test_each_renewal_yields_one_frame_with_a_policy_action(self, host: Host) -> None:
        state = self.configure_for_policy(host, host.long_lease)
        for _ in range(20):
            host.send(self.renewal_body(state.frame))
            next_state = host.wait()
            assert (next_state.frame, next_state.t_us) == (state.frame + 1, state.t_us + self.policy_period_us)
            assert (next_state.answers, next_state.tau_us) == (state.frame, 0)
            state = next_state

    @rules("P505")
    def test_the_response_to_a_reset_precedes_its_frame(self, armed: Host) -> None:
        start = len(armed.wire.bodies)
        response = armed.exchange(armed.request(Op.RESET, m.RESET_LAYOUT.pack(1)))
        state = armed.wait()
        assert [body[0] for body in armed.wire.bodies[start:]] == [MessageType.RESPONSE, MessageType.STATE]
        assert m.NEXT_FRAME_LAYOUT.unpack(response.payload) == (state.frame,)

    @rules("P309", "P503")
    def test_a_disarmed_device_sends_only_the_first_frame_of_a_reset(self, host: Host) -> None:
        state = host.begin(self.period_us, host.long_lease, arm=False)
        assert state.status & Status.FIRST
        host.session.send_command(state.frame, host.setpoint(2))
        assert host.replies() == []
        assert host.latest_state() == state

    @rules("P322")
    def test_equal_seeds_and_commands_give_equal_samples(self, armed: Host) -> None:
        episodes = []
        for seed in (5, 5, 6):
            number = armed.session.reset(seed)
            while (state := armed.wait()).frame != number:
                pass
            samples = [state.sensors]
            for k in range(20):
                samples.append(armed.act(armed.latest_state(), armed.setpoint(1 + k % 4)).sensors)
            episodes.append(samples)
        assert episodes[0] == episodes[1]
