"""Episodes through the tick's core, with adversarial policies, in each of which the host dies.

The plants are drawn from the box, and there are sensor errors, delays and lost frames. The plants are advanced as a
batch, but ``onrig.runtime.control.tick`` makes every decision, one episode at a time. After a lost frame or the host's
death, the last command remains in force until the lease expires; then the device switches to its safe output (with the
plant's delay, see ``actuation``).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import numpy as np

from onrig.hw import messages as m
from onrig.hw.messages import Status
from onrig.runtime.control.episode import begin_episode, never_ends, policy_action_source
from onrig.runtime.control.tick import Tick
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Kind, Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.plant_box import (
    PlantBox,
    PredictionContext,
    dead_band_of,
    error_bound,
    separate_parameters,
)
from onrig.runtime.task import episode_steps
from onrig.sim.plants import Plant
from onrig.sim.plants.integrate import BATCHED, Array
from onrig.sim.plants.registry import plant_type_for
from onrig.tools.safety_case.actuation import Actuation
from onrig.tools.safety_case.campaign import (
    Adversary,
    Campaign,
    Law,
    State,
    Tally,
    draw_dead_bands,
    draw_parameters,
    laws,
)

N_LANES: Final = 300
"""Number of episodes in a batch."""
LOSS_PROBABILITIES: Final = (0.0, 0.1, 0.5)
"""Frame loss probabilities; each episode uses one of them."""
_VARYING_FRACTION: Final = 0.3
"""Share of episodes in which the plant varies from period to period, within the guarantee."""
_AT_REST_FRACTION: Final = 0.3
_SMALL_MARGIN_DEATH_PROBABILITY: Final = 0.5
"""Share of episodes in which the host dies after a command with a small margin, if there is one."""
_MAX_SMALL_MARGIN: Final = 0.1
"""Largest margin that counts as small."""
AFTERMATH_DURATION_S: Final = 2.0
"""How long a plant is observed after the host's death."""


class SensorModel(NamedTuple):
    """Position and velocity sensors, whose counts have bounded errors."""

    resolutions: Array
    extra_error: Array
    """Maximum error in addition to the rounding to counts."""
    order: tuple[int, ...]
    """Index of the quantity that each sensor of the rig measures: 0 for position, 1 for velocity."""

    def read(self, state: Array, rng: np.random.Generator) -> list[tuple[int, ...]]:
        """Return each episode's counts, in the order of the rig's sensors."""
        readings = state + self.extra_error[:, None] * rng.uniform(-1.0, 1.0, state.shape)
        counts = np.rint(readings / self.resolutions[:, None]).astype(np.int64)[list(self.order)]
        return [tuple(c) for c in counts.T.tolist()]


class HostDeath:
    """Time of the host's death: after its reply to a random frame, or to the next one with a small margin."""

    def __init__(self, frames: int, rng: random.Random, *, stops_at_once: bool = False) -> None:
        """Draw the time of the death.

        With ``stops_at_once``, the device switches to its safe output at the next sample (as after a stop, an e-stop or
        the end of an episode) instead of after its lease.
        """
        self.stops_at_once = stops_at_once
        self._first, self._last = rng.randint(1, frames), frames
        self._waits_for_small_margin = rng.random() < _SMALL_MARGIN_DEATH_PROBABILITY

    def occurs(self, frame: int, margin: float) -> bool:
        """Return whether the host dies after its reply to this frame."""
        return frame >= self._first and (
            not self._waits_for_small_margin or margin < _MAX_SMALL_MARGIN or frame >= self._last
        )


class Lane:
    """State of one episode: its tick, its policy, and the command in force (counts)."""

    def __init__(
        self, tick: Tick, law: Law, name: str, loss_probability: float, death: HostDeath, rng: random.Random
    ) -> None:
        self.name, self.loss_probability, self.death, self.rng = name, loss_probability, death, rng
        self.previous_command = self.command = self._safe = tick.safe_counts
        self.unanswered = 0
        """Number of periods since the host's last reply."""
        self.is_alive, self.lease_expired = True, False
        tick.begin(1, Kind.TRAIN, [])
        self.respond = begin_episode(
            tick, policy_action_source(tick, cast(PolicySession, Adversary(law)), 1), has_ended=never_ends
        )

    def loses_frame(self, frame: int, lease_periods: int) -> bool:
        """Return whether a frame is lost or the host is dead, and update the lease."""
        is_lost = (
            frame > 1
            and self.unanswered < lease_periods - 1
            and self.loss_probability
            and self.rng.random() < self.loss_probability
        )
        if self.is_alive and not is_lost:
            self.unanswered = 0
            return False
        self.unanswered += 1
        if self.unanswered > lease_periods or (self.death.stops_at_once and not self.is_alive):
            self.lease_expired, self.previous_command, self.command = True, self._safe, self._safe
        return True


def sensor_model_for(config: RunConfig, box: PlantBox) -> SensorModel:
    """Return the sensor model of a rig. Raises ValueError if it measures anything but position and velocity."""
    rig, observed_names = config.rig, (box.place, box.velocity)
    names = [next(o.sensor or o.name for o in rig.observations if o.name == n) for n in observed_names]
    if sorted(names) != sorted(s.name for s in rig.sensors):
        raise ValueError(f"rig '{rig.name}' must measure position and velocity only")
    resolutions = np.array([next(s.resolution for s in rig.sensors if s.name == n) for n in names])
    bounds = np.array([error_bound(box, rig, n) for n in observed_names])
    return SensorModel(
        resolutions, np.maximum(bounds - 0.5 * resolutions, 0.0), tuple(names.index(s.name) for s in rig.sensors)
    )


def run_core(
    config: RunConfig, episodes: int, seed: int, progress: Callable[[int], None] = lambda n_done: None
) -> Campaign:
    """Run episodes, cycling through the policies. Raises ValueError for an unsuitable rig."""
    box = config.limits.predicted
    if box is None:
        raise ValueError("limits.predicted is not set, so the shield gives no guarantee to test")
    context = config.limits.context(config.rig, config.period_us * 1e-6)
    sensor_model, plant = sensor_model_for(config, box), plant_type_for(box).of_box(box, config.rig)
    factories = laws(box, context)
    ticks = [Tick(config) for _ in range(min(N_LANES, episodes))]
    campaign: Campaign = {name: Tally() for name in factories}
    names, n_done = list(factories), 0
    frames = episode_steps(config.task, config.rate_hz)
    while n_done < episodes:
        n = min(len(ticks), episodes - n_done)
        rng = np.random.default_rng((seed, n_done))
        lanes = []
        for i in range(n):
            generator = random.Random(f"{seed} {n_done + i}")
            name = names[(n_done + i) % len(names)]
            lanes.append(
                Lane(
                    ticks[i],
                    factories[name](generator),
                    name,
                    generator.choice(LOSS_PROBABILITIES),
                    HostDeath(frames, generator),
                    generator,
                )
            )
        _run_lanes(config, box, plant, sensor_model, lanes, rng, campaign)
        n_done += n
        progress(n_done)
    return campaign


def start_states(plant: Plant, box: PlantBox, context: PredictionContext, n: int, rng: np.random.Generator) -> State:
    """Draw positions and velocities (n,) from the safe set, some of them at rest and the others anywhere in it."""
    place, low, high = plant.safe_states(box, context, n, rng)
    return place, np.where(rng.random(n) < _AT_REST_FRACTION, 0.0, rng.uniform(low, high))


def _run_lanes(
    config: RunConfig,
    box: PlantBox,
    plant: Plant,
    sensor_model: SensorModel,
    lanes: list[Lane],
    rng: np.random.Generator,
    campaign: Campaign,
) -> None:
    n, period_s = len(lanes), config.period_us * 1e-6
    resolutions = np.array([a.resolution for a in config.rig.actuators])
    state = start_states(plant, box, config.limits.context(config.rig, period_s), n, rng)
    names, nominal = list(box.nominal), np.array(list(box.nominal.values()))
    is_varying = np.array([name in box.varying for name in names])
    parameters = draw_parameters(nominal, box.spread, n, rng)
    max_dead_band = dead_band_of(box)
    dead_bands = draw_dead_bands(max_dead_band, n, rng) if max_dead_band else None
    separate_values = {
        name: draw_parameters(np.array([value]), spread, n, rng)[0]
        for name, (value, spread) in separate_parameters(box).items()
        if spread
    }
    is_changing = rng.random(n) < _VARYING_FRACTION
    friction_fraction = rng.choice([0.0, 1.0], n)
    actuation = Actuation(box, period_s, np.array(lanes[0].command) * resolutions, n, rng)
    envelope = config.limits.envelope[box.velocity]
    peak = np.zeros(n)
    n_aftermath_frames = round(AFTERMATH_DURATION_S * config.rate_hz) + config.rig.lease_periods
    for frame in range(1, episode_steps(config.task, config.rate_hz) + n_aftermath_frames + 1):
        for lane, counts in zip(lanes, sensor_model.read(np.stack(state), rng), strict=True):
            lane.previous_command = lane.command
            if not lane.loses_frame(frame, config.rig.lease_periods):
                decide(lane, frame, frame * config.period_us, counts, campaign[lane.name])
        previous_command = np.array([lane.previous_command for lane in lanes], np.float64).T * resolutions[:, None]
        command = np.array([lane.command for lane in lanes], np.float64).T * resolutions[:, None]
        new_parameters = draw_parameters(nominal, box.spread, n, rng)
        is_changing &= np.array([lane.is_alive for lane in lanes])
        parameters = np.where(is_changing & is_varying[:, None], new_parameters, parameters)
        current_plant = plant.varied(separate_values).with_lumped(dict(zip(names, parameters, strict=True)))
        if dead_bands is not None:
            if "dead_band" in box.varying:
                dead_bands = np.where(is_changing, draw_dead_bands(max_dead_band, n, rng), dead_bands)
            current_plant = current_plant.varied({"dead_band": dead_bands})
        lease_expired = np.array([lane.lease_expired for lane in lanes])
        driven_state, max_speed = actuation.advance(current_plant, state, previous_command, command, lease_expired)
        is_released = lease_expired & config.rig.releases
        if is_released.any():
            coasting_state, coasting_speed = actuation.coast(
                current_plant, current_plant.released(friction_fraction), state, is_released
            )
            driven_state = tuple(
                [np.where(is_released, a, b) for a, b in zip(coasting_state, driven_state, strict=True)]
            )
            max_speed = np.where(is_released, coasting_speed, max_speed)
        state, peak = driven_state, np.maximum(peak, max_speed)
        state = current_plant.constrain(BATCHED, state)
    limit = min(-envelope.low, envelope.high)
    for lane, speed in zip(lanes, peak.tolist(), strict=True):
        campaign[lane.name].add(1.0 - speed / limit)


def decide(lane: Lane, frame: int, t_us: int, sensors: tuple[int, ...], tally: Tally) -> None:
    """Reply to a frame with the episode's tick and policy, after which the host may die."""
    state = m.State(
        frame, t_us, Status.ARMED, 0, 1, frame - 1, 0, sensors, lane.previous_command, lane.previous_command
    )
    answer = lane.respond(state)
    step, lane.command = answer.step, answer.command
    lane.is_alive = not lane.death.occurs(frame, step.margin)
    tally.ticks += 1
    if step.rule is not Rule.NONE:
        tally.rules[step.rule] += 1
