"""A plant that MuJoCo simulates from its model file, ``{kind: mujoco, model: cart.xml}`` (extra ``envs``).

States are the positions of the model's hinges and slides, then their velocities.  Each call sets the complete state and
clears the solver's warm start, so a step depends on state and action alone.  One model per process can therefore serve
the twin and any number of trials, which it steps in turn: each trial is bit-identical to the same trial run alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

import msgspec
import numpy as np

from onrig.hw.bounds import NotNegative, Positive
from onrig.hw.rig import Rig
from onrig.runtime.files import read_file
from onrig.runtime.safety.plant_box import Sketch
from onrig.sim.plants.integrate import Array, Maths, V
from onrig.sim.plants.plant import Plant, unit, wrapped

_MISSING_PACKAGE: Final = "needs MuJoCo: pip install 'onrig[envs]'"
_MAX_BYTES: Final = 1 << 24
_LIMIT_MARGIN: Final = 0.01
"""Distance from a joint's limit that counts as contact, as a share of its range."""
_DIVERGENCE_LIMIT: Final = 1e9
_ROUNDING: Final = 1e-9
_VELOCITY_SUFFIX: Final = "_velocity"
"""Suffix of a joint's name for its velocity."""


class Mujoco(Plant, frozen=True, tag="mujoco"):
    """A model file, the rig's names for its joints and actuators, and factors on its physics."""

    model: str
    """Path of the MJCF or URDF file, next to the configuration."""
    sha256: str = ""
    """Digest of the model file; set when a configuration is read."""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    """Name in the rig for each name in the model: of a joint (its position), JOINT_velocity, a jointpos or jointvel
    sensor (which names its joint) or an actuator."""
    actions: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The rig's actuators in its order, if that differs from the model's; actuators that only the model has get 0."""
    wrap: tuple[str, ...] = ()
    """States that are angles in rad and wrap from pi to -pi."""
    mass: Annotated[Positive, unit("times the model's value")] = 1.0
    """Factor on all masses and moments of inertia."""
    damping: Annotated[NotNegative, unit("times the model's value")] = 1.0
    """Factor on the damping of all joints."""
    friction: Annotated[NotNegative, unit("times the model's value")] = 1.0
    """Factor on the dry friction of all joints."""
    gain: Annotated[NotNegative, unit("times the model's value")] = 1.0
    """Factor on the gain of all actuators."""

    batched: ClassVar[bool] = False
    file_field: ClassVar[str] = "model"

    def __post_init__(self) -> None:
        """Check the model and the names.  Raises ValueError, which states the offending name."""
        solver = self._solver
        known_names = (*solver.states, *solver.sensors, *solver.actuators)
        for name in self.names:
            if name not in known_names:
                raise ValueError(f"names: the model has no '{name}' (known: {', '.join(known_names)})")
        all_names = (*self.state_names, *self._actuators)
        for name in all_names:
            if all_names.count(name) > 1:
                raise ValueError(f"names: '{name}' is used twice: give distinct names")
        for field, chosen_names, names in (
            ("actions", self.actions or (), self._actuators),
            ("wrap", self.wrap, self.state_names),
        ):
            for name in chosen_names:
                if name not in names:
                    raise ValueError(f"{field}: the model has no '{name}' (known: {', '.join(names)})")

    @property
    def _solver(self) -> _Solver:
        return _solver(self.model, self.sha256)

    @property
    def state_names(self) -> tuple[str, ...]:
        solver = self._solver
        sensor_names = {state: self.names.get(sensor, sensor) for sensor, state in solver.sensors.items()}
        return tuple([self.names.get(state, sensor_names.get(state, state)) for state in solver.states])

    @property
    def velocities_at(self) -> tuple[int, ...]:
        """Indices of all velocities."""
        joints = len(self._solver.states) // 2
        return tuple(range(joints, 2 * joints))

    @property
    def _actuators(self) -> tuple[str, ...]:
        return tuple([self.names.get(name, name) for name in self._solver.actuators])

    @property
    def action_names(self) -> tuple[str, ...]:
        return self._actuators if self.actions is msgspec.UNSET else self.actions

    @property
    def n_actions(self) -> int:
        return len(self.action_names)

    @property
    def units(self) -> dict[str, str]:
        """Units of joints, and of actuators that apply a force or torque directly."""
        solver = self._solver
        return dict(zip((*self.state_names, *self._actuators), solver.units, strict=True))

    @property
    def spans(self) -> dict[str, tuple[float, float]]:
        """Ranges of limited joints and of actuators."""
        names = (*self.state_names, *self._actuators)
        return {names[at]: (low, high) for at, low, high in (*self._solver.limits, *self._solver.controls)}

    def derivative(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...]) -> tuple[V, ...]:
        """Return velocities and accelerations."""
        rates: tuple[V, ...] = self._for_each_plant(self._solver.rates, state, action, 0.0)
        return rates

    def integrate(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...], h: V | float) -> tuple[V, ...]:
        """Return the state after ``h`` seconds, in equal solver steps, none longer than the model's timestep."""
        next_state: tuple[V, ...] = self._for_each_plant(self._solver.advance, state, action, h)
        return next_state

    def constrain(self, xp: Maths[V], state: tuple[V, ...]) -> tuple[V, ...]:
        """Wrap angles; the solver handles limits and contacts."""
        wrapped_indices = self.wrap and {self.state_names.index(name) for name in self.wrap}
        return (
            tuple([wrapped(xp, x) if i in wrapped_indices else x for i, x in enumerate(state)])
            if wrapped_indices
            else state
        )

    def moves_freely(self, state: tuple[Array, ...]) -> Array | bool:
        """Whether the joints are clear of their limits."""
        is_free: Any = True
        for at, low, high in self._solver.limits:
            margin = _LIMIT_MARGIN * (high - low)
            is_free = is_free & (state[at] > low + margin) & (state[at] < high - margin)
        result: Array | bool = is_free
        return result

    def released(self, friction_share: float | Array = 1.0) -> Self:
        """Return the model with actuators of gain 0 and this share of its damping."""
        return self.varied({"gain": 0.0, "damping": self.damping * friction_share})

    def sketch(self, rig: Rig) -> Sketch | None:
        """Return a drawing of the model's geoms as seen along its hinges, if these are parallel."""
        from onrig.sim.plants.mujoco_sketch import sketch_of

        solver = self._solver
        observed_names = {o.sensor or o.name: o.name for o in rig.observations if o.derivative_of is None}
        states = dict(zip(solver.states[: len(solver.states) // 2], self.state_names, strict=False))
        observation_names = {joint: observed_names[state] for joint, state in states.items() if state in observed_names}
        return sketch_of(solver.model, observation_names)

    def _for_each_plant(
        self, solver_function: Callable[..., Array], state: tuple[V, ...], action: tuple[V, ...], h: V | float
    ) -> Any:
        """Apply a function of the solver to a state, or to each of many in turn."""
        actuator_indices = [self._actuators.index(name) for name in self.action_names]
        factors = (self.mass, self.damping, self.friction, self.gain)
        if isinstance(state[0], float) and not any(isinstance(f, np.ndarray) for f in factors):
            states = solver_function(np.array([state]), np.array([action]), actuator_indices, [h], [factors])
            return tuple(states[0].tolist())
        # Broadcast everything to one row per plant.
        columns = np.broadcast_arrays(*state, *action, h, *factors)
        rows = np.stack([x.ravel() for x in columns], axis=1)
        n, m = len(state), len(state) + len(action)
        found = solver_function(
            rows[:, :n],
            rows[:, n:m],
            actuator_indices,
            rows[:, m].tolist(),
            [tuple(row) for row in rows[:, m + 1 :].tolist()],
        )
        return tuple([np.ascontiguousarray(column).reshape(columns[0].shape) for column in found.T])


class _Solver:
    """A compiled model and its data.  Raises ValueError for features that a rig's frames cannot represent."""

    def __init__(self, path: str) -> None:
        try:
            import mujoco
        except ImportError:
            raise ValueError(f"the plant 'mujoco' {_MISSING_PACKAGE}") from None
        mujoco.set_mju_user_warning(lambda message: None)  # otherwise MuJoCo logs to a file in the working directory
        self._mujoco: Any = mujoco
        try:
            self.model: Any = mujoco.MjModel.from_xml_path(path)
        except ValueError as error:
            raise ValueError(f"model: {' '.join(str(error).split())}") from None
        if problem := next(self._problems(), None):
            raise ValueError(f"model: {problem}")
        # Without the automatic reset, a divergence remains visible.
        self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        self._data: Any = mujoco.MjData(self.model)
        self._timestep_s = float(self.model.opt.timestep)
        parts = mujoco.mjtState
        self._state_parts = int(parts.mjSTATE_QPOS | parts.mjSTATE_QVEL)
        self._input_parts = int(
            parts.mjSTATE_TIME | parts.mjSTATE_QPOS | parts.mjSTATE_QVEL | parts.mjSTATE_WARMSTART | parts.mjSTATE_CTRL
        )
        joints = [self.model.joint(i) for i in range(self.model.njnt)]
        names = [joint.name for joint in joints]
        self.states: Final = (*names, *(name + _VELOCITY_SUFFIX for name in names))
        self.sensors: Final = dict(self._sensors(names))
        """State that each position or velocity sensor measures, by the sensor's name."""
        self.actuators: Final = tuple(self.model.actuator(i).name for i in range(self.model.nu))
        self.limits: Final[list[tuple[int, float, float]]] = [
            (i, float(joint.range[0]), float(joint.range[1])) for i, joint in enumerate(joints) if joint.limited[0]
        ]
        """Index, lowest and highest position of each limited joint."""
        self.controls: Final[list[tuple[int, float, float]]] = [
            (2 * len(joints) + i, float(actuator.ctrlrange[0]), float(actuator.ctrlrange[1]))
            for i, actuator in enumerate(map(self.model.actuator, range(self.model.nu)))
            if actuator.ctrllimited[0]
        ]
        """Index, lowest and highest control of each limited actuator; indices continue after the states."""
        is_slide = [int(joint.type[0]) == mujoco.mjtJoint.mjJNT_SLIDE for joint in joints]
        position_units = ["m" if slides else "rad" for slides in is_slide]
        self.units: Final = (
            *position_units,
            *(f"{unit}/s" for unit in position_units),
            *self._actuator_units(is_slide),
        )
        """Units of states and actuators."""
        m = self.model
        self._model_values: Final = {
            name: np.array(getattr(m, name))
            for name in ("body_mass", "body_inertia", "dof_damping", "dof_frictionloss")
        } | {name: np.array(getattr(m, name)) for name in ("actuator_gainprm", "actuator_biasprm")}
        self._factors: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)

    def _problems(self) -> Iterator[str]:
        """Yield the features that a rig's frames cannot represent, by name."""
        m, kinds = self.model, self._mujoco.mjtJoint
        for i in range(m.njnt):
            joint = m.joint(i)
            kind = kinds(int(joint.type[0]))
            if kind.name not in ("mjJNT_HINGE", "mjJNT_SLIDE"):
                kind_name = kind.name.removeprefix("mjJNT_").lower()
                yield f"the joint '{joint.name}' is a {kind_name} joint: use hinges and slides"
            if not joint.name:
                yield f"joint {i + 1} has no name"
        for i in range(m.nu):
            actuator = m.actuator(i)
            if not actuator.name:
                yield f"actuator {i + 1} has no name"
            if actuator.actadr[0] >= 0:
                yield f"the actuator '{actuator.name}' has an activation, which no sensor shows: use dyntype none"
        if not m.njnt or not m.nu:
            yield "expected at least one joint and one actuator"
        if m.nmocap or m.nflex or m.nplugin:
            yield "mocap bodies, flexible bodies and plugins have states that no sensor shows"

    def _actuator_units(self, is_slide: list[bool]) -> Iterator[str]:
        """Yield the unit of each actuator: N or N m if it is the joint's force or torque, else 1."""
        m = self.model
        for i in range(m.nu):
            actuator = m.actuator(i)
            is_direct = actuator.gear[0] == 1.0 and actuator.gainprm[0] == 1.0 and not actuator.biasprm.any()
            acts_on_joint = int(actuator.trntype[0]) == self._mujoco.mjtTrn.mjTRN_JOINT
            yield ("N" if is_slide[int(actuator.trnid[0])] else "N m") if is_direct and acts_on_joint else "1"

    def _sensors(self, joints: list[str]) -> Iterator[tuple[str, str]]:
        kinds = self._mujoco.mjtSensor
        suffixes = {int(kinds.mjSENS_JOINTPOS): "", int(kinds.mjSENS_JOINTVEL): _VELOCITY_SUFFIX}
        for i in range(self.model.nsensor):
            sensor = self.model.sensor(i)
            suffix = suffixes.get(int(sensor.type[0]))
            if suffix is not None and sensor.name:
                yield sensor.name, joints[int(sensor.objid[0])] + suffix

    def _scale(self, factors: tuple[float, ...]) -> None:
        """Scale the model's masses, damping, friction and gains."""
        if factors == self._factors:
            return
        mass, damping, friction, gain = self._factors = factors
        for names, factor in (
            (("body_mass", "body_inertia"), mass),
            (("dof_damping",), damping),
            (("dof_frictionloss",), friction),
            (("actuator_gainprm", "actuator_biasprm"), gain),
        ):
            for name in names:
                getattr(self.model, name)[:] = self._model_values[name] * factor
        self._mujoco.mj_setConst(self.model, self._data)

    def _inputs(self, states: Array, actions: Array, actuator_indices: list[int]) -> Array:
        """Return one row of step inputs per plant, in the solver's order: time, positions, velocities, warm start,
        controls."""
        rows = np.zeros((len(states), 1 + states.shape[1] + self.model.nv + self.model.nu))
        rows[:, 1 : 1 + states.shape[1]] = states
        rows[:, [i - self.model.nu for i in actuator_indices]] = actions
        return rows

    def rates(
        self,
        states: Array,
        actions: Array,
        actuator_indices: list[int],
        h_s: list[float],
        factors: list[tuple[float, ...]],
    ) -> Array:
        """Return velocities and accelerations (N, 2 n)."""
        mujoco, m, d = self._mujoco, self.model, self._data
        found = np.empty(states.shape)
        for k, row in enumerate(self._inputs(states, actions, actuator_indices)):
            self._scale(factors[k])
            mujoco.mj_setState(m, d, row, self._input_parts)
            mujoco.mj_forward(m, d)
            found[k, : m.nv], found[k, m.nv :] = d.qvel, d.qacc
        return found

    def advance(
        self,
        states: Array,
        actions: Array,
        actuator_indices: list[int],
        h_s: list[float],
        factors: list[tuple[float, ...]],
    ) -> Array:
        """Return the states (N, 2 n) after ``h_s`` seconds each; NaN if the solver diverges."""
        m, d = self.model, self._data
        set_state, step, get_state = self._mujoco.mj_setState, self._mujoco.mj_step, self._mujoco.mj_getState
        inputs = self._inputs(states, actions, actuator_indices)
        input_parts, state_parts = self._input_parts, self._state_parts
        found = np.array(states)
        for k, h in enumerate(h_s):
            if h <= 0.0:
                continue
            self._scale(factors[k])
            set_state(m, d, inputs[k], input_parts)
            steps = max(1, math.ceil(h / self._timestep_s - _ROUNDING))
            m.opt.timestep = h / steps
            step(m, d, steps)
            get_state(m, d, found[k], state_parts)
        found[~np.all(np.abs(found) < _DIVERGENCE_LIMIT, axis=1)] = np.nan
        return found


@lru_cache(maxsize=8)
def _solver(path: str, sha256: str) -> _Solver:
    """Return the process's instance of a model.  Raises ValueError for a missing, invalid or changed file."""
    try:
        digest = hashlib.sha256(read_file(Path(path), _MAX_BYTES)).hexdigest()
    except OSError as error:
        raise ValueError(f"model: {path}: {error.strerror or error}") from None
    if sha256 not in ("", digest):
        raise ValueError(f"model: {path} has changed since this configuration was resolved")
    return _Solver(path)
