"""A device process behind a pseudo terminal or a socket: faults on demand, and what it can detect about its host."""

from __future__ import annotations

import signal
import time
from contextlib import AbstractContextManager
from typing import ClassVar

import pytest

from onrig.hw.conformance.host import Host
from onrig.hw.framing import encode_frame
from onrig.hw.messages import MessageType, Op, Status
from onrig.hw.rig import Rig
from onrig.hw.transport import Transport, open_port
from onrig.tools.load import load
from tests.lab.rig.processes import Process, until


@pytest.mark.usefixtures("device_process")
class OnPty:
    """How to connect, and properties of every device that can see its line being closed."""

    period_us: int
    pace: ClassVar[str]
    config: ClassVar[str] = "pendulum"
    rig: ClassVar[Rig] = load(config, []).rig
    process: ClassVar[Process]
    port: ClassVar[str]

    @classmethod
    def started(cls) -> AbstractContextManager[tuple[Process, str]]:
        """A process of the device, and the path of its line."""
        raise NotImplementedError

    def opened(self, port: str) -> Transport:
        """The line to a device."""
        return open_port(port)

    def connect(self) -> Host:
        return Host(self.opened(self.port), self.rig, time)

    def press_estop(self, *, pressed: bool) -> None:
        self.process.kill(signal.SIGUSR1 if pressed else signal.SIGUSR2)

    def kill_sensors(self, *, dead: bool) -> None:
        self.process.kill(signal.SIGRTMIN if dead else signal.SIGRTMIN + 1)

    def reboot(self) -> None:
        self.process.kill(signal.SIGRTMIN + 2)

    def hang_up(self, host: Host) -> Host:
        """Close the line, keep it closed until the device must have read from it, and reopen it.

        A device sees that its line is closed only while it is closed.  A device that has gone to sleep twice since has
        read in between; a host that reconnects at once may be faster every time if both share a CPU.
        """
        host.session.close()
        sleeps = self.process.sleep_count()
        until(lambda: self.process.sleep_count() >= sleeps + 2, "the device looked at its line", self.process)
        return self.connect()

    @pytest.mark.rules("P220")
    def test_each_process_has_its_own_boot_id(self, host: Host) -> None:
        with self.started() as (_, port):
            other = Host(self.opened(port), self.rig, time)
            assert other.hello.boot_id != host.hello.boot_id
            other.close()

    def test_a_disarmed_device_tolerates_a_closed_line(self, host: Host) -> None:
        host.begin(self.period_us, host.long_lease, arm=False)
        for _ in range(5):
            host.session.close()
            host = self.connect()
        state = host.sample()
        assert Status(state.status) & ~Status.FIRST == Status.SAFE
        host.close()

    @pytest.mark.rules("P105", "P108")
    def test_half_a_frame_from_one_host_does_not_harm_the_next(self, host: Host) -> None:
        host.send_raw(encode_frame(bytes([MessageType.REQUEST, 1, 0, Op.DISARM]))[:-3])
        host.session.close()
        host = self.connect()
        host.begin(self.period_us, host.long_lease)
        host.act(host.latest_state(), host.setpoint(2))
        host.close()
