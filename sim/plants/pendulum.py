"""The pendulum swing-up of de Bruin et al. 2018, App. A.1: a DC motor drives a mass on an arm, hanging at angle 0."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import numpy as np

from onrig.hw.bounds import NotNegative, Positive
from onrig.hw.rig import Rig
from onrig.runtime.safety.pendulum import PendulumBox, side_cases
from onrig.runtime.safety.phase_plane import N_LEVELS, N_NODES, upper_side
from onrig.runtime.safety.plant_box import PlantBox, PredictionContext, Sketch
from onrig.runtime.safety.rules import Ranges
from onrig.sim.plants.excitation import Excitation, chirp, hold_safe, square_wave
from onrig.sim.plants.integrate import Array, Maths, V, step
from onrig.sim.plants.plant import Adversaries, Command, Curve, Plant, SafeSet, Stroke, narrow_box, unit, wrapped

INERTIA: Final = {"paper": 9.41e-4, "hardware": 1.91e-4}
"""Presets in kg m^2.  The paper prints 9.41e-4; its authors' code and three public files of the same device use
1.91e-4, which fits a point mass of M l^2 = 9.7e-5 far better.  Both are included; the paper's is the default."""


class Pendulum(Plant, frozen=True, tag="pendulum"):
    """Pendulum, with parameters in SI units, by default the paper's.  State (angle, velocity), action (voltage,)."""

    inertia: Annotated[Literal["paper", "hardware"] | Positive, unit("kg m^2")] = "paper"
    """Moment of inertia J, or the name of a preset."""
    mass: Annotated[Positive, unit("kg")] = 5.5e-2
    """Mass M."""
    gravity: Annotated[NotNegative, unit("m/s^2")] = 9.81
    """Gravitational acceleration g."""
    length: Annotated[Positive, unit("m")] = 4.2e-2
    """Distance l to the centre of mass."""
    damping: Annotated[NotNegative, unit("kg m^2/s")] = 3e-6
    """Coefficient b of viscous damping."""
    torque_constant: Annotated[NotNegative, unit("N m/A")] = 5.36e-2
    """Torque constant K of the motor."""
    resistance: Annotated[Positive, unit("ohm")] = 9.5
    """Resistance R of the motor."""

    state_names: ClassVar[tuple[str, ...]] = ("angle", "velocity")

    @property
    def n_actions(self) -> int:
        return 1

    @property
    def inertia_kg_m2(self) -> float:
        """J as a number."""
        return INERTIA[self.inertia] if isinstance(self.inertia, str) else self.inertia

    def number(self, name: str) -> Any:
        """Return a parameter as a number, even if the inertia is a preset."""
        return self.inertia_kg_m2 if name == "inertia" else getattr(self, name)

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        """Return the time derivative of (angle in rad, velocity in rad/s) under a motor voltage in V."""
        angle, velocity = state
        K, R, J = self.torque_constant, self.resistance, self.inertia
        if isinstance(J, str):
            J = INERTIA[J]
        gravity = self.mass * self.gravity * self.length * xp.sin(angle)
        friction = (self.damping + K * K / R) * velocity
        return (velocity, (K / R * action[0] - gravity - friction) / J)

    def constrain(self, xp: Maths[V], state: tuple[V, ...]) -> tuple[V, ...]:
        angle, velocity = state
        return (wrapped(xp, angle), velocity)

    def released(self, friction_share: float | Array = 1.0) -> Self:
        """Return the mass on its bearings: without current the motor neither drives nor brakes."""
        zero = np.zeros_like(np.asarray(self.torque_constant, np.float64))
        return self.varied({"torque_constant": zero if zero.ndim else 0.0, "damping": self.damping * friction_share})

    @property
    def lumped(self) -> dict[str, Any]:
        """A = M g l / J, D = (b + K^2/R) / J and G = K / (R J)."""
        inertia, K, R = self.inertia_kg_m2, self.torque_constant, self.resistance
        return {
            "gravity_per_s2": self.mass * self.gravity * self.length / inertia,
            "damping_per_s": (self.damping + K * K / R) / inertia,
            "gain_per_v_s2": K / (R * inertia),
        }

    def with_lumped(self, values: Mapping[str, float | Array]) -> Self:
        """Return a copy with a different mass, damping, torque constant and resistance, but the same inertia."""
        gravity, damping, gain = (np.asarray(values[name], np.float64) for name in self.lumped)
        inertia = self.inertia_kg_m2
        # Torque constant and resistance together give the gain; a small constant leaves the remaining damping to b.
        torque_constant = np.minimum(self.torque_constant, np.maximum(0.5 * damping / gain, 1e-12))
        values_of_fields = {
            "mass": gravity * inertia / (self.gravity * self.length),
            "damping": np.maximum(damping - torque_constant * gain, 0.0) * inertia,
            "torque_constant": torque_constant,
            "resistance": torque_constant / (gain * inertia),
        }
        return self.varied({name: value if value.ndim else value.item() for name, value in values_of_fields.items()})

    @classmethod
    def of_box(cls, box: PlantBox, rig: Rig) -> Self:
        """Return a pendulum of unit inertia, gravity and length with a box's nominal parameters."""
        return cls(inertia=1.0, gravity=1.0, length=1.0).with_lumped(narrow_box(box, PendulumBox).nominal)

    def strokes(self, state: tuple[float, ...]) -> tuple[Stroke, ...] | None:
        """Return a rod from the middle of the image, and the mass at its end."""
        x, y = math.sin(state[0]), -math.cos(state[0])
        rod = Stroke((0.0, 0.0), (0.75 * x, 0.75 * y), 0.12)
        return rod, Stroke((0.6 * x, 0.6 * y), (0.8 * x, 0.8 * y), 0.3)

    def sketch(self, rig: Rig) -> Sketch | None:
        names = [o.name for o in rig.observations]
        if "angle" not in names or len(rig.actuators) != 1:
            return None
        velocity = "velocity" if "velocity" in names else None
        return {"kind": "pendulum", "angle": "angle", "velocity": velocity, "actuator": rig.actuators[0].name}

    def excitations(self, rig: Rig, ranges: Ranges) -> list[Excitation]:
        """Return chirps around the natural frequency, a square wave, and free swings."""
        if "velocity" not in [o.name for o in rig.observations]:
            return super().excitations(rig, ranges)
        velocity = [o.name for o in rig.observations].index("velocity")
        (actuator,) = rig.actuators
        low, high = (actuator.safe + 0.7 * (limit - actuator.safe) for limit in ranges[actuator.name])

        def swing(t: float, observation: Sequence[float]) -> Command:
            if t > 1.5:
                return (actuator.safe,)
            return (high if observation[velocity] >= 0 else low,)

        swings = [Excitation("pumped, then free", 8.0, swing)] * 3
        band_hz = self._band_hz(0.2, 3.0)
        gentle_chirp, medium_chirp, full_chirp = (
            chirp(rig, ranges, 0, fraction, band_hz, 16.0) for fraction in (0.15, 0.5, 1.0)
        )
        steps = square_wave(rig, ranges, 0, 1.0, 0.4, 16.0)
        return [hold_safe(rig, 2.0), gentle_chirp, medium_chirp, *swings, steps, full_chirp]

    def brief_excitations(self, rig: Rig, ranges: Ranges) -> list[Excitation]:
        """Return a gentle chirp that exceeds even a large dead band, strong chirps, which determine damping best, and a
        square wave."""
        gentle_chirp = chirp(rig, ranges, 0, 0.3, self._band_hz(0.5, 2.0), 4.0)
        full_chirp = chirp(rig, ranges, 0, 1.0, self._band_hz(0.2, 3.0), 4.0)
        return [
            hold_safe(rig, 0.5),
            gentle_chirp,
            full_chirp,
            full_chirp,
            full_chirp,
            square_wave(rig, ranges, 0, 1.0, 0.4, 4.0),
        ]

    def _band_hz(self, low: float, high: float) -> tuple[float, float]:
        """Return a band around the natural frequency, given in multiples of it."""
        natural_hz = math.sqrt(self.lumped["gravity_per_s2"]) / (2.0 * math.pi)
        return low * natural_hz, high * natural_hz

    @classmethod
    def adversaries(cls, box: PlantBox, rig: Rig, ranges: Ranges) -> Adversaries:
        """Return two policies: full voltage along the motion, and energy control to the upright."""
        box = narrow_box(box, PendulumBox)
        names, (low, high) = [o.name for o in rig.observations], ranges[box.actuator]
        angle, velocity, a = names.index(box.angle), names.index(box.velocity), box.gravity_per_s2

        def push(observation: Sequence[float]) -> Command:
            return (high if observation[velocity] >= 0 else low,)

        def swing_up(observation: Sequence[float]) -> Command:
            v = observation[velocity]
            missing_energy = a * (1.0 + math.cos(observation[angle])) - 0.5 * v * v
            return (high if missing_energy * v >= 0 else low,)

        return Adversaries(push, swing_up)

    @classmethod
    def safe_states(
        cls, box: PlantBox, context: PredictionContext, n: int, rng: np.random.Generator
    ) -> tuple[Array, Array, Array]:
        """Draw angles, with the lowest and highest velocity of the safe set at each."""
        upper, lower = (upper_side(c).safe for c in side_cases(narrow_box(box, PendulumBox), context))
        angle = rng.uniform(-np.pi, np.pi, n)
        cell = ((angle + np.pi) / (2 * np.pi) * N_NODES).astype(int) % N_NODES
        low = -np.minimum(lower, np.roll(lower, -1))[N_NODES - 1 - cell]
        return angle, low, np.minimum(upper, np.roll(upper, -1))[cell]

    @classmethod
    def safe_set(cls, box: PlantBox, context: PredictionContext) -> SafeSet:
        """Return the phase plane with the safe set, limit curves for some voltages, and a swing-up."""
        upper, lower = (upper_side(case) for case in side_cases(narrow_box(box, PendulumBox), context))
        angle = np.linspace(-np.pi, np.pi, N_NODES, endpoint=False)

        def mirror(curve: Array) -> Array:
            """Return the curve of the lower side at the same angles: its own value at -pi, and otherwise its value at
            the opposite angle."""
            return -np.roll(curve[::-1], 1)

        middle_level = (N_LEVELS - 1) // 2
        sides = (
            (upper.coasting, lower.coasting, "safe output stays inside the envelope, without a host", "tab:brown", "-"),
            (upper.fallback, lower.fallback, "full braking stays below that curve", "tab:purple", ":"),
            (upper.passing[-1], lower.passing[-1], "full voltage along the motion passes", "tab:blue", "-"),
            (upper.passing[middle_level], lower.passing[middle_level], "0 V passes", "tab:blue", ":"),
            (upper.passing[0], lower.passing[0], "full voltage against it passes", "tab:blue", "--"),
        )
        curves = []
        for high, low, label, colour, dashes in sides:
            curves += [Curve(angle, high, label, colour, dashes), Curve(angle, mirror(low), "", colour, dashes)]
        path = cls._swing_up(narrow_box(box, PendulumBox), context)
        curves.append(Curve(path[0], path[1], "a swing-up (nominal plant)", "0.25", ""))
        axes = {"xlim": (-np.pi, np.pi), "xlabel": "angle (rad), 0 hangs", "ylabel": "velocity (rad/s)"}
        return SafeSet(angle, mirror(lower.safe), upper.safe, "safe set S", tuple(curves), axes)

    @classmethod
    def _swing_up(cls, box: PendulumBox, context: PredictionContext) -> Array:
        """Return the path (2, n) of energy control to the upright, without a shield."""
        plant, a = cls.of_box(box, context.rig), box.gravity_per_s2
        _, max_voltage = context.ranges[box.actuator]
        state: tuple[float, ...] = (0.01, 0.0)
        path, command = [], 0.0
        for k in range(2000):
            if k % 10 == 0:
                missing_energy = a * (1 + math.cos(state[0])) - 0.5 * state[1] ** 2
                command = (
                    max_voltage * min(max(missing_energy / (0.1 * a), -1.0), 1.0) * (1.0 if state[1] >= 0 else -1.0)
                )
            state = step(plant, state, (command,), context.period_s / 10, 1)
            path.append(state)
        return np.array(path).T
