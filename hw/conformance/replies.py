"""Conformance of a device's replies: results, repeated requests, unused bits (``hw/PROTOCOL.md`` §2)."""

from __future__ import annotations

from itertools import pairwise

from onrig.hw import messages as m
from onrig.hw.conformance.check import CheckSkipped, cases, rules
from onrig.hw.conformance.host import Host, has_continuous_output
from onrig.hw.messages import Fault, MessageType, Op, Response, Result, State, Status

_STATUS_BITS = sum(Status)
_CAPABILITY_BITS = sum(m.Capability)


def received_states(host: Host) -> list[State]:
    """Return all state frames received, including those before the last CONFIGURE."""
    return [host.wire.layout.decode(body) for body in host.wire.bodies if body[0] == MessageType.STATE]


class ReplyConformance:
    """Checks of result precedence, unused bits, frame numbers and repeated requests."""

    period_us: int

    @rules("P274")
    @cases("op", list(Op))
    @cases("arm", [False, True], ids=["disarmed", "armed"])
    def test_a_payload_of_the_wrong_length_is_refused_before_all_other_checks(
        self, host: Host, op: Op, arm: bool
    ) -> None:
        host.begin(self.period_us, host.long_lease, arm=arm)
        is_unsupported = op is Op.RESET and not host.can_reset
        assert host.result(op, bytes(30)) == (Result.UNKNOWN_OP if is_unsupported else Result.BAD_LENGTH)

    @rules("P219", "P274")
    def test_an_unknown_operation_is_refused_at_any_length(self, armed: Host) -> None:
        for payload in (b"", bytes(4), bytes(200)):
            assert armed.result(200, payload) == Result.UNKNOWN_OP

    @rules("P204", "P219")
    def test_unused_bits_are_zero(self, armed: Host) -> None:
        for _ in range(5):
            armed.act(armed.latest_state(), armed.setpoint(2))
        assert not armed.hello.capabilities & ~_CAPABILITY_BITS
        for state in received_states(armed):
            assert not state.status & ~_STATUS_BITS

    @rules("P232", "P233", "P247", "P248")
    def test_the_fault_bit_matches_the_code_and_excludes_armed(self, armed: Host) -> None:
        armed.act(armed.latest_state(), armed.setpoint(2))
        for state in received_states(armed):
            assert bool(state.status & Status.FAULT) == (state.fault != Fault.NONE)
            assert not (state.status & Status.FAULT and state.status & Status.ARMED)
            assert state.status & (Status.ARMED | Status.SAFE), "disarmed without the safe output"

    @rules("P205", "P290", "P291")
    def test_flags_of_a_channel_are_0_or_1(self, host: Host) -> None:
        for index in range(len(host.channels)):
            payload = host.exchange(host.request(Op.DESCRIBE, bytes([index]))).payload
            assert set(payload[:2]) <= {0, 1}

    @rules("P243")
    def test_configure_leaves_no_gap_in_the_numbers(self, host: Host) -> None:
        for period_us in (self.period_us, 2 * self.period_us, self.period_us):
            host.begin(period_us, host.long_lease)
            host.act(host.latest_state(), host.setpoint(2))
        states = received_states(host)
        assert {(b.frame - a.frame) % 0xFFFF_FFFF for a, b in pairwise(states)} == {1}
        assert all(b.t_us > a.t_us for a, b in pairwise(states))

    @rules("P246")
    def test_a_command_that_answers_no_frame_is_dropped(self, armed: Host) -> None:
        values = armed.setpoint(2)
        armed.send(armed.command(0, values))
        armed.act(armed.latest_state(), armed.setpoint(4))
        assert all(s.u_end != values for s in armed.wire.states)

    def reset_and_command(self, armed: Host) -> tuple[bytes, Response]:
        """Send a RESET, then a command; return the RESET request and its response."""
        if not armed.can_reset:
            raise CheckSkipped("observable only through RESET")
        reset = armed.request(Op.RESET, m.RESET_LAYOUT.pack(3))
        response = armed.exchange(reset)
        armed.wait()
        armed.act(armed.latest_state(), armed.setpoint(2))
        return reset, response

    @rules("P260", "P270")
    def test_a_repeated_request_gets_the_same_response_and_is_not_executed_again(self, armed: Host) -> None:
        reset, response = self.reset_and_command(armed)
        n_resets = sum(bool(s.status & Status.FIRST) for s in armed.wire.states)
        assert armed.exchange(reset) == response
        assert armed.exchange(reset) == response
        armed.act(armed.latest_state(), armed.setpoint(4))
        assert has_continuous_output(armed)
        assert sum(bool(s.status & Status.FIRST) for s in armed.wire.states) == n_resets

    @rules("P213", "P271")
    def test_after_a_hello_the_same_request_is_executed_again(self, armed: Host) -> None:
        reset, response = self.reset_and_command(armed)
        assert armed.replies() == []
        second_response = armed.exchange(reset)
        assert second_response.result == Result.OK
        (number,) = m.NEXT_FRAME_LAYOUT.unpack(second_response.payload)
        assert number > m.NEXT_FRAME_LAYOUT.unpack(response.payload)[0]
        while armed.latest_state().frame < number:
            armed.wait()
        assert next(s for s in armed.wire.states if s.frame == number).status & Status.FIRST

    @rules("P263", "P271")
    def test_a_refusal_is_also_stored(self, host: Host) -> None:
        host.begin(self.period_us, host.long_lease, arm=False)
        request = host.request(99)
        assert host.exchange(request) == host.exchange(request)
