"""Parts shared by drawings of rigs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from onrig.runtime.rewards import Distance
from onrig.runtime.run_config import RunConfig
from onrig.runtime.tracking import followers
from onrig.runtime.view.drawing import Point, Shape, signal_of

TRAIL_DURATION_S: Final = 0.9


def span_of(config: RunConfig, name: str) -> tuple[float, float]:
    """Return the range of a signal."""
    signal = signal_of(config, name)
    return signal.low, signal.high


def radians_per_unit(config: RunConfig, name: str) -> float:
    """Return the number of radians per unit of the signal."""
    return math.pi / 180.0 if signal_of(config, name).unit in ("deg", "°") else 1.0


class Goal(NamedTuple):
    """Goal of the task for a signal: a constant value, or the value of the task's target ``target``."""

    value: float = 0.0
    target: str | None = None


def goal_of(config: RunConfig, name: str) -> Goal | None:
    """Return the task's goal for a signal, or None if it has none."""
    task = config.task
    for target, follower in followers(task).items():
        if follower == name:
            return Goal(target=target)
    if name in task.reward.target:
        return Goal(task.reward.target[name])
    for term in (task.reward.terms or {}).values():
        if isinstance(term, Distance) and term.observation == name and isinstance(term.target, float):
            return Goal(term.target)
    return None


def box(x: float, half_width: float, low: float, high: float) -> tuple[Point, ...]:
    """Return the corners of an upright rectangle."""
    return ((x - half_width, low), (x + half_width, low), (x + half_width, high), (x - half_width, high))


def text_at(position: Point, text: str, colour: Literal["good", "soft"]) -> Shape:
    """Draw text at a fixed position."""
    return Shape(form="text", points=(position,), text=text, colour=colour)


def target_translation(goal: Goal, shift: Point) -> dict[str, Point]:
    """Return the translation of a shape that follows a target, per unit of the target; empty for a constant goal."""
    return {} if goal.target is None else {goal.target: shift}


def ring(center: Point, radius: float, **motion: Any) -> Shape:
    """Draw a ring that marks the target of a moving point."""
    return Shape(
        form="circle", points=(center,), radius=radius, colour="good", outlined=True, dashed=True, width=2.0, **motion
    )


def dial() -> Iterator[Shape]:
    """Draw a circle of radius 1 with twelve marks."""
    yield Shape(form="circle", points=((0.0, 0.0),), radius=1.0, colour="line", outlined=True, width=1.0)
    for k in range(12):
        c, s = math.cos(k * math.pi / 6), math.sin(k * math.pi / 6)
        yield Shape(form="line", points=((0.96 * c, 0.96 * s), (1.04 * c, 1.04 * s)), colour="line", width=1.0)


def rail(
    config: RunConfig,
    position: str,
    y: float,
    ends_at: tuple[float, float] | None = None,
    *,
    has_end_marks: bool = True,
) -> Iterator[Shape]:
    """Draw a rail along the range of a position, with labelled ends."""
    unit = signal_of(config, position).unit
    low, high = ends_at or span_of(config, position)
    span = high - low
    yield Shape(form="line", points=((low, y), (high, y)), colour="line", width=5.0)
    is_small = unit == "m" and max(abs(low), abs(high)) < 1.0
    for x in (low, high):
        label = f"{1000 * x:.4g} mm" if is_small else f"{x:.4g} {unit}"
        yield text_at((x, y + (0.18 if not has_end_marks else -0.06) * span), label.replace("-", "−"), "soft")
        if has_end_marks:
            yield Shape(form="line", points=((x, y), (x, y + 0.06 * span)), colour="soft", width=5.0)


def target_mark(config: RunConfig, position: str, top: float) -> Iterator[Shape]:
    """Draw a mark that rises from the rail at the target of a position."""
    goal = goal_of(config, position)
    if goal is not None:
        translation, x = target_translation(goal, (1.0, 0.0)), goal.value
        yield Shape(
            form="line", points=((x, 0.0), (x, top)), colour="good", dashed=True, width=2.0, moved_by=translation
        )
        yield Shape(form="text", points=((x, 1.2 * top),), text="target", colour="good", moved_by=translation)
