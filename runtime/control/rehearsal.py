"""Rehearsing the tick shortly before a frame is due, so that it finds code and data in the caches.

At 50 Hz a loop sleeps long enough for everything it needs to be evicted: the first run after such a sleep takes several
times as long.  The rehearsal runs the same stages on a tick of its own, with a made-up frame; nothing of it leaves
this object.
"""

from __future__ import annotations

from hw.framing import encode_frame
from hw.messages import CommandLayout, State, StateLayout, Status
from runtime.config.schema import RunConfig
from runtime.control.policy_seat import PolicySeat
from runtime.control.tick import Tick
from runtime.record import Kind, RecordLayout


class Rehearsal:
    """One full tick without consequences per ``run``."""

    def __init__(self, config: RunConfig, seat: PolicySeat) -> None:
        rig = config.rig
        n, m = len(rig.sensors), len(rig.actuators)
        self._tick = Tick(config)
        self._tick.begin(0, Kind.TRAIN, [(0.0,) * m])
        self._seat = seat
        self._commands = CommandLayout(m)
        self._layout = RecordLayout(n, len(rig.signals), m)
        self._scratch = memoryview(bytearray(self._layout.size))
        self._states = StateLayout(n, m)
        safe = self._tick.safe_counts
        self._state = State(1, 1, Status.ARMED, 0, 1, 1, 0, (0,) * n, safe, safe)
        self._body = self._states.encode(self._state)

    def run(self) -> None:
        """Go through the stages of a tick."""
        tick = self._tick
        state = self._states.decode(self._body)
        step = tick.observe(state)
        tick.complete(step, state, step.observation)
        tick.ask(step, self._seat.active, 0)
        tick.explore(step)
        tick.shield(step)
        encode_frame(self._commands.encode(state.frame, step.command))
        self._layout.pack_into(self._scratch, 0, (0, *step.fields()))
