"""Recorded signals in SI units, and the short windows to which a model is fitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.hw.messages import Status
from onrig.hw.rig import Rig
from onrig.runtime.record import Step
from onrig.sim.plants.integrate import Array

HISTORY: Final = 6
"""Number of periods of earlier commands kept with each window, which limits the delay."""


class Stretch(NamedTuple):
    """Consecutive frames: n samples, one period apart, and the output in the n - 1 periods between them."""

    period_s: float
    readings: Array
    """(n, s): sensor readings; angles are unwrapped."""
    u_start: Array
    """(n - 1, m): the command in force at the start of each period."""
    u_end: Array
    """(n - 1, m): the command in force at the end of each period."""
    tau_s: Array
    """(n - 1,): time from the sample to the switch between the two commands."""


class Windows(NamedTuple):
    """W disjoint windows of L periods each."""

    period_s: float
    readings: Array
    """(W, L + 1, s)."""
    u_start: Array
    """(W, HISTORY + L, m)."""
    u_end: Array
    """(W, HISTORY + L, m)."""
    tau_s: Array
    """(W, HISTORY + L)."""

    @property
    def size(self) -> int:
        return len(self.readings)

    @property
    def periods(self) -> int:
        return int(self.readings.shape[1]) - 1

    def select(self, index: NDArray[np.bool_] | NDArray[np.intp]) -> Windows:
        return Windows(self.period_s, *(np.asarray(values[index]) for values in self[1:]))


def stretches(steps: Iterable[Step], rig: Rig, period_us: int) -> Iterator[Stretch]:
    """Yield the stretches of a run that contain no lost frame, reset, pause or fault."""
    run: list[Step] = []
    for step in steps:
        follows = bool(run) and not step.status & Status.FIRST and _follows(run[-1], step, period_us)
        if run and not follows:
            yield from _stretch(run, rig, period_us)
            run = []
        if step.status & Status.FAULT or not step.status & Status.ARMED:
            yield from _stretch(run, rig, period_us)
            run = []
        else:
            run.append(step)
    yield from _stretch(run, rig, period_us)


def _follows(previous: Step, step: Step, period_us: int) -> bool:
    return step.frame == previous.frame + 1 and step.t_device_us == previous.t_device_us + period_us


def _stretch(steps: Sequence[Step], rig: Rig, period_us: int) -> Iterator[Stretch]:
    if len(steps) < 2:
        return
    readings = np.array([s.sensors for s in steps], np.float64) * [s.resolution for s in rig.sensors]
    for i, sensor in enumerate(rig.sensors):
        if sensor.wrap:
            readings[:, i] = np.unwrap(readings[:, i])
    resolutions = np.array([a.resolution for a in rig.actuators])
    predecessors = steps[:-1]
    yield Stretch(
        period_us * 1e-6,
        readings,
        np.array([s.u_start for s in predecessors], np.float64) * resolutions,
        np.array([s.u_end for s in predecessors], np.float64) * resolutions,
        np.array([s.tau_us for s in predecessors], np.float64) * 1e-6,
    )


def windows_of(recording: Sequence[Stretch], periods: int) -> Windows:
    """Return windows of the given length.  Raises ValueError if no stretch is long enough."""
    window_parts: list[tuple[Array, Array, Array, Array]] = []
    for s in recording:
        for first in range(HISTORY, len(s.readings) - periods, periods + 1):
            period_slice = slice(first - HISTORY, first + periods)
            window_parts.append(
                (
                    s.readings[first : first + periods + 1],
                    s.u_start[period_slice],
                    s.u_end[period_slice],
                    s.tau_s[period_slice],
                )
            )
    if not window_parts:
        raise ValueError(f"no stretch of {HISTORY + periods + 1} frames in a row was recorded")
    return Windows(recording[0].period_s, *(np.array(values) for values in zip(*window_parts, strict=True)))
