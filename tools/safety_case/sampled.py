"""Test of a sampled barrier: hostile episodes through the tick's pure core, each with a plant that was not in the
computation's sample.

Each episode has one freshly drawn plant with its own sensor errors and delay, begins in the safe set, and ends with the
host's death.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.control.tick import Tick
from onrig.runtime.maths import BATCHED
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.plant_box import Prediction
from onrig.runtime.safety.sampled import SampledBox, SampledPrediction
from onrig.runtime.task import episode_steps
from onrig.sim.barrier.fleet import Bench
from onrig.sim.barrier.one_step import OneStep, Steps
from onrig.sim.barrier.plants import Draw, draw_plants
from onrig.sim.barrier.table import COASTS
from onrig.sim.plants.integrate import Array, advance
from onrig.sim.plants.plant import Plant
from onrig.tools.safety_case.campaign import Campaign, Law, Tally, Wish, strongest_that_passes
from onrig.tools.safety_case.episodes import LANES, LOSSES, Death, Lane, decide

LONGEST_S: Final = 4.0
"""Longest time before the host dies."""
SUBSTEPS: Final = 4
_TRIES: Final = 400
"""Rounds of drawing starts."""
State = tuple[Array, ...]


class Outcome(NamedTuple):
    """Episodes by policy, and how well the computed plants explain each of them."""

    campaign: Campaign
    outside: Array
    """Share of steps of each episode that none explains."""

    @property
    def breaches(self) -> int:
        """Episodes with a breach."""
        return sum(tally.breaches for tally in self.campaign.values())


def hostile_laws(prediction: Prediction, config: RunConfig) -> dict[str, Callable[[random.Random], Law]]:
    """Factories of policies that know the table: they push where it has the least margin."""
    rig, ranges = config.rig, config.limits.setting(config.rig, config.period_us * 1e-6).ranges
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
        held, left = corners[0], 0

        def law(observation: Sequence[float]) -> Wish:
            nonlocal held, left
            if left == 0:
                held, left = rng.choice(corners), rng.randint(1, 25)
            left -= 1
            return held

        return law

    def broken(rng: random.Random) -> Law:
        return lambda observation: (float("nan"),) * len(ends) if rng.random() < 0.2 else push(observation)

    return {
        "uniform": lambda rng: lambda observation: [rng.uniform(*end) for end in ends],
        "bang-bang": bang_bang,
        "pushing": lambda rng: push,
        "edge of S": lambda rng: lambda seen: strongest_that_passes(prediction, seen, push(seen), rig),
        "broken": broken,
    }


def run_sampled(
    config: RunConfig,
    judge: SampledBox,
    episodes: int,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
    *,
    scaled: Mapping[str, float] | None = None,
) -> Outcome:
    """Run hostile episodes; policies and starts know the table of ``judge``, which ``config`` may do without.

    ``scaled``: factors on parameters of the drawn plants, beyond what the table covers.
    """
    setting = config.limits.setting(config.rig, config.period_us * 1e-6)
    prediction, bench = judge.prediction(setting), Bench.of(config, judge)
    laws, ticks = hostile_laws(prediction, config), [Tick(config) for _ in range(min(LANES, episodes))]
    campaign: Campaign = {name: Tally() for name in laws}
    names, done, outside = list(laws), 0, []
    residuals = OneStep(config, judge)
    frames = min(episode_steps(config.task, config.rate_hz), round(LONGEST_S * config.rate_hz))
    while done < episodes:
        n = min(len(ticks), episodes - done)
        rng = np.random.default_rng((seed, done, 1))
        draw = draw_plants(config, judge, n, rng, corners=False)
        for name, factor in (scaled or {}).items():
            draw.parameters[name] = factor * draw.parameters.get(name, np.full(n, float(bench.plant.number(name))))
        lanes = []
        for i in range(n):
            own = random.Random(f"{seed} {done + i}")
            name = names[(done + i) % len(names)]
            lanes.append(Lane(ticks[i], laws[name](own), name, own.choice(LOSSES), Death(frames, own), own))
        state = safe_starts(prediction, bench, residuals.order, n, rng)
        batch = _Batch(config, bench, draw, lanes, residuals)
        aftermath = round(COASTS * judge.horizon_s * config.rate_hz)
        least, share = batch.run(tuple(state - draw.bias), frames, aftermath, campaign)
        for lane, margin in zip(lanes, least.tolist(), strict=True):
            campaign[lane.name].add(margin)
        outside.append(share)
        done += n
        progress(done)
    return Outcome(campaign, np.concatenate(outside))


def safe_starts(
    prediction: SampledPrediction, bench: Bench, order: tuple[int, ...], n: int, rng: np.random.Generator
) -> Array:
    """Draw observations (states, n) in the plant's order from which the safe command passes; ValueError if rare."""
    axes, found = {axis.name: axis for axis in prediction.states}, []
    names = [axis.name for axis in prediction.states]
    lows, highs = np.array([(axes[name].low, axes[name].high) for name in names]).T
    for _ in range(_TRIES):
        for point in rng.uniform(lows, highs, (max(n, 100), len(names))).tolist():
            seen = [0.0] * len(names)
            for at, value in zip(order, point, strict=True):
                seen[at] = value
            if not prediction.evaluate(seen, bench.safe)[0]:
                found.append(point)
        if len(found) >= n:
            return np.array(found[:n]).T
    raise ValueError("hardly any state of the table is safe: widen the envelope or narrow the ranges")


class _Batch:
    """Episodes side by side, one plant and one tick each."""

    def __init__(self, config: RunConfig, bench: Bench, draw: Draw, lanes: list[Lane], residuals: OneStep) -> None:
        self._config, self._bench, self._draw, self._lanes = config, bench, draw, lanes
        self._residuals = residuals
        rig = config.rig
        self._plant: Plant = bench.plant.varied(draw.parameters)
        names = [rig.observations[at].sensor or rig.observations[at].name for at in residuals.order]
        self._sensors = [names.index(s.name) for s in rig.sensors]
        self._counts = np.array([s.resolution for s in rig.sensors])[:, None]
        self._order = [[s.name for s in rig.sensors].index(name) for name in names]
        bounds = residuals.errors[self._sensors][:, None]
        # Rounding to counts is part of a bound.
        more = np.maximum(bounds - 0.5 * self._counts, 0.0)
        self._error = draw.bias[self._sensors] / np.maximum(bounds, 1e-300) * more
        self._units = np.array([a.resolution for a in rig.actuators])[:, None]

    def run(self, state: State, frames: int, aftermath: int, campaign: Campaign) -> tuple[Array, Array]:
        """Return the least margin of each episode, and the share of its steps that no computed plant explains."""
        config, bench, draw, lanes = self._config, self._bench, self._draw, self._lanes
        n, lease = len(lanes), config.rig.lease_periods
        least, judged, outside = bench.margin(state), np.zeros(n), np.zeros(n)
        late: Any = draw.late_s
        for frame in range(1, frames + 2 * (lease + 1)):  # the last frames may be lost
            counts = self._read(state)
            for lane, seen in zip(lanes, counts.T.tolist(), strict=True):
                lane.before = lane.command
                if not lane.loses_frame(frame, lease):
                    decide(lane, frame, frame * config.period_us, tuple(seen), campaign[lane.name])
            before = np.array([lane.before for lane in lanes], np.float64).T * self._units
            command = np.array([lane.command for lane in lanes], np.float64).T * self._units
            alive = np.array([lane.alive for lane in lanes])
            state, now = self._move(state, before, command, late)
            least = np.minimum(least, now)
            if alive.any():
                steps = Steps(self._measured(counts), before, command, late, self._measured(self._read(state)))
                outside += alive & self._residuals.outside(steps)
                judged += alive
        for _ in range(aftermath):
            state, now = self._move(state, command, command, late)
            least = np.minimum(least, now)
        return least, outside / np.maximum(judged, 1.0)

    def _read(self, state: State) -> NDArray[np.int64]:
        """Counts (sensors, l) of states."""
        counts = np.rint((np.stack(state)[self._sensors] + self._error) / self._counts)
        return np.asarray(counts, np.int64)

    def _measured(self, counts: NDArray[np.int64]) -> Array:
        """Observations in the order of the plant's states."""
        return np.asarray((counts * self._counts)[self._order])

    def _move(self, state: State, before: Array, command: Array, late: Array) -> tuple[State, Array]:
        bench, start = self._bench, state
        parts = [(self._plant, before, late, 1), (self._plant, command, bench.period_s - late, SUBSTEPS)]
        state, least = self._along(parts, start)
        released = np.array([lane.fallen for lane in self._lanes]) & bench.releases
        if released.any():
            loose = self._plant.released(np.where(np.arange(len(released)) % 2, 1.0, 0.0))
            coasting, other = self._along([(loose, 0.0 * command, np.full_like(late, bench.period_s), SUBSTEPS)], start)
            state = tuple([np.where(released, a, b) for a, b in zip(coasting, state, strict=True)])
            least = np.where(released, other, least)
        return self._plant.constrain(BATCHED, state), least

    def _along(self, parts: list[tuple[Plant, Array, Array, int]], state: State) -> tuple[State, Array]:
        least = self._bench.margin(state)
        for plant, command, seconds, substeps in parts:
            for _ in range(substeps):
                state = advance(plant, state, tuple(command), seconds / substeps, 1)
                least = np.minimum(least, self._bench.margin(state))
        return state, least
