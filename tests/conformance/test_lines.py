"""A device complies with the protocol on every kind of line, in virtual time: TCP, UDP, Unix socket, CAN and CAN FD."""

from __future__ import annotations

import os
from typing import ClassVar

import pytest

from onrig.hw.clock import VirtualClock
from onrig.hw.conformance.host import Host
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.main import twin_options
from onrig.tools.load import load
from tests.conformance import lines
from tests.conformance.classes import LockstepConformance, PacedConformance
from tests.sockets import short_folder

CONFIG = load("pendulum", ["device.twin.sensor_noise=0.01"])


class OnLine:
    """A new twin on a new line for each test."""

    time_scale: ClassVar[float] = 0.0

    def ends(self) -> lines.Ends:
        raise NotImplementedError

    def connect(self) -> Host:
        clock = VirtualClock()
        self.device = TwinDevice(CONFIG.rig, twin_options(CONFIG), CONFIG.task.start, time_scale=self.time_scale)
        self.clock, self.line = clock, lines.Carried(self.ends(), self.device, clock)
        return Host(self.line, CONFIG.rig, clock)

    def press_estop(self, *, pressed: bool) -> None:
        self.device.press_estop(pressed=pressed)

    def kill_sensors(self, *, dead: bool) -> None:
        self.device.are_sensors_dead = dead

    def reboot(self) -> None:
        self.device.reboot()


class SeesItsLine(OnLine):
    """The device can detect that its host has closed the line."""

    def hang_up(self, host: Host) -> Host:
        self.line.hang_up()
        self.line = lines.Carried(self.ends(), self.device, self.clock)
        return Host(self.line, CONFIG.rig, self.clock)


class TestTcp(SeesItsLine, LockstepConformance):
    def ends(self) -> lines.Ends:
        return lines.tcp()


class TestUnix(SeesItsLine, PacedConformance):
    time_scale = 1.0

    def ends(self) -> lines.Ends:
        with short_folder() as folder:  # a connected socket no longer needs a name
            return lines.unix(folder)


class TestUdp(OnLine, PacedConformance):
    time_scale = 1.0

    def ends(self) -> lines.Ends:
        return lines.udp()


class TestCan(OnLine, PacedConformance):
    time_scale = 1.0

    def ends(self) -> lines.Ends:
        pytest.importorskip("can")
        return lines.can("virtual", f"conformance-{os.getpid()}")


class TestCanFdMulticast(OnLine, LockstepConformance):
    """Between sockets, as between two processes; on the loopback interface."""

    def ends(self) -> lines.Ends:
        pytest.importorskip("can")
        return lines.can("udp_multicast", "239.74.163.2", fd=True, port=20_000 + os.getpid() % 40_000)
