"""The firmware's core as a process keeps the protocol on a pseudo terminal, in real time and in lockstep."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from typing import ClassVar

import pytest

from onrig.tools.load import load
from tests.conformance.lockstep import LockstepConformance
from tests.conformance.paced import PacedConformance
from tests.conformance.pty import OnPty
from tests.hw.firmware.build import device_program
from tests.processes.rig import Process


@pytest.fixture(scope="class")
def firmware(request: pytest.FixtureRequest) -> Iterator[None]:
    """One device process for all tests of a class, each of which connects anew."""
    test_class: type[FirmwareOnPty] = request.cls
    test_class.rig = load("pendulum", []).rig
    command = [device_program(), "--rig", test_class.rig.name, "--pace", test_class.pace]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as popen:
        test_class.process = Process(popen.pid)
        try:
            assert popen.stdout is not None
            test_class.port = popen.stdout.readline().strip()
            yield
        finally:
            test_class.process.kill(signal.SIGTERM)
            test_class.process.wait()
            test_class.process.close()
    assert popen.returncode == 0


@pytest.mark.usefixtures("firmware")
class FirmwareOnPty(OnPty):
    pace: ClassVar[str]

    def press_estop(self, *, pressed: bool) -> None:
        self.process.kill(signal.SIGUSR1 if pressed else signal.SIGUSR2)


class TestLockstep(FirmwareOnPty, LockstepConformance):
    pace = "lockstep"


class TestRealTime(FirmwareOnPty, PacedConformance):
    pace = "realtime"
    period_us = 5_000
    lease = 40  # longer than a busy machine keeps the host waiting
