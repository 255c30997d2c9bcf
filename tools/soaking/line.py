"""The line between twin and rig in a process of its own: ``python -m tools.soaking.line SENSORS ACTUATORS``.

It prints the two ports as one JSON line and then obeys, line by line, what it is told on stdin: ``carry``, ``cut``,
``freeze``, ``garble``, or ``lose N`` (that many state frames).  It ends with stdin.  A process of its own, since
whoever plans and keeps the accounts must not hold up the bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType
from typing import Final, get_args

import msgspec

from hw.framing import encode_frame
from hw.messages import MessageType
from tools.benchmarks.fault_wire import FLIP, Mode, Wire


class Ports(msgspec.Struct, frozen=True):
    """Where the two ends are."""

    device: str
    host: str


class LosingWire(Wire):
    """A wire that can lose frames, and keeps none: a soak is long."""

    def __init__(self, n_sensors: int, n_actuators: int) -> None:
        super().__init__(n_sensors, n_actuators)
        self.lose = 0
        """State frames that are still to be lost."""

    def _from_device(self, data: bytes) -> None:
        out = b""
        for body in self._reader.feed(data):
            wire = encode_frame(body)
            if body[0] == MessageType.STATE:
                if self.lose > 0:
                    self.lose -= 1
                    continue
                if self.mode == "freeze" and self._last_wire:
                    wire = self._last_wire
                self._last_wire = wire
            out += wire
        if self.mode != "cut" and out:
            os.write(self._host, out.translate(FLIP) if self.mode == "garble" else out)


class Line:
    """The handle of that process; a context that ends it."""

    def __init__(self, n_sensors: int, n_actuators: int) -> None:
        command = [sys.executable, "-m", "tools.soaking.line", str(n_sensors), str(n_actuators)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self.ports: Final = msgspec.json.decode(self._out.readline(), type=Ports)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def say(self, order: str) -> None:
        """Give an order (see the module)."""
        self._in.write(order.encode() + b"\n")
        self._in.flush()

    def __enter__(self) -> Line:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()


def obey(wire: LosingWire, order: str) -> None:
    """Carry out one order; what is none is passed over."""
    match order.split():
        case ["lose", count]:
            wire.lose += int(count)
        case [mode]:
            wire.mode = next((m for m in get_args(Mode) if m == mode), wire.mode)


def main(arguments: list[str]) -> int:
    """Carry until stdin ends; returns the exit code."""
    wire = LosingWire(int(arguments[0]), int(arguments[1]))
    wire.start()
    print(msgspec.json.encode(Ports(wire.device_port, wire.host_port)).decode(), flush=True)
    for order in sys.stdin:
        obey(wire, order)
    wire.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
