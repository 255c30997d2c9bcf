"""What a device does before anybody has configured it."""

from __future__ import annotations

import pytest

from onrig.hw import messages as m
from onrig.hw.messages import Fault, Op, Result, State
from tests.conformance.host import LONG, Host


class FreshConformance:
    """For devices that can be switched on for each test."""

    def restart(self, host: Host) -> Host:
        """Switch the device off and on, and connect to it anew."""
        raise NotImplementedError

    def press_estop(self, *, pressed: bool) -> None:
        """Press or release the emergency stop."""
        raise NotImplementedError

    @pytest.mark.rules("P301", "P306", "P309")
    def test_before_its_first_configuration_a_device_neither_arms_nor_resets_nor_samples(self, host: Host) -> None:
        assert host.result(Op.ARM) == Result.NOT_NOW
        assert host.result(Op.RESET, bytes(8)) == (Result.NOT_NOW if host.can_reset else Result.UNKNOWN_OP)
        for op in (Op.DISARM, Op.CLEAR_FAULT):
            assert host.result(op) == Result.OK
        assert host.session.wait_state(10**9) is None
        assert host.wire.states == []

    @pytest.mark.rules("P003", "P220", "P301")
    def test_each_start_has_another_boot_id_and_forgets_everything(self, host: Host) -> None:
        host.begin(10_000, LONG)
        host.act(host.latest(), host.part(2))
        again = self.restart(host)
        assert again.hello.boot_id != host.hello.boot_id
        assert again.hello._replace(boot_id=0) == host.hello._replace(boot_id=0)
        assert again.result(Op.ARM) == Result.NOT_NOW
        state = again.begin(10_000, LONG)
        assert state.frame <= 2
        assert state.t_us < 60_000_000

    @pytest.mark.rules("P212", "P303", "P305", "P307", "P308")
    def test_what_an_unconfigured_device_answers(self, host: Host) -> None:
        assert host.replies() == []  # a HELLO came
        assert host.result(Op.DESCRIBE, b"\0") == Result.OK
        a = host.actuators[0]
        assert host.result(Op.LIMITS, m.LIMITS_LAYOUT.pack(0, a.low, a.low)) == Result.OK
        host.begin(10_000, LONG)
        assert host.act(host.latest(), (a.high,) * len(host.actuators)).u_end[0] == a.high  # CONFIGURE brought it back

    @pytest.mark.rules("P302", "P310")
    def test_an_unconfigured_device_drops_commands(self, host: Host) -> None:
        for number in (0, 1, 0xFFFFFFFF):
            host.send(host.command(number, host.part(2)))
        state = host.begin(10_000, LONG)
        assert (state.u_start, state.u_end) == (host.safe, host.safe)

    @pytest.mark.rules("P304", "P313")
    def test_the_estop_latches_before_any_configuration(self, host: Host) -> None:
        self.press_estop(pressed=True)
        assert host.result(Op.CLEAR_FAULT) == Result.NOT_NOW
        assert host.result(Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(10_000, LONG)) == Result.OK
        assert host.result(Op.ARM) == Result.NOT_NOW
        state: State = host.fresh()
        self.press_estop(pressed=False)
        assert Fault(state.fault) is Fault.ESTOP
        assert host.result(Op.CLEAR_FAULT) == Result.OK
        assert host.result(Op.ARM) == Result.OK
