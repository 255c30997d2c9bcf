"""A device behind a pseudo terminal or a socket: what it can tell from its host's hanging up."""

from __future__ import annotations

import time
from typing import ClassVar

import pytest

from onrig.hw.framing import encode_frame
from onrig.hw.messages import MessageType, Op, Status
from onrig.hw.rig import Rig
from onrig.hw.transport import open_port
from tests.conformance.host import LONG, Host
from tests.processes.rig import Process, until


class OnPty:
    """How to connect, and what holds for every device that sees its line."""

    period_us: ClassVar[int]
    rig: ClassVar[Rig]
    port: ClassVar[str]
    process: ClassVar[Process]

    def connect(self) -> Host:
        return Host(open_port(self.port), self.rig, time)

    def hang_up(self, host: Host) -> Host:
        """Close the line, leave it closed until the device must have read from it, and come back.

        A line that is closed shows for as long as it is closed only.  A device that has gone to sleep twice since has
        read in between; who calls again at once can be ahead of it every time, where both share a CPU.
        """
        host.session.close()
        slept = self.process.sleeps()
        until(lambda: self.process.sleeps() >= slept + 2, "the device looked at its line", self.process)
        return self.connect()

    def test_a_disarmed_device_has_nothing_against_it(self, host: Host) -> None:
        host.begin(self.period_us, LONG, arm=False)
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
        host.begin(self.period_us, LONG)
        host.act(host.latest(), host.part(2))
        host.close()
