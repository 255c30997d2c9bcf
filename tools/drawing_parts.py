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
    """Range of a signal."""
    signal = signal_of(config, name)
    return signal.low, signal.high


def radians_per_unit(config: RunConfig, name: str) -> float:
    """Radians in a unit of the signal."""
    return math.pi / 180.0 if signal_of(config, name).unit in ("deg", "°") else 1.0


class Goal(NamedTuple):
    """Goal of the task for a signal: a value, or with ``by`` the value of that target."""

    value: float = 0.0
    by: str | None = None


def goal_of(config: RunConfig, name: str) -> Goal | None:
    """Goal of the task for a signal; None without one."""
    task = config.task
    for target, follower in followers(task).items():
        if follower == name:
            return Goal(by=target)
    if name in task.reward.target:
        return Goal(task.reward.target[name])
    for term in (task.reward.terms or {}).values():
        if isinstance(term, Distance) and term.observation == name and isinstance(term.target, float):
            return Goal(term.target)
    return None


def box(x: float, half: float, low: float, high: float) -> tuple[Point, ...]:
    """Corners of an upright rectangle."""
    return ((x - half, low), (x + half, low), (x + half, high), (x - half, high))


def text_at(at: Point, text: str, colour: Literal["good", "soft"]) -> Shape:
    """A text at a fixed position."""
    return Shape(form="text", points=(at,), text=text, colour=colour)


def target_translation(goal: Goal, shift: Point) -> dict[str, Point]:
    """Translation with a target, per unit of it."""
    return {} if goal.by is None else {goal.by: shift}


def ring(at: Point, radius: float, **turned: Any) -> Shape:
    """A ring that marks the target of a moving point."""
    return Shape(
        form="circle", points=(at,), radius=radius, colour="good", outlined=True, dashed=True, width=2.0, **turned
    )


def dial() -> Iterator[Shape]:
    """A circle of radius 1 with twelve marks."""
    yield Shape(form="circle", points=((0.0, 0.0),), radius=1.0, colour="line", outlined=True, width=1.0)
    for k in range(12):
        c, s = math.cos(k * math.pi / 6), math.sin(k * math.pi / 6)
        yield Shape(form="line", points=((0.96 * c, 0.96 * s), (1.04 * c, 1.04 * s)), colour="line", width=1.0)


def rail(
    config: RunConfig, position: str, y: float, ends_at: tuple[float, float] | None = None, *, ends: bool = True
) -> Iterator[Shape]:
    """A rail along a position's range, with labelled ends."""
    unit = signal_of(config, position).unit
    low, high = ends_at or span_of(config, position)
    span = high - low
    yield Shape(form="line", points=((low, y), (high, y)), colour="line", width=5.0)
    small = unit == "m" and max(abs(low), abs(high)) < 1.0
    for x in (low, high):
        label = f"{1000 * x:.4g} mm" if small else f"{x:.4g} {unit}"
        yield text_at((x, y + (0.18 if not ends else -0.06) * span), label.replace("-", "−"), "soft")
        if ends:
            yield Shape(form="line", points=((x, y), (x, y + 0.06 * span)), colour="soft", width=5.0)


def target_mark(config: RunConfig, position: str, top: float) -> Iterator[Shape]:
    """A mark at the target of a position, upwards from the rail."""
    goal = goal_of(config, position)
    if goal is not None:
        moved, x = target_translation(goal, (1.0, 0.0)), goal.value
        yield Shape(form="line", points=((x, 0.0), (x, top)), colour="good", dashed=True, width=2.0, moved_by=moved)
        yield Shape(form="text", points=((x, 1.2 * top),), text="target", colour="good", moved_by=moved)
