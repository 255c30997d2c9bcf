"""A device written in Python complies with the protocol, in virtual time."""

from __future__ import annotations

from typing import ClassVar

from onrig.hw.clock import VirtualClock
from onrig.hw.conformance.host import Host
from onrig.sim.twin.loopback import LoopbackDevice
from onrig.tools.load import load
from tests.conformance.classes import PacedConformance
from tests.hw.device.drivers import driven


class Driven:
    """A new device for each test."""

    config: ClassVar[str] = "pendulum"

    def connect(self) -> Host:
        clock, rig = VirtualClock(), load(self.config, []).rig
        self.device, self.driver = driven(rig, watchdog_s=3.0)
        return Host(LoopbackDevice(self.device, clock).transport, rig, clock)

    def press_estop(self, *, pressed: bool) -> None:
        self.driver.pressed = pressed
        self.device.poll_estop()

    def kill_sensors(self, *, dead: bool) -> None:
        self.driver.lost = dead

    def hang_up(self, host: Host) -> Host:
        self.device.on_link_loss()
        return host

    def reboot(self) -> None:
        self.device.reboot()


class TestPendulum(Driven, PacedConformance):
    pass


class TestMagman(Driven, PacedConformance):
    config = "magman"
