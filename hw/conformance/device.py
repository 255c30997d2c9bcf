"""Conformance tests for every device that implements the protocol, as observable by a host (``hw/PROTOCOL.md``).

To test a device, inherit from PacedConformance (hardware, a twin in real or scaled time) or LockstepConformance and
implement the connection.  Nothing here depends on the host's clock: the checks compare frame numbers and device times.
A late host costs only time, because it retries.
"""

from __future__ import annotations

from itertools import pairwise

from onrig.hw import messages as m
from onrig.hw.conformance.check import CheckSkipped, cases, rules
from onrig.hw.conformance.evaluation import EvaluationConformance
from onrig.hw.conformance.faults import FaultConformance
from onrig.hw.conformance.framing import FramingConformance
from onrig.hw.conformance.host import Host, has_continuous_output, reports_safe_truthfully
from onrig.hw.conformance.power_on import PowerOnConformance
from onrig.hw.conformance.replies import ReplyConformance
from onrig.hw.conformance.states import StateConformance
from onrig.hw.messages import MessageType, Op, Result, State, Status

HELLO_REQUEST = bytes([MessageType.HELLO_REQUEST])


def status_without_clamped(state: State) -> Status:
    """Return the status of a frame, with the bit CLAMPED removed."""
    return Status(state.status) & ~Status.CLAMPED


class DeviceConformance(
    FramingConformance,
    ReplyConformance,
    StateConformance,
    FaultConformance,
    PowerOnConformance,
    EvaluationConformance,
):
    """Checks of the rules that apply in real time, scaled time and lockstep alike."""

    period_us: int = 10_000

    def connect(self) -> Host:
        """Connect to the device, whatever its state; the tests later disarm it and close the connection."""
        raise NotImplementedError

    def configure_and_arm(self, host: Host) -> Host:
        """Configure and arm the device, and return the host, whose newest frame can then be answered."""
        host.begin(self.period_us, host.long_lease)
        return host

    # -- §2 messages -----------------------------------------------------------------------------------------------

    @rules("P201", "P203", "P207", "P215", "P216", "P217", "P218", "P221", "P222", "P223", "P224")
    def test_the_hello_values_are_valid(self, host: Host) -> None:
        hello = host.hello
        assert hello.protocol == m.PROTOCOL_VERSION
        assert 0 < hello.period_min_us <= self.period_us <= hello.period_max_us
        assert hello.n_sensors + 2 * hello.n_actuators <= m.MAX_STATE_COUNTS
        assert 1 <= hello.lease_max <= 255
        assert hello.time_scale >= 0.0

    @rules("P206", "P214")
    def test_repeated_hellos_are_equal_and_change_nothing(self, armed: Host) -> None:
        applied_state = armed.act(armed.latest_state(), armed.setpoint(2))
        for _ in range(5):
            assert armed.replies() == []
        hellos = {body for body in armed.wire.bodies if body[0] == MessageType.HELLO}
        assert len(hellos) == 1
        assert not armed.session.has_rebooted
        next_state = armed.act(armed.latest_state(), armed.setpoint(2))
        assert status_without_clamped(next_state) == Status.ARMED
        assert next_state.u_start == applied_state.u_end
        assert has_continuous_output(armed)

    @rules("P281", "P290", "P292", "P293", "P294", "P295", "P296", "P297")
    def test_only_the_channels_are_described_in_order(self, host: Host) -> None:
        kinds = [channel.is_actuator for channel in host.channels]
        assert kinds == [False] * host.hello.n_sensors + [True] * host.hello.n_actuators
        assert all(channel.low < channel.high and channel.resolution > 0 for channel in host.channels)
        assert all(a.low <= a.safe <= a.high for a in host.actuators)
        for index in (len(host.channels), 255):
            assert host.result(Op.DESCRIBE, bytes([index])) == Result.OUT_OF_RANGE

    @rules("P262", "P264", "P265", "P266", "P273", "P281", "P282", "P283")
    @cases(
        ("op", "payload", "result"),
        [
            (0, b"", Result.UNKNOWN_OP),
            (8, b"", Result.UNKNOWN_OP),
            (255, b"abc", Result.UNKNOWN_OP),
            (Op.DESCRIBE, b"", Result.BAD_LENGTH),
            (Op.DESCRIBE, b"\0\0", Result.BAD_LENGTH),
            (Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(10_000, 5)[:-1], Result.BAD_LENGTH),
            (Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(10_000, 5) + b"\0", Result.BAD_LENGTH),
            (Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(10_000, 0), Result.OUT_OF_RANGE),
            (Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(0, 5), Result.OUT_OF_RANGE),
            (Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(0xFFFF_FFFF, 5), Result.OUT_OF_RANGE),
            (Op.LIMITS, b"\0", Result.BAD_LENGTH),
            (Op.LIMITS, m.LIMITS_LAYOUT.pack(200, 0, 0), Result.OUT_OF_RANGE),
            (Op.LIMITS, m.LIMITS_LAYOUT.pack(0, 2, 1), Result.OUT_OF_RANGE),
            (Op.LIMITS, m.LIMITS_LAYOUT.pack(0, -(2**31), 2**31 - 1), Result.OUT_OF_RANGE),
            (Op.ARM, b"\0", Result.BAD_LENGTH),
            (Op.DISARM, b"\0", Result.BAD_LENGTH),
            (Op.CLEAR_FAULT, b"\0", Result.BAD_LENGTH),
        ],
    )
    def test_a_failed_request_reports_why_and_changes_nothing(
        self, armed: Host, op: int, payload: bytes, result: Result
    ) -> None:
        applied_state = armed.act(armed.latest_state(), armed.setpoint(2))
        assert armed.result(op, payload) == result
        after = armed.act(armed.latest_state(), armed.setpoint(2))
        assert status_without_clamped(after) == Status.ARMED
        assert after.u_start == applied_state.u_end
        assert has_continuous_output(armed)
        times = [s.t_us for s in armed.wire.states]
        assert {b - a for a, b in pairwise(times)} == {self.period_us}

    @rules("P202", "P208", "P209", "P210", "P211", "P272")
    def test_invalid_messages_are_ignored(self, armed: Host) -> None:
        values = armed.setpoint(2)
        command = armed.command(armed.latest_state().frame, values)
        n_before = len(armed.wire.bodies)
        armed.send(
            b"\x00",
            b"\x7f",
            b"\xff" * 249,
            HELLO_REQUEST + b"\0",
            command[:-1],
            command + b"\0",
            bytes([MessageType.REQUEST]),
            bytes([MessageType.REQUEST, 1, 0]),
            bytes([MessageType.RESPONSE, 1, 0, Op.DISARM, 0]),
            bytes([MessageType.STATE]) + bytes(36),
        )
        assert armed.result(Op.DESCRIBE, b"\0") == Result.OK  # replies arrive in order, so everything has been answered
        kinds = [body[0] for body in armed.wire.bodies[n_before:] if body[0] != MessageType.STATE]
        assert kinds == [MessageType.RESPONSE]
        armed.act(armed.latest_state(), armed.setpoint(4))
        assert all(s.u_end != values for s in armed.wire.states)

    # -- §2.4, §4 the period ---------------------------------------------------------------------------------------

    @rules("P003", "P230", "P231", "P401")
    def test_frame_numbers_rise_by_one_and_times_by_one_period(self, armed: Host) -> None:
        for _ in range(20):
            armed.act(armed.latest_state(), armed.setpoint(2))
        states = armed.wire.states
        assert {b.frame - a.frame for a, b in pairwise(states)} == {1}
        assert {b.t_us - a.t_us for a, b in pairwise(states)} == {self.period_us}

    @rules("P243", "P316")
    def test_numbers_and_time_continue_through_configure(self, host: Host) -> None:
        first_state = host.begin(self.period_us, host.long_lease)
        second_state = host.begin(2 * self.period_us, host.long_lease)
        assert second_state.frame > first_state.frame
        assert second_state.t_us >= first_state.t_us + 2 * self.period_us
        third_state = host.act(second_state, host.setpoint(2))
        states = host.wire.states
        assert third_state.t_us - second_state.t_us == (third_state.frame - second_state.frame) * 2 * self.period_us
        assert {b.frame - a.frame for a, b in pairwise(states)} == {1}

    @rules("P001", "P002", "P237")
    def test_samples_lie_within_the_described_ranges(self, armed: Host) -> None:
        for divisor in (1, 2, -1, 4) * 3:
            armed.act(armed.latest_state(), armed.opposite_setpoint(2) if divisor < 0 else armed.setpoint(divisor))
        for state in armed.wire.states:
            for count, channel in zip(state.sensors, armed.channels, strict=False):
                assert channel.low <= count <= channel.high

    @rules("P235", "P236", "P319")
    def test_an_armed_device_outputs_its_safe_value_until_commanded(self, armed: Host) -> None:
        state = armed.sample()
        assert status_without_clamped(state) & ~Status.FIRST == Status.ARMED | Status.SAFE
        assert (state.u_start, state.u_end, state.answers) == (armed.safe, armed.safe, 0)
        assert state.tau_us == self.period_us
        assert state.lease_left > 0

    @rules("P225", "P226", "P235", "P238", "P239", "P407", "P408", "P416")
    def test_a_command_is_output_and_held(self, armed: Host) -> None:
        first, second = armed.setpoint(2), armed.setpoint(4)
        applied_state = armed.act(armed.latest_state(), first)
        assert (applied_state.u_end, Status(applied_state.status)) == (first, Status.ARMED)
        assert applied_state.tau_us < self.period_us
        later = armed.act(armed.latest_state(), second)
        assert later.u_end == second
        assert later.answers > applied_state.answers
        assert has_continuous_output(armed)

    @rules("P227")
    def test_a_command_is_not_acknowledged(self, armed: Host) -> None:
        n_before = len(armed.wire.bodies)
        armed.act(armed.latest_state(), armed.setpoint(2))
        assert {body[0] for body in armed.wire.bodies[n_before:]} == {MessageType.STATE}

    @rules("P244")
    def test_the_frame_before_configure_remains_the_latest(self, armed: Host) -> None:
        values = armed.setpoint(4)
        for _ in range(20):
            armed.act(armed.latest_state(), armed.setpoint(2))
            state = armed.latest_state()
            period_us = min(20 * self.period_us, armed.hello.period_max_us)  # long enough for a late host
            configure = m.CONFIGURE_LAYOUT.pack(period_us, armed.long_lease)
            requests = armed.request(Op.CONFIGURE, configure), armed.request(Op.ARM)
            armed.send(*requests, armed.command(state.frame, values))
            armed.replies()
            after = armed.wire.states[0] if armed.wire.states else armed.fresh_state()
            assert status_without_clamped(after) & ~Status.SAFE == Status.ARMED
            if armed.last_frame_before_configure == state.frame:
                break
            armed.begin(self.period_us, armed.long_lease)
        assert (after.frame, after.answers, after.u_end) == (state.frame + 1, state.frame, values)

    @rules("P240", "P241", "P407")
    def test_commands_are_clamped_to_the_device_limits(self, armed: Host) -> None:
        for index, (low, high) in enumerate(armed.command_ranges if armed.share < 1.0 else ()):
            armed.session.limit(index, low, high)
        for extreme in (2**31 - 1, -(2**31)):
            applied_state = armed.act(armed.latest_state(), (extreme,) * len(armed.actuators))
            assert applied_state.u_end == tuple(high if extreme > 0 else low for low, high in armed.command_ranges)
            assert applied_state.status & Status.CLAMPED
        assert not armed.act(armed.latest_state(), armed.setpoint(2)).status & Status.CLAMPED

    @rules("P317", "P318")
    def test_tighter_limits_apply_from_the_next_command_until_configure(self, armed: Host) -> None:
        outer_setpoint, limit = armed.setpoint(2), armed.setpoint(4)
        armed.act(armed.latest_state(), outer_setpoint)
        for index, (a, b) in enumerate(zip(limit, armed.safe, strict=True)):
            armed.session.limit(index, min(a, b), max(a, b))
        clamped_state = armed.act(armed.latest_state(), outer_setpoint)
        assert has_continuous_output(armed)  # the command in force does not change
        assert clamped_state.u_end == limit
        assert clamped_state.status & Status.CLAMPED
        armed.begin(self.period_us, armed.long_lease)
        assert armed.act(armed.latest_state(), outer_setpoint).u_end == outer_setpoint

    @rules("P275", "P283", "P317")
    def test_each_limit_wider_than_the_device_limit_is_refused(self, armed: Host) -> None:
        for index, a in enumerate(armed.actuators):
            for low, high in ((a.low - 1, a.high), (a.low, a.high + 1)):
                assert armed.result(Op.LIMITS, m.LIMITS_LAYOUT.pack(index, low, high)) == Result.OUT_OF_RANGE
            assert armed.result(Op.LIMITS, m.LIMITS_LAYOUT.pack(index, a.low, a.high)) == Result.OK

    @rules("P402", "P404")
    def test_a_command_that_does_not_answer_the_latest_frame_is_dropped(self, armed: Host) -> None:
        late_setpoint = armed.setpoint(2)
        for _ in range(5):
            frame = armed.act(armed.latest_state(), armed.setpoint(4)).frame
            armed.send(*(armed.command((frame + offset) % 2**32, late_setpoint) for offset in (-1, -2, 5000, 2**31)))
        armed.act(armed.latest_state(), armed.setpoint(4))
        assert all(s.u_end != late_setpoint for s in armed.wire.states)

    @rules("P405")
    def test_only_the_first_command_for_a_frame_counts(self, armed: Host) -> None:
        first_setpoint, second_setpoint = armed.setpoint(2), armed.setpoint(4)
        state = armed.latest_state()
        for _ in range(10):
            armed.send(armed.command(state.frame, first_setpoint), armed.command(state.frame, second_setpoint))
            state = armed.wait()
        armed.act(armed.latest_state(), first_setpoint)
        assert all(s.u_end != second_setpoint for s in armed.wire.states)

    # -- §3 states -------------------------------------------------------------------------------------------------

    @rules("P302", "P310", "P403")
    def test_a_disarmed_device_drops_commands(self, host: Host) -> None:
        state = host.begin(self.period_us, host.long_lease, arm=False)
        for _ in range(5):
            host.session.send_command(state.frame, host.setpoint(2))
            state = host.sample()
        for state in host.wire.states:
            assert status_without_clamped(state) & ~Status.FIRST == Status.SAFE
            assert (state.u_start, state.u_end, state.answers) == (host.safe, host.safe, 0)

    @rules("P284", "P306", "P320")
    def test_arming_an_armed_device_keeps_its_output(self, armed: Host) -> None:
        armed.act(armed.latest_state(), armed.setpoint(2))
        armed.session.arm()
        armed.act(armed.latest_state(), armed.setpoint(4))
        assert has_continuous_output(armed)

    @rules("P253", "P285", "P286", "P307", "P308")
    @cases("op", [Op.DISARM, Op.CLEAR_FAULT])
    def test_disarming_applies_the_safe_output_and_drops_later_commands(self, armed: Host, op: Op) -> None:
        armed.act(armed.latest_state(), armed.setpoint(2))
        assert armed.result(op) == Result.OK
        n_before = len(armed.wire.states)
        state = armed.latest_state()
        for _ in range(3):
            armed.session.send_command(state.frame, armed.setpoint(2))
            state = armed.sample()
        assert all(status_without_clamped(s) & ~Status.FIRST == Status.SAFE for s in armed.wire.states[n_before:])
        assert reports_safe_truthfully(armed)
        assert all((s.u_end, s.answers) == (armed.safe, 0) for s in armed.wire.states[n_before:])
        assert armed.result(op) == Result.OK

    @rules("P304", "P315")
    def test_configure_disarms_and_applies_the_safe_output(self, armed: Host) -> None:
        armed.act(armed.latest_state(), armed.setpoint(2))
        armed.session.configure(self.period_us, armed.long_lease)
        state = armed.sample()
        assert status_without_clamped(state) & ~Status.FIRST == Status.SAFE
        assert (state.u_start, state.u_end, state.answers) == (armed.safe, armed.safe, 0)

    @rules("P261", "P287", "P309", "P322", "P323", "P324")
    def test_a_reset_starts_with_the_safe_output_and_stays_armed(self, armed: Host) -> None:
        if not armed.can_reset:
            raise CheckSkipped("not a simulator")
        starts = []
        for seed in (1, 2**64 - 1):
            for _ in range(5):
                armed.act(armed.latest_state(), armed.setpoint(2))
            number = armed.session.reset(seed)
            while (state := armed.wait()).frame < number:
                pass
            first = next(s for s in armed.wire.states if s.frame == number)
            assert Status(first.status) == Status.ARMED | Status.SAFE | Status.FIRST
            assert (first.u_start, first.u_end, first.answers) == (armed.safe, armed.safe, 0)
            assert first.tau_us == self.period_us
            starts.append(first)
            assert armed.act(state, armed.setpoint(2)).u_end == armed.setpoint(2)
        assert sum(bool(s.status & Status.FIRST) for s in armed.wire.states[1:]) == 2
        frames = [s.frame for s in armed.wire.states]
        assert frames == list(range(frames[0], frames[0] + len(frames)))
