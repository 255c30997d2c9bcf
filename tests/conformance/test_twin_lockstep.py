"""The twin's device complies with the protocol, in virtual time: lockstep, and at its own pace."""

from __future__ import annotations

from typing import ClassVar

import pytest

from onrig.hw.clock import VirtualClock
from onrig.hw.conformance.host import Host
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.loopback import LoopbackDevice
from onrig.sim.twin.main import twin_options
from onrig.tools.load import load
from tests.conformance.classes import LockstepConformance, PacedConformance


def connect(config_name: str, time_scale: float) -> Host:
    return switched_on(config_name, time_scale)[0]


def switched_on(config_name: str, time_scale: float) -> tuple[Host, TwinDevice]:
    config = load(config_name, ["device.twin.sensor_noise=0.01", "device.twin.actuator_noise=0.05"])
    device = TwinDevice(config.rig, twin_options(config), config.task.start, time_scale=time_scale)
    clock = VirtualClock()
    return Host(LoopbackDevice(device, clock).transport, config.rig, clock), device


class Twin:
    """A new device for each test."""

    config: ClassVar[str] = "pendulum"
    time_scale: ClassVar[float] = 0.0

    def connect(self) -> Host:
        host, self.device = switched_on(self.config, self.time_scale)
        return host

    def press_estop(self, *, pressed: bool) -> None:
        self.device.press_estop(pressed=pressed)

    def kill_sensors(self, *, dead: bool) -> None:
        self.device.are_sensors_dead = dead

    def hang_up(self, host: Host) -> Host:
        self.device.on_link_loss()
        return host

    def reboot(self) -> None:
        self.device.reboot()


class TestLockstepPendulum(Twin, LockstepConformance):
    pass


class TestLockstepMagman(Twin, LockstepConformance):
    config = "magman"


class TestPacedPendulum(Twin, PacedConformance):
    time_scale = 1.0


class TestPacedMagman(Twin, PacedConformance):
    config = "magman"
    time_scale = 10.0


@pytest.mark.parametrize("time_scale", [0.0, 1.0])
def test_different_seeds_give_different_noise(time_scale: float) -> None:
    host = connect("pendulum", time_scale)
    host.begin(10_000, 200)
    starts = set()
    for seed in range(5):
        number = host.session.reset(seed)
        while host.latest_state().frame < number:
            host.wait()
        starts.add(next(s.sensors for s in host.wire.states if s.frame == number))
    assert len(starts) == 5
