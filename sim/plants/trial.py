"""Trial of a plant, which calls every function of its code that a run uses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from onrig.hw.rig import Rig
from onrig.runtime.maths import BATCHED, SCALAR, Array
from onrig.runtime.registry import describe_exception
from onrig.sim.plants.integrate import step
from onrig.sim.plants.plant import Plant

_MAX_POINTS: Final = 256
_ROUNDING: Final = 1e-6
"""Maximum relative difference between batched and scalar results."""

Point = tuple[tuple[float, ...], tuple[float, ...]]
"""State and action, in SI units."""


class PlantFailure(Exception):
    """Exception in a plant's code; the message names the plant, the exception, and its file and line."""

    def __init__(self, plant: Plant, error: BaseException) -> None:
        super().__init__(f"{name_of(plant)} raises {describe_exception(error)}")


def name_of(plant: Plant) -> str:
    """Return the name of a plant in messages, by its kind."""
    return f"the plant '{plant.__struct_config__.tag}'"


def corners(plant: Plant, rig: Rig, start: Mapping[str, float]) -> list[Point]:
    """Return the start state under safe, minimum and maximum action, then corners of the observations' and actions'
    ranges.

    States without an observation remain at the start.
    """
    state = tuple(float(start[name]) for name in plant.state_names)
    ranges = {o.sensor or o.name: (o.low, o.high) for o in rig.observations if o.derivative_of is None}
    states = itertools.product(*[ranges.get(name, (x,)) for name, x in zip(plant.state_names, state, strict=True)])
    actions = [*itertools.product(*[(a.low, a.high) for a in rig.actuators])]
    ends = [actions[0], actions[-1]]
    points = [(state, tuple(a.safe for a in rig.actuators)), *((state, action) for action in ends)]
    return [*points, *itertools.islice(itertools.product(states, ends), _MAX_POINTS)]


def trial_problems(plant: Plant, rig: Rig, start: Mapping[str, float], period_s: float, substeps: int) -> Iterator[str]:
    """Yield problems with the results of a plant's code.  Raises whatever that code raises.

    Rig and start must fit the plant.
    """
    points = corners(plant, rig, start)
    with np.errstate(all="ignore"):
        derivatives = [_derivative_at(plant, *point) for point in points]
        lengths = {len(derivative) for derivative in derivatives if derivative is not None} - {len(plant.state_names)}
        if lengths:
            yield f"{name_of(plant)} returns derivatives of {min(lengths)} values, for {len(plant.state_names)} states"
            return
        first = derivatives[0]
        if first is not None and not all(map(math.isfinite, first)):
            yield f"{name_of(plant)} returns a derivative of {first} at the start"
        yield from _batched_problems(plant, points, derivatives)
        state, action = points[0]
        step(plant, state, action, period_s, substeps)
        step(plant.released(), state, action, period_s, substeps)
    plant.parameters()
    plant.sketch(rig)


def _derivative_at(plant: Plant, state: tuple[float, ...], action: tuple[float, ...]) -> tuple[float, ...] | None:
    """Return the derivative at a point, for floats; None if it overflows, as at a state that is never reached."""
    try:
        plant.constrain(SCALAR, state)
        return tuple(map(float, plant.derivative(SCALAR, state, action)))
    except OverflowError:
        return None


def _batched_problems(
    plant: Plant, points: Sequence[Point], expected_derivatives: Sequence[tuple[float, ...] | None]
) -> Iterator[str]:
    states, actions = (_columns([point[n] for point in points]) for n in (0, 1))
    plant.moves_freely(plant.constrain(BATCHED, states))
    batched_derivatives = [np.broadcast_to(x, len(points)) for x in plant.derivative(BATCHED, states, actions)]
    for n, scalar in enumerate(expected_derivatives):
        batched_point = tuple(float(x[n]) for x in batched_derivatives)
        if scalar is not None and not np.allclose(batched_point, scalar, rtol=_ROUNDING, atol=0.0, equal_nan=True):
            yield (
                f"{name_of(plant)} returns derivative {scalar} for floats but {batched_point} for arrays at the state "
                f"{points[n][0]} under {points[n][1]}"
            )
            return


def _columns(rows: Sequence[tuple[float, ...]]) -> tuple[Array, ...]:
    return tuple(np.array(column, np.float64) for column in zip(*rows, strict=True))
