"""Many drawn plants at once, under held commands, the fallback, and the safe output after a loss of the host."""

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
from onrig.runtime.safety.rules import Ranges
from onrig.runtime.safety.sampled import SampledBox
from onrig.sim.barrier.plants import Draw, nominal_plant, observed
from onrig.sim.plants.integrate import Array, advance
from onrig.sim.plants.plant import Plant

SUBSTEPS: Final = 2
"""Integration steps per period, and points at which the envelope is checked."""
FLOOR: Final = -0.5
"""Smallest margin that is computed; plants below it are no longer simulated."""
State = tuple[Array, ...]
Law = Callable[[Array], Array]
"""Function from observations (n, l), in the order of the plant's states, to commands (m, l)."""


class Bounds(NamedTuple):
    """Envelope of one state."""

    at: int
    centre: float
    half: float


class SharedSetup(NamedTuple):
    """Parameters that all plants of a configuration share."""

    plant: Plant
    period_s: float
    held_periods: int
    """Longest time for which a command is held after the loss of the host: the lease and a period."""
    safe: tuple[float, ...]
    releases: bool
    bounds: tuple[Bounds, ...]
    law: Law
    """The fallback."""

    @classmethod
    def of(cls, config: RunConfig, box: SampledBox) -> Self:
        """The setup of a configuration; raises ValueError without a plant."""
        rig, limits, plant = config.rig, config.limits, nominal_plant(config, box)
        order = observed(rig, plant)
        names = [rig.observations[at].name for at in order]
        bounds = [
            Bounds(names.index(name), 0.5 * (e.low + e.high), 0.5 * (e.high - e.low))
            for name, e in limits.envelope.items()
        ]
        safe = tuple(a.safe for a in rig.actuators)
        period_s = config.period_us * 1e-6
        law = batched_fallback(limits.fallback, rig, names, limits.setting(rig, period_s).ranges)
        return cls(plant, period_s, rig.lease_periods + 1, safe, rig.releases, tuple(bounds), law)

    def margin(self, state: Sequence[Array]) -> Array:
        """Least margin (l,) of states: 1 in the middle of every envelope, 0 at the edge of one, negative beyond."""
        least: Any = 1.0
        for at, centre, half in self.bounds:
            least = np.minimum(least, 1.0 - np.abs(state[at] - centre) / half)
        return np.asarray(np.where(np.isfinite(least), least, 2.0 * FLOOR))


def batched_fallback(fallback: Fallback, rig: Rig, names: Sequence[str], ranges: Ranges) -> Law:
    """``compile_fallback`` for many observations at once, in the order of ``names``; commands within ``ranges``."""
    safe = np.array([a.safe for a in rig.actuators])
    if not isinstance(fallback, Damp):
        return lambda seen: np.repeat(safe[:, None], seen.shape[1], axis=1)
    braked = [a.name for a in rig.actuators].index(fallback.actuator)
    observed_at, brake = names.index(fallback.observation), Brake(rig.actuators[braked])
    up, down = brake.command(1.0) - safe[braked], safe[braked] - brake.command(-1.0)
    low, high = ranges[fallback.actuator]

    def damp(seen: Array) -> Array:
        share = np.clip(-seen[observed_at] / fallback.full_at, -1.0, 1.0)
        command = np.repeat(safe[:, None], seen.shape[1], axis=1)
        command[braked] = np.clip(command[braked] + np.where(share > 0.0, up * share, down * share), low, high)
        return command

    return damp


class Fleet:
    """Plants (l,) simulated in parallel."""

    def __init__(self, setup: SharedSetup, draw: Draw) -> None:
        self._setup, self._draw = setup, draw
        self._plant = setup.plant.varied(draw.parameters)

    def _select(self, lanes: NDArray[np.integer[Any]]) -> Fleet:
        return Fleet(self._setup, self._draw.select(lanes))

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
        setup, plant = self._setup, self._plant
        least = setup.margin(state)
        for k in range(periods):
            left: Any = setup.period_s
            if k == 0 and late is not None:
                state = advance(plant, state, tuple(late), self._draw.late_s, 1)
                left = setup.period_s - self._draw.late_s
            for _ in range(SUBSTEPS):
                state = advance(plant, state, tuple(command), left / SUBSTEPS, 1)
                least = np.minimum(least, setup.margin(state))
            state = plant.constrain(BATCHED, state)
        return state, least

    def first(self, state: State, command: Array, periods: int = 1) -> tuple[State, Array]:
        """``hold``, after the command that was in force before."""
        return self.hold(state, command, periods, late=self._draw.held)

    def outlast(self, state: State, command: Array) -> tuple[State, Array]:
        """Return the states after the plants' delay, during which ``command`` still acts, and the least margin (l,)."""
        setup, least = self._setup, self._setup.margin(state)
        for _ in range(SUBSTEPS):
            state = advance(self._plant, state, tuple(command), self._draw.plant_delay_s / SUBSTEPS, 1)
            least = np.minimum(least, setup.margin(state))
        return self._plant.constrain(BATCHED, state), least

    def coast(self, state: State, periods: int) -> Array:
        """Least margin (l,) under the device's safe output."""
        setup, n = self._setup, len(state[0])
        least, alive, fleet = setup.margin(state), np.arange(n), self
        safe = np.repeat(np.array(setup.safe)[:, None], n, axis=1)
        plant = self._plant.released() if setup.releases else self._plant
        for _ in range(periods):
            for _ in range(SUBSTEPS):
                state = advance(plant, state, tuple(safe), setup.period_s / SUBSTEPS, 1)
                least[alive] = np.minimum(least[alive], setup.margin(state))
            state = plant.constrain(BATCHED, state)
            keep = least[alive] > FLOOR
            if keep.mean() < _MIN_FOLLOWED_SHARE:
                alive, state, safe = alive[keep], tuple(x[keep] for x in state), safe[:, keep]
                fleet = fleet._select(np.flatnonzero(keep))
                plant = fleet._plant.released() if setup.releases else fleet._plant
                if not len(alive):
                    break
        return np.maximum(least, FLOOR)

    def brake(self, state: State, periods: int, host_loss: Callable[[Array, Array], Array]) -> Array:
        """Least margin (l,) under the fallback.

        ``host_loss``: function from observations (n, l) and a command (m, l) to the margin if the host is lost then,
        or the device stops.
        """
        setup = self._setup
        least, alive, fleet, before = setup.margin(state), np.arange(len(state[0])), self, self._draw.held
        for k in range(periods):
            seen = fleet.seen(state)
            command = setup.law(seen)
            lost = fleet._draw.lost[k % len(fleet._draw.lost)]
            command = np.where(lost, before, command)
            if k % _HOST_LOSS_PERIODS == 0:  # a lease counts from the last command
                least[alive] = np.minimum(least[alive], np.where(lost, 1.0, host_loss(seen, command)))
            state, now = fleet.hold(state, command, 1, late=before)
            least[alive], before = np.minimum(least[alive], now), command
            keep = least[alive] > FLOOR
            if keep.mean() < _MIN_FOLLOWED_SHARE:
                alive, state, before = alive[keep], tuple(x[keep] for x in state), before[:, keep]
                fleet = fleet._select(np.flatnonzero(keep))
                if not len(alive):
                    break
        return np.maximum(least, FLOOR)


_MIN_FOLLOWED_SHARE: Final = 0.8
"""Share of simulated plants below which those no longer needed are removed from the arrays."""
_HOST_LOSS_PERIODS: Final = 2
"""Number of periods between the simulated losses of the host."""
