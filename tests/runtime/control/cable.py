"""A cable that can be pulled, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest

from onrig.hw.clock import VirtualClock
from onrig.hw.transport import LineClosed, LinkError, LoopbackTransport
from onrig.runtime.control import connection
from onrig.runtime.control.connection import Reconnection
from onrig.runtime.control.loop import ControlLoop
from onrig.runtime.run_config import Device, Port
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.loopback import LoopbackDevice

PORT = "/dev/serial/by-id/usb-rig"
LIMIT_S = 10.0


class Cable:
    """The line between a loop and its device: it can be pulled, and is back after so many looks at the port."""

    def __init__(
        self,
        loop: ControlLoop,
        device: TwinDevice,
        clock: VirtualClock,
        monkeypatch: pytest.MonkeyPatch,
        *,
        looks: int = 3,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._device, self._clock, self.looks = device, clock, looks
        self.plugged_in, self.pulls, self.now_s = True, 0, 0.0
        self.meanwhile: Callable[[], None] = device.on_link_loss
        """What happens at the device while the line is closed."""
        virtual = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._pass)
        monkeypatch.setattr(connection, "time", virtual)
        session = loop._session
        session.switch_transport(self._line())
        config = msgspec.structs.replace(loop._config, device=Device(port=Port(PORT), reconnect_s=limit_s))
        loop.arming._reconnection = Reconnection(config, session, loop._requests, PORT, self._open)

    def pull(self) -> None:
        self.plugged_in, self.pulls, self._left = False, self.pulls + 1, self.looks

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds

    def _open(self) -> LoopbackTransport:
        self._left -= 1
        if self._left > 0:
            raise LinkError(f"{PORT}: no such port")
        self.meanwhile()
        self.plugged_in = True
        return self._line()

    def _line(self) -> LoopbackTransport:
        line = LoopbackDevice(self._device, self._clock).transport
        read, write = line.read, line.write

        def checked_read(timeout_ns: int) -> bytes:
            self._check()
            return read(timeout_ns)

        def checked_write(data: bytes) -> int:
            self._check()
            return write(data)

        line.read, line.write = checked_read, checked_write  # type: ignore[method-assign]
        return line

    def _check(self) -> None:
        if not self.plugged_in:
            raise LineClosed(f"{PORT}: the device hung up")
