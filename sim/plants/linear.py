"""A linear plant x' = A x + B u, written entirely in YAML: names, matrices, walls and wrapped angles.

A motor with a flywheel, whose voltage sets the acceleration::

    plant:
      kind: linear
      states: [angle, velocity]
      actions: [voltage]
      A: [[0, 1], [0, -12.5]]
      B: [[0], [95]]
      wrap: [angle]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import msgspec
import numpy as np

from onrig.hw.bounds import LARGEST, Quantity
from onrig.sim.plants.integrate import Array, Maths, V
from onrig.sim.plants.plant import Parameter, Plant, declared_parameters, wrapped

_MIN_ENTRY: Final = 1e-12
"""Minimum magnitude of a variable entry; entries of 0 are fixed."""
_WALL_MARGIN: Final = 0.01
"""Distance from a wall that counts as contact, as a share of the distance between the walls."""


class Linear(Plant, frozen=True, tag="linear"):
    """Matrices and names of states and actions; the rig's sensors and actuators must have the same names."""

    states: tuple[str, ...]
    """Names of the states, used by the rig's sensors and the task's start."""
    actions: tuple[str, ...]
    """Names of the rig's actuators, in its order."""
    A: tuple[tuple[Quantity, ...], ...]
    """One row per state: its rate of change per unit of each state."""
    B: tuple[tuple[Quantity, ...], ...]
    """One row per state: its rate of change per unit of each action."""
    velocities_of: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Velocity state of each position state; default: implied by A (a row that is 1 at one state and 0 elsewhere)."""
    walls: dict[str, tuple[Quantity, Quantity]] | msgspec.UnsetType = msgspec.UNSET
    """Lowest and highest value of a state, at which its velocity also stops."""
    wrap: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Angles in rad that wrap from pi to -pi."""

    def __post_init__(self) -> None:
        """Check shapes and names.  Raises ValueError, which names the field and the problem."""
        for field, columns, of in (("A", self.states, "state"), ("B", self.actions, "action")):
            rows: Sequence[Sequence[Any]] = getattr(self, field)
            if len(rows) != len(self.states):
                raise ValueError(f"{field}: expected {len(self.states)} rows, one per state, got {len(rows)}")
            for name, row in zip(self.states, rows, strict=True):
                if len(row) != len(columns):
                    raise ValueError(
                        f"{field}: expected {len(columns)} numbers, one per {of}, for {name}, got {len(row)}"
                    )
        for field, names in (("states", self.states), ("actions", self.actions)):
            if not names or len(set(names)) < len(names):
                raise ValueError(f"{field}: expected one or more distinct names, got {', '.join(names) or 'none'}")
        pairs = self.velocities_of or {}
        used_names = {
            "velocities_of": (*pairs, *pairs.values()),
            "walls": tuple(self.walls or ()),
            "wrap": self.wrap or (),
        }
        for field, names in used_names.items():
            for name in names:
                if name not in self.states:
                    raise ValueError(f"{field}: '{name}' is not a state (known: {', '.join(self.states)})")
        for name, (low, high) in (self.walls or {}).items():
            if not low < high:
                raise ValueError(f"walls: expected the lower end first for {name}, got {low:g} and {high:g}")

    @property
    def state_names(self) -> tuple[str, ...]:
        return self.states

    @property
    def n_actions(self) -> int:
        return len(self.actions)

    @property
    def action_names(self) -> tuple[str, ...]:
        return self.actions

    @property
    def velocities_at(self) -> tuple[int, ...]:
        """Indices of the positions' velocities, or of the last state if no position has one."""
        return tuple(sorted(set(self._velocity_of.values()))) or (len(self.states) - 1,)

    @property
    def _velocity_of(self) -> dict[int, int]:
        """Map from the index of each position to the index of its velocity."""
        if self.velocities_of is not msgspec.UNSET:
            return {self.states.index(position): self.states.index(v) for position, v in self.velocities_of.items()}
        return {i: row.index(1.0) for i, row in enumerate(self.A) if self._is_rate(i)}

    def _is_rate(self, i: int) -> bool:
        """Whether the derivative of state ``i`` is itself another state, regardless of the plant's parameters."""
        row = self.A[i]
        is_unit = all(isinstance(a, int | float) for a in row) and sorted(row) == [0.0] * (len(row) - 1) + [1.0]
        return is_unit and row[i] == 0.0 and not any(isinstance(b, np.ndarray) or b for b in self.B[i])

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        """Return A x + B u, skipping zero entries."""
        rates: tuple[V, ...] = self._rates(state, action)
        return rates

    def _rates(self, state: tuple[Any, ...], action: tuple[Any, ...]) -> Any:
        inputs, zero = (*state, *action), 0.0 * state[0]
        return tuple([self._sum([*a, *b], inputs, zero) for a, b in zip(self.A, self.B, strict=True)])

    @staticmethod
    def _sum(weights: Sequence[Any], inputs: Sequence[Any], zero: Any) -> Any:
        total, first = zero, True
        for w, x in zip(weights, inputs, strict=True):
            if isinstance(w, np.ndarray) or w:
                term = x if not isinstance(w, np.ndarray) and w == 1.0 else w * x
                total, first = (term if first else total + term), False
        return total

    def constrain(self, xp: Maths[V], state: tuple[V, ...]) -> tuple[V, ...]:
        """Wrap angles; at a wall, hold the position and stop a velocity that points into the wall."""
        constrained_state = list(state)
        for name in self.wrap or ():
            index = self.states.index(name)
            constrained_state[index] = wrapped(xp, constrained_state[index])
        for name, (low, high) in (self.walls or {}).items():
            index = self.states.index(name)
            is_below, is_above = constrained_state[index] < low, constrained_state[index] > high
            constrained_state[index] = xp.where(is_below, low, xp.where(is_above, high, constrained_state[index]))
            v = self._velocity_of.get(index)
            if v is not None:
                moves_into_wall = (is_below & (constrained_state[v] < 0.0)) | (is_above & (constrained_state[v] > 0.0))
                constrained_state[v] = xp.where(moves_into_wall, 0.0, constrained_state[v])
        return tuple(constrained_state)

    def moves_freely(self, state: tuple[Array, ...]) -> Array | bool:
        """Whether the positions are clear of their walls."""
        is_free: Any = True
        for name, (low, high) in (self.walls or {}).items():
            x, margin = state[self.states.index(name)], _WALL_MARGIN * (high - low)
            is_free = is_free & (x > low + margin) & (x < high - margin)
        result: Array | bool = is_free
        return result

    # -- parameters ----------------------------------------------------------------------------------------------------

    @property
    def _entries(self) -> dict[str, tuple[str, int, int]]:
        """Matrix, row and column, by name, of each physical entry: one that is neither 0 nor in a position's row."""
        entries = {}
        for i, row in enumerate(self.states):
            if not self._is_rate(i):
                columns = (("A", self.states), ("B", self.actions))
                for matrix, names in columns:
                    for j, column in enumerate(names):
                        value = getattr(self, matrix)[i][j]
                        if isinstance(value, np.ndarray) or value:
                            entries[f"{matrix}_{row}_{column}"] = (matrix, i, j)
        return entries

    def parameters(self) -> list[Parameter]:
        """List imperfections, and the magnitudes of nonzero entries of A and B, whose signs remain as configured."""
        sizes = [
            Parameter(name, f"1/s of {self.states[i]}", _MIN_ENTRY, LARGEST, abs(self.number(name)))
            for name, (_, i, _) in self._entries.items()
        ]
        return [*super().parameters(), *sizes]

    @property
    def identifiable(self) -> dict[str, Any]:
        """Magnitudes of the nonzero entries of A and B."""
        return {name: abs(self.number(name)) for name in self._entries}

    def number(self, name: str) -> Any:
        """Return an imperfection, or an entry of A or B by its name, such as ``A_velocity_angle``."""
        if name not in self._entries:
            return super().number(name)
        matrix, i, j = self._entries[name]
        return getattr(self, matrix)[i][j]

    def varied(self, values: Mapping[str, float | Array]) -> Self:
        """Return a copy with different imperfections and entry magnitudes.  Raises the errors of ``Plant.varied``."""
        entries = self._entries
        matrices = {matrix: [list(row) for row in getattr(self, matrix)] for matrix in ("A", "B")}
        for name, (matrix, i, j) in entries.items():
            if name in values:
                size = np.asarray(values[name])
                if not np.all((size >= _MIN_ENTRY) & (size <= LARGEST)):
                    raise ValueError(f"{name}: expected {_MIN_ENTRY:g} to {LARGEST:g}, got {values[name]}")
                matrices[matrix][i][j] = np.sign(self.number(name)) * values[name]
                if not np.ndim(values[name]):
                    matrices[matrix][i][j] = float(matrices[matrix][i][j])
        varied_plant = super().varied(
            {name: value for name, value in values.items() if name in declared_parameters(type(self))}
        )
        unknown_names = [name for name in values if name not in entries and name not in declared_parameters(type(self))]
        if unknown_names:
            raise KeyError(unknown_names[0])
        return msgspec.structs.replace(varied_plant, **{m: tuple(map(tuple, rows)) for m, rows in matrices.items()})
