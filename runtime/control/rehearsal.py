"""Rehearsal of the tick shortly before a frame is due, so that code and data are in the caches.

At 50 Hz the loop sleeps long enough for its code and data to be evicted: the first tick after such a sleep takes ten
times as long as one without the sleep.  The rehearsal runs the same code on separate objects against a simulated
device, so it has no side effects.
"""

from __future__ import annotations

import time
from typing import Final

from onrig.hw.clock import ClockSync
from onrig.hw.framing import encode_frame
from onrig.hw.messages import State, StateLayout, Status
from onrig.hw.rig import Rig
from onrig.hw.session import DeviceSession
from onrig.runtime.control.episode import begin_episode, never_ends
from onrig.runtime.control.policy_switch import PolicySwitch
from onrig.runtime.control.tick import Tick
from onrig.runtime.explore.explorer import Explorer
from onrig.runtime.explore.noise import signal_width
from onrig.runtime.record import Kind, Step
from onrig.runtime.run_config import RunConfig, record_layout

_RESTART_AFTER_RUNS: Final = 256
"""Number of rehearsals after which the simulated episode and its clock restart, which bounds their memory use."""


class _FakeDevice:
    """Transport that always has the next frame ready and accepts every command."""

    name = "rehearsal"

    def __init__(self, rig: Rig, safe: tuple[int, ...]) -> None:
        self._layout = StateLayout(len(rig.sensors), len(rig.actuators))
        self._state = State(1, 1, Status.ARMED, 0, 1, 1, 0, (0,) * len(rig.sensors), safe, safe)

    def fileno(self) -> int:
        return -1

    def read(self, timeout_ns: int) -> bytes:
        state = self._state
        self._state = state._replace(frame=state.frame % 0xFFFFFF + 1, t_us=state.t_us + 1)
        return encode_frame(self._layout.encode(state))

    def write(self, data: bytes) -> int:
        return len(data)

    def close(self) -> None:
        pass


class Rehearsal:
    """Runs complete ticks without side effects."""

    def __init__(self, config: RunConfig, switch: PolicySwitch) -> None:
        rig = config.rig
        m = len(rig.actuators)
        self._explorer = Explorer(config)
        self._tick = Tick(config, self._explorer)
        self._switch = switch
        # Not 0, because evaluating a stochastic policy without noise takes a shorter path.
        self._noise = [(0.5,) * signal_width(config.exploration, m)] * (_RESTART_AFTER_RUNS + 1)
        self._session = DeviceSession(_FakeDevice(rig, self._tick.safe_counts), rig, time)
        self._layout = record_layout(config)
        self._scratch = memoryview(bytearray(self._layout.size))
        self._sync = ClockSync()
        self._n_runs = 0

    def run(self) -> None:
        """Run one tick."""
        tick, session = self._tick, self._session
        if self._n_runs % _RESTART_AFTER_RUNS == 0:
            self._explorer.begin_episode(Kind.TRAIN, 1)
            tick.begin(0, Kind.TRAIN, self._noise)
            self._respond = begin_episode(tick, self._act, has_ended=never_ends, clock=time.monotonic_ns)
            self._sync.reset()
        self._n_runs += 1
        state = session.wait_state(0)
        if state is None:
            return
        response = self._respond(state)
        step = response.step
        self._sync.add(state.t_us, session.received_ns)
        step.t_mono_ns = self._sync.host_time_ns(state.t_us)
        session.send_command(state.frame, response.command)
        self._layout.pack_into(self._scratch, 0, 0, self._layout.values(response.completed or step))

    def _act(self, step: Step) -> None:
        self._tick.evaluate_policy(step, self._switch.active, 0)
