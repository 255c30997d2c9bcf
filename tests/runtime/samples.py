"""Shipped runs, synthetic frames and synthetic records for the tests of this package."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onrig.hw.messages import State, Status
from onrig.runtime.record import Flag, Kind, RecordLayout, Step
from onrig.runtime.run_loading import load_run

PENDULUM = load_run("pendulum")
MAGMAN = load_run("magman")
LAYOUT = RecordLayout(2, 2, 1)
"""Record layout of the pendulum."""

Records = npt.NDArray[np.void]


def state(
    frame: int,
    sensors: tuple[int, ...] = (0, 0),
    *,
    u_start: tuple[int, ...] = (0,),
    u_end: tuple[int, ...] = (0,),
    tau_us: int = 0,
    answers: int | None = None,
    status: int = Status.ARMED,
    fault: int = 0,
) -> State:
    """A state frame of the pendulum that reports its predecessor as answered."""
    answered_frame = frame - 1 if answers is None else answers
    return State(frame, frame * PENDULUM.period_us, status, fault, 5, answered_frame, tau_us, sensors, u_start, u_end)


def step(tick: int, state: State) -> Step:
    """A step of the pendulum's first episode without any decision."""
    no_action, counts = (0.0,), state.u_end
    return Step(
        tick=tick,
        episode=1,
        kind=Kind.TRAIN,
        frame=state.frame,
        t_device_us=state.t_us,
        status=state.status,
        fault=state.fault,
        answers=state.answers,
        sensors=state.sensors,
        observation=(0.0, 0.0),
        policy=no_action,
        amplitude=no_action,
        explored=no_action,
        commanded=no_action,
        command=counts,
        u_start=counts,
        u_end=counts,
        applied=no_action,
    )


def records(n: int, *, tick: int = 0, frame: int = 1, episode: int = 1, kind: Kind = Kind.TRAIN) -> Records:
    """``n`` consecutive records within one episode, each with its own observation, action and reward."""
    rows = np.zeros(n, LAYOUT.dtype)
    rows["tick"] = np.arange(tick, tick + n)
    rows["frame"] = np.arange(frame, frame + n)
    rows["episode"], rows["kind"] = episode, kind
    rows["observation"] = np.stack([np.linspace(-3, 3, n), rows["tick"] % 30], axis=1)
    rows["applied"] = rows["explored"] = np.linspace(-3, 3, n)[:, None]
    rows["reward"] = -1.0 - rows["tick"]
    rows["policy_id"] = 7
    rows["exploration"] = 0.25
    return rows


def episode(steps: int, *, end: Flag = Flag.TRUNCATED, **options: int) -> Records:
    """The ``steps + 1`` records of a complete episode."""
    kind = Kind(options.pop("kind", Kind.TRAIN))
    rows = records(steps + 1, kind=kind, **options)
    rows["flags"][0] |= Flag.FIRST
    rows["flags"][-1] |= Flag.NO_ACTION | end
    return rows
