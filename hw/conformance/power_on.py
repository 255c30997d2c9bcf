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
        new_host = self.power_cycle(host)
        assert new_host.result(Op.ARM) == Result.NOT_NOW
        assert new_host.result(Op.RESET, bytes(8)) == (Result.NOT_NOW if new_host.can_reset else Result.UNKNOWN_OP)
        for op in (Op.DISARM, Op.CLEAR_FAULT):
            assert new_host.result(op) == Result.OK
        new_host.listen(10)
        assert new_host.wire.states == []

    @rules("P003", "P220", "P301")
    def test_each_start_changes_the_boot_id_and_clears_all_state(self, host: Host) -> None:
        new_host = self.power_cycle(host)
        assert new_host.hello.boot_id != host.hello.boot_id
        assert new_host.hello._replace(boot_id=0) == host.hello._replace(boot_id=0)
        new_host.begin(self.period_us, new_host.long_lease)
        first = new_host.wire.states[0]
        assert first.frame == 1
        assert first.t_us < 60_000_000

    @rules("P212", "P303", "P305", "P307", "P308")
    def test_an_unconfigured_device_answers_requests(self, host: Host) -> None:
        new_host = self.power_cycle(host)
        assert new_host.replies() == []  # only a HELLO arrived
        assert new_host.result(Op.DESCRIBE, b"\0") == Result.OK
        a = new_host.actuators[0]
        assert new_host.result(Op.LIMITS, m.LIMITS_LAYOUT.pack(0, a.low, a.low)) == Result.OK
        new_host.begin(self.period_us, new_host.long_lease)
        values = new_host.setpoint(2)
        assert new_host.act(new_host.latest_state(), values).u_end == values  # CONFIGURE restored the limits

    @rules("P302", "P310")
    def test_an_unconfigured_device_drops_commands(self, host: Host) -> None:
        new_host = self.power_cycle(host)
        for number in (0, 1, 0xFFFFFFFF):
            new_host.send(new_host.command(number, new_host.setpoint(2)))
        state = new_host.begin(self.period_us, new_host.long_lease)
        assert (state.u_start, state.u_end) == (new_host.safe, new_host.safe)

    @rules("P304", "P313")
    def test_the_estop_latches_before_any_configuration(self, host: Host) -> None:
        new_host = self.power_cycle(host)
        self.press_estop(pressed=True)
        assert new_host.result(Op.CLEAR_FAULT) == Result.NOT_NOW
        configure = m.CONFIGURE_LAYOUT.pack(self.period_us, new_host.long_lease)
        assert new_host.result(Op.CONFIGURE, configure) == Result.OK
        assert new_host.result(Op.ARM) == Result.NOT_NOW
        state: State = new_host.fresh_state()
        self.press_estop(pressed=False)
        assert Fault(state.fault) is Fault.ESTOP
        assert new_host.result(Op.CLEAR_FAULT) == Result.OK
        assert new_host.result(Op.ARM) == Result.OK
