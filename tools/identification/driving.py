"""Driver of the identification experiment, whose excitations pass through the same tick and shield as in a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from onrig.hw.messages import State
from onrig.hw.session import DeviceSession
from onrig.hw.transport import LinkError
from onrig.runtime.control.episode import begin_episode
from onrig.runtime.control.frames import first_frame
from onrig.runtime.control.tick import Tick
from onrig.runtime.record import Kind, Step
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_state.faults import is_unfit
from onrig.sim.plants.excitation import Excitation

N_GENTLE_EXCITATIONS: Final = 2
"""Number of gentle excitations before sensors and signs are checked."""
_SILENCE_PERIODS = 50
_MIN_SILENCE_NS = 1_000_000_000


class DeviceFault(Exception):
    """Raised if the device latched a fault or disarmed itself during the experiment, or sent contradictory frames."""


def ranges_of(config: RunConfig, effort: float) -> dict[str, tuple[float, float]]:
    """Return each actuator's range, scaled around its safe output by ``effort``."""
    allowed_ranges = config.limits.context(config.rig, config.period_us * 1e-6).ranges
    safe_values = {a.name: a.safe for a in config.rig.actuators}
    return {
        name: (
            safe_values[name] + effort * (low - safe_values[name]),
            safe_values[name] + effort * (high - safe_values[name]),
        )
        for name, (low, high) in allowed_ranges.items()
    }


def drive(
    config: RunConfig,
    session: DeviceSession,
    excitations: Sequence[Excitation],
    seed: int | None = None,
    progress: Callable[[float], None] = lambda elapsed_s: None,
) -> list[Step]:
    """Arm a device, excite it, and return the completed steps; the device is always disarmed at the end.

    ``seed`` is the seed of RESET, or None if the device does not support it. Raises LinkError if the device stops
    sending, and DeviceFault if it latches a fault, disarms itself or sends contradictory frames.
    """
    tick = Tick(config)
    tick.begin(1, Kind.EVAL, [])  # without exploration
    session.arm()
    try:
        if seed is not None:
            session.reset(seed)
        return _excite(config, session, tick, excitations, progress)
    finally:
        session.disarm()


def _excite(
    config: RunConfig,
    session: DeviceSession,
    tick: Tick,
    excitations: Sequence[Excitation],
    progress: Callable[[float], None],
) -> list[Step]:
    ends_s = list(accumulate(e.duration_s for e in excitations))
    start_us: int | None = None
    index = 0

    def act(step: Step) -> None:
        elapsed_s = _elapsed_s(step.t_device_us)
        start_s = ends_s[index] - excitations[index].duration_s
        step.policy = excitations[index].command(elapsed_s - start_s, step.observation)

    def _elapsed_s(t_us: int) -> float:
        return (t_us - (t_us if start_us is None else start_us)) * 1e-6

    def is_over(state: State, terminated: bool) -> bool:
        return is_unfit(state) or tick.contradiction is not None or index >= len(ends_s)

    respond = begin_episode(tick, act, has_ended=is_over)
    steps: list[Step] = []
    while True:
        if start_us is None:
            state = first_frame(lambda: _next_state(config, session))
            start_us = state.t_us
        else:
            state = _next_state(config, session)
        while index < len(ends_s) and _elapsed_s(state.t_us) >= ends_s[index]:
            index += 1
        response = respond(state)
        session.send_command(state.frame, response.command)
        if response.completed is not None:
            steps.append(response.completed)
        if response.is_over:
            break
        progress(_elapsed_s(state.t_us))
    if is_unfit(state):
        event = f"latched fault {state.fault}" if state.fault else "disarmed itself"
        raise DeviceFault(f"the device {event} after {_elapsed_s(state.t_us):.1f} s")
    if tick.contradiction is not None:
        contradiction = tick.contradiction
        raise DeviceFault(
            f"{contradiction.fault.replace('_', ' ')}: {contradiction.detail} (after {_elapsed_s(state.t_us):.1f} s)"
        )
    return steps


def _next_state(config: RunConfig, session: DeviceSession) -> State:
    silence_ns = max(_MIN_SILENCE_NS, _SILENCE_PERIODS * config.wall_period_ns)
    state = session.wait_state(time.monotonic_ns() + silence_ns)
    if state is None:
        raise LinkError(f"no state frame for {silence_ns * 1e-9:.1f} s")
    return state
