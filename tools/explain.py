"""Tables that explain a configuration: limits in all their units, sampled schedules, sizes, durations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import UNSET

from onrig.hw.rig import targets_of
from onrig.learner.settings import LearnerSettings, learner_settings
from onrig.runtime.control.staleness import expects_learner
from onrig.runtime.images import holds_pixels
from onrig.runtime.memory.settings import Selection, Weighted
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.policy.probation import probation_limits
from onrig.runtime.run_config import RunConfig, Scaled, capacity_of, layout_of
from onrig.runtime.safety.fallback import Damp, Hold
from onrig.runtime.safety.plant_box import PlantBox, dead_band_of, guaranteed_observations
from onrig.runtime.safety.promise import promise_of
from onrig.runtime.safety.sampled import SampledBox
from onrig.runtime.scoring import early_end, measure_of
from onrig.runtime.starts import StartValue, start_list
from onrig.runtime.task import Task, episode_steps
from onrig.tools.doctor.run_needs import learner_bytes
from onrig.tools.explain_exploration import exploration_tables
from onrig.tools.quantity import format_duration
from onrig.tools.terminal import Table

_REACTIONS: Final = {
    "keep": "the run continues with its last policy and warns",
    "lower": "exploration is scaled by {factor:g} from the next episode on",
    "fall_back": "between episodes, the run waits disarmed until the learner answers, for at most {wait:g} s",
}

_RATE_SETTINGS: Final = ("tau", "actor_lr", "critic_lr", "lr")
"""Learning and averaging rates shown in an algorithm's row, if it has these settings."""


def tables(config: RunConfig) -> Iterator[Table]:
    """Yield all tables, in the order in which the tick uses what they explain."""
    yield _observation_table(config)
    if named_table := _named_parts(config.task):
        yield named_table
    if config.input_names:
        yield _input_table(config)
    yield _actuator_table(config)
    yield _envelope_table(config)
    yield _timing_table(config)
    yield from exploration_tables(config)
    yield _learning_table(config)
    yield policy_table(config)


def _named_parts(task: Task) -> Table | None:
    """Return a table of the named terms, terminations and targets, or None if the task has none."""
    rows = []
    choices = ("reward", task.reward.terms), ("ends the episode", task.terminations), ("target", task.targets)
    for section, terms in choices:
        for name, term in (terms or {}).items():
            kind, *settings = msgspec.to_builtins(term).items()
            values = [f"{key} {value}" for key, value in settings if key != "content"]  # omits a file's text
            rows.append((name, section, str(kind[1]), ", ".join(values) or "-"))
    return Table("named term", ("part", "kind", "settings"), tuple(rows)) if rows else None


def format_range(low: float, high: float) -> str:
    """Format a range."""
    return f"{low:.4g} .. {high:.4g}"


def release_bounds(low: float, high: float, release: float) -> tuple[float, float]:
    """Return the bounds within which the fallback releases control: the middle fraction ``release`` of an envelope."""
    centre, half_width = 0.5 * (low + high), 0.5 * (high - low)
    return centre - release * half_width, centre + release * half_width


def mean_replays(config: RunConfig, learner: LearnerSettings) -> float:
    """Return how often an experience is replayed on average: batch size times updates per stored experience or, for an
    on-policy algorithm, the number of updates per experience of a batch.
    """
    if learner.algorithm_config.batch_steps:
        return float(learner.algorithm_config.replays)
    if learner.updates_per_transition is not None:
        return learner.batch * learner.updates_per_transition
    stored_per_episode = episode_steps(config.task, config.rate_hz) * config.selection.write_probability
    return learner.batch * (learner.updates_per_episode or 0) / stored_per_episode


def device_seconds(config: RunConfig) -> tuple[float, float]:
    """Return the device time (s) of all training episodes and that of all evaluation episodes, without resets and
    waits.
    """
    evaluations = config.episodes // config.evaluate_every if config.evaluate_every else 0
    return config.episodes * config.task.episode_s, evaluations * config.task.episode_s


def _observation_table(config: RunConfig) -> Table:
    rig, task = config.rig, config.task
    sensors = {s.name: s for s in rig.sensors}
    starts, names = start_list(task.all_starts), [o.name for o in targets_of(rig)]
    rows = []
    for o in rig.signals:
        sensor = sensors.get(o.derivative_of or o.sensor or o.name)
        source = "the command in force" if sensor is None else f"{sensor.name}, {sensor.resolution:.4g} per count"
        if o.name in names:
            source = "a target"
        if sensor is not None and sensor.wrap:
            source += ", wraps"
        if o.derivative_of is not None:
            source = f"d/dt of {source}"
        rows.append(
            (
                o.name,
                o.unit,
                format_range(o.low, o.high),
                source,
                "-"
                if o.name in names
                else " or ".join(dict.fromkeys(_format_place(row.get(o.name, 0.0)) for row in starts)),
                _cost_text(task, o.name),
            )
        )
    return Table("observation", ("unit", "range (-1 .. 1)", "measured by", "start", "cost per step"), tuple(rows))


def _format_place(place: StartValue) -> str:
    return format_range(*place) if isinstance(place, tuple) else f"{place:g}"


def _input_table(config: RunConfig) -> Table:
    rows = [(s.name, s.unit, format_range(s.low, s.high)) for s in config.signals if not holds_pixels(s)]
    camera_by_name = {camera.name: camera for camera in config.cameras}
    for term in () if config.task.inputs is UNSET else config.task.inputs:
        if (camera := camera_by_name.get(term.observation)) is not None:
            name = f"{camera.name}-{term.lag}" if term.lag else camera.name
            rows.append((name, f"{camera.rows} x {camera.columns} px", format_range(0, 255)))
    return Table("policy input", ("unit", "range (-1 .. 1)"), tuple(rows))


def _cost_text(task: Task, name: str) -> str:
    reward, terms = task.reward, []
    weight = reward.weights.get(name, 0.0)
    if weight:
        value, target = f"|{name}|" if name in reward.folded else name, reward.target[name]
        difference = f"{value} - {target:.4g}" if target else value
        terms.append(f"{weight:g} |{difference}|")
    if reward.wall is not None and reward.wall.observation == name:
        terms.append(f"{reward.wall.penalty:g} at the wall, {format_range(reward.wall.low, reward.wall.high)}")
    return " + ".join(terms) or "-"


def _actuator_table(config: RunConfig) -> Table:
    rows = []
    for a in config.rig.actuators:
        low, high = config.limits.range.get(a.name, (a.low, a.high))
        rate = config.limits.rate_per_s.get(a.name)
        period_s = config.period_us * 1e-6
        per_tick = a.high - a.low if rate is None else rate * period_s
        limit = f"{per_tick / period_s:.4g}" + ("" if rate is not None else " (none set)")
        cost = config.task.reward.action_weights.get(a.name, 0.0)
        rows.append(
            (
                a.name,
                a.unit,
                format_range(a.low, a.high),
                format_range(low, high),
                f"{a.safe:g}",
                limit,
                f"{per_tick:.4g}",
                f"{a.resolution:.4g}",
                f"{cost:g} |{a.name}|" if cost else "-",
            )
        )
    heads = ("unit", "rig", "configured", "safe", "rate per s", "per tick", "per count", "cost per step")
    return Table("actuator", heads, tuple(rows))


def _envelope_table(config: RunConfig) -> Table:
    limits = config.limits
    units = {o.name: o.unit for o in config.rig.observations}
    rows = [
        (name, units[name], format_range(e.low, e.high), format_range(*release_bounds(e.low, e.high, e.release)))
        for name, e in limits.envelope.items()
    ]
    if not rows:
        rows.append(("none", "", "only a non-finite action triggers the fallback", ""))
    plants = limits.predicted
    if plants is not None:
        guaranteed_text = ", ".join(guaranteed_observations(plants, limits.envelope))
        guarantee_text = f"the fallback can enforce this limit for {_plants_covered(plants)} ('onrig safety')"
        rows.append(("predicted", "", f"{guaranteed_text}: {guarantee_text}", ""))
    promise = promise_of(limits)
    rows.append(("promise", "", promise.basis, promise.sentence))
    dwell_ticks = max(1, round(limits.fallback_dwell_s / (config.period_us * 1e-6)))
    rows.append(
        ("fallback", "", _fallback(config), f"for {1e3 * limits.fallback_dwell_s:g} ms ({dwell_ticks} ticks) or more")
    )
    return Table("envelope", ("unit", "allowed", "fallback releases within"), tuple(rows))


def _plants_covered(plants: PlantBox) -> str:
    if isinstance(plants, SampledBox):
        intervals = [f"{name} {format_range(*bounds)}" for name, bounds in plants.uncertainty.items()]
        return ", ".join(intervals) or "the nominal plant"
    band_text = f" and a dead band of up to {dead_band_of(plants):g}" if dead_band_of(plants) else ""
    return f"parameters within {100 * plants.spread:g} %{band_text}"


def _fallback(config: RunConfig) -> str:
    fallback = config.limits.fallback
    if isinstance(fallback, Hold):
        return (
            f"coils off; the nearest magnet holds below {fallback.slow:g} m/s and brakes up to {fallback.brake_below:g}"
        )
    if not isinstance(fallback, Damp):
        return "every actuator at its safe value"
    actuator = next(a for a in config.rig.actuators if a.name == fallback.actuator)
    return f"{fallback.actuator} = -{actuator.high:g} sat({fallback.observation} / {fallback.full_at:g})"


def _timing_table(config: RunConfig) -> Table:
    period_ms, lease = config.period_us / 1000, config.rig.lease_periods
    training_s, evaluation_s = device_seconds(config)
    total_s = training_s + evaluation_s
    steps = episode_steps(config.task, config.rate_hz)
    rows = (
        ("period", f"{period_ms:g} ms", f"{config.rate_hz:g} Hz"),
        (
            "lease",
            f"{lease} periods",
            f"after {lease * period_ms:g} ms without a command the device sets its safe outputs",
        ),
        ("episode", f"{steps} steps", f"{config.task.episode_s:g} s"),
        ("training", f"{config.episodes} episodes", f"{format_duration(training_s)} of device time"),
        (
            "evaluation",
            f"{config.episodes // config.evaluate_every} episodes" if config.evaluate_every else "none",
            f"{format_duration(evaluation_s)} of device time",
        ),
        ("run length", format_duration(total_s), "of device time, without resets"),
        ("wall clock", *_wall_clock_texts(config, total_s)),
    )
    return Table("time", (), rows)


def _wall_clock_texts(config: RunConfig, device_s: float) -> tuple[str, str]:
    pace = config.device.pace
    if pace == "lockstep":
        return "-", "virtual time: the duration depends on this machine"
    scale = pace.scaled if isinstance(pace, Scaled) else 1.0
    return format_duration(device_s / scale), "without resets and waits"


def _alteration_rows(selection: Selection) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each setting that alters or drops experiences before they are stored."""
    if selection.write_probability < 1:
        yield (
            "written",
            f"{selection.write_probability:.1%}",
            "of the experiences, chosen at random",
        )
    if isinstance(selection.intervened, Weighted):
        yield "intervened", f"{selection.intervened.weight:g}", "weight of these experiences in the critic's loss"
    elif selection.intervened == "drop":
        yield "intervened", "dropped", "experiences in which the shield acted are not stored"
    synthetic = selection.synthetic
    if synthetic is not None:
        text = f"states redrawn, {synthetic.actions:.1%} actions redrawn, transitions recomputed with the plant"
        yield "synthetic", f"{synthetic.states:.1%}", text
        if synthetic.refresh < 1:
            yield "", f"{1 - synthetic.refresh:.1%}", "of them are kept when due for replacement"


def _learning_table(config: RunConfig) -> Table:
    learner = learner_settings(config.learner)
    strategy = parse_strategy(config.selection.strategy)
    capacity = capacity_of(config)
    steps = episode_steps(config.task, config.rate_hz)
    layout = layout_of(config)
    buffer_mb = capacity * layout.row_bytes / 1e6
    keeper_note = f", and {strategy.keeper.holds}" if strategy.keeper.holds else ""
    algorithm = learner.algorithm_config
    rates = [f"{name} {getattr(algorithm, name):g}" for name in _RATE_SETTINGS if hasattr(algorithm, name)]
    horizon = 1.0 / (1.0 - algorithm.gamma)
    budget = config.selection.capacity_bytes
    budget_note = "" if budget is None else f", within {budget / 1e6:.3g} MB"
    rows = (
        ("selection", str(strategy), f"{capacity} experiences, {capacity / steps:.4g} episodes"),
        ("buffer", f"{buffer_mb:.3g} MB", f"{layout.row_bytes} bytes per experience{keeper_note}{budget_note}"),
        ("learner's memory", f"{learner_bytes(config) / 1e6:.3g} MB", "mirror, sampler, links and bookkeeping"),
        *_alteration_rows(config.selection),
        ("updates", *_update_texts(config, learner)),
        ("replay ratio", f"{mean_replays(config, learner):.3g}", "mean replays per experience"),
        ("network", algorithm.size, ", ".join((learner.algorithm.upper(), *rates))),
        ("horizon", f"{horizon:.3g} steps", f"{horizon / config.rate_hz:.3g} s at gamma {algorithm.gamma:g}"),
        ("reward scale", f"{algorithm.reward_scale:g}", "factor on every reward in learning"),
        ("score", measure_of(config.task).title, measure_of(config.task).scale),
        *_early_end_rows(config, algorithm.gamma),
    )
    return Table("learning", (), rows)


def _early_end_rows(config: RunConfig, gamma: float) -> Iterator[tuple[str, str, str]]:
    """Yield a row that shows how much an early end earns the learner, if the task can terminate."""
    if config.task.may_terminate:
        end = early_end(config.task, config.rig, episode_steps(config.task, config.rate_hz), gamma)
        alternatives = f"{end.typical_return:.4g} typically, {end.worst_return:.4g} in the worst case"
        yield "an early end", f"earns {end.ending_reward:.4g}", f"continuing earns {alternatives}, discounted by gamma"


def _update_texts(config: RunConfig, learner: LearnerSettings) -> tuple[str, str]:
    """Return texts that describe when updates take place, and how many there are in the run."""
    steps, algorithm = episode_steps(config.task, config.rate_hz), learner.algorithm_config
    total = config.episodes * steps
    if size := algorithm.batch_steps:
        # In lockstep a policy acts until the end of an episode.
        batch_steps = steps * -(-size // steps) if config.lockstep else size
        discarded_text = f", the next {batch_steps - size} are discarded" if batch_steps > size else ""
        update_times = f"after {size} experiences of a policy{discarded_text}"
        return update_times, f"{total // batch_steps} batches in the run, minibatches of {algorithm.batch}"
    if learner.updates_per_transition is not None:
        rate = f"{learner.updates_per_transition:g} per experience"
        updates = round(round(total * config.selection.write_probability) * learner.updates_per_transition)
    else:
        per_episode = learner.updates_per_episode or 0
        rate, updates = f"{per_episode} after each episode", config.episodes * per_episode
    return rate, f"{updates} in the run, batches of {algorithm.batch}"


def policy_table(config: RunConfig) -> Table:
    """Return a table that explains the probation of a new policy and the reaction to a silent learner."""
    return Table("policies", (), (*_probation_rows(config), *_staleness_rows(config)))


def _probation_rows(config: RunConfig) -> tuple[tuple[str, str, str], ...]:
    limits = probation_limits(config)
    if limits is None:
        return (("probation", "none", "an admitted policy acts until the next one replaces it"),)
    slow_row = ("  too slow", "-", "not checked in lockstep")
    if limits.slow_ns is not None:
        percent = 100 * limits.slow_ns / config.wall_period_ns
        slow_row = (
            "  too slow",
            f"{limits.slow_ticks} ticks in a row",
            f"of more than {limits.slow_ns / 1e3:g} us, {percent:g} % of the period",
        )
    excess = limits.excess_fallback
    fallback = f"{excess * limits.ticks:g} more ticks" if excess < 1 else "-"
    return (
        ("probation", f"{limits.ticks} ticks", "for a new policy; rollback to its predecessor after:"),
        ("  invalid output", "1 tick", "with an output that is not finite or has the wrong shape"),
        slow_row,
        ("  fallback", fallback, f"in the fallback than under the predecessor ({100 * excess:g} % of the probation)"),
    )


def _staleness_rows(config: RunConfig) -> tuple[tuple[str, str, str], ...]:
    rules = config.staleness
    if not expects_learner(config):
        reason = "in lockstep the loop waits for the learner" if config.lockstep else "no learner is expected"
        return (("silent learner", "-", reason),)
    reaction = _REACTIONS[rules.then].format(factor=rules.factor, wait=config.supervision.resume_timeout_s)
    return (("silent learner", f"{rules.after_s:g} s", reaction),)
