"""The firmware's core as a process keeps the protocol on a pseudo terminal, in real time and in lockstep."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from typing import ClassVar

import pytest

from onrig.tools.load import load
from tests.conformance.fresh import FreshConformance
from tests.conformance.host import Host
from tests.conformance.lockstep import LockstepConformance
from tests.conformance.paced import PacedConformance
from tests.conformance.pty import OnPty
from tests.hw.firmware.build import device_program
from tests.processes.rig import Process


@contextlib.contextmanager
def device_of(test_class: type[FirmwareOnPty]) -> Iterator[None]:
    """A device process that the tests of a class find by its attributes."""
    test_class.rig = load("pendulum", []).rig
    command = [str(device_program()), "--rig", test_class.rig.name, "--pace", test_class.pace]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as popen:
        test_class.process = process = Process(popen.pid)
        try:
            assert popen.stdout is not None
            test_class.port = popen.stdout.readline().strip()
            yield
        finally:
            process.kill(signal.SIGTERM)
            process.wait()
            process.close()
    assert popen.returncode == 0


@pytest.fixture(scope="class")
def firmware(request: pytest.FixtureRequest) -> Iterator[None]:
    """One process for all tests of a class, each of which connects anew."""
    with device_of(request.cls):
        yield


@pytest.fixture
def powered(request: pytest.FixtureRequest) -> Iterator[None]:
    """A process for each test."""
    with device_of(request.cls):
        yield


class FirmwareOnPty(OnPty):
    pace: ClassVar[str]

    def press_estop(self, *, pressed: bool) -> None:
        self.process.kill(signal.SIGUSR1 if pressed else signal.SIGUSR2)

    def kill_sensors(self, *, dead: bool) -> None:
        self.process.kill(signal.SIGRTMIN if dead else signal.SIGRTMIN + 1)


@pytest.mark.usefixtures("firmware")
class TestLockstep(FirmwareOnPty, LockstepConformance):
    pace = "lockstep"


@pytest.mark.usefixtures("firmware")
class TestRealTime(FirmwareOnPty, PacedConformance):
    pace = "realtime"
    period_us = 5_000
    lease = 40  # longer than a busy machine keeps the host waiting


@pytest.mark.usefixtures("powered")
class TestFresh(FirmwareOnPty, FreshConformance):
    pace = "realtime"
    period_us = 10_000

    @pytest.fixture
    def host(self) -> Iterator[Host]:
        with contextlib.ExitStack() as self.later:
            host = self.connect()
            yield host
            host.close()

    def restart(self, host: Host) -> Host:
        host.close()
        self.later.enter_context(device_of(type(self)))
        again = self.connect()
        self.later.callback(again.close)
        return again
