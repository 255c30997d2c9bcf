"""Many drawn plants at once, under held commands, the fallback, and the safe output of a host that has died."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from onrig.hw.rig import Rig
from onrig.runtime.braking import Brake
from onrig.runtime.maths import BATCHED
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.fallback import Damp, Fallback
from onrig.runtime.safety.sampled import SampledBox
from onrig.sim.barrier.plants import Draw, nominal_plant, observed
from onrig.sim.plants.integrate import Array, advance
from onrig.sim.plants.plant import Plant

SUBSTEPS: Final = 2
"""Integration steps per period, and points at which the envelope is checked."""
FLOOR: Final = -0.5
"""Least margin that is told apart; a plant with less is not followed any further."""
State = tuple[Array, ...]
Law = Callable[[Array], Array]
"""From observations in the order of the plant's states (n, l) to commands (m, l)."""


class Bounds(NamedTuple):
    """Envelope of one state."""

    at: int
    centre: float
    half: float


class Bench(NamedTuple):
    """What all plants of a configuration share."""

    plant: Plant
    period_s: float
    held_periods: int
    """Longest time for which a command is held after the host's death: the lease and a period."""
    safe: tuple[float, ...]
    releases: bool
    bounds: tuple[Bounds, ...]
    law: Law
    """The fallback."""

    @classmethod
    def of(cls, config: RunConfig, box: SampledBox) -> Self:
        """The bench of a configuration; ValueError without a plant."""
        rig, limits, plant = config.rig, config.limits, nominal_plant(config, box)
        order = observed(rig, plant)
        names = [rig.observations[at].name for at in order]
        bounds = [
            Bounds(names.index(name), 0.5 * (e.low + e.high), 0.5 * (e.high - e.low))
            for name, e in limits.envelope.items()
        ]
        safe = tuple(a.safe for a in rig.actuators)
        law = batched_fallback(limits.fallback, rig, names)
        period_s = config.period_us * 1e-6
        return cls(plant, period_s, rig.lease_periods + 1, safe, rig.releases, tuple(bounds), law)

    def margin(self, state: Sequence[Array]) -> Array:
        """Least margin (l,) of states: 1 in the middle of every envelope, 0 at the edge of one, negative beyond."""
        least: Any = 1.0
        for at, centre, half in self.bounds:
            least = np.minimum(least, 1.0 - np.abs(state[at] - centre) / half)
        return np.asarray(np.where(np.isfinite(least), least, 2.0 * FLOOR))


def batched_fallback(fallback: Fallback, rig: Rig, names: Sequence[str]) -> Law:
    """The fallback for many observations at once, in the order of ``names``; as ``compile_fallback`` has it."""
    safe = np.array([a.safe for a in rig.actuators])
    if not isinstance(fallback, Damp):
        return lambda seen: np.repeat(safe[:, None], seen.shape[1], axis=1)
    acts = [a.name for a in rig.actuators].index(fallback.actuator)
    sees, brake = names.index(fallback.observation), Brake(rig.actuators[acts])
    up, down = brake.command(1.0) - safe[acts], safe[acts] - brake.command(-1.0)

    def damp(seen: Array) -> Array:
        share = np.clip(-seen[sees] / fallback.full_at, -1.0, 1.0)
        command = np.repeat(safe[:, None], seen.shape[1], axis=1)
        command[acts] += np.where(share > 0.0, up * share, down * share)
        return command

    return damp


class Fleet:
    """Plants (l,) that move side by side; those beyond help are dropped."""

    def __init__(self, bench: Bench, draw: Draw) -> None:
        self._bench, self._draw = bench, draw
        self._plant = bench.plant.varied(draw.parameters)

    def _select(self, lanes: NDArray[np.integer[Any]]) -> Fleet:
        return Fleet(self._bench, self._draw.of(lanes))

    def seen(self, state: State) -> Array:
        """Observations (n, l) of states, with the sensors' errors."""
        return np.stack(state) + self._draw.bias

    def true(self, seen: Array) -> State:
        """States whose observations are these (n, l)."""
        return tuple(seen - self._draw.bias)

    def hold(self, state: State, command: Array, periods: int, *, late: Array | None = None) -> tuple[State, Array]:
        """Return the states after ``periods`` under a command (m, l), and the least margin (l,) on the way.

        ``late``: the command (m, l) that acts before the first one does.
        """
        bench, plant = self._bench, self._plant
        least = bench.margin(state)
        for k in range(periods):
            left: Any = bench.period_s
            if k == 0 and late is not None:
                state = advance(plant, state, tuple(late), self._draw.late_s, 1)
                left = bench.period_s - self._draw.late_s
            for _ in range(SUBSTEPS):
                state = advance(plant, state, tuple(command), left / SUBSTEPS, 1)
                least = np.minimum(least, bench.margin(state))
            state = plant.constrain(BATCHED, state)
        return state, least

    def first(self, state: State, command: Array, periods: int = 1) -> tuple[State, Array]:
        """``hold`` after the command that was in force before."""
        return self.hold(state, command, periods, late=self._draw.held)

    def coast(self, state: State, periods: int) -> Array:
        """Least margin (l,) under the device's safe output."""
        bench, n = self._bench, len(state[0])
        least, alive, fleet = bench.margin(state), np.arange(n), self
        safe = np.repeat(np.array(bench.safe)[:, None], n, axis=1)
        plant = self._plant.released() if bench.releases else self._plant
        for _ in range(periods):
            for _ in range(SUBSTEPS):
                state = advance(plant, state, tuple(safe), bench.period_s / SUBSTEPS, 1)
                least[alive] = np.minimum(least[alive], bench.margin(state))
            state = plant.constrain(BATCHED, state)
            keep = least[alive] > FLOOR
            if keep.mean() < _SHARE:
                alive, state, safe = alive[keep], tuple(x[keep] for x in state), safe[:, keep]
                fleet = fleet._select(np.flatnonzero(keep))
                plant = fleet._plant.released() if bench.releases else fleet._plant
                if not len(alive):
                    break
        return np.maximum(least, FLOOR)

    def brake(self, state: State, periods: int, death: Callable[[Array, Array], Array]) -> Array:
        """Least margin (l,) under the fallback; ``death`` gives that of a host's death after a command (m, l), from
        observations (n, l)."""
        bench = self._bench
        least, alive, fleet, before = bench.margin(state), np.arange(len(state[0])), self, self._draw.held
        for k in range(periods):
            seen = fleet.seen(state)
            command = bench.law(seen)
            lost = fleet._draw.lost[k % len(fleet._draw.lost)]
            command = np.where(lost, before, command)
            if k % _DEATHS == 0:  # a lease counts from the last command
                least[alive] = np.minimum(least[alive], np.where(lost, 1.0, death(seen, command)))
            state, now = fleet.hold(state, command, 1, late=before)
            least[alive], before = np.minimum(least[alive], now), command
            keep = least[alive] > FLOOR
            if keep.mean() < _SHARE:
                alive, state, before = alive[keep], tuple(x[keep] for x in state), before[:, keep]
                fleet = fleet._select(np.flatnonzero(keep))
                if not len(alive):
                    break
        return np.maximum(least, FLOOR)


_SHARE: Final = 0.8
"""Share of plants still followed below which the others are dropped."""
_DEATHS: Final = 2
"""Periods between two deaths of the host that are tried."""
