"""The firmware's core as a process keeps the protocol on a pseudo terminal, in real time and in lockstep."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator

from tests.conformance.lockstep import LockstepConformance
from tests.conformance.paced import PacedConformance
from tests.conformance.pty import OnPty
from tests.hw.firmware.build import device_program
from tests.processes.rig import Process


class FirmwareOnPty(OnPty):
    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[tuple[Process, str]]:
        command = [str(device_program()), "--rig", cls.rig.name, "--pace", cls.pace]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as popen:
            process = Process(popen.pid)
            try:
                assert popen.stdout is not None
                yield process, popen.stdout.readline().strip()
            finally:
                process.kill(signal.SIGTERM)
                process.wait()
                process.close()
        assert popen.returncode == 0


class TestLockstep(FirmwareOnPty, LockstepConformance):
    pace = "lockstep"


class TestRealTime(FirmwareOnPty, PacedConformance):
    pace = "realtime"
    period_us = 5_000
    lease = 40  # longer than a busy machine keeps the host waiting
