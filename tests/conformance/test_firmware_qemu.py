"""The firmware on an emulated Cortex-M4 complies with the protocol, at its own pace and in lockstep."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar

import pytest

from onrig.hw.conformance.host import Host
from onrig.hw.rig import Rig
from onrig.hw.transport import open_port
from onrig.tools.load import load
from tests.conformance.classes import LockstepConformance, PacedConformance
from tests.hw.firmware.build import Board, qemu
from tests.sockets import short_folder


@pytest.fixture(scope="class")
def board(request: pytest.FixtureRequest) -> Iterator[None]:
    """One board for all tests of a class; each test reconnects."""
    test_class: type[OnQemu] = request.cls
    with short_folder() as folder, qemu(test_class.image, folder) as test_class.board:
        yield


class OnQemu:
    """How to connect.  A UART does not reveal whether a host is at its other end."""

    image: ClassVar[str]
    board: ClassVar[Board]
    rig: ClassVar[Rig] = load("pendulum", []).rig

    def connect(self) -> Host:
        host = Host(open_port(str(self.board.line)), self.rig, time)
        host.wire.clear()  # stale bytes from before anyone read from the socket
        return host

    def press_estop(self, *, pressed: bool) -> None:
        self.board.set_pin(2, int(pressed))

    def kill_sensors(self, *, dead: bool) -> None:
        self.board.set_pin(3, int(dead))

    def reboot(self) -> None:
        self.board.restart()


@pytest.mark.usefixtures("board")
class TestLockstep(OnQemu, LockstepConformance):
    image = "pendulum-lockstep"


@pytest.mark.usefixtures("board")
class TestRealTime(OnQemu, PacedConformance):
    image = "pendulum"
    period_us = 10_000
    lease = 20  # longer than a busy machine keeps the host waiting
