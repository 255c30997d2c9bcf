"""Checks of a task on a rig: names, units, ranges, and what contradicts each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from msgspec import UNSET

from onrig.hw.bounds import SMALLEST
from onrig.hw.rig import Rig, is_word
from onrig.hw.units import is_rate
from onrig.runtime.config.problem import blamed
from onrig.runtime.inputs import input_problems
from onrig.runtime.reset.schema import reset_problems
from onrig.runtime.task import Task


def task_problems(task: Task, rig: Rig) -> list[tuple[str, str]]:
    """List problems of a task on a rig as (path, message) pairs; empty if valid."""
    observations = {o.name: o for o in rig.signals}
    actuators = [a.name for a in rig.actuators]
    problems: list[tuple[str, str]] = []

    def known(path: str, names: Sequence[str], there: Sequence[str], kind: str) -> None:
        for name in names:
            if name not in there:
                listed = ", ".join(there)
                problems.append((f"{path}.{name}", f"rig '{rig.name}' has no {kind} '{name}' (there are: {listed})"))

    def finite(path: str, values: dict[str, float]) -> None:
        problems.extend((f"{path}.{k}", "must be a finite number") for k, v in values.items() if not math.isfinite(v))

    reward = task.reward
    seen = list(observations)
    if not is_word(task.name):
        problems.append(("name", f"expected a plain word of letters, digits and _ . + -, got {task.name!r}"))
    if not math.isfinite(task.episode_s):
        problems.append(("episode_s", "must be a finite number of seconds"))
    for path, values in (
        ("start", task.start),
        ("reward.target", reward.target),
        ("reward.weights", reward.weights),
    ):
        known(path, list(values), seen, "observation")
        finite(path, values)
    known("reward.action_weights", list(reward.action_weights), actuators, "actuator")
    finite("reward.action_weights", reward.action_weights)
    for i, name in enumerate(reward.folded):
        if name not in reward.weights:
            problems.append((f"reward.folded[{i}]", f"'{name}' has no weight, so folding it does nothing"))
    for name in reward.weights:
        if name not in reward.target:
            problems.append((f"reward.weights.{name}", "has a weight but no target"))
    if reward.wall is not None:
        wall = reward.wall
        if wall.observation not in observations:
            problems.append(("reward.wall.observation", f"rig '{rig.name}' has no observation '{wall.observation}'"))
        elif is_rate(unit := observations[wall.observation].unit):
            message = f"expected a place, and '{wall.observation}' is in {unit!r}"
            problems.append(("reward.wall.observation", message))
        if not (math.isfinite(wall.low) and math.isfinite(wall.high) and wall.low < wall.high):
            problems.append(("reward.wall", f"needs low < high, got {wall.low} and {wall.high}"))
        elif not 2.0 * wall.margin < wall.high - wall.low:
            problems.append(("reward.wall.margin", "must be less than half the distance between the walls"))
        if not math.isfinite(wall.penalty):
            problems.append(("reward.wall.penalty", "must be a finite number"))
    for name, value in (("alive", reward.alive), ("terminal", reward.terminal)):
        if value is not UNSET and not math.isfinite(value):
            problems.append((f"reward.{name}", "must be a finite number"))
    if reward.terminal is not UNSET and not task.terminates:
        problems.append(("reward.terminal", "the task never terminates: give terminate, or leave this out"))
    for section, chosen in (("reward.terms", reward.terms or {}), ("terminations", task.terminations or {})):
        for name, piece in chosen.items():
            at = f"{section}.{name}"
            found = blamed(partial(piece.problems, rig), f"'{name}'")
            problems.extend((f"{at}.{path}" if path else at, message) for path, message in found)
    known("terminate", list(task.terminate), seen, "observation")
    for name, (low, high) in task.terminate.items():
        if not low < high:
            problems.append((f"terminate.{name}", f"needs low < high, got {low} and {high}"))
        elif name in task.start and not low <= task.start[name] <= high:
            problems.append((f"terminate.{name}", f"the start state {task.start[name]} lies outside [{low}, {high}]"))
    problems += input_problems(task.inputs, rig)
    if task.reset is not None:
        found = blamed(partial(reset_problems, task.reset, task.start, rig), "the reset")
        problems.extend((f"reset.{path}" if path else "reset", message) for path, message in found)
    n = task.normalization
    if n is None:
        return problems
    if not (math.isfinite(n.random_reward) and math.isfinite(n.reference_reward)):
        problems.append(("normalization", "needs finite numbers"))
    elif n.random_reward < n.reference_reward < n.random_reward + SMALLEST:
        problems.append(("normalization", f"the two rewards must be at least {SMALLEST:g} apart"))
    elif not n.random_reward < n.reference_reward:
        problems.append(("normalization", "needs random_reward < reference_reward"))
    return problems
