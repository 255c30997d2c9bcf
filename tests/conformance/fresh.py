"""What a device does before anybody has configured it."""

from __future__ import annotations

from onrig.hw.messages import Op, Result
from tests.conformance.host import Host


class FreshConformance:
    """For devices that can be switched on for each test."""

    def test_before_its_first_configuration_a_device_neither_arms_nor_resets_nor_samples(self, host: Host) -> None:
        assert host.result(Op.ARM) == Result.NOT_NOW
        assert host.result(Op.RESET, bytes(8)) == Result.NOT_NOW
        for op in (Op.DISARM, Op.CLEAR_FAULT):
            assert host.result(op) == Result.OK
        assert host.session.wait_state(10**9) is None
        assert host.wire.states == []
