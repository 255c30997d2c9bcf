"""Section ``task.reset``: how a rig that cannot reset itself is brought to its start (``task.start``).

All values are SI and refer to the rig's names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from onrig.hw.bounds import NotNegative, Positive, Quantity
from onrig.hw.rig import Rig
from onrig.hw.roles import place_problems, rate_of_problem, rate_problem, speed_problem
from onrig.runtime.braking import one_sided

_Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
MAX_S = 600.0
"""Longest time-out of one attempt, so that every reset terminates."""
MAX_ATTEMPTS = 20


class _Common(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    within: dict[str, Positive]
    """Tolerance around the start, by observation name."""
    hold_s: NotNegative = 0.2
    """Time within tolerance that ends the reset, with the safe output in force where the controller allows it."""
    timeout_s: Positive = 10.0
    """Time-out of one attempt, in device time."""
    attempts: Annotated[int, msgspec.Meta(ge=1, le=MAX_ATTEMPTS)] = 3
    """Before the reset gives up."""
    rest_s: NotNegative = 1.0
    """Safe output between two attempts."""
    effort: _Share = 1.0
    """Share of each actuator's range that a reset may use."""
    limits: dict[str, tuple[Quantity, Quantity]] = {}
    """[low, high] by observation name; outside it the reset gives up at once."""


class Settle(_Common, frozen=True, forbid_unknown_fields=True, tag="settle", tag_field="kind", kw_only=True):
    """Reset by braking until the rig settles: the actuator opposes the velocity, with full effort from ``full_at`` on.

    Every attempt after the first begins with a push, which frees a rig that rests in the wrong place.
    """

    actuator: str
    """Name of the one that brakes."""
    velocity: str
    """Name of the observation that it opposes."""
    full_at: Positive
    """Velocity from which it brakes with full effort."""
    push_s: NotNegative = 0.2
    """Length of the push before a further attempt."""


class Draw(_Common, frozen=True, forbid_unknown_fields=True, tag="draw", tag_field="kind", kw_only=True):
    """Reset of a ball on a track by a speed servo with coils that can only pull.

    A start with coils on one side only is reached from ``via``, a position with coils on both sides: the ball is
    stopped there, then sent off and braked on its way.
    """

    position: str
    """Name of the observation of the body's position."""
    velocity: str
    """Name of that of its velocity."""
    coils: dict[str, Quantity]
    """Coil position (m) by actuator name."""
    via: Quantity | None = None
    """Position on the way (m); null: straight to the start."""
    speed: Positive = 0.1
    """Highest desired speed (m/s)."""
    stiffness: Positive = 6.0
    """Desired speed per distance (1/s)."""
    response_s: Positive = 0.03
    """Time constant of the speed servo."""
    strength: Positive
    """c1/m of the coils' pull d -> c1/m d / (d^2 + reach)^3 per actuator unit (an error of 30 % does no harm)."""
    reach: Positive
    """c2 of that pull (m^2)."""
    lever: Positive = 0.004
    """Shortest distance ahead from which a coil may pull (m)."""


Reset = Settle | Draw


def reset_problems(reset: Reset, start: Mapping[str, float], rig: Rig) -> list[tuple[str, str]]:
    """List the problems of a reset as (path, message) pairs; empty if it is valid."""
    observations, actuators = [o.name for o in rig.observations], [a.name for a in rig.actuators]
    problems: list[tuple[str, str]] = []

    def known(path: str, name: str, there: Sequence[str], kind: str) -> None:
        if name not in there:
            problems.append((path, f"rig '{rig.name}' has no {kind} '{name}' (there are: {', '.join(there)})"))

    for name in reset.within:
        known(f"within.{name}", name, observations, "observation")
        if name not in start:
            problems.append((f"within.{name}", "the task's start does not give it"))
    if not reset.within:
        problems.append(("within", "needs at least one observation, to recognise the start"))
    for name, (low, high) in reset.limits.items():
        known(f"limits.{name}", name, observations, "observation")
        if not low < high:
            problems.append((f"limits.{name}", f"needs low < high, got {low} and {high}"))
        elif name in start and not low <= start[name] <= high:
            problems.append((f"limits.{name}", f"the start state {start[name]} lies outside [{low}, {high}]"))
    for field in ("hold_s", "timeout_s", "rest_s"):
        value = getattr(reset, field)
        if not (math.isfinite(value) and value <= MAX_S):
            problems.append((field, f"expected at most {MAX_S:g} s, got {value:g}"))
    if reset.hold_s >= reset.timeout_s:
        problems.append(("hold_s", "must be less than timeout_s: no attempt could succeed"))
    if isinstance(reset, Settle):
        known("actuator", reset.actuator, actuators, "actuator")
        known("velocity", reset.velocity, observations, "observation")
        brakes = [one_sided(a, a.low, a.high) for a in rig.actuators if a.name == reset.actuator]
        problems.extend(("actuator", brake) for brake in brakes if brake)
        if not reset.push_s < reset.timeout_s:
            problems.append(("push_s", "must be less than timeout_s"))
        roles = [("velocity", rate_problem(rig, reset.velocity))]
        roles.append(("full_at", speed_problem(rig, reset.velocity, reset.full_at)))
        return [*problems, *((path, message) for path, message in roles if message is not None)]
    known("position", reset.position, observations, "observation")
    known("velocity", reset.velocity, observations, "observation")
    if reset.position not in start:
        problems.append(("position", f"the task's start does not give '{reset.position}'"))
    for name, place in reset.coils.items():
        known(f"coils.{name}", name, actuators, "actuator")
        if not math.isfinite(place):
            problems.append((f"coils.{name}", "must be a finite number"))
    if not reset.coils:
        problems.append(("coils", "needs at least one"))
    problems += ((f"coils.{name}", message) for name, message in place_problems(rig, reset.position, reset.coils))
    if message := rate_of_problem(rig, reset.position, reset.velocity):
        problems.append(("velocity", message))
    return problems
