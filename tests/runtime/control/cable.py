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
    """The line between a loop and its device: it can be pulled, and returns after ``n_polls`` attempts to open it."""

    def __init__(
        self,
        loop: ControlLoop,
        device: TwinDevice,
        clock: VirtualClock,
        monkeypatch: pytest.MonkeyPatch,
        *,
        n_polls: int = 3,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._device, self._clock, self.n_polls = device, clock, n_polls
        self.plugged_in, self.n_pulls, self.now_s = True, 0, 0.0
        self.on_unplugged: Callable[[], None] = device.on_link_loss
        """Called at the device while the line is closed."""
        virtual_time = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._advance)
        monkeypatch.setattr(connection, "time", virtual_time)
        session = loop._session
        session.switch_transport(self._line())
        config = msgspec.structs.replace(loop._config, device=Device(port=Port(PORT), reconnect_s=limit_s))
        loop.arming._reconnection = Reconnection(config, session, loop._requests, PORT, self._open)

    def pull(self) -> None:
        self.plugged_in, self.n_pulls, self._polls_left = False, self.n_pulls + 1, self.n_polls

    def _advance(self, seconds: float) -> None:
        self.now_s += seconds

    def _open(self) -> LoopbackTransport:
        self._polls_left -= 1
        if self._polls_left > 0:
            raise LinkError(f"{PORT}: no such port")
        self.on_unplugged()
        self.plugged_in = True
        return self._line()

    def _line(self) -> LoopbackTransport:
        line = LoopbackDevice(self._device, self._clock).transport
        read_line, write_line = line.read, line.write

        def read_if_plugged(timeout_ns: int) -> bytes:
            self._require_plugged_in()
            return read_line(timeout_ns)

        def write_if_plugged(data: bytes) -> int:
            self._require_plugged_in()
            return write_line(data)

        line.read, line.write = read_if_plugged, write_if_plugged  # type: ignore[method-assign]
        return line

    def _require_plugged_in(self) -> None:
        if not self.plugged_in:
            raise LineClosed(f"{PORT}: the device hung up")
