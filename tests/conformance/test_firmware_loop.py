"""The firmware's core with a simulated rig complies with the protocol, in virtual time: lockstep and at its pace."""

from __future__ import annotations

from typing import ClassVar

from onrig.hw.clock import VirtualClock
from onrig.hw.conformance.host import Host
from onrig.hw.renewal import policy_name
from onrig.tools.load import load
from tests.conformance.classes import LockstepConformance, PacedConformance, of_the_policy
from tests.hw.firmware.build import SWING_UP
from tests.hw.firmware.loop import FirmwareLoop


class Firmware:
    """A new device for each test."""

    config: ClassVar[str] = "pendulum-hardware"
    time_scale: ClassVar[float] = 0.0
    with_swing_up: ClassVar[bool] = False

    def connect(self) -> Host:
        clock, rig = VirtualClock(), load(self.config, []).rig
        self.device = FirmwareLoop(rig.name, clock, time_scale=self.time_scale, policy=self.with_swing_up)
        return Host(self.device.transport, rig, clock)

    def press_estop(self, *, pressed: bool) -> None:
        self.device.press_estop(pressed=pressed)

    def kill_sensors(self, *, dead: bool) -> None:
        self.device.kill_sensors(dead=dead)

    def hang_up(self, host: Host) -> Host:
        self.device.on_link_loss()
        return host

    def reboot(self) -> None:
        self.device.restart()


class TestLockstepPendulum(Firmware, LockstepConformance):
    pass


class TestLockstepMagman(Firmware, LockstepConformance):
    config = "magman"


class TestPacedPendulum(Firmware, PacedConformance):
    time_scale = 1.0


class TestPacedMagman(Firmware, PacedConformance):
    config = "magman"
    time_scale = 10.0


class WithPolicy(Firmware):
    config = "pendulum"
    with_swing_up = True
    policy = policy_name(SWING_UP.read_bytes())


@of_the_policy
class TestLockstepPolicy(WithPolicy, LockstepConformance):
    pass


@of_the_policy
class TestPacedPolicy(WithPolicy, PacedConformance):
    time_scale = 1.0
