"""Parallel simulation of drawn plants under a held command, the fallback, or the device's safe output."""

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
from onrig.sim.barrier.plants import Draw, nominal_plant, observation_indices
from onrig.sim.plants.integrate import Array, advance
from onrig.sim.plants.plant import Plant

SUBSTEPS: Final = 2
"""Integration steps per period, and points at which the envelope is checked."""
FLOOR: Final = -0.5
"""Smallest margin that is computed; plants below it are no longer simulated."""
State = tuple[Array, ...]
BatchedControlLaw = Callable[[Array], Array]
"""Function from observations (n, l), in the order of the plant's states, to commands (m, l)."""


class StateBounds(NamedTuple):
    """Envelope of one state: its index, and the centre and half-width of its interval."""

    state_index: int
    centre: float
    half_width: float


class SharedSetup(NamedTuple):
    """Parameters that all plants of a configuration share."""

    plant: Plant
    period_s: float
    held_periods: int
    """Longest time for which a command remains in force after a loss of the host: the lease plus one period."""
    safe: tuple[float, ...]
    releases: bool
    bounds: tuple[StateBounds, ...]
    fallback_law: BatchedControlLaw
    """Command of the fallback, by observations."""

    @classmethod
    def from_config(cls, config: RunConfig, box: SampledBox) -> Self:
        """Return the setup of a configuration; raises ValueError without a plant."""
        rig, limits, plant = config.rig, config.limits, nominal_plant(config, box)
        order = observation_indices(rig, plant)
        names = [rig.observations[index].name for index in order]
        bounds = [
            StateBounds(names.index(name), 0.5 * (e.low + e.high), 0.5 * (e.high - e.low))
            for name, e in limits.envelope.items()
        ]
        safe = tuple(a.safe for a in rig.actuators)
        period_s = config.period_us * 1e-6
        law = batched_fallback(limits.fallback, rig, names, limits.setting(rig, period_s).ranges)
        return cls(plant, period_s, rig.lease_periods + 1, safe, rig.releases, tuple(bounds), law)

    def margin(self, state: Sequence[Array]) -> Array:
        """Smallest margin (l,) of states over all envelopes: 1 at the centre, 0 at the edge, negative outside."""
        least: Any = 1.0
        for state_index, centre, half_width in self.bounds:
            least = np.minimum(least, 1.0 - np.abs(state[state_index] - centre) / half_width)
        return np.asarray(np.where(np.isfinite(least), least, 2.0 * FLOOR))


def batched_fallback(fallback: Fallback, rig: Rig, names: Sequence[str], ranges: Ranges) -> BatchedControlLaw:
    """``compile_fallback`` for many observations at once, in the order of ``names``; commands within ``ranges``."""
    safe = np.array([a.safe for a in rig.actuators])
    if not isinstance(fallback, Damp):
        return lambda seen: np.repeat(safe[:, None], seen.shape[1], axis=1)
    braked_index = [a.name for a in rig.actuators].index(fallback.actuator)
    observed_at, brake = names.index(fallback.observation), Brake(rig.actuators[braked_index])
    up, down = brake.command(1.0) - safe[braked_index], safe[braked_index] - brake.command(-1.0)
    low, high = ranges[fallback.actuator]

    def damp(seen: Array) -> Array:
        share = np.clip(-seen[observed_at] / fallback.full_at, -1.0, 1.0)
        command = np.repeat(safe[:, None], seen.shape[1], axis=1)
        command[braked_index] = np.clip(
            command[braked_index] + np.where(share > 0.0, up * share, down * share), low, high
        )
        return command

    return damp


class Fleet:
    """Plants (l,) simulated in parallel."""

    def __init__(self, setup: SharedSetup, draw: Draw) -> None:
        self._setup, self._draw = setup, draw
        self._plant = setup.plant.varied(draw.parameters)

    def _select(self, lanes: NDArray[np.integer[Any]]) -> Fleet:
        return Fleet(self._setup, self._draw.select(lanes))

    def observe(self, state: State) -> Array:
        """Return the observations (n, l) of states, with the sensors' errors."""
        return np.stack(state) + self._draw.bias

    def states_of(self, seen: Array) -> State:
        """Return the states with these observations (n, l): the sensors' errors subtracted."""
        return tuple(seen - self._draw.bias)

    def hold(
        self, state: State, command: Array, periods: int, *, previous_command: Array | None = None
    ) -> tuple[State, Array]:
        """Return the states after ``periods`` under a command (m, l), and the smallest margin (l,) on the way.

        ``previous_command`` (m, l) acts until the delay of the first period has passed.
        """
        setup, plant = self._setup, self._plant
        least = setup.margin(state)
        for k in range(periods):
            remaining_s: Any = setup.period_s
            if k == 0 and previous_command is not None:
                state = advance(plant, state, tuple(previous_command), self._draw.late_s, 1)
                remaining_s = setup.period_s - self._draw.late_s
            for _ in range(SUBSTEPS):
                state = advance(plant, state, tuple(command), remaining_s / SUBSTEPS, 1)
                least = np.minimum(least, setup.margin(state))
            state = plant.constrain(BATCHED, state)
        return state, least

    def hold_after_delay(self, state: State, command: Array, periods: int = 1) -> tuple[State, Array]:
        """Like ``hold``, with the drawn previous command acting during the delay."""
        return self.hold(state, command, periods, previous_command=self._draw.held)

    def outlast(self, state: State, command: Array) -> tuple[State, Array]:
        """Return the states after the plants' delay, during which ``command`` still acts, and the least margin (l,)."""
        setup, least = self._setup, self._setup.margin(state)
        for _ in range(SUBSTEPS):
            state = advance(self._plant, state, tuple(command), self._draw.plant_delay_s / SUBSTEPS, 1)
            least = np.minimum(least, setup.margin(state))
        return self._plant.constrain(BATCHED, state), least

    def coast_margin(self, state: State, periods: int) -> Array:
        """Smallest margin (l,) under the device's safe output."""
        setup, n = self._setup, len(state[0])
        least, active_lanes, fleet = setup.margin(state), np.arange(n), self
        safe = np.repeat(np.array(setup.safe)[:, None], n, axis=1)
        plant = self._plant.released() if setup.releases else self._plant
        for _ in range(periods):
            for _ in range(SUBSTEPS):
                state = advance(plant, state, tuple(safe), setup.period_s / SUBSTEPS, 1)
                least[active_lanes] = np.minimum(least[active_lanes], setup.margin(state))
            state = plant.constrain(BATCHED, state)
            is_active = least[active_lanes] > FLOOR
            if is_active.mean() < _MIN_ACTIVE_SHARE:
                active_lanes, state, safe = (
                    active_lanes[is_active],
                    tuple(x[is_active] for x in state),
                    safe[:, is_active],
                )
                fleet = fleet._select(np.flatnonzero(is_active))
                plant = fleet._plant.released() if setup.releases else fleet._plant
                if not len(active_lanes):
                    break
        return np.maximum(least, FLOOR)

    def fallback_margin(self, state: State, periods: int, host_loss: Callable[[Array, Array], Array]) -> Array:
        """Smallest margin (l,) under the fallback.

        ``host_loss``: margin after a loss of the host or a stop of the device, as a function of observations (n, l) and
        a command (m, l).
        """
        setup = self._setup
        least, active_lanes, fleet, before = setup.margin(state), np.arange(len(state[0])), self, self._draw.held
        for k in range(periods):
            seen = fleet.observe(state)
            command = setup.fallback_law(seen)
            lost = fleet._draw.lost[k % len(fleet._draw.lost)]
            command = np.where(lost, before, command)
            if k % _HOST_LOSS_INTERVAL == 0:  # not after a lost frame: the lease counts from the last command
                least[active_lanes] = np.minimum(least[active_lanes], np.where(lost, 1.0, host_loss(seen, command)))
            state, margin = fleet.hold(state, command, 1, previous_command=before)
            least[active_lanes], before = np.minimum(least[active_lanes], margin), command
            is_active = least[active_lanes] > FLOOR
            if is_active.mean() < _MIN_ACTIVE_SHARE:
                active_lanes, state, before = (
                    active_lanes[is_active],
                    tuple(x[is_active] for x in state),
                    before[:, is_active],
                )
                fleet = fleet._select(np.flatnonzero(is_active))
                if not len(active_lanes):
                    break
        return np.maximum(least, FLOOR)


_MIN_ACTIVE_SHARE: Final = 0.8
"""Share of plants above FLOOR below which the others are removed from the arrays."""
_HOST_LOSS_INTERVAL: Final = 2
"""Number of periods between simulated losses of the host."""
