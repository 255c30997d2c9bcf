"""The Pico's image, identical to the flashed one, complies with the protocol over USB in an emulator of its chip."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar

import pytest

from onrig.hw.conformance.host import Host
from onrig.hw.rig import Rig
from onrig.hw.transport import open_port
from onrig.tools.load import load
from tests.conformance.classes import PacedConformance
from tests.hw.firmware.emulated import Pico, pico
from tests.sockets import short_folder


@pytest.fixture(scope="class")
def board(request: pytest.FixtureRequest) -> Iterator[None]:
    """One board for all tests of a class; each test reopens its port."""
    test_class: type[OnPico] = request.cls
    with short_folder() as folder, pico(test_class.rig.name, folder) as test_class.board:
        yield


class OnPico:
    """How to connect, and what can be done to the board's pins."""

    board: ClassVar[Pico]
    rig: ClassVar[Rig] = load("pendulum-hardware", []).rig

    def connect(self) -> Host:
        return Host(open_port(str(self.board.port)), self.rig, time)

    def hang_up(self, host: Host) -> Host:
        host.session.close()
        return self.connect()

    def press_estop(self, *, pressed: bool) -> None:
        self.board.tell(f"pin 7 {int(pressed)}")

    def kill_sensors(self, *, dead: bool) -> None:
        self.board.tell(f"pio {int(not dead)}")

    def reboot(self) -> None:
        self.board.tell("reset")
        assert self.board.hear() == self.board.ready


@pytest.mark.usefixtures("board")
class TestRealTime(OnPico, PacedConformance):
    period_us = 10_000
    lease = 20  # longer than a busy machine keeps the host waiting
