"""Episodes through the tick's pure core: adversarial policies, plants of the box, sensor errors, delays, lost frames.

The plants are advanced as a batch, every decision is the scalar one of ``onrig.runtime.control.tick``.  A lost frame is
one that the tick never sees: the command before stays in force, at most for as long as the lease lasts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import numpy as np

from onrig.hw.messages import State, Status
from onrig.runtime.control.tick import Tick
from onrig.runtime.policy.session import PolicySession
from onrig.runtime.record import Kind, Rule
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.limits import compile_prediction
from onrig.runtime.safety.pendulum import PendulumBox, cases
from onrig.runtime.safety.phase_plane import NODES, upper_side
from onrig.runtime.safety.plant_box import PlantBox, error_bound
from onrig.runtime.task import episode_steps
from onrig.tools.safety_case.adversaries import Adversary, Law, laws
from onrig.tools.safety_case.plants import SUBSTEPS, Physics, Values, advance, draw, physics_of
from onrig.tools.safety_case.tally import Campaign, Tally

LANES: Final = 300
"""Episodes that run side by side."""
_LOSSES: Final = (0.0, 0.1, 0.5)
"""Chances of a frame to be lost, one per episode."""
_CHANGING: Final = 0.3
"""Share of episodes whose plant changes in every period, as far as the promise lets it."""
_AT_REST: Final = 0.3


class Sight(NamedTuple):
    """How the two sensors that matter see: counts of (place, velocity) with an error within its bound."""

    resolutions: Values
    more: Values
    """Error on top of the rounding to counts."""
    order: tuple[int, ...]
    """For each sensor of the rig, which of the two it reads."""

    def read(self, state: Values, rng: np.random.Generator) -> list[tuple[int, ...]]:
        """Counts of each lane, in the order of the rig's sensors."""
        seen = state + self.more[:, None] * rng.uniform(-1.0, 1.0, state.shape)
        counts = np.rint(seen / self.resolutions[:, None]).astype(np.int64)[list(self.order)]
        return [tuple(c) for c in counts.T.tolist()]


class _Lane:
    """One episode: its tick, its policy and the command in force (counts)."""

    def __init__(self, tick: Tick, law: Law, name: str, loss: float, rng: random.Random) -> None:
        self.tick, self.name, self.loss, self.rng = tick, name, loss, rng
        self.policy = cast(PolicySession, Adversary(law))
        self.before = self.command = tick.safe_counts
        self.lost = 0
        tick.begin(1, Kind.TRAIN, [])


def sight_of(config: RunConfig, plants: PlantBox) -> Sight:
    """How the rig sees a plant; only rigs whose sensors measure place and velocity themselves can be tried."""
    rig = config.rig
    place = plants.place
    names = [next(o.sensor or o.name for o in rig.observations if o.name == n) for n in (place, plants.velocity)]
    if sorted(names) != sorted(s.name for s in rig.sensors):
        raise ValueError(f"rig '{rig.name}' measures more or less than place and velocity")
    resolutions = np.array([next(s.resolution for s in rig.sensors if s.name == n) for n in names])
    bounds = np.array([error_bound(plants, rig, n) for n in (place, plants.velocity)])
    return Sight(
        resolutions, np.maximum(bounds - 0.5 * resolutions, 0.0), tuple(names.index(s.name) for s in rig.sensors)
    )


def run_core(
    config: RunConfig, episodes: int, seed: int, progress: Callable[[int], None] = lambda done: None
) -> Campaign:
    """Run so many episodes, policies in turn; raises ValueError for a rig that cannot be tried."""
    plants = config.limits.predicted
    if plants is None:
        raise ValueError("limits.predicted names no plants that the shield answers for")
    period_s = config.period_us * 1e-6
    prediction = compile_prediction(config.limits, config.rig, period_s)
    if prediction is None:
        raise ValueError("limits.predicted names no plants that the shield answers for")
    sight, physics = sight_of(config, plants), physics_of(plants, config.rig)
    made = laws(config.limits, config.rig, plants, prediction)
    ticks = [Tick(config) for _ in range(min(LANES, episodes))]
    campaign: Campaign = {name: Tally() for name in made}
    names, done = list(made), 0
    while done < episodes:
        n = min(len(ticks), episodes - done)
        rng = np.random.default_rng((seed, done))
        lanes = []
        for i in range(n):
            own = random.Random(f"{seed} {done + i}")
            name = names[(done + i) % len(names)]
            lanes.append(_Lane(ticks[i], made[name](own), name, own.choice(_LOSSES), own))
        _run_lanes(config, plants, physics, sight, lanes, rng, campaign)
        done += n
        progress(done)
    return campaign


def start_states(config: RunConfig, plants: PlantBox, n: int, rng: np.random.Generator) -> Values:
    """States (2, n) of the safe set: at rest or anywhere in it."""
    limits, rig = config.limits, config.rig
    if isinstance(plants, PendulumBox):
        upper, lower = (upper_side(c).safe for c in cases(plants, limits.setting(rig, config.period_us * 1e-6)))
        place = rng.uniform(-np.pi, np.pi, n)
        cell = ((place + np.pi) / (2 * np.pi) * NODES).astype(int) % NODES
        high = np.minimum(upper, np.roll(upper, -1))[cell]
        low = -np.minimum(lower, np.roll(lower, -1))[NODES - 1 - cell]
    else:
        track = next(o for o in rig.observations if o.name == plants.place)
        envelope = limits.envelope[plants.velocity]
        place, high, low = rng.uniform(track.low, track.high, n), np.full(n, envelope.high), np.full(n, envelope.low)
    speed = np.where(rng.random(n) < _AT_REST, 0.0, rng.uniform(low, high))
    return np.stack([place, speed])


def _run_lanes(
    config: RunConfig,
    plants: PlantBox,
    physics: Physics,
    sight: Sight,
    lanes: list[_Lane],
    rng: np.random.Generator,
    campaign: Campaign,
) -> None:
    n, period_s = len(lanes), config.period_us * 1e-6
    resolutions = np.array([a.resolution for a in config.rig.actuators])
    longest = config.rig.lease_periods - 1
    late_s = min(plants.late_us * 1e-6, period_s)
    state = start_states(config, plants, n, rng)
    parameters = draw(physics.nominal, plants.spread, n, rng)
    changing = rng.random(n) < _CHANGING
    late = rng.uniform(0.0, late_s, n)
    envelope = config.limits.envelope[plants.velocity]
    peak = np.zeros(n)
    for frame in range(1, episode_steps(config.task, config.rate_hz) + 1):
        for lane, counts in zip(lanes, sight.read(state, rng), strict=True):
            lane.before = lane.command
            if frame > 1 and lane.lost < longest and lane.loss and lane.rng.random() < lane.loss:
                lane.lost += 1
                continue
            lane.lost = 0
            _decide(lane, frame, frame * config.period_us, counts, campaign[lane.name])
        before = np.array([lane.before for lane in lanes], np.float64).T * resolutions[:, None]
        command = np.array([lane.command for lane in lanes], np.float64).T * resolutions[:, None]
        drawn = draw(physics.nominal, plants.spread, n, rng)
        parameters = np.where(changing & physics.varying[:, None], drawn, parameters)
        state, first = advance(physics, parameters, state, before, late, 2)
        state, second = advance(physics, parameters, state, command, period_s - late, SUBSTEPS)
        peak = np.maximum(peak, np.maximum(first, second))
        state = physics.constrain(state)
    limit = min(-envelope.low, envelope.high)
    for lane, fastest in zip(lanes, peak.tolist(), strict=True):
        campaign[lane.name].add(1.0 - fastest / limit)


def _decide(lane: _Lane, frame: int, t_us: int, sensors: tuple[int, ...], tally: Tally) -> None:
    tick = lane.tick
    state = State(frame, t_us, Status.ARMED, 0, 1, frame - 1, 0, sensors, lane.before, lane.before)
    step = tick.observe(state)
    tick.ask(step, lane.policy, 1)
    tick.explore(step)
    tick.shield(step)
    lane.command = step.command
    tally.ticks += 1
    if step.rule is not Rule.NONE:
        tally.rules[step.rule] += 1
