"""Drawings of mechanisms along a line: a slider, a cart with a pole, a ball on a beam, a ball above magnets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

from onrig.hw.bounds import AboveZero
from onrig.runtime.run_config import RunConfig
from onrig.runtime.view.drawing import Drawing, DrawingData, Scene, Shape, signal_of
from onrig.tools.drawing_parts import (
    TRAIL_DURATION_S,
    box,
    goal_of,
    radians_per_unit,
    rail,
    ring,
    span_of,
    target_mark,
    target_translation,
    text_at,
)

_COIL_COLOURS: Final[tuple[Literal["accent", "second", "violet", "good"], ...]] = ("accent", "second", "violet", "good")


class Slider(Drawing, frozen=True, tag="slider"):
    """Drawing of a mass on a rail."""

    position: str

    def scene(self, config: RunConfig) -> Scene:
        """Return the rail with its ends, the target and the mass."""
        (low, high), moved = span_of(config, self.position), {self.position: (1.0, 0.0)}
        span = high - low
        mass = box(0.0, 0.07 * span, 0.01 * span, 0.11 * span)
        return Scene(
            (low - 0.1 * span, -0.16 * span),
            (high + 0.1 * span, 0.32 * span),
            (
                *rail(config, self.position, 0.0),
                *target_mark(config, self.position, 0.17 * span),
                Shape(form="polygon", points=mass, colour="accent", moved_by=moved),
            ),
        )


class CartPole(Drawing, frozen=True, tag="cartpole"):
    """Drawing of a cart that carries a pole."""

    position: str
    angle: str
    upright: float = 0.0
    """Angle at which the pole is upright."""
    clockwise: bool = True
    """Whether positive angles are drawn clockwise."""
    length: AboveZero | None = None
    """Drawn length in the position's unit; default: a fifth of the rail."""

    def scene(self, config: RunConfig) -> Scene:
        """Return the rail with its ends, the target, the cart and the pole."""
        (low, high), moved = span_of(config, self.position), {self.position: (1.0, 0.0)}
        span = high - low
        length, pivot = self.length or 0.2 * span, 0.06 * span
        turn = radians_per_unit(config, self.angle) * (-1.0 if self.clockwise else 1.0)
        zero = -turn * self.upright
        tip = (-length * math.sin(zero), pivot + length * math.cos(zero))
        turned: dict[str, Any] = {"turned_by": self.angle, "turn": turn, "about": (0.0, pivot), "moved_by": moved}
        swing = signal_of(config, self.angle)
        swings_below = max(abs(turn * (end - self.upright)) for end in (swing.low, swing.high)) > 0.5 * math.pi
        return Scene(
            (low - 0.1 * span, min(-0.1 * span, pivot - 1.15 * length if swings_below else 0.0)),
            (high + 0.1 * span, max(0.26 * span, pivot + 1.15 * length)),
            (
                *rail(config, self.position, 0.0),
                *target_mark(config, self.position, 0.16 * span),
                Shape(form="polygon", points=box(0.0, 0.07 * span, 0.005 * span, pivot), colour="soft", moved_by=moved),
                Shape(form="line", points=((0.0, pivot), tip), width=5.0, **turned),
                Shape(form="circle", points=((0.0, pivot),), radius=0.012 * span, moved_by=moved),
                Shape(
                    form="circle",
                    points=(tip,),
                    radius=0.02 * span,
                    colour="accent",
                    trail_s=TRAIL_DURATION_S,
                    **turned,
                ),
            ),
        )


class Beam(Drawing, frozen=True, tag="beam"):
    """Drawing of a ball that rolls on a beam; a signal tilts the beam about the middle of the ball's range."""

    position: str
    angle: str
    """Signal that tilts the beam: an observation or an actuator."""
    clockwise: bool = False
    """Whether positive angles are drawn clockwise."""

    def scene(self, config: RunConfig) -> Scene:
        """Return the stand, the beam, the target and the ball."""
        low, high = span_of(config, self.position)
        half_length, middle = 0.5 * (high - low), 0.5 * (low + high)
        tilted: dict[str, Any] = {
            "turned_by": self.angle,
            "turn": radians_per_unit(config, self.angle) * (-1.0 if self.clockwise else 1.0),
            "about": (middle, 0.0),
        }
        stand = (
            (middle, 0.0),
            (middle - 0.12 * half_length, -0.4 * half_length),
            (middle + 0.12 * half_length, -0.4 * half_length),
        )
        goal = goal_of(config, self.position)
        ends = tuple(((x, 0.0), (x, 0.12 * half_length)) for x in (low, high))
        return Scene(
            (low - 0.15 * half_length, -0.55 * half_length),
            (high + 0.15 * half_length, 0.55 * half_length),
            (
                Shape(form="polygon", points=stand, colour="line"),
                *(
                    ring(
                        (g.value, 0.09 * half_length),
                        0.1 * half_length,
                        slid_by=target_translation(g, (1.0, 0.0)),
                        **tilted,
                    )
                    for g in (() if goal is None else (goal,))
                ),
                Shape(form="line", points=((low, 0.0), (high, 0.0)), width=5.0, **tilted),
                *(Shape(form="line", points=end, width=3.0, **tilted) for end in ends),
                Shape(
                    form="circle",
                    points=((0.0, 0.09 * half_length),),
                    radius=0.07 * half_length,
                    colour="accent",
                    slid_by={self.position: (1.0, 0.0)},
                    trail_s=TRAIL_DURATION_S,
                    **tilted,
                ),
            ),
        )


class Track(Drawing, frozen=True, tag="track"):
    """Drawing of a ball on a track above magnets."""

    position: str
    magnets: Mapping[str, float] = {}
    """Positions of the magnets in m, by actuator."""

    def scene(self, config: RunConfig) -> Scene:
        """Return the track, its walls, the target, the ball, and the coils with their currents."""
        low, high, has_walls = self._track(config)
        span, moved = high - low, {self.position: (1.0, 0.0)}
        actuators = [a.name for a in config.rig.actuators]
        coils: list[Shape] = []
        for name, x in self.magnets.items():
            if name not in actuators:
                continue
            colour = _COIL_COLOURS[actuators.index(name) % len(_COIL_COLOURS)]
            light: dict[str, Any] = {"lit_by": name, "colour": colour}
            coils += [
                Shape(form="circle", points=((x, -0.04 * span),), radius=0.1 * span, **light),
                Shape(form="polygon", points=box(x, 0.04 * span, -0.2 * span, -0.04 * span), colour="soft",
                      outlined=True, width=1.5),
                Shape(form="polygon", points=box(x, 0.034 * span, -0.194 * span, -0.046 * span), colour=colour,
                      grown_by=name),
                Shape(form="text", points=((x, -0.235 * span),), value_of=name, colour="soft"),
            ]  # fmt: skip
        unit = config.rig.actuators[0].unit
        walls = [((x, 0.0), (x, 0.13 * span)) for x in ((low - 0.03 * span, high + 0.03 * span) if has_walls else ())]
        ball = 0.032 * span
        return Scene(
            (low - 0.06 * span, -0.32 * span),
            (high + 0.06 * span, 0.24 * span),
            (
                *coils,
                *([text_at((0.5 * (low + high), -0.29 * span), f"squared current in {unit}", "soft")] if coils else []),
                *rail(config, self.position, 0.0, (low, high), has_end_marks=False),
                *(Shape(form="line", points=wall, colour="soft", width=5.0) for wall in walls),
                *target_mark(config, self.position, 0.17 * span),
                Shape(form="circle", points=((0.0, 1.15 * ball),), radius=ball, colour="accent", moved_by=moved,
                      trail_s=TRAIL_DURATION_S),
            ),
        )  # fmt: skip

    def page_data(self, config: RunConfig) -> DrawingData:
        """Return the scene, and the data from which a terminal draws it in three lines."""
        low, high, walled = self._track(config)
        actuators = [a.name for a in config.rig.actuators]
        goal = goal_of(config, self.position)
        magnets = [(x, actuators.index(name)) for name, x in self.magnets.items() if name in actuators]
        track = {
            "position": [o.name for o in config.rig.signals].index(self.position),
            "low": low,
            "high": high,
            "walls": walled,
            "target": goal.value if goal is not None and goal.target is None else None,
            "magnets": [{"at": x, "actuator": actuator} for x, actuator in magnets],
        }
        return {**super().page_data(config), "track": track}

    def _track(self, config: RunConfig) -> tuple[float, float, bool]:
        """Return the positions of both ends, and whether they are walls."""
        wall = config.task.reward.wall
        if wall is not None and wall.observation == self.position:
            return wall.low, wall.high, True
        return *span_of(config, self.position), False
