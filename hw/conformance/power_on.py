"""Conformance of a device between power-on and its first configuration."""

from __future__ import annotations

from onrig.hw import messages as m
from onrig.hw.conformance.check import rules
from onrig.hw.conformance.host import Host
from onrig.hw.messages import Fault, Op, Result, State


class PowerOnConformance:
    """Checks after power-on; skipped if the test cannot power-cycle the device."""

    period_us: int

    def press_estop(self, *, pressed: bool) -> None:
        """Press or release the emergency stop."""
        raise NotImplementedError

    def reboot(self) -> None:
        """Power-cycle the device."""
        raise NotImplementedError

    def power_cycle(self, host: Host) -> Host:
        """Use the device, power-cycle it, and return a new host on the same connection."""
        host.begin(self.period_us, host.long_lease)
        host.act(host.latest_state(), host.setpoint(2))
        self.reboot()
        host.wait_for_reboot()
        return host.reconnect()

    @rules("P301", "P306", "P309")
    def test_an_unconfigured_device_neither_arms_nor_resets_nor_samples(self, host: Host) -> None:
        fresh = self.power_cycle(host)
        assert fresh.result(Op.ARM) == Result.NOT_NOW
        assert fresh.result(Op.RESET, bytes(8)) == (Result.NOT_NOW if fresh.can_reset else Result.UNKNOWN_OP)
        for op in (Op.DISARM, Op.CLEAR_FAULT):
            assert fresh.result(op) == Result.OK
        fresh.listen(10)
        assert fresh.wire.states == []

    @rules("P003", "P220", "P301")
    def test_each_start_changes_the_boot_id_and_clears_all_state(self, host: Host) -> None:
        fresh = self.power_cycle(host)
        assert fresh.hello.boot_id != host.hello.boot_id
        assert fresh.hello._replace(boot_id=0) == host.hello._replace(boot_id=0)
        fresh.begin(self.period_us, fresh.long_lease)
        first = fresh.wire.states[0]
        assert first.frame == 1
        assert first.t_us < 60_000_000

    @rules("P212", "P303", "P305", "P307", "P308")
    def test_an_unconfigured_device_answers_requests(self, host: Host) -> None:
        fresh = self.power_cycle(host)
        assert fresh.replies() == []  # only a HELLO arrived
        assert fresh.result(Op.DESCRIBE, b"\0") == Result.OK
        a = fresh.actuators[0]
        assert fresh.result(Op.LIMITS, m.LIMITS_LAYOUT.pack(0, a.low, a.low)) == Result.OK
        fresh.begin(self.period_us, fresh.long_lease)
        values = fresh.setpoint(2)
        assert fresh.act(fresh.latest_state(), values).u_end == values  # CONFIGURE restored the limits

    @rules("P302", "P310")
    def test_an_unconfigured_device_drops_commands(self, host: Host) -> None:
        fresh = self.power_cycle(host)
        for number in (0, 1, 0xFFFFFFFF):
            fresh.send(fresh.command(number, fresh.setpoint(2)))
        state = fresh.begin(self.period_us, fresh.long_lease)
        assert (state.u_start, state.u_end) == (fresh.safe, fresh.safe)

    @rules("P304", "P313")
    def test_the_estop_latches_before_any_configuration(self, host: Host) -> None:
        fresh = self.power_cycle(host)
        self.press_estop(pressed=True)
        assert fresh.result(Op.CLEAR_FAULT) == Result.NOT_NOW
        configure = m.CONFIGURE_LAYOUT.pack(self.period_us, fresh.long_lease)
        assert fresh.result(Op.CONFIGURE, configure) == Result.OK
        assert fresh.result(Op.ARM) == Result.NOT_NOW
        state: State = fresh.fresh_state()
        self.press_estop(pressed=False)
        assert Fault(state.fault) is Fault.ESTOP
        assert fresh.result(Op.CLEAR_FAULT) == Result.OK
        assert fresh.result(Op.ARM) == Result.OK
