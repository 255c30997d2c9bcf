"""The twin's process keeps the protocol on a pseudo terminal, in real time and in lockstep, and on a Unix socket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar

import pytest

from onrig.hw.framing import encode_frame
from onrig.hw.messages import Fault, MessageType, Op, Result, Status
from onrig.hw.transport import open_port
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import save_resolved
from onrig.tools.load import load
from tests.conformance.device import LONG
from tests.conformance.host import Host
from tests.conformance.lockstep import LockstepConformance
from tests.conformance.paced import PacedConformance
from tests.processes.rig import TWIN, Process, process_of, until
from tests.sockets import short_folder


@pytest.fixture(scope="class")
def twin(request: pytest.FixtureRequest) -> Iterator[None]:
    """One twin process for all tests of a class, each of which connects anew."""
    test_class: type[OnPty] = request.cls
    settings = [f"device.pace={test_class.pace}", "realtime.priority=0", "realtime.lock_memory=false"]
    settings.append(f"device.twin.line={test_class.line}")
    test_class.config = load("pendulum", settings)
    with short_folder() as folder:
        save_resolved(test_class.config, folder / "config.yaml")
        link = folder / "link"
        with process_of(TWIN, folder / "config.yaml", "--link", link) as process:
            test_class.process = process
            test_class.port = until(lambda: link.exists() and link.read_text().strip(), "the twin", process)
            yield


@pytest.mark.usefixtures("twin")
class OnPty:
    """How to connect, and what a device can tell from its host's hanging up."""

    pace: ClassVar[str]
    line: ClassVar[str] = "pty"
    period_us: ClassVar[int]
    config: ClassVar[RunConfig]
    port: ClassVar[str]
    process: ClassVar[Process]

    def connect(self) -> Host:
        return Host(open_port(self.port), self.config.rig, time)

    def hang_up(self, host: Host) -> None:
        """Close the line and leave it closed until the twin must have read from it.

        A line that is closed shows for as long as it is closed only.  A twin that has gone to sleep twice since has
        read in between; who calls again at once can be ahead of it every time, where both share a CPU.
        """
        host.session.close()
        slept = self.process.sleeps()
        until(lambda: self.process.sleeps() >= slept + 2, "the twin looked at its line", self.process)

    def test_an_armed_device_falls_safe_with_a_fault_when_its_host_hangs_up(self, armed: Host) -> None:
        armed.act(armed.latest(), armed.part(2))
        self.hang_up(armed)
        host = self.connect()
        state = host.sample()
        assert Status(state.status) & ~Status.FIRST == Status.FAULT | Status.SAFE
        assert (Fault(state.fault), state.u_end) == (Fault.LEASE, host.safe)
        assert host.result(Op.ARM) == Result.NOT_NOW
        assert host.result(Op.CLEAR_FAULT) == Result.OK
        host.close()

    def test_a_disarmed_device_has_nothing_against_it(self, host: Host) -> None:
        host.begin(self.period_us, LONG, arm=False)
        for _ in range(5):
            host.session.close()
            host = self.connect()
        state = host.sample()
        assert Status(state.status) & ~Status.FIRST == Status.SAFE
        host.close()

    def test_half_a_frame_from_one_host_does_not_harm_the_next(self, host: Host) -> None:
        host.send_raw(encode_frame(bytes([MessageType.REQUEST, 1, 0, Op.DISARM]))[:-3])
        host.session.close()
        host = self.connect()
        host.begin(self.period_us, LONG)
        host.act(host.latest(), host.part(2))
        host.close()


class TestLockstep(OnPty, LockstepConformance):
    pace = "lockstep"


class TestRealTime(OnPty, PacedConformance):
    pace = "realtime"
    period_us = 5_000
    lease = 40  # longer than a busy machine keeps the host waiting


class TestOnSocket(TestRealTime):
    line = "socket"
