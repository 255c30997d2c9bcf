"""Section ``task.reset``: reset controllers for rigs that cannot reset themselves to the start (``task.start``).

All values are in SI units, and names refer to the rig's observations and actuators.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

import msgspec

from onrig.hw.bounds import NotNegative, Positive, Quantity
from onrig.hw.rig import Rig
from onrig.hw.roles import derivative_problem, magnet_problems, speed_problem, velocity_unit_problem
from onrig.runtime import registry
from onrig.runtime.braking import braking_problem
from onrig.runtime.config.problem import describe_unknown_name
from onrig.runtime.config.registered import registered

_Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
MAX_TIMEOUT_S = 600.0
"""Maximum timeout of one attempt, so that every reset terminates."""
MAX_ATTEMPTS = 20


Action = tuple[float, ...]


class Driver(Protocol):
    """Controller that drives a rig to its start."""

    opposed: float | None
    """Magnitude of the quantity that the last action opposed at full effort; None if it was below full effort."""

    def begin(self, attempt: int) -> None:
        """Clear the state of the previous attempt; attempts are numbered from 1."""

    def drive(self, observation: Sequence[float], elapsed_s: float) -> Action:
        """Return the action (m,) for an observation (n,), both in SI units; ``elapsed_s``: time since the attempt's
        start."""


class Reset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """Description of a reset controller; a subclass declares its settings as fields and its name as the tag."""

    home: ClassVar[str]
    """Module and class of its ``Driver``, which takes the settings, the start and the rig."""
    reaches_any_start: ClassVar[bool] = True
    """Whether it can reach every start; False if it only reaches the rig's rest position."""

    within: dict[str, Positive]
    """Tolerance around the start, by observation name."""
    hold_s: NotNegative = 0.2
    """Time that the rig must spend within tolerance, under the safe output, to complete the reset."""
    timeout_s: Positive = 10.0
    """Timeout of one attempt, in device time."""
    attempts: Annotated[int, msgspec.Meta(ge=1, le=MAX_ATTEMPTS)] = 3
    """Number of attempts before the reset fails."""
    rest_s: NotNegative = 1.0
    """Rest under the safe output between two attempts."""
    effort: _Share = 1.0
    """Fraction of each actuator's range that a reset may use."""
    limits: dict[str, tuple[Quantity, Quantity]] = {}
    """[low, high] by observation name; outside it the reset fails immediately."""

    def driver(self, start: Mapping[str, float], rig: Rig) -> Driver:
        """Build the controller for a start and a rig that passed ``reset_problems``."""
        driver: Driver = registry.import_home(self, self.home)(self, start, rig)
        return driver

    def problems(self, start: Mapping[str, float], rig: Rig) -> Iterator[tuple[str, str]]:
        """List (path, message) for each reason why this controller cannot be used on a rig, except for problems in the
        fields that all resets have."""
        return iter(())


class Settle(Reset, frozen=True, forbid_unknown_fields=True, tag="settle", kw_only=True):
    """Reset by braking until the rig settles: the actuator opposes the velocity, with full effort from ``full_at`` on.

    Every attempt after the first begins with a push, which frees a rig that rests in the wrong position.
    """

    home = "onrig.runtime.reset.drivers:SettleDriver"
    reaches_any_start = False

    actuator: str
    """Name of the braking actuator."""
    velocity: str
    """Name of the velocity observation."""
    full_at: Positive
    """Velocity from which the actuator brakes with full effort."""
    push_s: NotNegative = 0.2
    """Duration of the push that begins each later attempt."""

    def problems(self, start: Mapping[str, float], rig: Rig) -> Iterator[tuple[str, str]]:
        """List missing or unsuitable signals, and a push that leaves no time in an attempt."""
        yield from name_problems("actuator", self.actuator, [a.name for a in rig.actuators], "actuator", rig)
        yield from name_problems("velocity", self.velocity, [o.name for o in rig.observations], "observation", rig)
        brakes = [braking_problem(a, a.low, a.high) for a in rig.actuators if a.name == self.actuator]
        yield from (("actuator", brake) for brake in brakes if brake)
        if not self.push_s < self.timeout_s:
            yield "push_s", "must be less than timeout_s"
        roles = [("velocity", velocity_unit_problem(rig, self.velocity))]
        roles.append(("full_at", speed_problem(rig, self.velocity, self.full_at)))
        yield from ((path, message) for path, message in roles if message is not None)


class Draw(Reset, frozen=True, forbid_unknown_fields=True, tag="draw", kw_only=True):
    """Reset of a ball on a track by closed-loop speed control with coils that can only pull.

    A start with coils on one side only is reached from ``via``, a position with coils on both sides: the ball is
    stopped there, then accelerated towards the start and braked.
    """

    home = "onrig.runtime.reset.drivers:DrawDriver"

    position: str
    """Name of the position observation."""
    velocity: str
    """Name of the velocity observation."""
    coils: dict[str, Quantity]
    """Coil position (m) by actuator name."""
    via: Quantity | None = None
    """Intermediate position (m); null: drive directly to the start."""
    speed: Positive = 0.1
    """Highest desired speed (m/s)."""
    stiffness: Positive = 6.0
    """Desired speed per distance (1/s)."""
    response_s: Positive = 0.03
    """Time constant of the speed servo."""
    strength: Positive
    """c1/m in the coils' pull d -> c1/m d / (d^2 + reach)^3 per actuator unit (an error of 30 % does no harm)."""
    reach: Positive
    """c2 in that pull (m^2)."""
    lever: Positive = 0.004
    """Minimum distance at which a coil may pull (m)."""

    def problems(self, start: Mapping[str, float], rig: Rig) -> Iterator[tuple[str, str]]:
        """List missing or unsuitable signals and coils."""
        observations = [o.name for o in rig.observations]
        yield from name_problems("position", self.position, observations, "observation", rig)
        yield from name_problems("velocity", self.velocity, observations, "observation", rig)
        if self.position not in start:
            yield "position", f"the task's start has no '{self.position}'"
        for name, coil_position in self.coils.items():
            yield from name_problems(f"coils.{name}", name, [a.name for a in rig.actuators], "actuator", rig)
            if not math.isfinite(coil_position):
                yield f"coils.{name}", "must be a finite number"
        if not self.coils:
            yield "coils", "expected at least one"
        yield from ((f"coils.{name}", message) for name, message in magnet_problems(rig, self.position, self.coils))
        if message := derivative_problem(rig, self.position, self.velocity):
            yield "velocity", message


if TYPE_CHECKING:
    AnyReset = Reset
else:
    AnyReset = Annotated[Any, registered(registry.RESETS)]


def name_problems(path: str, name: str, rig_names: Sequence[str], kind: str, rig: Rig) -> Iterator[tuple[str, str]]:
    """Yield a problem if the rig has no such name."""
    if name not in rig_names:
        yield path, describe_unknown_name(f"rig '{rig.name}'", kind, name, rig_names)


def reset_problems(reset: Reset, start: Mapping[str, float], rig: Rig) -> list[tuple[str, str]]:
    """List the problems of a reset as (path, message) pairs; empty if it is valid."""
    observations = [o.name for o in rig.observations]
    problems: list[tuple[str, str]] = []
    for name in reset.within:
        problems += name_problems(f"within.{name}", name, observations, "observation", rig)
        if name not in start:
            problems.append((f"within.{name}", f"the task's start has no '{name}'"))
    if not reset.within:
        problems.append(("within", "expected at least one observation, to recognise the start"))
    for name, (low, high) in reset.limits.items():
        problems += name_problems(f"limits.{name}", name, observations, "observation", rig)
        if not low < high:
            problems.append((f"limits.{name}", f"needs low < high, got {low} and {high}"))
        elif name in start and not low <= start[name] <= high:
            problems.append((f"limits.{name}", f"the start state {start[name]} lies outside [{low}, {high}]"))
    for field in ("hold_s", "timeout_s", "rest_s"):
        value = getattr(reset, field)
        if not (math.isfinite(value) and value <= MAX_TIMEOUT_S):
            problems.append((field, f"expected at most {MAX_TIMEOUT_S:g} s, got {value:g}"))
    if reset.hold_s >= reset.timeout_s:
        problems.append(("hold_s", "must be less than timeout_s: no attempt could succeed"))
    return [*problems, *reset.problems(start, rig)]
