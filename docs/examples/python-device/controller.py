"""An emulated motor controller on a pseudo terminal: ``python controller.py [LOG]`` prints its port.

It emulates hardware: it continues when its driver dies, and its watchdog then releases the motor.  LOG receives a line
for each change of the torque: monotonic time (s), torque (N m), longest pause of this process so far (s).
"""

from __future__ import annotations

import os
import select
import sys
import time
import tty
from typing import TextIO

INERTIA, FRICTION = 1e-3, 1e-3
STEP_S = 0.002


class Controller:
    """A motor, its output stage, and a watchdog."""

    def __init__(self) -> None:
        self.position = self.velocity = self.torque = 0.0
        self.timeout_s = self.fed_s = 0.0

    def run(self, now_s: float, step_s: float) -> None:
        """Advance the motor by ``step_s``; an expired watchdog releases it."""
        if self.timeout_s and now_s - self.fed_s > self.timeout_s:
            self.torque = self.timeout_s = 0.0
        self.velocity += (self.torque - FRICTION * self.velocity) / INERTIA * step_s
        self.position += self.velocity * step_s

    def answer(self, line: str, now_s: float) -> str:
        """Execute one command line and answer it; without an armed watchdog the motor remains released."""
        match line.split():
            case ["state"]:
                return f"{self.position:.6f} {self.velocity:.6f}"
            case ["torque", value] if self.timeout_s:
                self.torque = float(value)
            case ["release"]:
                self.torque = self.timeout_s = 0.0
            case ["watchdog", seconds]:
                self.timeout_s, self.fed_s = float(seconds), now_s
            case ["feed"]:
                self.fed_s = now_s
            case _:
                return "?"
        return "ok"


def serve(master: int, log: TextIO) -> None:
    """Serve one driver after another on the master side of a pseudo terminal."""
    controller, rest, pause_s, torque = Controller(), b"", 0.0, 0.0
    then_s = time.monotonic()
    while True:
        select.select([master], [], [], STEP_S)
        now_s = time.monotonic()
        pause_s = max(pause_s, now_s - then_s - STEP_S)
        controller.run(now_s, min(now_s - then_s, 0.1))
        then_s = now_s
        try:
            rest += os.read(master, 4096)
        except BlockingIOError:
            pass
        except OSError:  # no driver
            rest = b""
            time.sleep(STEP_S)
        *lines, rest = rest.split(b"\n")
        for line in lines:
            answer = controller.answer(line.decode(errors="replace"), now_s)
            os.write(master, f"{answer}\n".encode())
        if controller.torque != torque:
            torque = controller.torque
            print(f"{now_s:.6f} {torque:.6f} {pause_s:.6f}", file=log, flush=True)


def main() -> None:
    """Open a pseudo terminal and serve."""
    master, slave = os.openpty()
    tty.setraw(slave)
    print(os.ttyname(slave), flush=True)
    os.close(slave)
    os.set_blocking(master, False)
    with open(sys.argv[1] if len(sys.argv) > 1 else os.devnull, "a", encoding="utf-8") as log:
        serve(master, log)


if __name__ == "__main__":
    main()
