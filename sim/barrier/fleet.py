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
"""Integration steps per period; the envelope is checked after each."""
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
    """Maximum number of periods for which a command remains in force after the host is lost: the lease plus one."""
    safe_command: tuple[float, ...]
    releases: bool
    bounds: tuple[StateBounds, ...]
    fallback_law: BatchedControlLaw
    """Command of the fallback as a function of the observations."""

    @classmethod
    def from_config(cls, config: RunConfig, box: SampledBox) -> Self:
        """Return the setup of a configuration.  Raises ValueError if it has no plant."""
        rig, limits, plant = config.rig, config.limits, nominal_plant(config, box)
        order = observation_indices(rig, plant)
        names = [rig.observations[index].name for index in order]
        bounds = [
            StateBounds(names.index(name), 0.5 * (e.low + e.high), 0.5 * (e.high - e.low))
            for name, e in limits.envelope.items()
        ]
        safe_command = tuple(a.safe for a in rig.actuators)
        period_s = config.period_us * 1e-6
        law = batched_fallback(limits.fallback, rig, names, limits.context(rig, period_s).ranges)
        return cls(plant, period_s, rig.lease_periods + 1, safe_command, rig.releases, tuple(bounds), law)

    def margin(self, state: Sequence[Array]) -> Array:
        """Return the smallest margin (l,) of states over all envelopes: 1 at the centre, 0 at the edge, < 0 outside."""
        min_margin: Any = 1.0
        for state_index, centre, half_width in self.bounds:
            min_margin = np.minimum(min_margin, 1.0 - np.abs(state[state_index] - centre) / half_width)
        return np.asarray(np.where(np.isfinite(min_margin), min_margin, 2.0 * FLOOR))


def batched_fallback(fallback: Fallback, rig: Rig, names: Sequence[str], ranges: Ranges) -> BatchedControlLaw:
    """Compile a fallback like ``compile_fallback``, but for many observations at once, in the order of ``names``.

    Its commands lie within ``ranges``.
    """
    safe_command = np.array([a.safe for a in rig.actuators])
    if not isinstance(fallback, Damp):
        return lambda observations: np.repeat(safe_command[:, None], observations.shape[1], axis=1)
    actuator_index = [a.name for a in rig.actuators].index(fallback.actuator)
    observation_index, brake = names.index(fallback.observation), Brake(rig.actuators[actuator_index])
    upper_range, lower_range = (
        brake.command(1.0) - safe_command[actuator_index],
        safe_command[actuator_index] - brake.command(-1.0),
    )
    low, high = ranges[fallback.actuator]

    def damp(observations: Array) -> Array:
        fraction = np.clip(-observations[observation_index] / fallback.full_at, -1.0, 1.0)
        command = np.repeat(safe_command[:, None], observations.shape[1], axis=1)
        command[actuator_index] = np.clip(
            command[actuator_index] + np.where(fraction > 0.0, upper_range * fraction, lower_range * fraction),
            low,
            high,
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

    def states_of(self, observations: Array) -> State:
        """Return the states that give these observations (n, l), without the sensors' errors."""
        return tuple(observations - self._draw.bias)

    def hold(
        self, state: State, command: Array, periods: int, *, previous_command: Array | None = None
    ) -> tuple[State, Array]:
        """Return the states after ``periods`` under a command (m, l), and the smallest margin (l,) along the way.

        ``previous_command`` (m, l) acts at first, until the delay has passed.
        """
        setup, plant = self._setup, self._plant
        min_margin = setup.margin(state)
        for k in range(periods):
            remaining_s: Any = setup.period_s
            if k == 0 and previous_command is not None:
                state = advance(plant, state, tuple(previous_command), self._draw.late_s, 1)
                remaining_s = setup.period_s - self._draw.late_s
            for _ in range(SUBSTEPS):
                state = advance(plant, state, tuple(command), remaining_s / SUBSTEPS, 1)
                min_margin = np.minimum(min_margin, setup.margin(state))
            state = plant.constrain(BATCHED, state)
        return state, min_margin

    def hold_after_delay(self, state: State, command: Array, periods: int = 1) -> tuple[State, Array]:
        """Hold a command like ``hold``, with the drawn initial command acting during the delay."""
        return self.hold(state, command, periods, previous_command=self._draw.initial_command)

    def hold_during_delay(self, state: State, command: Array) -> tuple[State, Array]:
        """Return the states after the plants' delay, while ``command`` still acts, and the smallest margin (l,)."""
        setup, min_margin = self._setup, self._setup.margin(state)
        for _ in range(SUBSTEPS):
            state = advance(self._plant, state, tuple(command), self._draw.plant_delay_s / SUBSTEPS, 1)
            min_margin = np.minimum(min_margin, setup.margin(state))
        return self._plant.constrain(BATCHED, state), min_margin

    def coast_margin(self, state: State, periods: int) -> Array:
        """Return the smallest margin (l,) within ``periods`` under the device's safe output."""
        setup, n = self._setup, len(state[0])
        min_margin, active_lanes, fleet = setup.margin(state), np.arange(n), self
        safe_command = np.repeat(np.array(setup.safe_command)[:, None], n, axis=1)
        plant = self._plant.released() if setup.releases else self._plant
        for _ in range(periods):
            for _ in range(SUBSTEPS):
                state = advance(plant, state, tuple(safe_command), setup.period_s / SUBSTEPS, 1)
                min_margin[active_lanes] = np.minimum(min_margin[active_lanes], setup.margin(state))
            state = plant.constrain(BATCHED, state)
            is_active = min_margin[active_lanes] > FLOOR
            if is_active.mean() < _MIN_ACTIVE_FRACTION:
                active_lanes, state, safe_command = (
                    active_lanes[is_active],
                    tuple(x[is_active] for x in state),
                    safe_command[:, is_active],
                )
                fleet = fleet._select(np.flatnonzero(is_active))
                plant = fleet._plant.released() if setup.releases else fleet._plant
                if not len(active_lanes):
                    break
        return np.maximum(min_margin, FLOOR)

    def fallback_margin(self, state: State, periods: int, host_loss: Callable[[Array, Array], Array]) -> Array:
        """Return the smallest margin (l,) within ``periods`` under the fallback.

        ``host_loss``: margin if the host is lost or the device stops, as a function of observations (n, l) and a
        command (m, l).
        """
        setup = self._setup
        min_margin, active_lanes, fleet, previous_command = (
            setup.margin(state),
            np.arange(len(state[0])),
            self,
            self._draw.initial_command,
        )
        for k in range(periods):
            observations = fleet.observe(state)
            command = setup.fallback_law(observations)
            is_lost = fleet._draw.is_lost[k % len(fleet._draw.is_lost)]
            command = np.where(is_lost, previous_command, command)
            if k % _HOST_LOSS_INTERVAL == 0:  # not where a frame is lost: the lease counts from the last command
                min_margin[active_lanes] = np.minimum(
                    min_margin[active_lanes], np.where(is_lost, 1.0, host_loss(observations, command))
                )
            state, margin = fleet.hold(state, command, 1, previous_command=previous_command)
            min_margin[active_lanes], previous_command = np.minimum(min_margin[active_lanes], margin), command
            is_active = min_margin[active_lanes] > FLOOR
            if is_active.mean() < _MIN_ACTIVE_FRACTION:
                active_lanes, state, previous_command = (
                    active_lanes[is_active],
                    tuple(x[is_active] for x in state),
                    previous_command[:, is_active],
                )
                fleet = fleet._select(np.flatnonzero(is_active))
                if not len(active_lanes):
                    break
        return np.maximum(min_margin, FLOOR)


_MIN_ACTIVE_FRACTION: Final = 0.8
"""When the share of plants above FLOOR falls below this value, the other plants are removed from the arrays."""
_HOST_LOSS_INTERVAL: Final = 2
"""Number of periods between simulated losses of the host."""
