"""The device's frames as the loop takes them: the wait for the next one, its times, and what was missed before it.

The overrun policy needs no code: the device is the metronome, the newest frame is answered, older ones count as missed.
Whole periods are skipped onto the device's grid, and nothing is made up for in a burst.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from onrig.hw.clock import ClockSync
from onrig.hw.messages import Hello, State
from onrig.hw.session import DeviceSession
from onrig.runtime.control.rehearsal import Rehearsal
from onrig.runtime.record import Miss, Step
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.faults import FaultName, LinkFault
from onrig.runtime.shm.board import Board, Word


def attribute_miss(
    missed: int, expected_ns: int, busy_until_ns: int, busy_cpu_ns: int, period_ns: int, overtaken: int
) -> Miss:
    """Say why ``missed`` frames before the present one were not answered.

    expected_ns: when the first missed frame should have arrived; busy_until_ns: when our own work before it ended;
    busy_cpu_ns: processor time we had since the frame before; overtaken: how many of the missed frames did arrive, but
    lay unread until a newer one came.  To overtake a frame by itself, work must have the processor for more than a
    period: it begins with the frame before, or (the rehearsal) just before the frame that it overtakes, and lasts until
    the next one.  Work that had less of it was held up by the machine.
    """
    if missed <= 0:
        return Miss.NONE
    if overtaken == 0:
        return Miss.LINK
    return Miss.PROGRAM if busy_until_ns > expected_ns and busy_cpu_ns > period_ns else Miss.HOST


_OF_PERIOD: Final = 2
_OF_USUAL: Final = 4
_REMEMBERS: Final = 64
"""Ticks."""


class Slack:
    """No deferred work after a slow tick: one of more than half a period, or of four times what ticks usually take.

    A machine that stretches a tick is about to stretch what follows it: slow ticks come in bursts, and a policy that
    was built after one of ten times its usual length cost a frame at 200 Hz.
    """

    def __init__(self, period_ns: int) -> None:
        self._longest_ns = period_ns / _OF_PERIOD
        self._usual_ns = 0.0

    def follows(self, work_ns: int) -> bool:
        """Note how long a tick's work took; whether there is time behind it."""
        usual_ns = self._usual_ns or float(work_ns)
        # A stall of a second is not to make the next stalls look usual.
        self._usual_ns = usual_ns + (min(work_ns, _OF_USUAL * usual_ns) - usual_ns) / _REMEMBERS
        return work_ns < min(self._longest_ns, _OF_USUAL * usual_ns)


_SILENCE_NS: Final = 1_000_000_000
"""A line without a frame for this long (and ten periods) is lost."""
_LOCKSTEP_SILENCE_NS: Final = 10_000_000_000
_POLL_NS: Final = 50_000_000
_LONG_PERIOD_NS: Final = 5_000_000
_REHEARSALS_LONG: Final = (900_000, 2)
_REHEARSALS_SHORT: Final = (550_000, 1)
"""(how long before a frame is due to begin, how many rehearsals) for periods above and below _LONG_PERIOD_NS.

Few on purpose: a loop that spins until the frame comes is a little faster still, but on two cores it keeps the kernel
from delivering that very frame (measured at 500 Hz beside a busy learner: nine missed ticks in 2000 instead of one).
They end some 0.3 ms before the frame: a twin on the loop's CPU, where there is but one, needs it then.
"""
_STOOD_STILL: Final = 64
"""Frames in a row that are all late by about a period or more: they are not late, the device's clock stood still."""
_ABOUT_A_PERIOD: Final = 0.9
_PUNCTUAL_NS: Final = 200_000
_MOST_MISSED: Final = 65535
"""That a record can hold."""
_SHORTEST_REHEARSED_NS: Final = 1_500_000
"""Periods shorter than this keep the caches warm by themselves, and work just before a frame is a risk.

At 1 kHz a rehearsal changed neither the tick nor its lateness; but where the machine stretched it to 1.5 ms it cost a
frame (20 in 100 s; 1 in as long without, in turns).  At 500 Hz it shortens a tick by a sixth.
"""


class Stopped(Exception):
    """The run was asked to end."""


class FrameSource:
    """Waits for frames (with a rehearsal shortly before each is due) and keeps the accounts of punctuality."""

    def __init__(
        self,
        config: RunConfig,
        session: DeviceSession,
        hello: Hello,
        rehearsal: Rehearsal,
        board: Board,
        stop_requested: Callable[[], bool],
    ) -> None:
        self._session, self._rehearsal, self._board = session, rehearsal, board
        self._stop_requested = stop_requested
        self._lockstep = hello.time_scale == 0.0
        self._period_ns = config.wall_period_ns
        self._rehearse = not self._lockstep and self._period_ns >= _SHORTEST_REHEARSED_NS
        long = self._period_ns >= _LONG_PERIOD_NS
        self._lead_ns, self._rehearsals = _REHEARSALS_LONG if long else _REHEARSALS_SHORT
        self._sync = ClockSync(hello.time_scale or 1.0)
        self._late_in_a_row = 0
        self._missed = 0
        self._last_received_ns = 0
        self._overtaken = 0
        self._cpu_ns = self._busy_cpu_ns = 0
        self.punctual = False
        """Whether the last frame came when it was expected, so that the next one is a whole period away."""
        self.resumed_at_us = 0
        """Device time that had passed when the run was resumed, which the device knows nothing of (lockstep)."""
        self.busy_until_ns = 0
        """When our own work after the last frame ended: the tick, what was prepared in its slack, the rehearsal."""

    def begin(self) -> None:
        """Start an episode: the next frame follows no other."""
        self._last_received_ns = 0

    def next(self) -> State:
        """Wait for the next frame and return the newest.

        Raises LinkFault after a long silence or when the device was started anew, Stopped when asked to stop.
        """
        session = self._session
        start = time.monotonic_ns()
        silence = _LOCKSTEP_SILENCE_NS if self._lockstep else max(_SILENCE_NS, 10 * self._period_ns)
        counters = session.counters
        skipped, frozen, broken = session.skipped, counters.not_advancing, counters.bytes_dropped
        state: State | None = None
        due_ns = self._last_received_ns + self._period_ns
        if self._rehearse and start < due_ns - self._lead_ns:
            state = session.wait_state(due_ns - self._lead_ns)
            if state is None:
                for _ in range(self._rehearsals):
                    if time.monotonic_ns() < due_ns - self._lead_ns // 2:  # else the one before took far too long
                        self._rehearsal.run()
                self.busy_until_ns = time.monotonic_ns()
        while state is None:
            state = session.wait_state(time.monotonic_ns() + _POLL_NS)
            if state is not None:
                break
            if self._stop_requested():
                raise Stopped
            if session.rebooted:
                break
            if time.monotonic_ns() - start > silence:
                name = FaultName.LINK_SILENT
                if counters.not_advancing > frozen:
                    name = FaultName.LINK_FROZEN
                elif counters.bytes_dropped > broken:
                    name = FaultName.LINK_GARBLED
                raise LinkFault(name, f"no state frame for {silence / 1e9:g} s")
            if not self._lockstep:
                session.ask_hello()  # a device that rebooted says so, and nothing else
        if session.rebooted or state is None:  # a hello says so, whatever frames come beside it
            raise LinkFault(FaultName.DEVICE_REBOOTED, "")
        self._overtaken = session.skipped - skipped
        late_ns = session.received_ns - self._last_received_ns - self._period_ns
        self.punctual = self._last_received_ns > 0 and late_ns < _PUNCTUAL_NS
        self._last_received_ns = session.received_ns
        cpu_ns = time.thread_time_ns()
        self._busy_cpu_ns, self._cpu_ns = cpu_ns - self._cpu_ns, cpu_ns
        return state

    def account(self, step: Step, state: State, previous: Step | None) -> None:
        """Note the times of the frame that ``next`` returned last, and what was missed since ``previous``."""
        received_ns = self._last_received_ns
        if self._lockstep:
            step.t_mono_ns = step.t_receive_ns = (self.resumed_at_us + state.t_us) * 1000
        else:
            sampled = self._sampled_ns(state.t_us, received_ns)
            step.t_receive_ns, step.t_mono_ns = received_ns, sampled
            step.lateness_ns = received_ns - sampled
        if previous is None:
            return
        missed = state.frame - previous.frame - 1
        if missed > 0:
            expected_ns = previous.t_receive_ns + self._period_ns
            step.missed = min(missed, _MOST_MISSED)
            step.miss = attribute_miss(
                missed, expected_ns, self.busy_until_ns, self._busy_cpu_ns, self._period_ns, self._overtaken
            )
            self._missed += missed
            self._board[Word.MISSED] = self._missed

    def _sampled_ns(self, t_device_us: int, received_ns: int) -> int:
        """When a frame was sampled, by the host's clock.

        A device that lost time (a twin that its machine kept from running, a timer that was set anew) is late by that
        much for ever by what was known of its clock; so what was known is forgotten.
        """
        sync = self._sync
        sync.add(t_device_us, received_ns)
        sampled = sync.host_time_ns(t_device_us)
        self._late_in_a_row = (
            self._late_in_a_row + 1 if received_ns - sampled >= _ABOUT_A_PERIOD * self._period_ns else 0
        )
        if self._late_in_a_row < _STOOD_STILL:
            return sampled
        self._late_in_a_row = 0
        sync.reset()
        sync.add(t_device_us, received_ns)
        return received_ns
