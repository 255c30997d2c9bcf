"""Computation of a sampled barrier over a grid of states and commands.

The margin of a state and a command is the smallest one over all drawn plants and two kinds of continuation:

* The command acts for one period, or for as many periods as frames may be lost, and the fallback follows.
* The device switches to its safe output, now or at any later time under the fallback.  It switches at once (a stop, an
  e-stop, the end of an episode) or after the host is lost, when it first holds the last command for up to the lease
  plus one period.  In both cases the last command still acts for the plant's delay.
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
from onrig.sim.barrier.plants import Draw, draw_plants, made_for, observation_indices
from onrig.sim.plants.integrate import Array

COAST_HORIZON_FACTOR: Final = 2
"""Factor on the horizon under the safe output, which brakes less than the fallback."""
_STATE_NODES: Final = {1: 101, 2: 61, 3: 31, 4: 15}
"""Default number of nodes of a state's axis, by the number of states."""
_COMMAND_NODES: Final = 5
"""Default number of nodes of a command's axis."""
_MAX_LANES: Final = 1 << 16
"""Maximum number of plants simulated in parallel."""
_REACH_SAMPLES: Final = 2000
_RANGE_WIDENING: Final = 1.05
_SLACK_POINTS: Final = 4000
_NEAR_BOUNDARY: Final = 0.3
"""Maximum distance from 0 of the margins that determine the slack."""
_SLACK_PERCENTILE: Final = 99.0
_MIN_SLACK: Final = 0.01
Progress = Callable[[float], None]


class Grid(NamedTuple):
    """Flat table of values at the nodes of a product of axes."""

    axes: tuple[Axis, ...]
    values: Values

    def at(self, points: Array) -> Array:
        """Return interpolated values (l,) at points (d, l); FLOOR outside the axes."""
        base, is_inside, weights, strides = np.zeros(points.shape[1], np.int64), True, [], _strides(self.axes)
        for axis, step, x in zip(self.axes, strides, points, strict=True):
            t = (x - axis.low) * ((axis.nodes - 1) / (axis.high - axis.low))
            if axis.wraps:
                t = t % (axis.nodes - 1)
            is_inside = is_inside & (t >= -1e-9) & (t <= axis.nodes - 1 + 1e-9)
            i = np.clip(np.nan_to_num(t), 0, axis.nodes - 2).astype(np.int64)
            base += i * step
            weights.append(np.clip(t - i, 0.0, 1.0))
        margins = _interpolate(self.values, base, strides, weights)
        return np.asarray(np.where(is_inside, margins, FLOOR))

    def points(self, start: int, end: int) -> Array:
        """Return the coordinates (d, end - start) of the nodes with flat indices [start, end)."""
        margins = np.unravel_index(np.arange(start, end), [axis.nodes for axis in self.axes])
        return np.asarray(np.stack([_nodes(axis)[i] for axis, i in zip(self.axes, margins, strict=True)]))


def _interpolate(values: Values, base: NDArray[np.integer[Any]], strides: Sequence[int], weights: list[Array]) -> Array:
    if not strides:
        return np.asarray(values[base], np.float64)
    low = _interpolate(values, base, strides[1:], weights[1:])
    interpolated_values: Array = low + weights[0] * (
        _interpolate(values, base + strides[0], strides[1:], weights[1:]) - low
    )
    return interpolated_values


def _strides(axes: Sequence[Axis]) -> list[int]:
    return [prod(axis.nodes for axis in axes[i + 1 :]) for i in range(len(axes))]


def _nodes(axis: Axis) -> Array:
    return np.linspace(axis.low, axis.high, axis.nodes)


class Job(NamedTuple):
    """Inputs of a stage of the computation: plants, axes, and the tables of earlier stages."""

    setup: SharedSetup
    draw: Draw
    periods: int
    states: tuple[Axis, ...]
    commands: tuple[Axis, ...]
    coast: Values
    hold: Values
    brake: Values

    def fleet(self, points: int) -> tuple[Fleet, int]:
        """Return a fleet with every plant at each of ``points`` (points varying fastest), and the number of plants."""
        k = len(self.draw.late_s)
        return Fleet(self.setup, self.draw.select(np.repeat(np.arange(k), points))), k

    def host_loss(self, observations: Array, command: Array) -> Array:
        """Return the smallest margin if the host is lost or the device stops after this command was sent."""
        return Grid((*self.states, *self.commands), self.hold).at(np.concatenate([observations, command]))

    # Stages; each returns the smallest margin over all plants at the nodes [start, end).

    def coast_stage(self, start: int, end: int) -> Array:
        """Return the margins under the safe output."""
        observations = Grid(self.states, self.coast).points(start, end)
        fleet, k = self.fleet(observations.shape[1])
        return _min_over_plants(
            fleet.coast_margin(fleet.states_of(np.tile(observations, k)), COAST_HORIZON_FACTOR * self.periods), k
        )

    def hold_stage(self, start: int, end: int) -> Array:
        """Return the margins if the host is lost or the device stops.

        The command is held until any sample, for at most the lease plus one period, and still acts for the plant's
        delay; the safe output follows.
        """
        return self._at_commands(start, end, self._margin_when_held)

    def _margin_when_held(self, fleet: Fleet, observations: Array, command: Array) -> Array:
        coast_table, state = Grid(self.states, self.coast), fleet.states_of(observations)
        min_margin = coast_table.at(observations)
        for k in range(self.setup.held_periods):
            state, margin = fleet.hold(state, command, 1) if k else fleet.hold_after_delay(state, command)
            min_margin, next_state = np.minimum(min_margin, margin), state
            if self.draw.plant_delay_s.any():
                next_state, margin = fleet.hold_during_delay(state, command)
                min_margin = np.minimum(min_margin, margin)
            min_margin = np.minimum(min_margin, coast_table.at(fleet.observe(next_state)))
        return min_margin

    def fallback_stage(self, start: int, end: int) -> Array:
        """Return the margins under the fallback, during which the host may be lost."""
        observations = Grid(self.states, self.coast).points(start, end)
        fleet, k = self.fleet(observations.shape[1])
        return _min_over_plants(
            fleet.fallback_margin(fleet.states_of(np.tile(observations, k)), self.periods, self.host_loss), k
        )

    def command_stage(self, start: int, end: int) -> Array:
        """Return the margins of a command held while frames are lost and followed by the fallback.

        The host may also be lost.
        """
        return np.minimum(self._at_commands(start, end, self._margin_without_loss), self.hold[start:end])

    def _margin_without_loss(self, fleet: Fleet, observations: Array, command: Array) -> Array:
        state, min_margin = fleet.hold_after_delay(fleet.states_of(observations), command)
        for n_lost in range(self.setup.held_periods - 1):
            if n_lost:
                state, margin = fleet.hold(state, command, 1)
                min_margin = np.minimum(min_margin, margin)
            min_margin = np.minimum(min_margin, Grid(self.states, self.brake).at(fleet.observe(state)))
        return min_margin

    def _at_commands(self, start: int, end: int, margin: Callable[[Fleet, Array, Array], Array]) -> Array:
        points = Grid((*self.states, *self.commands), self.hold).points(start, end)
        fleet, k = self.fleet(points.shape[1])
        points, n = np.tile(points, k), len(self.states)
        return np.maximum(_min_over_plants(margin(fleet, points[:n], points[n:]), k), FLOOR)

    def simulated_margin(self, points: Array) -> Array:
        """Return the margin (l,) at points (d, l) of states and commands, simulating rather than interpolating the
        fallback."""
        fleet, k = self.fleet(points.shape[1])
        points, n = np.tile(points, k), len(self.states)
        state, min_margin = fleet.hold_after_delay(fleet.states_of(points[:n]), points[n:])
        min_margin = np.minimum(min_margin, self.host_loss(points[:n], points[n:]))
        min_margin = np.minimum(min_margin, fleet.fallback_margin(state, self.periods, self.host_loss))
        return _min_over_plants(min_margin, k)


def _min_over_plants(margins: Array, plants: int) -> Array:
    """Return the smallest margin over the plants at each point."""
    return np.asarray(margins.reshape(plants, -1).min(axis=0))


_job: Job | None = None
"""The job of this process, which forked workers inherit."""


def _compute_part(stage: str, start: int, end: int) -> Values:
    assert _job is not None
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(getattr(_job, stage)(start, end), np.float32)


def choose_axes(
    config: RunConfig, box: SampledBox, setup: SharedSetup, draw: Draw
) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Return the axes of states and commands, as configured or as determined by simulating drawn plants."""
    rig, limits = config.rig, config.limits
    observations = [rig.observations[at] for at in observation_indices(rig, setup.plant)]
    rng, n = np.random.default_rng(0), len(observations)
    start_ranges = [box.range.get(o.name, (o.low, o.high)) for o in observations]
    for i, o in enumerate(observations):
        envelope = limits.envelope.get(o.name)
        if rig.wraps(o.name):
            start_ranges[i] = box.range.get(o.name, (-pi, pi))
        elif envelope is not None:
            start_ranges[i] = (envelope.low, envelope.high)
    reached_ranges = _reached_ranges(setup, draw, start_ranges, rng)
    states = []
    for i, o in enumerate(observations):
        is_fixed = o.name in box.range or o.name in limits.envelope or rig.wraps(o.name)
        low, high = start_ranges[i] if is_fixed else reached_ranges[i]
        is_full_turn = rig.wraps(o.name) and (low, high) == (-pi, pi)
        states.append(Axis(o.name, float(low), float(high), box.nodes.get(o.name, _STATE_NODES[n]), is_full_turn))
    ranges = limits.context(rig, config.period_us * 1e-6).ranges
    commands = [Axis(a.name, *ranges[a.name], box.nodes.get(a.name, _COMMAND_NODES)) for a in rig.actuators]
    return tuple(states), tuple(commands)


def _reached_ranges(
    setup: SharedSetup, draw: Draw, start_ranges: list[tuple[float, float]], rng: np.random.Generator
) -> list[tuple[float, float]]:
    """Return the ranges of states reached from random starts within ``start_ranges``.

    Fallback and safe output alternate from period to period.
    """
    lows, highs = np.array(start_ranges).T
    lanes = rng.integers(len(draw.late_s), size=_REACH_SAMPLES)
    fleet = Fleet(setup, draw.select(lanes))
    state = tuple(rng.uniform(lows[:, None], highs[:, None], (len(start_ranges), _REACH_SAMPLES)))
    centres, half_widths = 0.5 * (lows + highs), 0.5 * (highs - lows)
    reached_half_widths = half_widths.copy()
    for k in range(round(1.0 / setup.period_s)):
        command = setup.fallback_law(fleet.observe(state))
        safe_command = np.repeat(np.array(setup.safe_command)[:, None], _REACH_SAMPLES, axis=1)
        state, min_margin = fleet.hold(state, command if k % 2 else safe_command, 1)
        is_inside = min_margin > FLOOR
        if not is_inside.any():
            break
        distances = [np.abs(x[is_inside] - m).max() for x, m in zip(state, centres, strict=True)]
        reached_half_widths = np.maximum(reached_half_widths, np.nan_to_num(distances, nan=0.0))
    widened_half_widths = np.where(
        reached_half_widths > half_widths, _RANGE_WIDENING * reached_half_widths, half_widths
    )
    return [*zip((centres - widened_half_widths).tolist(), (centres + widened_half_widths).tolist(), strict=True)]


def compute(
    config: RunConfig, box: SampledBox, plants: int, seed: int, progress: Progress, workers: int
) -> tuple[Header, Values]:
    """Compute the table; ``progress`` receives the completed share.  Raises ValueError if no state is safe."""
    global _job
    rng, setup = np.random.default_rng((seed, 0)), SharedSetup.from_config(config, box)
    draw = draw_plants(config, box, plants, rng, includes_corners=True)
    states, commands = choose_axes(config, box, setup, draw)
    no_values = np.zeros(0, np.float32)
    job = Job(
        setup, draw, max(1, round(box.horizon_s / setup.period_s)), states, commands, no_values, no_values, no_values
    )
    nodes = prod(axis.nodes for axis in states)
    n_pairs = nodes * prod(axis.nodes for axis in commands)
    commands_per_state, held_fraction = n_pairs / nodes, setup.held_periods / job.periods
    costs = {
        "coast_stage": 0.7 * COAST_HORIZON_FACTOR,
        "hold_stage": commands_per_state * held_fraction,
        "fallback_stage": 2.0,
        "command_stage": commands_per_state / job.periods,
    }
    total_cost, completed_cost = sum(costs.values()), 0.0
    for stage, field in (
        ("coast_stage", "coast"),
        ("hold_stage", "hold"),
        ("fallback_stage", "brake"),
        ("command_stage", "hold"),
    ):
        size = nodes if field in ("coast", "brake") else n_pairs
        _job = job
        values = np.empty(size, np.float32)
        for start, part in _compute_parts(stage, size, max(1, _MAX_LANES // plants), workers):
            values[start : start + len(part)] = part
            progress(min(1.0, (completed_cost + costs[stage] * (start + len(part)) / size) / total_cost))
        completed_cost += costs[stage]
        if stage == "command_stage":
            break
        job = _with_values(job, field, values)
    if not (values > 0.0).any():
        raise ValueError("no state is safe: widen the envelope, shorten the lease, or state less uncertainty")
    slack = _slack(job, Grid((*states, *commands), values), rng)
    if not (values > slack).any():
        raise ValueError(f"too few nodes (slack {slack:.2g}): increase their number (nodes)")
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
    """Return the 99th percentile of interpolated minus simulated margins near 0, but at least the minimum slack."""
    lows, highs = (np.array([getattr(axis, end) for axis in table.axes])[:, None] for end in ("low", "high"))
    points = rng.uniform(lows, highs, (len(table.axes), 20 * _SLACK_POINTS))
    near_points = points[:, np.abs(table.at(points)) < _NEAR_BOUNDARY][:, :_SLACK_POINTS]
    if not near_points.shape[1]:
        return _MIN_SLACK
    excesses, chunk = [], max(1, _MAX_LANES // len(job.draw.late_s))
    for start in range(0, near_points.shape[1], chunk):
        chunk_points = near_points[:, start : start + chunk]
        excesses.append(table.at(chunk_points) - job.simulated_margin(chunk_points))
    return max(_MIN_SLACK, float(np.percentile(np.concatenate(excesses), _SLACK_PERCENTILE)))
