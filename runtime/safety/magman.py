"""Prediction for magnetic manipulators: a bound on the kinetic energy that the coils can still add.

Under held squared currents u_j >= 0 the force has a potential, -(c1/m) sum_j u_j p_j(x) with p_j(x) = 1 / (4 (d_j^2 +
c2)^2), friction only dissipates energy, and a wall absorbs almost all of it.  Therefore v^2 / 2 never exceeds its
present value by more than the potential's drop to its deepest point, however long the command is held: neither the
lease nor lost frames matter, and the fallback (coils off) can only lower |v|.  A command is accepted if this bound
keeps |v| within its envelope for the strongest coils of the box (gain proportional to c1/m, friction neglected).
Since p_j falls as c2 grows, the smallest c2 is used at the deepest point, and the largest at the body's position.  A
dead band reduces each u_j: the bound uses the full u_j at the deepest point, and u_j less the largest dead band at the
body's position.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf, sqrt
from typing import ClassVar, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.hw.bounds import NotNegative, Positive, Quantity
from onrig.hw.rig import Rig
from onrig.runtime.config.problem import Finding
from onrig.runtime.safety.fallback import Hold, SafeOutput
from onrig.runtime.safety.plant_box import (
    MAX_MAGNETS,
    MAX_PLAUSIBLE,
    PredictionContext,
    Sketch,
    Units,
    common_findings,
    dead_band_of,
    error_bound,
    magnet_findings,
)
from onrig.runtime.safety.promise import Basis

Values = NDArray[np.float64]

MAX_CELLS: Final = 200_000
"""Maximum number of cells in a table: a track of fifty metres."""
_CELL_WIDTH_M: Final = 2.5e-4
"""Width of the cells into which measured positions are divided."""
_CELLS_PER_SPACING: Final = 6
"""Cells per magnet spacing in the search for the deepest point."""

Row = tuple[float, float, float, float]


def potential(distance: Values, c2: float) -> Values:
    """Return p(d) = 1 / (4 (d^2 + c2)^2)."""
    return np.asarray(0.25 / (distance * distance + c2) ** 2)


class MagmanBox(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="magman", tag_field="kind"):
    """Plants x'' = -(b/m) x' - (c1/m) sum_j u_j d_j / (d_j^2 + c2)^3, d_j = x - x_j; c1/m and b/m within ``spread``."""

    position: str
    """Observation of the position; its range is the track between the walls."""
    velocity: str
    """Observation whose envelope is guaranteed."""
    magnets: dict[str, Quantity]
    """Magnet position x_j (m) by actuator, at most four."""
    pull_m6_per_a2_s2: Positive
    """c1 / m."""
    friction_per_s: NotNegative
    """b / m."""
    c2_m2: Positive
    """c2: square of the width of a coil's field."""
    c2_spread: NotNegative | msgspec.UnsetType = msgspec.UNSET
    """Largest relative deviation of c2 from its nominal value; unset: none."""
    dead_band: NotNegative | msgspec.UnsetType = msgspec.UNSET
    """Largest dead band of the coils (A^2): only the part of a squared current that exceeds it is certain to pull."""
    spread: Quantity = 0.3
    """Largest relative deviation of each parameter from its nominal value."""
    late_us: int = 1000
    """Longest time from a sample to the effect of its command in ordinary operation; the lease is added to it."""
    sensor_error: dict[str, NotNegative] = {}
    """Bound on each observation's error in its unit; default: half a count of its sensor."""

    units: ClassVar[Units] = Units("m", "A^2")
    # The pull must be constant: a held command has a potential only then, and a varying pull could add energy.
    promise: ClassVar[Basis] = Basis.PROVED
    varying: ClassVar[frozenset[str]] = frozenset({"friction_per_s"})
    apart: ClassVar[Mapping[str, tuple[str, str]]] = {"c2": ("c2_m2", "c2_spread")}

    @property
    def place(self) -> str:
        """Observation of the position."""
        return self.position

    @property
    def nominal(self) -> dict[str, float]:
        """Nominal c1/m and b/m."""
        return {"pull_m6_per_a2_s2": self.pull_m6_per_a2_s2, "friction_per_s": self.friction_per_s}

    @property
    def c2_bounds(self) -> tuple[float, float]:
        """Lower and upper bound of c2."""
        spread = self.c2_spread or 0.0
        return self.c2_m2 * (1.0 - spread), self.c2_m2 * (1.0 + spread)

    def findings(self, context: PredictionContext) -> Iterator[Finding]:
        """List the problems that prevent a prediction."""
        problems = [
            *common_findings(self, context, "position"),
            *magnet_findings(context.rig, "predicted", self.magnets),
        ]
        if self.c2_spread and self.c2_spread >= 1.0:
            problems.append((("predicted", "c2_spread"), f"expected 0 to less than 1, got {self.c2_spread:g}"))
        yield from problems or self._feasibility_findings(context)

    def _feasibility_findings(self, context: PredictionContext) -> Iterator[Finding]:
        rig, fallback = context.rig, context.fallback
        if problem := _table_problem(self, rig):
            yield ("predicted", "magnets"), problem
            return
        for a in rig.actuators:
            low, _ = context.ranges[a.name]
            if a.name in self.magnets and (low < 0 or a.safe != 0):
                yield ("predicted", "magnets", a.name), "expected a squared current: range from 0 or more, safe value 0"
        if isinstance(fallback, Hold):
            if fallback.magnets != self.magnets:
                yield ("fallback", "magnets"), "expected the same magnets as in limits.predicted"
            elif problem := hold_problem(fallback, self, context):
                yield ("fallback", "brake_below"), problem
        elif not isinstance(fallback, SafeOutput):
            yield ("predicted",), "expected a fallback that switches the coils off: 'safe' or 'hold'"

    def prediction(self, context: PredictionContext) -> MagmanPrediction:
        """Compute the tables of the potentials."""
        return MagmanPrediction(self, context)

    @property
    def actuators(self) -> tuple[str, ...]:
        """Names of the coils."""
        return tuple(self.magnets)

    def max_acceleration(self, context: PredictionContext) -> float:
        """Return the largest acceleration within the envelope, m/s^2."""
        positions, e = np.array(list(self.magnets.values())), context.envelope[self.velocity]
        max_currents = np.array([context.ranges[name][1] for name in self.magnets])
        coils = _max_acceleration(
            positions, max_currents, self.pull_m6_per_a2_s2 * (1.0 + self.spread), self.c2_bounds[0]
        )
        return coils + self.friction_per_s * (1.0 + self.spread) * max(abs(e.low), abs(e.high))

    def sketch(self) -> Sketch:
        """Return the drawing of a ball on a track above coils."""
        return {"kind": "track", "position": self.position, "magnets": self.magnets}


class MagmanPrediction:
    """Bound on future kinetic energy, from tables of the magnets' potentials."""

    def __init__(self, box: MagmanBox, context: PredictionContext) -> None:
        rig = context.rig
        names = [o.name for o in rig.observations]
        self._position, self._velocity = names.index(box.position), names.index(box.velocity)
        velocity_signal = rig.observations[self._velocity]
        self._per_unit = 2.0 / (velocity_signal.high - velocity_signal.low)
        envelope = context.envelope[box.velocity]
        self._max_speed = min(-envelope.low, envelope.high)
        actuators = [a.name for a in rig.actuators]
        indices = [actuators.index(name) for name in box.magnets]
        self._coils = tuple([(i, 0.5 * rig.actuators[i].resolution, context.ranges[actuators[i]][1]) for i in indices])
        self._padding = (0.0,) * (MAX_MAGNETS - len(self._coils))
        late_s = box.late_us * 1e-6
        pull = box.pull_m6_per_a2_s2 * (1.0 + box.spread)
        positions = np.array(list(box.magnets.values()))
        max_currents = np.array([context.ranges[name][1] for name in box.magnets])
        min_c2, max_c2 = box.c2_bounds
        self._speed_error = error_bound(box, rig, box.velocity) + late_s * _max_acceleration(
            positions, max_currents, pull, min_c2
        )
        position_error = error_bound(box, rig, box.position) + late_s * self._max_speed
        track = rig.observations[self._position]
        self._track_low, self._min_potentials = (
            track.low,
            _min_potentials(positions, max_c2, pull, track.low, track.high, position_error),
        )
        self._max_potentials = _max_potentials(positions, min_c2, pull)
        # Rounding and the dead band may reduce a coil's pull at the body's position.
        self._shortfall = max(2.0 * half_count for _, half_count, _ in self._coils) + dead_band_of(box)

    def evaluate(self, observation: Sequence[float], action: Sequence[float]) -> tuple[float, float]:
        """See :class:`onrig.runtime.safety.plant_box.Prediction`."""
        position, velocity = observation[self._position], observation[self._velocity]
        if not (-MAX_PLAUSIBLE < position < MAX_PLAUSIBLE and -MAX_PLAUSIBLE < velocity < MAX_PLAUSIBLE):
            return inf, 0.0
        # Rounding to whole counts may add up to half a count.
        currents = [
            min(action[i] + half_count, max_current) if action[i] else 0.0 for i, half_count, max_current in self._coils
        ]
        a, b, c, d = padded_currents = (*currents, *self._padding)
        potentials, shortfall = self._min_potentials, self._shortfall
        cell = int((position - self._track_low) // _CELL_WIDTH_M)
        present_potential = 0.0  # for a position beyond the track, as if the coils were infinitely far away
        if 0 <= cell < len(potentials):
            p, q, r, s = potentials[cell]
            e, f, g, h = [u - shortfall if u > shortfall else 0.0 for u in padded_currents]
            present_potential = e * p + f * q + g * r + h * s
        gain = max([a * p + b * q + c * r + d * s for p, q, r, s in self._max_potentials]) - present_potential
        speed = abs(velocity) + self._speed_error
        max_speed = sqrt(speed * speed + 2.0 * max(gain, 0.0))
        if max_speed > self._max_speed:
            return (max_speed - self._max_speed) * self._per_unit, 0.0
        return 0.0, 1.0 - max_speed / self._max_speed


def _table_problem(box: MagmanBox, rig: Rig) -> str | None:
    """Return why the potentials cannot be tabulated; None if they can."""
    track = next(o for o in rig.observations if o.name == box.position)
    positions = sorted(box.magnets.values())
    if (track.high - track.low) / _CELL_WIDTH_M > MAX_CELLS:
        return f"a track of {track.high - track.low:g} m is too long: the maximum is {MAX_CELLS * _CELL_WIDTH_M:g} m"
    if (positions[-1] - positions[0]) / _spacing(positions) * _CELLS_PER_SPACING > MAX_CELLS:
        return f"magnets {_spacing(positions):g} m apart over {positions[-1] - positions[0]:g} m are too close together"
    return None


def hold_problem(hold: Hold, box: MagmanBox, context: PredictionContext) -> str | None:
    """Return why holding at a magnet would not keep the velocity in its envelope; None if it would.

    A coil is switched on only below ``brake_below``, and may then remain on indefinitely.
    """
    envelope = context.envelope[box.velocity]
    limit = min(-envelope.low, envelope.high)
    pull = box.pull_m6_per_a2_s2 * (1.0 + box.spread)
    max_currents = np.array([context.ranges[name][1] for name in box.magnets])
    positions = np.array(list(box.magnets.values()))
    c2, _ = box.c2_bounds
    error = error_bound(box, context.rig, box.velocity) + box.late_us * 1e-6 * _max_acceleration(
        positions, max_currents, pull, c2
    )
    depth = pull * float(max_currents.max()) * 0.25 / c2**2
    max_speed = math.hypot(hold.brake_below + error, math.sqrt(2.0 * depth))
    if max_speed <= limit:
        return None
    max_brake_below = math.sqrt(max(0.0, limit**2 - 2.0 * depth)) - error
    remedy = f"lower brake_below to {1e-3 * math.floor(1e3 * max_brake_below):g} m/s or less"
    if max_brake_below < 1e-3:
        remedy = "widen the envelope, or limit the currents (limits.range)"
    return (
        f"a coil switched on at {hold.brake_below:g} m/s may accelerate the body to {max_speed:.3g} m/s, but the "
        f"envelope allows {limit:g} m/s: {remedy}"
    )


def _max_acceleration(magnets: Values, max_currents: Values, pull: float, c2: float) -> float:
    """Return the largest acceleration (m/s^2) over all commands and positions."""
    x = np.linspace(magnets.min() - 0.05, magnets.max() + 0.05, 4001)[:, None] - magnets
    force = pull * max_currents * x / (x * x + c2) ** 3
    sums = np.maximum(np.maximum(force, 0.0).sum(axis=1), np.maximum(-force, 0.0).sum(axis=1))
    return float(sums.max()) * 1.01  # the relative error of the grid is 1e-4


def _min_potentials(
    magnets: Values, c2: float, pull: float, low: float, high: float, position_error: float
) -> list[Row]:
    """Return lower bounds on each magnet's potential for positions measured in each cell of the track."""
    edges = low + _CELL_WIDTH_M * np.arange(math.ceil((high - low) / _CELL_WIDTH_M - 1e-9) + 1)
    max_distances = np.maximum(
        np.abs(edges[:-1, None] - position_error - magnets), np.abs(edges[1:, None] + position_error - magnets)
    )
    return _padded_rows(pull * potential(max_distances, c2))


def _max_potentials(magnets: Values, c2: float, pull: float) -> list[Row]:
    """Return upper bounds on each magnet's potential in the cells that may contain the deepest point, from the first
    magnet to the last."""
    width = _spacing(np.sort(magnets).tolist()) / _CELLS_PER_SPACING
    # Centre a cell on the first magnet, so that the depth there is exact.
    n = math.ceil((magnets.max() - magnets.min()) / width - 1e-9) + 1
    centres = magnets.min() + width * np.arange(n)
    min_distances = np.maximum(np.abs(centres[:, None] - magnets) - 0.5 * width, 0.0)
    return _padded_rows(pull * potential(min_distances, c2))


def _spacing(positions: Sequence[float]) -> float:
    """Return the smallest distance between neighbouring positions, given in ascending order; arbitrary for one
    magnet."""
    return min((b - a for a, b in pairwise(positions)), default=2e-3)


def _padded_rows(values: Values) -> list[Row]:
    padded_rows = np.zeros((len(values), MAX_MAGNETS))
    padded_rows[:, : values.shape[1]] = values
    return [(p, q, r, s) for p, q, r, s in padded_rows.tolist()]
