"""The twin's process keeps the protocol on a pseudo terminal, in real time and in lockstep, and on a Unix socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest

from onrig.runtime.run_loading import save_resolved
from onrig.tools.load import load
from tests.conformance.lockstep import LockstepConformance
from tests.conformance.paced import PacedConformance
from tests.conformance.pty import OnPty
from tests.processes.rig import TWIN, process_of, until
from tests.sockets import short_folder


@pytest.fixture(scope="class")
def twin(request: pytest.FixtureRequest) -> Iterator[None]:
    """One twin process for all tests of a class, each of which connects anew."""
    test_class: type[TwinOnPty] = request.cls
    settings = [f"device.pace={test_class.pace}", "realtime.priority=0", "realtime.lock_memory=false"]
    settings.append(f"device.twin.line={test_class.line}")
    config = load("pendulum", settings)
    test_class.rig = config.rig
    with short_folder() as folder:
        save_resolved(config, folder / "config.yaml")
        link = folder / "link"
        with process_of(TWIN, folder / "config.yaml", "--link", link) as process:
            test_class.process = process
            test_class.port = until(lambda: link.exists() and link.read_text().strip(), "the twin", process)
            yield


@pytest.mark.usefixtures("twin")
class TwinOnPty(OnPty):
    pace: ClassVar[str]
    line: ClassVar[str] = "pty"


class TestLockstep(TwinOnPty, LockstepConformance):
    pace = "lockstep"


class TestRealTime(TwinOnPty, PacedConformance):
    pace = "realtime"
    period_us = 5_000
    lease = 40  # longer than a busy machine keeps the host waiting


class TestOnSocket(TestRealTime):
    line = "socket"
