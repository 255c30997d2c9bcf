"""The firmware's core as a process complies with the protocol on a pseudo terminal, in real time and in lockstep."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.conformance.classes import LockstepConformance, PacedConformance
from tests.conformance.pty import OnPty
from tests.hw.firmware.build import device_process
from tests.lab.rig.processes import Process


class FirmwareOnPty(OnPty):
    @classmethod
    def started(cls) -> AbstractContextManager[tuple[Process, str]]:
        return device_process(cls.rig.name, cls.pace)


class TestLockstep(FirmwareOnPty, LockstepConformance):
    pace = "lockstep"


class TestRealTime(FirmwareOnPty, PacedConformance):
    pace = "realtime"
    period_us = 5_000
    lease = 40  # longer than a busy machine keeps the host waiting
