"""The twin's process complies with the protocol on a pseudo terminal, in real time and lockstep, and a Unix socket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar

from onrig.runtime.run_loading import save_resolved
from onrig.tools.load import load
from tests.conformance.classes import LockstepConformance, PacedConformance
from tests.conformance.pty import OnPty
from tests.lab.rig.processes import TWIN, Process, process_of, until
from tests.sockets import short_folder


class TwinOnPty(OnPty):
    line: ClassVar[str] = "pty"

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator[tuple[Process, str]]:
        settings = [f"device.pace={cls.pace}", f"device.twin.line={cls.line}"]
        config = load(cls.config, [*settings, "realtime.priority=0", "realtime.lock_memory=false"])
        with short_folder() as folder:
            save_resolved(config, folder / "config.yaml")
            link = folder / "link"
            with process_of(TWIN, folder / "config.yaml", "--link", link) as process:
                yield process, until(lambda: link.exists() and link.read_text().strip(), "the twin", process)


class TestLockstep(TwinOnPty, LockstepConformance):
    pace = "lockstep"


class TestRealTime(TwinOnPty, PacedConformance):
    pace = "realtime"
    period_us = 5_000
    lease = 40  # longer than a busy machine keeps the host waiting


class TestOnSocket(TestRealTime):
    line = "socket"
