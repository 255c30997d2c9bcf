"""Computation of a sampled barrier over a grid of states and commands.

The margin of a state and a command is the smallest over all drawn plants and two continuations.  Either the command
acts for a period, or for as many as frames may be lost, and then the fallback.  Or the device goes to its safe output,
now or at any later time under the fallback: at once (a stop, an e-stop, the end of an episode), or after the host's
death, when the last command is held for up to the lease and a period; the last command acts for the plant's delay.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import pi, prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.barrier_file import FORMAT, Axis, Header, Values
from onrig.runtime.safety.sampled import SampledBox
from onrig.sim.barrier.fleet import FLOOR, Fleet, SharedSetup
from onrig.sim.barrier.plants import Draw, draw_plants, made_for, observed
from onrig.sim.plants.integrate import Array

COASTS: Final = 2
"""Factor on the horizon after a loss of the host: the safe output brakes less than the fallback."""
_NODES: Final = {1: 101, 2: 61, 3: 31, 4: 15}
"""Nodes of an axis by the number of states."""
_LEVELS: Final = 5
"""Nodes of a command."""
_LANES: Final = 1 << 16
"""Number of plants simulated in parallel."""
_REACH: Final = 2000
_BEYOND: Final = 1.05
_CHECKED: Final = 4000
_NEAR: Final = 0.3
"""Distance from 0 of the margins that determine the slack."""
_COVERED: Final = 99.0
_LEAST_SLACK: Final = 0.01
Progress = Callable[[float], None]


class Grid(NamedTuple):
    """A table (flat) over axes."""

    axes: tuple[Axis, ...]
    values: Values

    def at(self, points: Array) -> Array:
        """Interpolate at points (d, l); FLOOR beyond an axis."""
        base, inside, weights, strides = np.zeros(points.shape[1], np.int64), True, [], _strides(self.axes)
        for axis, step, x in zip(self.axes, strides, points, strict=True):
            t = (x - axis.low) * ((axis.nodes - 1) / (axis.high - axis.low))
            if axis.wraps:
                t = t % (axis.nodes - 1)
            inside = inside & (t >= -1e-9) & (t <= axis.nodes - 1 + 1e-9)
            i = np.clip(np.nan_to_num(t), 0, axis.nodes - 2).astype(np.int64)
            base += i * step
            weights.append(np.clip(t - i, 0.0, 1.0))
        found = _interpolate(self.values, base, strides, weights)
        return np.asarray(np.where(inside, found, FLOOR))

    def points(self, start: int, end: int) -> Array:
        """Coordinates (d, end - start) of nodes."""
        found = np.unravel_index(np.arange(start, end), [axis.nodes for axis in self.axes])
        return np.asarray(np.stack([_nodes(axis)[i] for axis, i in zip(self.axes, found, strict=True)]))


def _interpolate(values: Values, base: NDArray[np.integer[Any]], strides: Sequence[int], weights: list[Array]) -> Array:
    if not strides:
        return np.asarray(values[base], np.float64)
    low = _interpolate(values, base, strides[1:], weights[1:])
    found: Array = low + weights[0] * (_interpolate(values, base + strides[0], strides[1:], weights[1:]) - low)
    return found


def _strides(axes: Sequence[Axis]) -> list[int]:
    return [prod(axis.nodes for axis in axes[i + 1 :]) for i in range(len(axes))]


def _nodes(axis: Axis) -> Array:
    return np.linspace(axis.low, axis.high, axis.nodes)


class Job(NamedTuple):
    """Everything a stage of the computation needs."""

    setup: SharedSetup
    draw: Draw
    periods: int
    states: tuple[Axis, ...]
    commands: tuple[Axis, ...]
    coast: Values
    hold: Values
    brake: Values

    def fleet(self, points: int) -> tuple[Fleet, int]:
        """Every plant at each of ``points``, points varying fastest, and the number of plants."""
        k = len(self.draw.late_s)
        return Fleet(self.setup, self.draw.select(np.repeat(np.arange(k), points))), k

    def host_loss(self, seen: Array, command: Array) -> Array:
        """Smallest margin if the host is lost or the device stops after this command."""
        return Grid((*self.states, *self.commands), self.hold).at(np.concatenate([seen, command]))

    # Stages; each returns the least margin over the plants at nodes [start, end).

    def coasting(self, start: int, end: int) -> Array:
        """Under the safe output."""
        seen = Grid(self.states, self.coast).points(start, end)
        fleet, k = self.fleet(seen.shape[1])
        return _min_over_plants(fleet.coast(fleet.true(np.tile(seen, k)), COASTS * self.periods), k)

    def holding(self, start: int, end: int) -> Array:
        """Under a command held until any sample, at most for the lease and a period, and acting for the plant's delay;
        then the safe output."""
        return self._at_commands(start, end, self._held)

    def _held(self, fleet: Fleet, seen: Array, command: Array) -> Array:
        coast, state = Grid(self.states, self.coast), fleet.true(seen)
        least = coast.at(seen)
        for k in range(self.setup.held_periods):
            state, now = fleet.hold(state, command, 1) if k else fleet.first(state, command)
            least, fallen = np.minimum(least, now), state
            if self.draw.plant_delay_s.any():
                fallen, now = fleet.outlast(state, command)
                least = np.minimum(least, now)
            least = np.minimum(least, coast.at(fleet.seen(fallen)))
        return least

    def braking(self, start: int, end: int) -> Array:
        """Under the fallback, losses of the host included."""
        seen = Grid(self.states, self.coast).points(start, end)
        fleet, k = self.fleet(seen.shape[1])
        return _min_over_plants(fleet.brake(fleet.true(np.tile(seen, k)), self.periods, self.host_loss), k)

    def commanding(self, start: int, end: int) -> Array:
        """Under a command that is held while frames are lost, and then the fallback; losses of the host included."""
        return np.minimum(self._at_commands(start, end, self._commanded), self.hold[start:end])

    def _commanded(self, fleet: Fleet, seen: Array, command: Array) -> Array:
        state, least = fleet.first(fleet.true(seen), command)
        for lost in range(self.setup.held_periods - 1):
            if lost:
                state, now = fleet.hold(state, command, 1)
                least = np.minimum(least, now)
            least = np.minimum(least, Grid(self.states, self.brake).at(fleet.seen(state)))
        return least

    def _at_commands(self, start: int, end: int, margin: Callable[[Fleet, Array, Array], Array]) -> Array:
        points = Grid((*self.states, *self.commands), self.hold).points(start, end)
        fleet, k = self.fleet(points.shape[1])
        points, n = np.tile(points, k), len(self.states)
        return np.maximum(_min_over_plants(margin(fleet, points[:n], points[n:]), k), FLOOR)

    def simulated_margin(self, points: Array) -> Array:
        """Margin (l,) at points (d, l) of states and commands, with the fallback simulated instead of interpolated."""
        fleet, k = self.fleet(points.shape[1])
        points, n = np.tile(points, k), len(self.states)
        state, least = fleet.first(fleet.true(points[:n]), points[n:])
        least = np.minimum(least, self.host_loss(points[:n], points[n:]))
        least = np.minimum(least, fleet.brake(state, self.periods, self.host_loss))
        return _min_over_plants(least, k)


def _min_over_plants(margins: Array, plants: int) -> Array:
    """Least margin at each point over the plants."""
    return np.asarray(margins.reshape(plants, -1).min(axis=0))


_job: Job | None = None
"""The job of this process; workers are forked with it."""


def _compute_part(stage: str, start: int, end: int) -> Values:
    assert _job is not None
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(getattr(_job, stage)(start, end), np.float32)


def axes_of(
    config: RunConfig, box: SampledBox, setup: SharedSetup, draw: Draw
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Axes of states and commands: as configured, or determined by simulating drawn plants."""
    rig, limits = config.rig, config.limits
    observations = [rig.observations[at] for at in observed(rig, setup.plant)]
    rng, n = np.random.default_rng(0), len(observations)
    first = [box.range.get(o.name, (o.low, o.high)) for o in observations]
    for i, o in enumerate(observations):
        envelope = limits.envelope.get(o.name)
        if rig.wraps(o.name):
            first[i] = box.range.get(o.name, (-pi, pi))
        elif envelope is not None:
            first[i] = (envelope.low, envelope.high)
    reached = _reach(setup, draw, first, rng)
    states = []
    for i, o in enumerate(observations):
        fixed = o.name in box.range or o.name in limits.envelope or rig.wraps(o.name)
        low, high = first[i] if fixed else reached[i]
        turn = rig.wraps(o.name) and (low, high) == (-pi, pi)
        states.append(Axis(o.name, float(low), float(high), box.nodes.get(o.name, _NODES[n]), turn))
    ranges = limits.setting(rig, config.period_us * 1e-6).ranges
    commands = [Axis(a.name, *ranges[a.name], box.nodes.get(a.name, _LEVELS)) for a in rig.actuators]
    return tuple(states), tuple(commands)


def _reach(
    setup: SharedSetup, draw: Draw, first: list[tuple[float, float]], rng: np.random.Generator
) -> list[tuple[float, float]]:
    """Range of each state that plants reach from anywhere in a box, under fallback and safe output in turn."""
    lows, highs = np.array(first).T
    lanes = rng.integers(len(draw.late_s), size=_REACH)
    fleet = Fleet(setup, draw.select(lanes))
    state = tuple(rng.uniform(lows[:, None], highs[:, None], (len(first), _REACH)))
    middle, half = 0.5 * (lows + highs), 0.5 * (highs - lows)
    found = half.copy()
    for k in range(round(1.0 / setup.period_s)):
        command = setup.law(fleet.seen(state))
        idle = np.repeat(np.array(setup.safe)[:, None], _REACH, axis=1)
        state, least = fleet.hold(state, command if k % 2 else idle, 1)
        inside = least > FLOOR
        if not inside.any():
            break
        far = [np.abs(x[inside] - m).max() for x, m in zip(state, middle, strict=True)]
        found = np.maximum(found, np.nan_to_num(far, nan=0.0))
    wide = np.where(found > half, _BEYOND * found, half)
    return [*zip((middle - wide).tolist(), (middle + wide).tolist(), strict=True)]


def compute(
    config: RunConfig, box: SampledBox, plants: int, seed: int, progress: Progress, workers: int
) -> tuple[Header, Values]:
    """Compute the table; ``progress`` receives the share done, from 0 to 1.  Raises ValueError if no state is safe."""
    global _job
    rng, setup = np.random.default_rng((seed, 0)), SharedSetup.of(config, box)
    draw = draw_plants(config, box, plants, rng, corners=True)
    states, commands = axes_of(config, box, setup, draw)
    none = np.zeros(0, np.float32)
    job = Job(setup, draw, max(1, round(box.horizon_s / setup.period_s)), states, commands, none, none, none)
    nodes = prod(axis.nodes for axis in states)
    pairs = nodes * prod(axis.nodes for axis in commands)
    levels, held = pairs / nodes, setup.held_periods / job.periods
    costs = {"coasting": 0.7 * COASTS, "holding": levels * held, "braking": 2.0, "commanding": levels / job.periods}
    total, done = sum(costs.values()), 0.0
    for stage, field in (("coasting", "coast"), ("holding", "hold"), ("braking", "brake"), ("commanding", "hold")):
        size = nodes if field in ("coast", "brake") else pairs
        _job = job
        values = np.empty(size, np.float32)
        for start, part in _compute_parts(stage, size, max(1, _LANES // plants), workers):
            values[start : start + len(part)] = part
            progress(min(1.0, (done + costs[stage] * (start + len(part)) / size) / total))
        done += costs[stage]
        if stage == "commanding":
            break
        job = _with_values(job, field, values)
    if not (values > 0.0).any():
        raise ValueError("no state is safe: widen the envelope, shorten the lease, or state less uncertainty")
    slack = _slack(job, Grid((*states, *commands), values), rng)
    if not (values > slack).any():
        raise ValueError(f"the nodes are too few (slack {slack:.2g}): give more of them (nodes)")
    return Header(FORMAT, made_for(config, box), states, commands, plants, box.horizon_s, slack, seed), values


def _with_values(job: Job, field: str, values: Values) -> Job:
    match field:
        case "coast":
            return job._replace(coast=values)
        case "hold":
            return job._replace(hold=values)
    return job._replace(brake=values)


def _compute_parts(stage: str, size: int, chunk: int, workers: int) -> Iterator[tuple[int, Values]]:
    starts = [*range(0, size, chunk)]
    ends = [min(start + chunk, size) for start in starts]
    if workers < 2:
        yield from ((start, _compute_part(stage, start, end)) for start, end in zip(starts, ends, strict=True))
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        try:
            yield from zip(starts, pool.map(_compute_part, [stage] * len(starts), starts, ends), strict=True)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _slack(job: Job, table: Grid, rng: np.random.Generator) -> float:
    """99th percentile, over points with margins near 0, of the excess of interpolated over simulated margins."""
    lows, highs = (np.array([getattr(axis, end) for axis in table.axes])[:, None] for end in ("low", "high"))
    points = rng.uniform(lows, highs, (len(table.axes), 20 * _CHECKED))
    near = points[:, np.abs(table.at(points)) < _NEAR][:, :_CHECKED]
    if not near.shape[1]:
        return _LEAST_SLACK
    excess, chunk = [], max(1, _LANES // len(job.draw.late_s))
    for start in range(0, near.shape[1], chunk):
        some = near[:, start : start + chunk]
        excess.append(table.at(some) - job.simulated_margin(some))
    return max(_LEAST_SLACK, float(np.percentile(np.concatenate(excess), _COVERED)))
