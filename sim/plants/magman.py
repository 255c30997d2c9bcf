"""The magnetic manipulator of de Bruin et al. 2018, App. A.2: a steel ball on a track above four electromagnets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Self

import msgspec
import numpy as np

from onrig.hw.bounds import NotNegative, Positive, Quantity
from onrig.hw.rig import Rig
from onrig.runtime.safety.magman import MagmanBox
from onrig.runtime.safety.plant_box import PlantBox, PredictionContext, Sketch
from onrig.runtime.safety.rules import Ranges
from onrig.sim.plants.excitation import CommandLaw, Excitation, hold_safe
from onrig.sim.plants.integrate import Array, Maths, V
from onrig.sim.plants.plant import Adversaries, Command, Curve, Plant, SafeSet, narrow_box, unit

_POINTS: Final = 701
_WALL_MARGIN_M: Final = 1e-3
_ROUNDING: Final = 1e-9
_REACH_M: Final = 0.012
_OUT_OF_REACH_M: Final = 1e3


class Magman(Plant, frozen=True, tag="magman"):
    """Magnetic manipulator, with parameters in SI units, by default the paper's.

    The state is (position in m, velocity in m/s), the action the squared current of each coil in A^2.
    """

    mass: Annotated[Positive, unit("kg")] = 3.2e-2
    """Mass m of the ball."""
    friction: Annotated[NotNegative, unit("N s/m")] = 1.613e-2
    """Coefficient b of viscous friction."""
    c1: Annotated[Quantity, unit("N m^5/A^2")] = 5.52e-10
    """Strength of a coil."""
    c2: Annotated[Positive, unit("m^2")] = 1.75e-4
    """Width of a coil's field, squared."""
    first_magnet: Annotated[Quantity, unit("m")] = 0.025
    """Centre of the first coil: 0.025 j with j from 1, as printed; a literal reading of "position relative to the
    centre of the first magnet" would give 0."""
    magnet_spacing: Annotated[Positive, unit("m")] = 0.025
    """Distance between neighbouring coils."""
    wall_low: Annotated[Quantity, unit("m")] = -0.035
    """Position of the wall before the first coil."""
    wall_high: Annotated[Quantity, unit("m")] = 0.105
    """Position of the wall after the last coil."""
    wall_speed: Annotated[NotNegative, unit("m/s")] = 0.01
    """Rebound speed at a wall."""
    magnets: tuple[Quantity, ...] | msgspec.UnsetType = msgspec.UNSET
    """Centre of each coil (m), if they are not four equidistant ones; overrides ``first_magnet`` and
    ``magnet_spacing``."""

    state_names: ClassVar[tuple[str, ...]] = ("position", "velocity")
    separable: ClassVar[tuple[str, ...]] = ("c2",)

    @property
    def n_actions(self) -> int:
        return 4 if self.magnets is msgspec.UNSET else len(self.magnets)

    @property
    def centres(self) -> tuple[float, ...]:
        """Centre of each coil (m)."""
        if self.magnets is not msgspec.UNSET:
            return self.magnets
        first, spacing = self.first_magnet, self.magnet_spacing
        return tuple([first + j * spacing for j in range(4)])

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        """Return the time derivative of (position, velocity) under squared currents."""
        position, velocity = state
        c2, magnets = self.c2, self.magnets or None
        force = -self.friction * velocity
        centre = self.first_magnet
        for j, squared_current in enumerate(action):
            d = position - (magnets[j] if magnets else centre)
            reach = d * d + c2
            force = force - self.c1 * d / (reach * reach * reach) * squared_current
            centre = centre + self.magnet_spacing  # accumulated: `j * magnet_spacing` would round differently
        return (velocity, force / self.mass)

    def constrain(self, xp: Maths[V], state: tuple[V, ...]) -> tuple[V, ...]:
        """Put a ball that is beyond a wall back at the wall, rebounding slowly, at a sample."""
        position, velocity = state
        is_below, is_above = position < self.wall_low, position > self.wall_high
        return (
            xp.where(is_below, self.wall_low, xp.where(is_above, self.wall_high, position)),
            xp.where(is_below, self.wall_speed, xp.where(is_above, -self.wall_speed, velocity)),
        )

    def moves_freely(self, state: tuple[Array, ...]) -> Array | bool:
        """Whether the ball is at least a millimetre from either wall."""
        is_clear = (state[0] > self.wall_low + _WALL_MARGIN_M) & (state[0] < self.wall_high - _WALL_MARGIN_M)
        return np.asarray(is_clear)

    @property
    def lumped(self) -> dict[str, Any]:
        """c1/m and b/m."""
        return {"pull_m6_per_a2_s2": self.c1 / self.mass, "friction_per_s": self.friction / self.mass}

    def with_lumped(self, values: Mapping[str, float | Array]) -> Self:
        """Return a copy with a different c1 and friction, but the same mass."""
        pull, friction = (values[name] for name in self.lumped)
        return self.varied({"c1": pull * self.mass, "friction": friction * self.mass})

    def excitations(self, rig: Rig, ranges: Ranges) -> list[Excitation]:
        """Return excitations that drive neighbouring coils in turn, from one end to the other and back, weakly and
        strongly."""
        if "position" not in [o.name for o in rig.observations] or len(rig.actuators) != self.n_actions:
            return super().excitations(rig, ranges)
        excitations_of_coils = [hold_safe(rig, 1.0)]
        last_coil = len(rig.actuators) - 1
        coil_pairs = [(i, i + 1) for i in range(last_coil)] + [(i, i - 1) for i in range(last_coil, 0, -1)]
        max_command = tuple(ranges[a.name][1] for a in rig.actuators)
        position = [o.name for o in rig.observations].index("position")
        for fraction in (0.15, 1.0, 0.3, 0.15, 0.6, 0.2):
            for pair in coil_pairs:
                names = " and ".join(rig.actuators[i].name for i in pair)
                command_law = _alternate_coils(pair, fraction, max_command, self.centres, position)
                excitations_of_coils.append(Excitation(f"{names}, {fraction:.0%}", 3.2, command_law))
        return excitations_of_coils

    @classmethod
    def of_box(cls, box: PlantBox, rig: Rig) -> Self:
        """Return a ball of unit mass with a box's nominal parameters and magnets, on the rig's track."""
        box = narrow_box(box, MagmanBox)
        track = next(o for o in rig.observations if o.name == box.position)
        magnets = tuple([box.magnets.get(a.name, _OUT_OF_REACH_M) for a in rig.actuators])
        plant = cls(mass=1.0, c2=box.c2_m2, wall_low=track.low, wall_high=track.high, magnets=magnets)
        return plant.with_lumped(box.nominal)

    def box_deviations(self, box: PlantBox, rig: Rig) -> Iterator[str]:
        """Describe deviations in the width of the fields and the positions of the coils."""
        if not isinstance(box, MagmanBox):
            return
        low, high = box.c2_bounds
        if not low * (1.0 - _ROUNDING) <= self.c2 <= high * (1.0 + _ROUNDING):
            yield f"the twin's plant has c2 {self.c2:.6g}, but the shield covers {low:.6g} to {high:.6g}"
        for actuator, centre in zip(rig.actuators, self.centres, strict=False):
            assumed_position = box.magnets.get(actuator.name)
            if assumed_position is None or abs(assumed_position - centre) > _ROUNDING:
                assumption = "has no coil there" if assumed_position is None else f"assumes {assumed_position:g} m"
                yield f"the twin's {actuator.name} is at {centre:g} m, but the shield {assumption}"

    def sketch(self, rig: Rig) -> Sketch | None:
        if "position" not in [o.name for o in rig.observations] or len(rig.actuators) != self.n_actions:
            return None
        magnets = {a.name: round(centre, 9) for a, centre in zip(rig.actuators, self.centres, strict=True)}
        return {"kind": "track", "position": "position", "magnets": magnets}

    @classmethod
    def adversaries(cls, box: PlantBox, rig: Rig, ranges: Ranges) -> Adversaries:
        """Return two policies: every coil ahead of the motion, and a servo to a position between two magnets."""
        box = narrow_box(box, MagmanBox)
        names = [o.name for o in rig.observations]
        position, velocity = names.index(box.position), names.index(box.velocity)
        coils = [(box.magnets.get(a.name, math.inf), *ranges[a.name]) for a in rig.actuators]
        target = min(box.magnets.values()) + 0.01

        def push(observation: Sequence[float]) -> Command:
            x, v = observation[position], observation[velocity] or 1.0
            return tuple([high if (centre - x) * v > 0 else low for centre, low, high in coils])

        def aim(observation: Sequence[float]) -> Command:
            x = observation[position]
            offset = target - x - 0.1 * observation[velocity]
            return tuple([high if (centre - x) * offset > 0 else low for centre, low, high in coils])

        return Adversaries(push, aim)

    @classmethod
    def safe_states(
        cls, box: PlantBox, context: PredictionContext, n: int, rng: np.random.Generator
    ) -> tuple[Array, Array, Array]:
        """Draw positions on the track, with the velocities of the envelope."""
        track = next(o for o in context.rig.observations if o.name == box.place)
        envelope = context.envelope[box.velocity]
        return rng.uniform(track.low, track.high, n), np.full(n, envelope.low), np.full(n, envelope.high)

    @classmethod
    def safe_set(cls, box: PlantBox, context: PredictionContext) -> SafeSet:
        """Return curves, along the track, of the highest speeds at which the shield passes some commands."""
        box, rig = narrow_box(box, MagmanBox), context.rig
        prediction, envelope = box.prediction(context), context.envelope[box.velocity]
        names = [o.name for o in rig.observations]
        track = rig.observations[names.index(box.position)]
        position = np.linspace(track.low, track.high, _POINTS)

        def max_speeds(command: Sequence[float]) -> Array:
            """Return, for each position, the highest speed at which the shield passes a command."""
            speeds = []
            for x in position.tolist():
                low, high = 0.0, envelope.high
                for _ in range(20):
                    v = 0.5 * (low + high)
                    state = [x if n == box.position else v for n in names]
                    low, high = (low, v) if prediction.evaluate(state, command)[0] else (v, high)
                speeds.append(low)
            return np.array(speeds)

        max_command = [context.ranges[a.name][1] for a in rig.actuators]
        second_coil = [a.name for a in rig.actuators].index(list(box.magnets)[min(1, len(box.magnets) - 1)])
        speeds_without_current = max_speeds([0.0] * len(max_command))
        speeds_with_one_coil = max_speeds([m if i == second_coil else 0.0 for i, m in enumerate(max_command)])
        curves = []
        for speeds, label, dashes in (
            (speeds_with_one_coil, "second coil at full current passes", "-"),
            (max_speeds(max_command), "all coils at full current pass", "--"),
        ):
            curves += [
                Curve(position, speeds, label, "tab:blue", dashes),
                Curve(position, -speeds, "", "tab:blue", dashes),
            ]
        column = np.array([envelope.low, envelope.high])
        curves += [Curve(np.full(2, centre), column, "", "0.6", ":") for centre in box.magnets.values()]
        axes = {"xlim": (track.low, track.high), "xlabel": "position (m), dotted: magnets", "ylabel": "velocity (m/s)"}
        return SafeSet(
            position,
            -speeds_without_current,
            speeds_without_current,
            "all coils off pass: safe set S",
            tuple(curves),
            axes,
        )


def _alternate_coils(
    pair: tuple[int, int], fraction: float, max_command: Command, centres: tuple[float, ...], position: int
) -> CommandLaw:
    """Return a law that energises two coils alternately, and first pulls back a ball beyond the reach of all coils."""
    ends = centres.index(min(centres)), centres.index(max(centres))
    low, high = centres[ends[0]] - _REACH_M, centres[ends[1]] + _REACH_M

    def command_law(t: float, observation: Sequence[float]) -> Command:
        x = observation[position]
        half_period, phase_s = divmod(t, 0.4)
        coil, level = pair[int(half_period) % 2], fraction if phase_s < 0.34 else 0.0
        if not low < x < high:
            coil, level = ends[x > low], 1.0
        return tuple([level * current if i == coil else 0.0 for i, current in enumerate(max_command)])

    return command_law
