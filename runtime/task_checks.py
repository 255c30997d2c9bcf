"""Checks of a task on a rig: names, units, ranges and contradictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import UNSET

from onrig.hw.bounds import SMALLEST
from onrig.hw.rig import Rig, is_valid_name, targets_of
from onrig.hw.units import is_rate
from onrig.runtime.config.problem import collect_problems, describe_unknown_name
from onrig.runtime.inputs import input_problems
from onrig.runtime.reset.schema import reset_problems
from onrig.runtime.reward_terms import Terminal
from onrig.runtime.starts import extreme_starts, start_list, starts_with_paths
from onrig.runtime.targets import MAX_TARGETS, Target
from onrig.runtime.task import Task, Wall

Problems = list[tuple[str, str]]


def task_problems(task: Task, rig: Rig) -> Problems:
    """List problems of a task on a rig as (path, message) pairs; empty if valid."""
    problems: Problems = []
    if not is_valid_name(task.name):
        problems.append(("name", f"expected a plain word of letters, digits and _ . + -, got {task.name!r}"))
    if not math.isfinite(task.episode_s):
        problems.append(("episode_s", "must be a finite number of seconds"))
    observations = [o.name for o in rig.signals]
    problems += start_problems(task, rig)
    problems += target_problems(task, rig)
    problems += _reward_problems(task, rig)
    for section, plugins in (("reward.terms", task.reward.terms or {}), ("terminations", task.terminations or {})):
        for name, plugin in plugins.items():
            plugin_problems = collect_problems(partial(plugin.problems, rig), f"'{name}'")
            problems += [(".".join(filter(None, (section, name, path))), message) for path, message in plugin_problems]
    problems += _unknown_name_problems("terminate", task.terminate, observations, "observation", rig)
    for name, (low, high) in task.terminate.items():
        if not low < high:
            problems.append((f"terminate.{name}", f"needs low < high, got {low} and {high}"))
        else:
            starts = [start[name] for _, start in extreme_starts(task.all_starts) if name in start]
            for start_value in [value for value in starts if not low <= value <= high][:1]:
                problems.append((f"terminate.{name}", f"the start state {start_value} lies outside [{low}, {high}]"))
    problems += input_problems(task.inputs, rig)
    if task.reset is not None:
        for _, start in extreme_starts(task.all_starts):
            plugin_problems = collect_problems(partial(reset_problems, task.reset, start, rig), "the reset")
            problems += [(f"reset.{path}" if path else "reset", message) for path, message in plugin_problems]
    return [*dict.fromkeys(problems), *_reference_problems(task)]


def _unknown_name_problems(path: str, names: Iterable[str], allowed: Sequence[str], kind: str, rig: Rig) -> Problems:
    owner = f"rig '{rig.name}'"
    return [
        (f"{path}.{name}", describe_unknown_name(owner, kind, name, allowed)) for name in names if name not in allowed
    ]


def _non_finite_problems(path: str, values: Mapping[str, float]) -> Problems:
    return [(f"{path}.{k}", "must be a finite number") for k, v in values.items() if not math.isfinite(v)]


def start_problems(task: Task, rig: Rig) -> Problems:
    """List problems of the start states: unknown observations, crossed intervals, both ``start`` and ``starts``."""
    if task.starts is not UNSET and task.start:
        return [("starts", "expected either start or starts: remove one of them")]
    if task.starts is not UNSET and not task.starts:
        return [("starts", "expected at least one start")]
    observations, problems = [o.name for o in rig.observations], []
    for path, row in starts_with_paths(task.all_starts):
        problems += _unknown_name_problems(path, row, observations, "observation", rig)
        for name, value in row.items():
            ends = value if isinstance(value, tuple) else (value,)
            if not all(map(math.isfinite, ends)):
                problems.append((f"{path}.{name}", "must be a finite number"))
            elif len(ends) == 2 and not ends[0] < ends[1]:
                problems.append((f"{path}.{name}", f"needs low < high, got {ends[0]} and {ends[1]}"))
        missing_names = [name for name in start_list(task.all_starts)[0] if name not in row]
        problems += [(path, f"lacks '{name}', which the first start contains") for name in missing_names]
    return problems


def target_problems(task: Task, rig: Rig) -> Problems:
    """List problems of the targets: names, settings, constant values."""
    names_in_use = [o.name for o in rig.signals if o not in targets_of(rig)]
    names_in_use += [name for a in rig.actuators for name in (a.name, f"previous_{a.name}")]
    problems: Problems = []
    if len(task.targets or ()) > MAX_TARGETS:
        problems.append(("targets", f"expected at most {MAX_TARGETS}, got {len(task.targets or ())}"))
    for name, target in (task.targets or {}).items():
        location = f"targets.{name}"
        if not is_valid_name(name):
            problems.append(("targets", f"expected plain words of letters, digits and _ . + -, got {name!r}"))
        if name in names_in_use:
            problems.append((location, f"rig '{rig.name}' has an observation or actuator with that name"))
        if target.observation is not UNSET:
            names = [o.name for o in rig.observations]
            problems += [(f"{location}.{path}", m) for path, m in _missing_observation(target.observation, names, rig)]
        checks = target.problems, partial(_span_problems, target)
        first_problems = next(filter(None, (collect_problems(check, f"'{name}'") for check in checks)), [])
        problems += [(".".join(filter(None, (location, path))), message) for path, message in first_problems]
    return problems


def _missing_observation(name: str, names: Sequence[str], rig: Rig) -> Problems:
    return (
        []
        if name in names
        else [("observation", describe_unknown_name(f"rig '{rig.name}'", "observation", name, names))]
    )


def _span_problems(target: Target) -> Iterator[tuple[str, str]]:
    low, high = target.span()
    if not low < high:
        yield "", f"has values from {low:g} to {high:g}: expected low < high"
    elif high - low < SMALLEST:
        yield "", f"low and high must be at least {SMALLEST:g} apart"


def _reward_problems(task: Task, rig: Rig) -> Problems:
    """List problems of the reward except those of its terms: targets, weights, walls, rewards per step and at the
    end."""
    reward, observations = task.reward, {o.name: o for o in rig.signals}
    problems: Problems = []
    for path, values in (("reward.target", reward.target), ("reward.weights", reward.weights)):
        problems += _unknown_name_problems(path, values, list(observations), "observation", rig)
        problems += _non_finite_problems(path, values)
    problems += _unknown_name_problems(
        "reward.action_weights", reward.action_weights, [a.name for a in rig.actuators], "actuator", rig
    )
    problems += _non_finite_problems("reward.action_weights", reward.action_weights)
    for i, name in enumerate(reward.folded):
        if name not in reward.weights:
            problems.append((f"reward.folded[{i}]", f"'{name}' has no weight, so folding it does nothing"))
    for name in reward.weights:
        if name not in reward.target:
            problems.append((f"reward.weights.{name}", "has a weight but no target"))
    if reward.wall is not None:
        problems += _wall_problems(reward.wall, rig)
    for name, value in (("alive", reward.alive), ("terminal", reward.terminal)):
        if value is not UNSET and not math.isfinite(value):
            problems.append((f"reward.{name}", "must be a finite number"))
    terminals = [f"terms.{name}" for name, term in (reward.terms or {}).items() if isinstance(term, Terminal)]
    for path in ([] if reward.terminal is UNSET else ["terminal"]) + terminals if not task.may_terminate else ():
        problems.append((f"reward.{path}", "the task never terminates: set terminate, or remove this"))
    return problems


def _wall_problems(wall: Wall, rig: Rig) -> Problems:
    problems: Problems = []
    unit = next((o.unit for o in rig.signals if o.name == wall.observation), None)
    if unit is None:
        message = describe_unknown_name(
            f"rig '{rig.name}'", "observation", wall.observation, [o.name for o in rig.signals]
        )
        problems.append(("reward.wall.observation", message))
    elif is_rate(unit):
        message = f"expected a position, but '{wall.observation}' is in {unit!r}"
        problems.append(("reward.wall.observation", message))
    if not (math.isfinite(wall.low) and math.isfinite(wall.high) and wall.low < wall.high):
        problems.append(("reward.wall", f"needs low < high, got {wall.low} and {wall.high}"))
    elif not 2.0 * wall.margin < wall.high - wall.low:
        problems.append(("reward.wall.margin", "must be less than half the distance between the walls"))
    if not math.isfinite(wall.penalty):
        problems.append(("reward.wall.penalty", "must be a finite number"))
    return problems


def _reference_problems(task: Task) -> Problems:
    n = task.normalization
    if n is None:
        return []
    if not (math.isfinite(n.random_reward) and math.isfinite(n.reference_reward)):
        return [("normalization", "needs finite numbers")]
    if n.random_reward < n.reference_reward < n.random_reward + SMALLEST:
        return [("normalization", f"the two rewards must be at least {SMALLEST:g} apart")]
    return [] if n.random_reward < n.reference_reward else [("normalization", "needs random_reward < reference_reward")]
