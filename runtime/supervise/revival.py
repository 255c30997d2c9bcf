"""A process without which the loop goes on: started again when it ends by itself, and when it hangs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from math import ceil
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.supervise.child import Child
from onrig.runtime.supervise.watchdog import Stillness

LONG_LIFE_S: Final = 30.0
"""Who lived so long before is not in a loop of crashes: its end is the first one again."""
MOST: Final = 5
"""Short lives in a row; the next end is for good."""
KILLED: Final = 0.25
"""What an end by SIGKILL counts: it came from outside, from a person or for want of memory."""


class Restarts:
    """The history of one process of a run."""

    def __init__(self) -> None:
        self._short_lives = 0.0

    def ended(self, lived_s: float, *, progressed: bool = False, killed: bool = False) -> float | None:
        """Return after how many seconds to start it again: at once the first time, then 1, 2, 4 ...; None: never.

        ``progressed``: the run came further in this life than in those before; so did no loop of crashes.
        """
        if lived_s >= LONG_LIFE_S or progressed:
            self._short_lives = 0.0
        self._short_lives += KILLED if killed else 1.0
        if self._short_lives > MOST:
            return None
        return 0.0 if self._short_lives <= 1.0 else 2.0 ** (ceil(self._short_lives) - 2)


FIRST_SIGN_S: Final = 45.0
"""How long a process may take until it first shows progress: torch alone takes a slow board a quarter of that."""
_AGAIN_S: Final = 1.0
"""When to try again where the machine could not start a process (no descriptors, no memory)."""

MOST_WITHOUT_ROOM: Final = 120
"""Starts in a row for which the machine had no room; the next one is for good, so that a run's end has an end."""


class Revived:
    """One of them, over all its lives."""

    def __init__(self, name: str, launch: Callable[[], Child], hang_s: float, say: Callable[[str], object]) -> None:
        self.name = name
        self._launch, self._hang_s, self._say = launch, hang_s, say
        self.child: Child | None = None
        self.starts = self.hangs = 0
        self._restarts = Restarts()
        self._still = Stillness()
        self._due_s: float | None = None
        self._first_sign: int | None = None
        self._furthest = self._without_room = 0
        self._killed = self._refused = False

    @property
    def gone(self) -> bool:
        """Whether it has ended and is not started again."""
        return self.starts > 0 and self.child is None and self._due_s is None

    def start(self) -> None:
        """Start it; raises OSError where the machine cannot."""
        self.child = self._launch()
        self.starts += 1
        self._due_s = self._first_sign = None
        self._still = Stillness()
        self._killed = self._refused = False

    def look(self, now_s: float, *, sign: int, reached: int = 0, may_end: bool) -> None:
        """See to it that it lives.

        ``sign`` changes while it makes progress; ``reached`` is how far the run has come that depends on it.
        ``may_end``: it has no more to do, and an end with code 0 is one.
        """
        if self._due_s is not None and now_s >= self._due_s:
            self._start_again(now_s)
        child = self.child
        if child is None:
            return
        code = child.poll()
        if code is None:
            self._look_at(child, now_s, sign)
        elif not (may_end and code == ExitCode.OK):
            self._ended(child, code, now_s, reached)

    def _look_at(self, child: Child, now_s: float, sign: int) -> None:
        if self._first_sign is None:
            self._first_sign = sign
        limit_s = max(self._hang_s, FIRST_SIGN_S) if sign == self._first_sign else self._hang_s
        if self._still.look(now_s, sign) >= limit_s and not self._killed:
            self._killed = True
            self.hangs += 1
            self._say(f"{self.name} has made no progress for {limit_s:g} s; it is killed and started again")
            child.kill()

    def _ended(self, child: Child, code: int, now_s: float, reached: int) -> None:
        child.close()
        self.child = None
        lived_s, progressed = now_s - child.born_s, reached > self._furthest
        self._furthest = max(self._furthest, reached)
        wait_s = self._restarts.ended(lived_s, progressed=progressed, killed=code == -signal.SIGKILL)
        if code == ExitCode.CONFIGURATION:
            wait_s = None
        elif code == ExitCode.PREFLIGHT:  # the machine has no room for it now
            self._without_room += 1
            wait_s = _AGAIN_S if self._without_room <= MOST_WITHOUT_ROOM else None
        else:
            self._without_room = 0
        if wait_s is None:
            self._say(f"{self.name} ended with code {code} and is not started again; the loop goes on without it")
            return
        self._say(f"{self.name} ended with code {code}; started again" + (f" in {wait_s:g} s" if wait_s else ""))
        self._due_s = now_s + wait_s
        if not wait_s:
            self._start_again(now_s)

    def _start_again(self, now_s: float) -> None:
        try:
            self.start()
        except OSError as error:
            if not self._refused:
                self._say(f"{self.name} cannot be started: {error.strerror or error}; it is tried again")
            self._refused = True
            self._due_s = now_s + _AGAIN_S
