"""A motor behind a controller with a text protocol on a serial port and a built-in watchdog."""

from __future__ import annotations

import os
from collections.abc import Sequence

import serial

from onrig.hw.device.driven import Driver, PythonDevice, SensorLost
from onrig.hw.rig import Rig


class Motor(PythonDevice, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="motor"):
    """A motor behind a controller with a text protocol."""

    home = ":MotorDriver"
    port: str
    """Serial port of the controller; $NAME for an environment variable."""
    baud: int = 921_600
    answer_s: float = 0.05
    """Timeout for an answer, after which the sensors count as lost."""
    watchdog_s: float | None = 0.1
    """Time without feeding after which the controller releases the motor."""


class MotorDriver(Driver):
    """Driver, called by a single thread; each call must return within a fraction of the period."""

    def __init__(self, settings: Motor, rig: Rig) -> None:
        port = os.path.expandvars(settings.port)
        self._port = serial.Serial(port, settings.baud, timeout=settings.answer_s, write_timeout=settings.answer_s)

    def _ask(self, words: str) -> str:
        self._port.reset_input_buffer()  # an answer that came too late
        self._port.write(f"{words}\n".encode())
        return self._port.readline().decode().strip()

    def sample(self) -> Sequence[float]:
        """Read position (rad) and velocity (rad/s), in the order of the rig's sensors."""
        words = self._ask("state").split()
        if len(words) != 2:
            raise SensorLost(f"the controller answered {words}")
        return [float(word) for word in words]

    def apply(self, command: Sequence[float]) -> None:
        """Output a torque (N m)."""
        self._ask(f"torque {command[0]:.6f}")

    def safe(self) -> None:
        """Release the motor; it coasts."""
        self._ask("release")

    def arm_watchdog(self, timeout_s: float) -> None:
        self._ask(f"watchdog {timeout_s}")

    def feed_watchdog(self) -> None:
        self._ask("feed")

    def close(self) -> None:
        self._port.close()
