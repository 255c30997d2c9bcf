"""The predicted envelope of a magnetic manipulator: what the coils can still give, as energy (ARCHITECTURE §5).

Under held squared currents u_j >= 0 the force has a potential, -(c1/m) sum_j u_j p_j(x) with p_j(x) = 1 / (4 (d_j^2 +
c2)^2), friction only takes energy, and a wall leaves almost none.  So v^2 / 2 never exceeds its present value by more
than the potential's fall to its deepest point, however long the command is held: neither lease nor lost frames matter,
and the fallback (coils off) can only lower |v|.  A command passes where that keeps |v| within its envelope for the
strongest coils of the box (the gain is proportional to c1/m, and friction counts as none).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from math import inf, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.runtime.config.limits import Hold, Limits, MagmanPlants
from onrig.runtime.safety.prediction import FARTHEST, error_bound

Values = NDArray[np.float64]

MAX_MAGNETS: Final = 4
MAX_CELLS: Final = 200_000
"""Of a table: a track of fifty metres."""
_HERE_M: Final = 2.5e-4
"""Width of the cells that a measured position falls into."""
_DEEP_SHARE: Final = 6
"""Cells per magnet spacing in which the deepest point is looked for."""

Row = tuple[float, float, float, float]


def potential(distance: Values, c2: float) -> Values:
    """p(d) = 1 / (4 (d^2 + c2)^2)."""
    return np.asarray(0.25 / (distance * distance + c2) ** 2)


class MagmanPrediction:
    """Energy now and to come, from tables of the magnets' potentials."""

    def __init__(self, plants: MagmanPlants, limits: Limits, rig: Rig) -> None:
        names = [o.name for o in rig.observations]
        self._position, self._velocity = names.index(plants.position), names.index(plants.velocity)
        observed = rig.observations[self._velocity]
        self._per_unit = 2.0 / (observed.high - observed.low)
        envelope = limits.envelope[plants.velocity]
        self._fastest = min(-envelope.low, envelope.high)
        actuators = [a.name for a in rig.actuators]
        self._coils = tuple([actuators.index(name) for name in plants.magnets])
        self._none = (0.0,) * (MAX_MAGNETS - len(self._coils))
        late_s = plants.late_us * 1e-6
        pull = plants.pull_m6_per_a2_s2 * (1.0 + plants.spread)
        at = np.array(list(plants.magnets.values()))
        strongest = [limits.range.get(a.name, (a.low, a.high))[1] for a in rig.actuators]
        most = np.array([strongest[i] for i in self._coils])
        self._speed_error = error_bound(plants, rig, plants.velocity) + late_s * _hardest(at, most, pull, plants.c2_m2)
        blur = error_bound(plants, rig, plants.position) + late_s * self._fastest
        track = rig.observations[self._position]
        self._start, self._here = track.low, _least_potentials(at, plants.c2_m2, pull, track.low, track.high, blur)
        self._deep = _deepest_potentials(at, plants.c2_m2, pull)

    def judge(self, observation: Sequence[float], action: Sequence[float]) -> tuple[float, float]:
        """See :class:`onrig.runtime.safety.prediction.Prediction`."""
        position, velocity = observation[self._position], observation[self._velocity]
        if not (-FARTHEST < position < FARTHEST and -FARTHEST < velocity < FARTHEST):
            return inf, 0.0
        a, b, c, d = (*[action[i] for i in self._coils], *self._none)
        here = self._here
        at = int((position - self._start) // _HERE_M)
        now = 0.0  # beyond the track: as if the coils were infinitely far
        if 0 <= at < len(here):
            p, q, r, s = here[at]
            now = a * p + b * q + c * r + d * s
        gain = max([a * p + b * q + c * r + d * s for p, q, r, s in self._deep]) - now
        speed = abs(velocity) + self._speed_error
        reached = sqrt(speed * speed + 2.0 * max(gain, 0.0))
        if reached > self._fastest:
            return (reached - self._fastest) * self._per_unit, 0.0
        return 0.0, 1.0 - reached / self._fastest


def table_problem(plants: MagmanPlants, rig: Rig) -> str | None:
    """Say why there can be no tables of the potentials; None where there can."""
    track = next(o for o in rig.observations if o.name == plants.position)
    at = sorted(plants.magnets.values())
    if (track.high - track.low) / _HERE_M > MAX_CELLS:
        return f"a track of {track.high - track.low:g} m is too long, {MAX_CELLS * _HERE_M:g} m at most"
    if (at[-1] - at[0]) / _spacing(at) * _DEEP_SHARE > MAX_CELLS:
        return f"magnets {_spacing(at):g} m apart within {at[-1] - at[0]:g} m are too close to each other"
    return None


def hold_problem(hold: Hold, plants: MagmanPlants, limits: Limits, rig: Rig) -> str | None:
    """Say why holding at a magnet would not keep the envelope; None where it does.

    A coil is switched on below ``brake_below`` only, and may then stay on as long as it likes.
    """
    envelope = limits.envelope[plants.velocity]
    fastest = min(-envelope.low, envelope.high)
    strongest = {a.name: limits.range.get(a.name, (a.low, a.high))[1] for a in rig.actuators}
    pull = plants.pull_m6_per_a2_s2 * (1.0 + plants.spread)
    most = np.array([strongest[name] for name in plants.magnets])
    at = np.array(list(plants.magnets.values()))
    error = error_bound(plants, rig, plants.velocity) + plants.late_us * 1e-6 * _hardest(at, most, pull, plants.c2_m2)
    depth = pull * float(most.max()) * 0.25 / plants.c2_m2**2
    reached = math.hypot(hold.brake_below + error, math.sqrt(2.0 * depth))
    if reached <= fastest:
        return None
    return (
        f"a coil switched on at {hold.brake_below:g} m/s may bring the body to {reached:.3g} m/s, the envelope allows "
        f"{fastest:g}"
    )


def _hardest(magnets: Values, most: Values, pull: float, c2: float) -> float:
    """Largest acceleration (m/s^2) that any command gives anywhere."""
    x = np.linspace(magnets.min() - 0.05, magnets.max() + 0.05, 4001)[:, None] - magnets
    force = pull * most * x / (x * x + c2) ** 3
    sums = np.maximum(np.maximum(force, 0.0).sum(axis=1), np.maximum(-force, 0.0).sum(axis=1))
    return float(sums.max()) * 1.01  # the grid's error is 1e-4 of it


def _least_potentials(magnets: Values, c2: float, pull: float, low: float, high: float, blur: float) -> list[Row]:
    """For each cell of the track and each magnet, a lower bound of its potential for a position measured there."""
    edges = low + _HERE_M * np.arange(math.ceil((high - low) / _HERE_M - 1e-9) + 1)
    farthest = np.maximum(np.abs(edges[:-1, None] - blur - magnets), np.abs(edges[1:, None] + blur - magnets))
    return _rows(pull * potential(farthest, c2))


def _deepest_potentials(magnets: Values, c2: float, pull: float) -> list[Row]:
    """For each stretch where the deepest point may lie (between the magnets and a little beyond), upper bounds."""
    width = _spacing(np.sort(magnets).tolist()) / _DEEP_SHARE
    # Stretches centred on a magnet, so that its own depth is exact; from the outermost on inwards.
    n = math.ceil((magnets.max() - magnets.min()) / width - 1e-9) + 1
    centres = magnets.min() + width * np.arange(n)
    closest = np.maximum(np.abs(centres[:, None] - magnets) - 0.5 * width, 0.0)
    return _rows(pull * potential(closest, c2))


def _spacing(at: Sequence[float]) -> float:
    """Smallest distance of neighbours, in ascending order; that of a lone magnet is a matter of taste."""
    return min((b - a for a, b in pairwise(at)), default=2e-3)


def _rows(values: Values) -> list[Row]:
    padded = np.zeros((len(values), MAX_MAGNETS))
    padded[:, : values.shape[1]] = values
    return [(p, q, r, s) for p, q, r, s in padded.tolist()]
