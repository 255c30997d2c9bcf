"""The laboratory's wire, for tests that advance from one state frame to the next."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from onrig.hw.messages import State
from onrig.hw.transport import DescriptorTransport
from tests.lab.rig.processes import Process, until
from tests.lab.rig.wire import Wire


class Tap(Wire):
    """Context manager that carries bytes both ways.  Neither end can detect a hang-up, as on a serial line."""

    def __init__(self, n_sensors: int, n_actuators: int) -> None:
        super().__init__(n_sensors, n_actuators)
        self.states: Final[list[State]] = []
        """The state frames examined by ``until_frame``."""

    def until_frame(self, condition: Callable[[State], bool], description: str, *processes: Process) -> State:
        """Wait for the next state frame that meets the condition; it is then the last of ``states``."""

        def found() -> State | None:
            while len(self.states) < len(self.seen):
                self.states.append(self.seen[len(self.states)].state)
                if condition(self.states[-1]):
                    return self.states[-1]
            return None

        return until(found, description, *processes)

    def take_over(self) -> DescriptorTransport:
        """Return the device's line for a host in the test; from now on the wire carries nothing."""
        self.stop()
        return DescriptorTransport(os.dup(self._device), self.ports.device)
