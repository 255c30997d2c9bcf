"""The loop's frame source: waiting for the next frame, timing it, and counting the frames missed before it.

Overruns need no code of their own: the device sets the pace, the loop answers the newest frame, and older frames count
as missed.  The loop skips complete periods and keeps to the device's time grid, without a burst to catch up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from onrig.hw.intake import frames_between, is_before
from onrig.hw.messages import Hello, State
from onrig.hw.session import DeviceSession, RequestRefused
from onrig.runtime.control.outside import GRACEFUL_STOP, IMMEDIATE_STOP
from onrig.runtime.control.rehearsal import Rehearsal
from onrig.runtime.control.stamps import DeviceStamps, HostStamps, Stamps
from onrig.runtime.record import Miss, Step
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.faults import FaultName, LinkFault, is_faulted, precedes_arming
from onrig.runtime.shm.board import Board, Word


def attribute_miss(
    n_missed: int, expected_ns: int, busy_until_ns: int, busy_cpu_ns: int, period_ns: int, n_overtaken: int
) -> Miss:
    """Return why the ``n_missed`` frames before the current one were not answered.

    expected_ns: due time of the first missed frame; busy_until_ns: end of the loop's own work before it; busy_cpu_ns:
    CPU time of the loop since the previous frame; n_overtaken: number of missed frames that did arrive but remained
    unread until a newer one arrived.  The loop's own work can only cause a miss if it takes more than a period of CPU
    time: it starts with the previous frame or (a rehearsal) just before the missed frame, and lasts until the next one.
    If the loop used less CPU time than that, it was preempted.
    """
    if n_missed <= 0:
        return Miss.NONE
    if n_overtaken == 0:
        return Miss.LINK
    return Miss.PROGRAM if busy_until_ns > expected_ns and busy_cpu_ns > period_ns else Miss.HOST


_PERIOD_DIVISOR: Final = 2
_MEAN_WORK_MULTIPLE: Final = 4
_AVERAGING_TICKS: Final = 64


class SlackGate:
    """Gate that suppresses deferred work after a slow tick: one longer than half a period or four times the mean tick.

    Slow ticks come in bursts: building a policy after a tick ten times the usual length once cost a frame at 200 Hz.
    """

    def __init__(self, period_ns: int) -> None:
        self._max_work_ns = period_ns / _PERIOD_DIVISOR
        self._mean_work_ns = 0.0

    def allows_work_after(self, work_ns: int) -> bool:
        """Record the duration of a tick's work; return whether deferred work may follow."""
        mean_work_ns = self._mean_work_ns or float(work_ns)
        # Clipped, so that a stall of one second does not raise the mean so far that later stalls look normal.
        self._mean_work_ns = (
            mean_work_ns + (min(work_ns, _MEAN_WORK_MULTIPLE * mean_work_ns) - mean_work_ns) / _AVERAGING_TICKS
        )
        return work_ns < min(self._max_work_ns, _MEAN_WORK_MULTIPLE * mean_work_ns)


_MIN_LINK_SILENCE_NS: Final = 1_000_000_000
"""Time without a frame after which a link counts as lost, or ten periods if they are longer."""
_LOCKSTEP_LINK_SILENCE_NS: Final = 10_000_000_000
_POLL_INTERVAL_NS: Final = 50_000_000
_OVERDUE_AFTER_PERIODS: Final = 1.5
"""Periods without a frame before a hello is requested; if the device has restarted, that was at most three periods
ago."""
_MIN_OVERDUE_NS: Final = 1_500_000
"""Minimum time without a frame before a hello is requested: above 1 kHz, more frequent requests would load the
connection more than the frames do."""
_LONG_PERIOD_NS: Final = 5_000_000
_LONG_PERIOD_REHEARSALS: Final = (900_000, 2)
_SHORT_PERIOD_REHEARSALS: Final = (550_000, 1)
"""(lead time before a frame is due, number of rehearsals), for periods above and below _LONG_PERIOD_NS.

The numbers are small on purpose: a loop that busy-waits for the frame is slightly faster, but on two cores it keeps the
kernel from delivering that frame (measured at 500 Hz next to a busy learner: nine missed ticks in 2000 instead of one).
Rehearsals end about 0.3 ms before the frame, because on a single-core machine the twin then needs the CPU.
"""
_PUNCTUAL_TOLERANCE_NS: Final = 200_000
_MAX_MISSED: Final = 65535
"""Largest number of missed frames that a record can hold."""
_MIN_REHEARSED_PERIOD_NS: Final = 1_500_000
"""Shortest period with rehearsals: at shorter periods the caches stay warm anyway, and work just before a frame is a
risk.

At 1 kHz a rehearsal changed neither the duration of a tick nor its lateness, but cost a frame whenever the machine
stretched it to 1.5 ms (20 frames in 100 s, compared with 1 without rehearsals, in alternating runs).  At 500 Hz it
shortens a tick by a sixth.
"""


_MAX_UNARMED_FRAMES: Final = 4
_MAX_UNARMED_NS: Final = 200_000_000
"""Number of frames, and time, after a request to arm within which frames sampled before the request may still
arrive."""


class Stopped(Exception):
    """Raised when the run has been requested to stop."""


def first_frame(next_frame: Callable[[], State]) -> State:
    """Return the first frame of an armed device; the latest frame if the device is still unarmed after 0.2 s and more
    than four frames."""
    deadline_ns = time.monotonic_ns() + _MAX_UNARMED_NS
    n_frames = 0
    while precedes_arming(state := next_frame()):
        n_frames += 1
        if n_frames > _MAX_UNARMED_FRAMES and time.monotonic_ns() > deadline_ns:
            break
    return state


class _Timeouts(NamedTuple):
    """Timeouts of the loop's wait for a frame, in ns of the wall clock."""

    poll_ns: int
    """Interval between polls of requests."""
    silence_ns: int
    """Silence after which the link counts as lost."""
    fade_silence_ns: int
    """Silence after which fading out is pointless, because the expired lease has made the outputs safe."""
    has_rehearsals: bool
    """Whether the tick is rehearsed before each frame."""
    requests_hello: bool
    """Whether to request a hello if a frame is overdue, because a rebooted device answers nothing else."""


def _timeouts(config: RunConfig, *, time_scale: float) -> _Timeouts:
    period_ns = config.wall_period_ns
    if time_scale == 0.0:  # lockstep: no frame is overdue
        return _Timeouts(
            _POLL_INTERVAL_NS, _LOCKSTEP_LINK_SILENCE_NS, _POLL_INTERVAL_NS, has_rehearsals=False, requests_hello=False
        )
    overdue_ns = max(round(_OVERDUE_AFTER_PERIODS * period_ns), _MIN_OVERDUE_NS)
    silence_ns = max(_MIN_LINK_SILENCE_NS, 10 * period_ns)
    return _Timeouts(
        min(_POLL_INTERVAL_NS, overdue_ns),
        silence_ns,
        max(_POLL_INTERVAL_NS, min(config.rig.lease_periods * period_ns, silence_ns // 2)),
        has_rehearsals=period_ns >= _MIN_REHEARSED_PERIOD_NS,
        requests_hello=True,
    )


class FrameSource:
    """Source of frames, which rehearses the tick shortly before each frame is due and keeps timing statistics."""

    def __init__(
        self,
        config: RunConfig,
        session: DeviceSession,
        hello: Hello,
        rehearsal: Rehearsal,
        board: Board,
        stop: Callable[[], int],
    ) -> None:
        self._session, self._rehearsal, self._board = session, rehearsal, board
        self._hello = hello
        self._stop = stop
        self._period_ns = config.wall_period_ns
        self._timeouts = _timeouts(config, time_scale=hello.time_scale)
        has_long_period = self._period_ns >= _LONG_PERIOD_NS
        self._lead_ns, self._n_rehearsals = _LONG_PERIOD_REHEARSALS if has_long_period else _SHORT_PERIOD_REHEARSALS
        is_virtual = hello.time_scale == 0.0
        self.stamps: Final[Stamps] = DeviceStamps() if is_virtual else HostStamps(hello.time_scale, self._period_ns)
        self._n_missed = 0
        self._last_received_ns = 0
        self._n_overtaken = 0
        self._cpu_ns = self._previous_cpu_ns = 0
        self.is_punctual = False
        """Whether the last frame arrived on time, so that the next one is a full period away."""
        self.busy_until_ns = 0
        """Time at which the loop's work after the last frame ended: tick, deferred work, rehearsal."""

    def begin(self) -> None:
        """Start an episode: the next frame has no predecessor."""
        self._last_received_ns = 0
        self._cpu_ns = self._previous_cpu_ns = time.thread_time_ns()
        hello = self._session.hello
        if hello is not None and hello is not self._hello:  # reconnected: the device's clock may have restarted
            self._hello = hello
            self.stamps.restart()

    def next(self) -> State:
        """Wait for the next frame, and return the newest one.

        Raises LinkFault if the device has been silent for too long or has rebooted; raises Stopped on a request to stop
        at once, or on a request to fade out once the device has been silent for as long as its lease.
        """
        session, timeouts = self._session, self._timeouts
        start_ns = time.monotonic_ns()
        counters = session.counters
        skipped, not_advancing, bytes_dropped = counters.skipped, counters.not_advancing, counters.bytes_dropped
        state: State | None = None
        due_ns = self._last_received_ns + self._period_ns
        rehearsal_ns = due_ns - self._lead_ns if timeouts.has_rehearsals and start_ns < due_ns - self._lead_ns else 0
        while state is None:
            now_ns = time.monotonic_ns()
            if rehearsal_ns and now_ns >= rehearsal_ns:
                for _ in range(self._n_rehearsals):
                    if time.monotonic_ns() < due_ns - self._lead_ns // 2:  # otherwise the previous one overran
                        self._rehearsal.run()
                rehearsal_ns, now_ns = 0, time.monotonic_ns()
                self.busy_until_ns = now_ns
            deadline_ns = now_ns + timeouts.poll_ns
            state = session.wait_state(min(deadline_ns, rehearsal_ns) if rehearsal_ns else deadline_ns)
            if state is not None or (rehearsal_ns and time.monotonic_ns() >= rehearsal_ns):
                continue
            silence_ns, stop = time.monotonic_ns() - start_ns, self._stop()
            if stop >= IMMEDIATE_STOP or (stop == GRACEFUL_STOP and silence_ns >= timeouts.fade_silence_ns):
                raise Stopped
            if session.has_rebooted:
                break
            if silence_ns > timeouts.silence_ns:
                name = FaultName.LINK_SILENT
                if counters.not_advancing > not_advancing:
                    name = FaultName.LINK_FROZEN
                elif counters.bytes_dropped > bytes_dropped:
                    name = FaultName.LINK_GARBLED
                raise LinkFault(name, f"no state frame for {timeouts.silence_ns / 1e9:g} s")
            if timeouts.requests_hello and time.monotonic_ns() >= due_ns:
                session.request_hello()
        if session.has_rebooted or state is None:  # the hello takes precedence over any frames received with it
            raise LinkFault(FaultName.DEVICE_REBOOTED, "")
        self._n_overtaken = counters.skipped - skipped
        received_ns, last_received_ns = session.received_ns, self._last_received_ns
        self.is_punctual = (
            last_received_ns > 0 and received_ns - last_received_ns - self._period_ns < _PUNCTUAL_TOLERANCE_NS
        )
        self._last_received_ns = received_ns
        return state

    def on_tick_end(self) -> None:
        """Record that the loop's work for the last frame has ended."""
        self.busy_until_ns = time.monotonic_ns()
        # After the tick, because reading the CPU clock is a system call.
        self._previous_cpu_ns, self._cpu_ns = self._cpu_ns, time.thread_time_ns()

    def record_times(self, step: Step, state: State, previous: Step | None) -> None:
        """Record in ``step`` the times of the frame that ``next`` returned last, and the frames missed since
        ``previous``."""
        self.stamps.stamp(step, state, self._last_received_ns)
        if previous is None:
            return
        n_missed = frames_between(state.frame, previous.frame) - 1
        if n_missed > 0:
            expected_ns = previous.t_receive_ns + self._period_ns
            step.missed = min(n_missed, _MAX_MISSED)
            busy_cpu_ns = time.thread_time_ns() - self._previous_cpu_ns
            step.miss = attribute_miss(
                n_missed, expected_ns, self.busy_until_ns, busy_cpu_ns, self._period_ns, self._n_overtaken
            )
            self._n_missed += n_missed
            self._board[Word.MISSED] = self._n_missed


_MIN_FRAME_WAIT_S: Final = 1.0
_MIN_FRAME_WAIT_PERIODS: Final = 10


def latched_frame(session: DeviceSession, request_frame: Callable[[], None], period_ns: int) -> State | None:
    """Return the next frame of a device that has refused a request if that frame reports a latched fault; None if it
    reports none, or if no frame arrives.

    ``request_frame`` makes the device send a frame if it sends none by itself; ``period_ns``: control period by the
    wall clock.
    """
    previous = session.last_frame  # a frame already waiting may have been sampled before the fault was latched
    with contextlib.suppress(RequestRefused):  # raised in lockstep by a device that cannot reset
        request_frame()
    deadline_ns = time.monotonic_ns() + max(round(_MIN_FRAME_WAIT_S * 1e9), _MIN_FRAME_WAIT_PERIODS * period_ns)
    while (state := session.wait_state(deadline_ns)) is not None:
        if is_faulted(state):
            return state
        if previous is None or is_before(previous, state.frame):
            return None
    return None
