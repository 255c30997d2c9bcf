"""Effect, order and bounds of each operation in each state (``hw/PROTOCOL.md`` §3)."""

from __future__ import annotations

from typing import Final, Literal

from onrig.hw import messages as m
from onrig.hw.conformance.check import CheckSkipped, cases, rules
from onrig.hw.conformance.host import Host
from onrig.hw.messages import MessageType, Op, Result, State, Status

DeviceState = Literal["disarmed", "armed", "fault"]
STATES: Final[tuple[DeviceState, ...]] = ("disarmed", "armed", "fault")
_STATE_AFTER: Final[dict[Op, tuple[DeviceState, DeviceState, DeviceState]]] = {
    Op.CONFIGURE: ("disarmed", "disarmed", "fault"),
    Op.LIMITS: ("disarmed", "armed", "fault"),
    Op.ARM: ("armed", "armed", "fault"),
    Op.DISARM: ("disarmed", "disarmed", "fault"),
    Op.CLEAR_FAULT: ("disarmed", "disarmed", "disarmed"),
    Op.RESET: ("disarmed", "armed", "fault"),
}
"""States after each operation, one per state before it, in the order of ``STATES``."""


def state_of(frame: State) -> DeviceState:
    """Return the device state (§3) that a frame reports."""
    if frame.status & Status.FAULT:
        return "fault"
    return "armed" if frame.status & Status.ARMED else "disarmed"


def valid_payload(op: Op, host: Host, period_us: int) -> bytes:
    """Return a payload that the device accepts for an operation; that of LIMITS allows only the lowest output."""
    low = host.actuators[0].low
    return {
        Op.DESCRIBE: b"\0",
        Op.CONFIGURE: m.CONFIGURE_LAYOUT.pack(period_us, host.long_lease),
        Op.LIMITS: m.LIMITS_LAYOUT.pack(0, low, low),
        Op.RESET: m.RESET_LAYOUT.pack(1),
    }.get(op, b"")


class StateConformance:
    """Checks of the state table."""

    period_us: int

    def latch_fault(self, host: Host) -> None:
        """Configure the device and latch a fault, then remove the cause of the fault."""
        raise NotImplementedError

    def bring_to(self, host: Host, state: DeviceState) -> None:
        """Bring the device from any state to the given one."""
        if state == "fault":
            self.latch_fault(host)
        else:
            host.begin(self.period_us, host.long_lease, arm=state == "armed")

    @rules("P212", "P303")
    @cases("state", STATES)
    def test_hello_and_describe_are_answered_in_every_state(self, host: Host, state: DeviceState) -> None:
        self.bring_to(host, state)
        assert host.replies() == []  # only a HELLO arrived
        for index in range(len(host.channels)):
            assert host.result(Op.DESCRIBE, bytes([index])) == Result.OK
        assert state_of(host.fresh_state()) == state

    @rules("P304", "P305", "P306", "P307", "P308", "P309")
    @cases("state", STATES)
    @cases("op", list(_STATE_AFTER))
    def test_each_operation_leads_to_the_tabulated_state(self, host: Host, state: DeviceState, op: Op) -> None:
        if op is Op.RESET and not host.can_reset:
            raise CheckSkipped("not a simulator")
        self.bring_to(host, state)
        is_refused = op is Op.ARM and state == "fault"
        result = host.result(op, valid_payload(op, host, self.period_us))
        assert result == (Result.NOT_NOW if is_refused else Result.OK)
        assert state_of(host.fresh_state()) == _STATE_AFTER[op][STATES.index(state)]

    @rules("P302", "P310")
    @cases("state", ["disarmed", "fault"])
    def test_only_an_armed_device_accepts_commands(self, host: Host, state: DeviceState) -> None:
        self.bring_to(host, state)
        for _ in range(3):
            host.send(host.command(host.latest_state().frame, host.setpoint(2)))
            state_after = host.fresh_state()
            assert (state_after.u_start, state_after.u_end, state_after.answers) == (host.safe, host.safe, 0)
            assert state_after.status & Status.SAFE

    @rules("P267")
    def test_requests_are_executed_in_order_of_arrival(self, host: Host) -> None:
        host.begin(self.period_us, host.long_lease, arm=False)
        ops = [Op.ARM, Op.DISARM, Op.DESCRIBE, Op.ARM, Op.CLEAR_FAULT, Op.ARM, Op.DISARM]
        bodies = [host.request(op, b"\0" if op is Op.DESCRIBE else b"") for op in ops]
        n_before = len(host.wire.bodies)
        host.send(*bodies)
        assert [body[1:4] for body in host.replies()] == [body[1:4] for body in bodies]
        results = [m.decode_response(b).result for b in host.wire.bodies[n_before:] if b[0] == MessageType.RESPONSE]
        assert results == [Result.OK] * len(ops)
        assert state_of(host.fresh_state()) == "disarmed"

    @rules("P221", "P222", "P223", "P282")
    def test_periods_and_leases_are_accepted_only_within_their_bounds(self, host: Host) -> None:
        hello = host.hello

        def configure(period_us: int, lease: int) -> Result:
            return host.result(Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(period_us, lease))

        assert configure(hello.period_min_us - 1, 1) == Result.OUT_OF_RANGE
        assert configure(hello.period_max_us + 1, 1) == Result.OUT_OF_RANGE
        assert configure(hello.period_max_us, 0) == Result.OUT_OF_RANGE
        if hello.lease_max < 255:
            assert configure(hello.period_max_us, hello.lease_max + 1) == Result.OUT_OF_RANGE
        assert configure(hello.period_min_us, hello.lease_max) == Result.OK
        assert configure(hello.period_max_us, 1) == Result.OK
