"""Conformance of a device that evaluates a policy itself (``hw/PROTOCOL.md`` §2.6, §4)."""

from __future__ import annotations

from onrig.hw import messages as m
from onrig.hw.conformance.check import CheckSkipped, cases, rules
from onrig.hw.conformance.host import Host, reports_safe_truthfully
from onrig.hw.messages import Capability, Op, Result, State, Status
from onrig.hw.renewal import Renewal, encode_renewal

_MAX_TRIES = 200


class EvaluationConformance:
    """Checks of the device's built-in policy, which acts only while the host renews its lease.

    They are skipped if the device has no policy.
    """

    policy: bytes = b""
    """Name of the device's policy (``onrig.hw.renewal.policy_name``); empty if unknown."""
    policy_period_us: int = 20_000
    """Sampling period for which the policy was trained."""

    def configure_for_policy(self, host: Host, lease: int, *, arm: bool = True) -> State:
        """Configure the device for its policy and return its first frame."""
        if not host.hello.capabilities & Capability.EVALUATES:
            raise CheckSkipped("the device has no built-in policy")
        if not self.policy:
            raise CheckSkipped("the name of the device's policy is not known")
        return host.begin(self.policy_period_us, lease, arm=arm)

    def renewal_body(self, answers: int) -> bytes:
        """Return the body of a RENEW that answers a frame and names the device's policy."""
        return encode_renewal(Renewal(answers, self.policy))

    def renew_until_active(self, host: Host, state: State) -> State:
        """Send a RENEW for each frame until the policy acts on one in time; return the frame that reports it."""
        for _ in range(_MAX_TRIES):
            answered_frame = state.frame
            host.send(self.renewal_body(answered_frame))
            state = host.wait()
            applied_state = next((s for s in host.wire.states if s.answers == answered_frame), None)
            if applied_state is not None and applied_state.frame == answered_frame + 1:
                return applied_state
        raise AssertionError(f"none of {_MAX_TRIES} renewals was accepted")

    @rules("P228", "P229", "P245", "P254", "P255", "P417", "P418")
    def test_a_renewed_policy_answers_each_sample(self, host: Host) -> None:
        state = self.configure_for_policy(host, host.long_lease)
        for _ in range(5):
            state = self.renew_until_active(host, host.latest_state())
            assert state.tau_us < self.policy_period_us
            assert Status(state.status) & ~Status.CLAMPED == Status.ARMED
        assert reports_safe_truthfully(host)
        assert host.replies() == []

    @rules("P417", "P418")
    @cases("arm", [False, True], ids=["disarmed", "armed"])
    def test_an_invalid_renewal_is_dropped(self, host: Host, arm: bool) -> None:
        lease = min(host.long_lease, 100)
        state = self.configure_for_policy(host, lease, arm=arm)
        valid_body, other_policy = self.renewal_body(state.frame), bytes(b ^ 1 for b in self.policy)
        invalid_bodies = [
            self.renewal_body((state.frame + offset) % 2**32) for offset in (-lease, -lease - 1, 5000, 2**31)
        ]
        invalid_bodies += [encode_renewal(Renewal(state.frame, other_policy)), valid_body[:-1], valid_body + b"\0"]
        host.send(*invalid_bodies, *([] if arm else [valid_body]))
        # Replies arrive in order, so every frame has been processed.
        assert host.result(Op.DESCRIBE, b"\0") == Result.OK
        next_state = host.fresh_state()
        assert (next_state.u_start, next_state.u_end, next_state.answers) == (host.safe, host.safe, 0)

    @rules("P417")
    def test_the_policy_does_not_act_at_another_period(self, host: Host) -> None:
        self.configure_for_policy(host, host.long_lease)
        state = host.begin(2 * self.policy_period_us, host.long_lease)
        host.send(self.renewal_body(state.frame))
        assert host.result(Op.DESCRIBE, b"\0") == Result.OK
        later = host.fresh_state()
        assert (later.u_start, later.u_end, later.answers) == (host.safe, host.safe, 0)

    @rules("P419")
    def test_policy_output_is_clamped_to_the_limits_in_force(self, host: Host) -> None:
        state = self.configure_for_policy(host, host.long_lease)
        values = host.setpoint(4)
        for index, value in enumerate(values):
            host.session.limit(index, value, value)
        state = self.renew_until_active(host, host.latest_state())
        assert state.u_end == values

    @rules("P420")
    def test_commands_are_dropped_while_the_policy_acts(self, host: Host) -> None:
        self.configure_for_policy(host, host.long_lease)
        values = [value for value in (host.setpoint(3), host.setpoint(5)) if value != host.safe]
        for _ in range(5):
            self.renew_until_active(host, host.latest_state())
            frame = host.latest_state().frame
            host.send(*(host.command(frame, value) for value in values), self.renewal_body(frame))
            host.wait()
        self.renew_until_active(host, host.latest_state())
        assert all(s.u_end not in values for s in host.wire.states)

    @rules("P421")
    @cases("op", [Op.DISARM, Op.CLEAR_FAULT, Op.CONFIGURE, Op.RESET])
    def test_the_policy_acts_again_only_after_another_renewal(self, host: Host, op: Op) -> None:
        if op is Op.RESET and not host.can_reset:
            raise CheckSkipped("not a simulator")
        self.configure_for_policy(host, host.long_lease)
        self.renew_until_active(host, host.latest_state())
        payload = {Op.CONFIGURE: m.CONFIGURE_LAYOUT.pack(self.policy_period_us, host.long_lease), Op.RESET: bytes(8)}
        assert host.result(op, payload.get(op, b"")) == Result.OK
        assert host.result(Op.ARM) == Result.OK
        state = host.fresh_state()
        assert Status(state.status) & ~Status.FIRST == Status.ARMED | Status.SAFE
        if not host.lockstep:
            state = host.fresh_state()
            assert (state.u_start, state.u_end, state.answers) == (host.safe, host.safe, 0)
        assert host.act(host.latest_state(), host.setpoint(2)).u_end == host.setpoint(2)  # commands are accepted again
