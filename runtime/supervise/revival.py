"""Restarts of non-essential processes that end or make no progress."""

from __future__ import annotations

import enum
import signal
from collections.abc import Callable, Collection, Hashable
from math import ceil
from typing import Final

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.supervise.child import Child

MIN_LONG_LIFETIME_S: Final = 30.0
"""Lifetime from which on the end of a process does not count towards a crash loop."""
MAX_SHORT_LIFETIMES: Final = 5
"""Maximum number of consecutive short lifetimes; after one more the process is not restarted."""
KILLED_WEIGHT: Final = 0.25
"""Weight of a lifetime that SIGKILL ended, which has an external cause: an operator, or the kernel when out of
memory."""


class RestartHistory:
    """Count of the short lifetimes of one process of a run."""

    def __init__(self) -> None:
        self._short_lifetimes = 0.0

    def next_delay_s(
        self, lifetime_s: float, *, has_progressed: bool = False, was_killed: bool = False
    ) -> float | None:
        """Return the delay (s) before the process is restarted: 0 the first time, then 1, 2, 4 ...; None if it must not
        be restarted.

        ``has_progressed``: whether the run advanced further than in previous lifetimes, so that this is not a crash
        loop; ``was_killed``: whether SIGKILL ended the process.
        """
        if lifetime_s >= MIN_LONG_LIFETIME_S or has_progressed:
            self._short_lifetimes = 0.0
        self._short_lifetimes += KILLED_WEIGHT if was_killed else 1.0
        if self._short_lifetimes > MAX_SHORT_LIFETIMES:
            return None
        return 0.0 if self._short_lifetimes <= 1.0 else 2.0 ** (ceil(self._short_lifetimes) - 2)


FIRST_HEARTBEAT_TIMEOUT_S: Final = 45.0
"""Timeout for the first sign of progress; until then CPU time counts as progress, because importing torch takes minutes
on a busy board."""
FIRST_HEARTBEAT_CPU_LIMIT_S: Final = 120.0
"""Limit on the CPU time used before the first sign of progress: ten times what the import takes on a slow board."""
_RETRY_DELAY_S: Final = 1.0
"""Delay after a failed start (no descriptors, no memory)."""

MAX_FAILED_STARTS: Final = 120
"""Maximum number of consecutive failed starts, so that ending a run cannot take for ever."""


class RestartableProcess:
    """Process that is restarted when it ends or hangs."""

    def __init__(
        self,
        name: str,
        launch: Callable[[], Child],
        hang_limit_s: float,
        warn: Callable[[str], object],
        *,
        transient_codes: Collection[int] = (ExitCode.PREFLIGHT,),
    ) -> None:
        """``transient_codes``: exit codes with a cause that may pass, such as missing resources or an unplugged
        camera; the process is then started again every second."""
        self.name = name
        self._launch, self._hang_limit_s, self._warn = launch, hang_limit_s, warn
        self._transient_codes = transient_codes
        self.child: Child | None = None
        self.n_starts = self.n_hangs = 0
        self._restarts = RestartHistory()
        self._progress_timer = ProgressTimer()
        self._restart_due_s: float | None = None
        self._initial_progress: int | None = None
        self._max_run_progress = self._resource_failures = self._failed_starts = 0
        self._was_killed = self._start_failure_reported = False
        self._productive_s = 0.0
        """Lifetime of a hung process before it stopped making progress."""

    @property
    def is_abandoned(self) -> bool:
        """Whether the process has exited and will not be restarted."""
        return self.n_starts > 0 and self.child is None and self._restart_due_s is None

    def start(self) -> None:
        """Start the process; raises OSError if the machine cannot start it."""
        self.child = self._launch()
        self.n_starts += 1
        self._failed_starts = 0
        self._restart_due_s = self._initial_progress = None
        self._progress_timer = ProgressTimer()
        self._was_killed = self._start_failure_reported = False

    def check(self, now_s: float, *, progress: int, run_progress: int = 0, may_end: bool) -> None:
        """Check the process; restart it if it has ended or hangs.

        ``progress`` changes as long as the process makes progress; ``run_progress`` counts the run's progress as far as
        that depends on the process; ``may_end``: whether the process has finished its work and may end with code 0.
        """
        if self._restart_due_s is not None and now_s >= self._restart_due_s:
            self._restart(now_s)
        child = self.child
        if child is None:
            return
        code = child.poll()
        if code is None:
            self._check_alive(child, now_s, progress)
        elif not (may_end and code == ExitCode.OK):
            self._handle_exit(child, code, now_s, run_progress)

    def _check_alive(self, child: Child, now_s: float, progress: int) -> None:
        if self._initial_progress is None:
            self._initial_progress = progress
        is_starting = progress == self._initial_progress
        used_s = child.cpu_s if is_starting else 0.0
        limit_s = max(self._hang_limit_s, FIRST_HEARTBEAT_TIMEOUT_S) if is_starting else self._hang_limit_s
        is_stalled = self._progress_timer.update(now_s, (progress, int(used_s))) >= limit_s
        if (is_stalled or used_s >= FIRST_HEARTBEAT_CPU_LIMIT_S) and not self._was_killed:
            self._was_killed = True
            self._productive_s = 0.0 if is_starting else now_s - child.started_s - limit_s
            self.n_hangs += 1
            duration_text = f"{limit_s:g} s" if is_stalled else f"{FIRST_HEARTBEAT_CPU_LIMIT_S:g} s of CPU time"
            self._warn(f"{self.name} has made no progress for {duration_text}; restarting it")
            child.kill()

    def _handle_exit(self, child: Child, code: int, now_s: float, run_progress: int) -> None:
        child.close()
        self.child = None
        lifetime_s, has_progressed = (
            (self._productive_s if self._was_killed else now_s - child.started_s),
            run_progress > self._max_run_progress,
        )
        self._max_run_progress = max(self._max_run_progress, run_progress)
        wait_s = self._restarts.next_delay_s(
            lifetime_s, has_progressed=has_progressed, was_killed=code == -signal.SIGKILL
        )
        if code == ExitCode.CONFIGURATION:
            wait_s = None
        elif code in self._transient_codes:
            self._resource_failures = 1 if lifetime_s >= MIN_LONG_LIFETIME_S else self._resource_failures + 1
            wait_s = _RETRY_DELAY_S if self._resource_failures <= MAX_FAILED_STARTS else None
        else:
            self._resource_failures = 0
        if wait_s is None:
            self._warn(f"{self.name} exited with code {code} and will not be restarted")
            return
        self._warn(f"{self.name} ended with code {code}; restarted" + (f" in {wait_s:g} s" if wait_s else ""))
        self._restart_due_s = now_s + wait_s
        if not wait_s:
            self._restart(now_s)

    def _restart(self, now_s: float) -> None:
        try:
            self.start()
        except OSError as error:
            self._failed_starts += 1
            if not self._start_failure_reported:
                self._warn(f"{self.name} could not be started: {error.strerror or error}; retrying")
            self._start_failure_reported = True
            self._restart_due_s = now_s + _RETRY_DELAY_S if self._failed_starts <= MAX_FAILED_STARTS else None
            if self._restart_due_s is None:
                self._warn(f"{self.name} could not be started {MAX_FAILED_STARTS} times and will not be restarted")


_MIN_HANG_TIMEOUT_S: Final = 1.0
_HANG_TIMEOUT_PERIODS: Final = 20
"""Time without a tick after which a loop counts as hung: the longer of these two."""
_POLL_HANG_TIMEOUT_S: Final = 10.0
"""Time without a poll for requests after which a loop counts as hung in lockstep and in states without ticks; the loop
polls every few ms."""
HANG_GRACE_S: Final = 15.0
"""Time after which a loop that counts as hung is ended; its device became safe one lease after the last command."""
_MAX_CHECK_INTERVAL_S: Final = 0.25
"""Maximum plausible interval between two checks; a longer one means that the machine was suspended."""


class ProgressTimer:
    """Time for which a progress counter has not changed, measured by periodic checks."""

    def __init__(self) -> None:
        self._progress: Hashable = None
        self._checked_s: float | None = None
        self.seconds = 0.0

    def update(self, now_s: float, progress: Hashable) -> float:
        """Record ``progress`` at ``now_s``; return the seconds for which it has not changed."""
        elapsed_s = 0.0 if self._checked_s is None else min(now_s - self._checked_s, _MAX_CHECK_INTERVAL_S)
        self._checked_s = now_s
        self.seconds = self.seconds + elapsed_s if progress == self._progress else 0.0
        self._progress = progress
        return self.seconds


class Verdict(enum.Enum):
    """Result of a check."""

    OK = "ok"
    HUNG = "hung"
    """Hang detected; further checks return OK until RECOVERED or EXPIRED."""
    RECOVERED = "recovered"
    EXPIRED = "expired"


class Watchdog:
    """Watchdog on the loop's progress."""

    def __init__(self, wall_period_s: float) -> None:
        self._hang_timeout_s = max(_MIN_HANG_TIMEOUT_S, _HANG_TIMEOUT_PERIODS * wall_period_s)
        self._progress_timer = ProgressTimer()
        self._is_hung = False

    @property
    def is_hung(self) -> bool:
        """Whether the loop was found hanging and has not recovered since."""
        return self._is_hung

    def check(self, now_s: float, progress: int, *, is_ticking: bool) -> Verdict:
        """Check the loop; ``progress``: number of its ticks if it ``is_ticking``, otherwise of its polls for
        requests."""
        stalled_s = self._progress_timer.update(now_s, progress)
        hang_timeout_s = self._hang_timeout_s if is_ticking else _POLL_HANG_TIMEOUT_S
        if stalled_s == 0.0:
            was_hung, self._is_hung = self._is_hung, False
            return Verdict.RECOVERED if was_hung else Verdict.OK
        if stalled_s >= hang_timeout_s + HANG_GRACE_S:
            return Verdict.EXPIRED
        if stalled_s >= hang_timeout_s and not self._is_hung:
            self._is_hung = True
            return Verdict.HUNG
        return Verdict.OK
