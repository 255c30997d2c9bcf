"""Restarts of non-essential processes that end or make no progress."""

from __future__ import annotations

import enum
import signal
from collections.abc import Callable, Hashable
from math import ceil
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.supervise.child import Child

LONG_LIFETIME_S: Final = 30.0
"""Lifetime after which an end is not part of a crash loop."""
MAX_SHORT_LIFETIMES: Final = 5
"""Maximum number of consecutive short lifetimes; one more, and the process is abandoned."""
KILLED_WEIGHT: Final = 0.25
"""Weight of an end by SIGKILL, which has an external cause: an operator, or the kernel when out of memory."""


class Restarts:
    """Restart history of one process of a run."""

    def __init__(self) -> None:
        self._short_lifetimes = 0.0

    def ended(self, lived_s: float, *, progressed: bool = False, killed: bool = False) -> float | None:
        """Return the delay of the restart in s: 0 the first time, then 1, 2, 4 ...; None: no restart.

        ``progressed``: the run advanced beyond previous lifetimes, so that this is not a crash loop.
        """
        if lived_s >= LONG_LIFETIME_S or progressed:
            self._short_lifetimes = 0.0
        self._short_lifetimes += KILLED_WEIGHT if killed else 1.0
        if self._short_lifetimes > MAX_SHORT_LIFETIMES:
            return None
        return 0.0 if self._short_lifetimes <= 1.0 else 2.0 ** (ceil(self._short_lifetimes) - 2)


FIRST_HEARTBEAT_S: Final = 45.0
"""Timeout for the first sign of progress; until then CPU time counts as progress, because importing torch takes minutes
on a busy board."""
FIRST_HEARTBEAT_CPU_S: Final = 120.0
"""The same timeout in CPU time: ten times that of the import on a slow board."""
_RETRY_S: Final = 1.0
"""Delay after a failed start (no descriptors, no memory)."""

MAX_FAILED_STARTS: Final = 120
"""Maximum number of consecutive failed starts, so that the end of a run terminates."""


class RestartableProcess:
    """A restartable process, over all its lifetimes."""

    def __init__(self, name: str, launch: Callable[[], Child], hang_s: float, warn: Callable[[str], object]) -> None:
        self.name = name
        self._launch, self._hang_s, self._warn = launch, hang_s, warn
        self.child: Child | None = None
        self.starts = self.hangs = 0
        self._restarts = Restarts()
        self._stall = ProgressTimer()
        self._due_s: float | None = None
        self._first_sign: int | None = None
        self._furthest = self._resource_failures = self._failed_starts = 0
        self._killed = self._refused = False
        self._productive_s = 0.0
        """Productive lifetime of a hung process."""

    @property
    def abandoned(self) -> bool:
        """Whether the process has ended and is not restarted."""
        return self.starts > 0 and self.child is None and self._due_s is None

    def start(self) -> None:
        """Start the process; raises OSError if the machine cannot."""
        self.child = self._launch()
        self.starts += 1
        self._failed_starts = 0
        self._due_s = self._first_sign = None
        self._stall = ProgressTimer()
        self._killed = self._refused = False

    def check(self, now_s: float, *, sign: int, reached: int = 0, may_end: bool) -> None:
        """Check the process; restart it if it ended or hangs.

        ``sign`` changes while the process makes progress; ``reached`` is the progress of the run that depends on it.
        ``may_end``: the process has finished its work and may end with code 0.
        """
        if self._due_s is not None and now_s >= self._due_s:
            self._start_again(now_s)
        child = self.child
        if child is None:
            return
        code = child.poll()
        if code is None:
            self._check_alive(child, now_s, sign)
        elif not (may_end and code == ExitCode.OK):
            self._ended(child, code, now_s, reached)

    def _check_alive(self, child: Child, now_s: float, sign: int) -> None:
        if self._first_sign is None:
            self._first_sign = sign
        starts = sign == self._first_sign
        used_s = child.cpu_s if starts else 0.0
        limit_s = max(self._hang_s, FIRST_HEARTBEAT_S) if starts else self._hang_s
        still = self._stall.update(now_s, (sign, int(used_s))) >= limit_s
        if (still or used_s >= FIRST_HEARTBEAT_CPU_S) and not self._killed:
            self._killed = True
            self._productive_s = 0.0 if starts else now_s - child.started_s - limit_s
            self.hangs += 1
            duration_text = f"{limit_s:g} s" if still else f"{FIRST_HEARTBEAT_CPU_S:g} s of CPU time"
            self._warn(f"{self.name} has made no progress for {duration_text}; restarting it")
            child.kill()

    def _ended(self, child: Child, code: int, now_s: float, reached: int) -> None:
        child.close()
        self.child = None
        lifetime_s, progressed = (
            (self._productive_s if self._killed else now_s - child.started_s),
            reached > self._furthest,
        )
        self._furthest = max(self._furthest, reached)
        wait_s = self._restarts.ended(lifetime_s, progressed=progressed, killed=code == -signal.SIGKILL)
        if code == ExitCode.CONFIGURATION:
            wait_s = None
        elif code == ExitCode.PREFLIGHT:  # the machine currently lacks resources
            self._resource_failures += 1
            wait_s = _RETRY_S if self._resource_failures <= MAX_FAILED_STARTS else None
        else:
            self._resource_failures = 0
        if wait_s is None:
            self._warn(f"{self.name} ended with code {code} and is not restarted; the loop continues without it")
            return
        self._warn(f"{self.name} ended with code {code}; restarted" + (f" in {wait_s:g} s" if wait_s else ""))
        self._due_s = now_s + wait_s
        if not wait_s:
            self._start_again(now_s)

    def _start_again(self, now_s: float) -> None:
        try:
            self.start()
        except OSError as error:
            self._failed_starts += 1
            if not self._refused:
                self._warn(f"{self.name} could not be started: {error.strerror or error}; retrying")
            self._refused = True
            self._due_s = now_s + _RETRY_S if self._failed_starts <= MAX_FAILED_STARTS else None
            if self._due_s is None:
                self._warn(f"{self.name} could not be started {MAX_FAILED_STARTS} times; the loop continues without it")


_NOTICE_S: Final = 1.0
_NOTICE_PERIODS: Final = 20
"""Time without a tick after which a loop counts as hung: the longer of the two."""
_NOTICE_POLLS_S: Final = 10.0
"""Time without a poll for requests, in lockstep and in states without ticks; the loop polls every few ms."""
GIVE_UP_S: Final = 15.0
"""Time after which a hung loop is ended; its device became safe a lease after its last command."""
_MAX_CHECK_INTERVAL_S: Final = 0.25
"""Maximum plausible interval between two checks; a longer one means a suspended machine."""


class ProgressTimer:
    """Time for which a progress counter has not changed, from periodic checks."""

    def __init__(self) -> None:
        self._sign: Hashable = None
        self._checked_s: float | None = None
        self.seconds = 0.0

    def update(self, now_s: float, sign: Hashable) -> float:
        """Check at ``now_s``; return the seconds for which ``sign`` has not changed."""
        elapsed = 0.0 if self._checked_s is None else min(now_s - self._checked_s, _MAX_CHECK_INTERVAL_S)
        self._checked_s = now_s
        self.seconds = self.seconds + elapsed if sign == self._sign else 0.0
        self._sign = sign
        return self.seconds


class Verdict(enum.Enum):
    """Result of a check."""

    FINE = "fine"
    HANGS = "hangs"
    """Hang detected; further checks return FINE until BACK or GONE."""
    BACK = "back"
    EXPIRED = "gone"


class Watchdog:
    """Watchdog on the loop's progress."""

    def __init__(self, wall_period_s: float) -> None:
        self._notice_s = max(_NOTICE_S, _NOTICE_PERIODS * wall_period_s)
        self._stall = ProgressTimer()
        self._hangs = False

    @property
    def hangs(self) -> bool:
        """Whether the loop was found hanging and has not recovered."""
        return self._hangs

    def check(self, now_s: float, progress: int, *, ticking: bool) -> Verdict:
        """Check the loop; ``progress``: its ticks if it is ``ticking``, otherwise its polls for requests."""
        still_s = self._stall.update(now_s, progress)
        notice_s = self._notice_s if ticking else _NOTICE_POLLS_S
        if still_s == 0.0:
            was, self._hangs = self._hangs, False
            return Verdict.BACK if was else Verdict.FINE
        if still_s >= notice_s + GIVE_UP_S:
            return Verdict.EXPIRED
        if still_s >= notice_s and not self._hangs:
            self._hangs = True
            return Verdict.HANGS
        return Verdict.FINE
