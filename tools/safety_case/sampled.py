"""Test of a sampled barrier: hostile episodes through the tick's core, with plants that the computation did not use.

Each episode has a newly drawn plant, sensor errors and delay. It begins in the safe set, and ends when the host dies or
the device is stopped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.control.tick import Tick
from onrig.runtime.maths import BATCHED
from onrig.runtime.replay.promise_watch import MIN_STEPS
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.plant_box import Prediction
from onrig.runtime.safety.sampled import SampledBox, SampledPrediction
from onrig.runtime.task import episode_steps
from onrig.sim.barrier.fleet import SharedSetup
from onrig.sim.barrier.one_step import OneStepCheck, Steps
from onrig.sim.barrier.plants import Draw, draw_plants
from onrig.sim.barrier.table import COAST_HORIZON_FACTOR
from onrig.sim.plants.integrate import Array, advance
from onrig.sim.plants.plant import Plant
from onrig.tools.safety_case.campaign import Campaign, Law, Proposal, Tally, strongest_passing_command
from onrig.tools.safety_case.episodes import LOSS_PROBABILITIES, N_LANES, HostDeath, Lane, decide

MAX_TIME_TO_DEATH_S: Final = 4.0
"""Maximum time until the host dies."""
N_SUBSTEPS: Final = 4
_STOP_PROBABILITY: Final = 0.3
"""Share of episodes that end because the device is stopped rather than because the host dies."""
_MAX_ROUNDS: Final = 400
"""Maximum number of attempts to draw safe starts."""
State = tuple[Array, ...]


class Outcome(NamedTuple):
    """Counts by policy, and the agreement of the episodes with the plants used in the computation."""

    campaign: Campaign
    outside: Array
    """Share of each episode's steps that no plant of the computation explains; 0 if an episode is too short to count.
    """

    @property
    def breaches(self) -> int:
        """Number of episodes with a breach."""
        return sum(tally.breaches for tally in self.campaign.values())


def adversarial_policies(prediction: Prediction, config: RunConfig) -> dict[str, Callable[[random.Random], Law]]:
    """Return the factories of hostile policies, some of which know the table and push towards its smallest margin."""
    rig, ranges = config.rig, config.limits.context(config.rig, config.period_us * 1e-6).ranges
    ends = [ranges[a.name] for a in rig.actuators]
    corners: list[tuple[float, ...]] = [()]
    for low_high in ends:
        corners = [(*corner, end) for corner in corners for end in low_high]

    def push(observation: Sequence[float]) -> tuple[float, ...]:
        def worth(command: tuple[float, ...]) -> float:
            excess, margin = prediction.evaluate(observation, command)
            return margin - excess

        return min(corners, key=worth)

    def bang_bang(rng: random.Random) -> Law:
        action, remaining_steps = corners[0], 0

        def law(observation: Sequence[float]) -> Proposal:
            nonlocal action, remaining_steps
            if remaining_steps == 0:
                action, remaining_steps = rng.choice(corners), rng.randint(1, 25)
            remaining_steps -= 1
            return action

        return law

    def broken(rng: random.Random) -> Law:
        return lambda observation: (float("nan"),) * len(ends) if rng.random() < 0.2 else push(observation)

    return {
        "uniform": lambda rng: lambda observation: [rng.uniform(*end) for end in ends],
        "bang-bang": bang_bang,
        "pushing": lambda rng: push,
        "edge of S": lambda rng: lambda seen: strongest_passing_command(prediction, seen, push(seen), rig),
        "broken": broken,
    }


def run_sampled(
    config: RunConfig,
    box: SampledBox,
    episodes: int,
    seed: int,
    progress: Callable[[int], None] = lambda n_done: None,
    *,
    scaled: Mapping[str, float] | None = None,
) -> Outcome:
    """Run hostile episodes.

    Policies and starts use the table of ``box``, even if ``config`` does not. ``scaled`` maps parameters of the drawn
    plants to factors, with which the plants may exceed the range of the table.
    """
    context = config.limits.context(config.rig, config.period_us * 1e-6)
    prediction, setup = box.prediction(context), SharedSetup.from_config(config, box)
    laws, ticks = adversarial_policies(prediction, config), [Tick(config) for _ in range(min(N_LANES, episodes))]
    campaign: Campaign = {name: Tally() for name in laws}
    names, n_done, unexplained_fractions = list(laws), 0, []
    residuals = OneStepCheck(config, box)
    frames = min(episode_steps(config.task, config.rate_hz), round(MAX_TIME_TO_DEATH_S * config.rate_hz))
    while n_done < episodes:
        n = min(len(ticks), episodes - n_done)
        rng = np.random.default_rng((seed, n_done, 1))
        draw = draw_plants(config, box, n, rng, includes_corners=False)
        for name, factor in (scaled or {}).items():
            draw.parameters[name] = factor * draw.parameters.get(name, np.full(n, float(setup.plant.number(name))))
        lanes = []
        for i in range(n):
            generator = random.Random(f"{seed} {n_done + i}")
            name = names[(n_done + i) % len(names)]
            lanes.append(
                Lane(
                    ticks[i],
                    laws[name](generator),
                    name,
                    generator.choice(LOSS_PROBABILITIES),
                    HostDeath(frames, generator, stops_at_once=generator.random() < _STOP_PROBABILITY),
                    generator,
                )
            )
        state = safe_starts(prediction, setup, residuals.order, n, rng)
        batch = _Batch(config, setup, draw, lanes, residuals)
        n_aftermath_frames = round(COAST_HORIZON_FACTOR * box.horizon_s * config.rate_hz)
        margins, unexplained_fraction = batch.run(tuple(state - draw.bias), frames, n_aftermath_frames, campaign)
        for lane, margin in zip(lanes, margins.tolist(), strict=True):
            campaign[lane.name].add(margin)
        unexplained_fractions.append(unexplained_fraction)
        n_done += n
        progress(n_done)
    return Outcome(campaign, np.concatenate(unexplained_fractions))


def safe_starts(
    prediction: SampledPrediction, setup: SharedSetup, order: tuple[int, ...], n: int, rng: np.random.Generator
) -> Array:
    """Draw observations (states, n), in the plant's order, in which the shield accepts the safe command.

    Raises ValueError if such observations are too rare.
    """
    axes, starts = {axis.name: axis for axis in prediction.states}, []
    names = [axis.name for axis in prediction.states]
    lows, highs = np.array([(axes[name].low, axes[name].high) for name in names]).T
    for _ in range(_MAX_ROUNDS):
        for point in rng.uniform(lows, highs, (max(n, 100), len(names))).tolist():
            observation = [0.0] * len(names)
            for index, value in zip(order, point, strict=True):
                observation[index] = value
            if not prediction.evaluate(observation, setup.safe_command)[0]:
                starts.append(point)
        if len(starts) >= n:
            return np.array(starts[:n]).T
    raise ValueError("hardly any state of the table is safe: widen the envelope or narrow the ranges")


class _Batch:
    """Batch of episodes, each with a plant and a tick."""

    def __init__(
        self, config: RunConfig, setup: SharedSetup, draw: Draw, lanes: list[Lane], residuals: OneStepCheck
    ) -> None:
        self._config, self._setup, self._draw, self._lanes = config, setup, draw, lanes
        self._residuals = residuals
        rig = config.rig
        self._plant: Plant = setup.plant.varied(draw.parameters)
        names = [rig.observations[index].sensor or rig.observations[index].name for index in residuals.order]
        # The readings of sensors that no observation shows are not used, so their index is arbitrary.
        self._sensors = [names.index(s.name) if s.name in names else 0 for s in rig.sensors]
        self._resolutions = np.array([s.resolution for s in rig.sensors])[:, None]
        self._order = [[s.name for s in rig.sensors].index(name) for name in names]
        bounds = residuals.errors[self._sensors][:, None]
        # The bounds include the rounding to counts, which is applied separately.
        extra_error = np.maximum(bounds - 0.5 * self._resolutions, 0.0)
        self._error = draw.bias[self._sensors] / np.maximum(bounds, 1e-300) * extra_error
        self._units = np.array([a.resolution for a in rig.actuators])[:, None]
        self._last_command = np.repeat([[a.safe] for a in rig.actuators], len(lanes), axis=1)
        """Last command, which acts for the plant's delay after the device has fallen back to its safe output."""
        self._had_expired = np.zeros(len(lanes), bool)

    def run(self, state: State, frames: int, n_aftermath_frames: int, campaign: Campaign) -> tuple[Array, Array]:
        """Return each episode's smallest margin and share of steps that no plant of the computation explains."""
        config, setup, draw, lanes = self._config, self._setup, self._draw, self._lanes
        n, lease = len(lanes), config.rig.lease_periods
        margins, n_steps, n_unexplained = setup.margin(state), np.zeros(n), np.zeros(n)
        for frame in range(1, frames + 2 * (lease + 1)):  # the last frames may be lost
            counts = self._read_sensors(state)
            for lane, sensors in zip(lanes, counts.T.tolist(), strict=True):
                lane.previous_command = lane.command
                if not lane.loses_frame(frame, lease):
                    decide(lane, frame, frame * config.period_us, tuple(sensors), campaign[lane.name])
            previous_command = np.array([lane.previous_command for lane in lanes], np.float64).T * self._units
            command = np.array([lane.command for lane in lanes], np.float64).T * self._units
            is_alive = np.array([lane.is_alive for lane in lanes])
            state, margin = self._advance(state, previous_command, command)
            margins = np.minimum(margins, margin)
            if is_alive.any():
                steps = Steps(
                    self._to_observations(counts),
                    previous_command,
                    command,
                    draw.late_s,
                    self._to_observations(self._read_sensors(state)),
                )
                n_unexplained += is_alive & self._residuals.unexplained_steps(steps)
                n_steps += is_alive
        for _ in range(n_aftermath_frames):
            state, margin = self._advance(state, command, command)
            margins = np.minimum(margins, margin)
        return margins, np.where(n_steps >= MIN_STEPS, n_unexplained / np.maximum(n_steps, 1.0), 0.0)

    def _read_sensors(self, state: State) -> NDArray[np.int64]:
        """Return the sensors' counts (sensors, n) in these states."""
        counts = np.rint((np.stack(state)[self._sensors] + self._error) / self._resolutions)
        return np.asarray(counts, np.int64)

    def _to_observations(self, counts: NDArray[np.int64]) -> Array:
        """Convert counts to observations, in the order of the plant's states."""
        return np.asarray((counts * self._resolutions)[self._order])

    def _advance(self, state: State, previous_command: Array, command: Array) -> tuple[State, Array]:
        setup, start_state, draw = self._setup, state, self._draw
        lease_expired = np.array([lane.lease_expired for lane in self._lanes])
        has_just_expired = lease_expired & ~self._had_expired
        first_s = np.where(lease_expired, draw.plant_delay_s, draw.late_s)
        first_command = np.where(has_just_expired, self._last_command, previous_command)
        self._last_command, self._had_expired = command, lease_expired
        parts = [(self._plant, first_command, first_s, 1), (self._plant, command, setup.period_s - first_s, N_SUBSTEPS)]
        state, margins = self._advance_in_parts(parts, start_state)
        is_released = lease_expired & setup.releases
        if is_released.any():
            released_plant = self._plant.released(np.where(np.arange(len(is_released)) % 2, 1.0, 0.0))
            first_s = np.where(has_just_expired, first_s, 0.0)
            parts = [
                (self._plant, first_command, first_s, 1),
                (released_plant, 0.0 * command, setup.period_s - first_s, N_SUBSTEPS),
            ]
            coasting_state, coasting_margins = self._advance_in_parts(parts, start_state)
            state = tuple([np.where(is_released, a, b) for a, b in zip(coasting_state, state, strict=True)])
            margins = np.where(is_released, coasting_margins, margins)
        return self._plant.constrain(BATCHED, state), margins

    def _advance_in_parts(self, parts: list[tuple[Plant, Array, Array, int]], state: State) -> tuple[State, Array]:
        margins = self._setup.margin(state)
        for plant, command, seconds, substeps in parts:
            for _ in range(substeps):
                state = advance(plant, state, tuple(command), seconds / substeps, 1)
                margins = np.minimum(margins, self._setup.margin(state))
        return state, margins
