"""A plant that MuJoCo simulates from its model file, ``{kind: mujoco, model: cart.xml}`` (extra ``envs``).

States are the positions of the model's hinges and slides, then their velocities.  Each call sets the complete state and
clears the solver's warm start, so a step depends on state and action alone: one model in a process serves the twin and
any number of trials, which it steps in turn, each bit-identical to the same trial alone.
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

_MISSING: Final = "needs MuJoCo: pip install 'onrig[envs]'"
_MAX_BYTES: Final = 1 << 24
_NEAR: Final = 0.01
"""Distance from a joint's limit that counts as contact, as a share of its range."""
_DIVERGED: Final = 1e9
_ROUNDING: Final = 1e-9
_RATE: Final = "_velocity"
"""Suffix of a joint's name for its velocity."""


class Mujoco(Plant, frozen=True, tag="mujoco"):
    """A model file with the names that the rig has for its joints and actuators, and factors on its physics."""

    model: str
    """Path of the MJCF or URDF file, next to the configuration."""
    sha256: str = ""
    """Digest of the model file; set when a configuration is read."""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    """Name in the model to name in the rig: of a joint (its position), JOINT_velocity, a jointpos or jointvel sensor
    (which names its joint) or an actuator."""
    actions: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The rig's actuators in its order, if different from the model's; actuators of the model without one get 0."""
    wrap: tuple[str, ...] = ()
    """States that are angles in rad and wrap from pi to -pi."""
    mass: Annotated[Positive, unit("of the model's")] = 1.0
    """Factor on all masses and moments of inertia."""
    damping: Annotated[NotNegative, unit("of the model's")] = 1.0
    """Factor on the damping of all joints."""
    friction: Annotated[NotNegative, unit("of the model's")] = 1.0
    """Factor on the dry friction of all joints."""
    gain: Annotated[NotNegative, unit("of the model's")] = 1.0
    """Factor on the gain of all actuators."""

    batched: ClassVar[bool] = False
    file_field: ClassVar[str] = "model"

    def __post_init__(self) -> None:
        """Check the model and the names; raises ValueError with the offending name."""
        solver = self._solver
        known = (*solver.states, *solver.sensors, *solver.actuators)
        for name in self.names:
            if name not in known:
                raise ValueError(f"names: the model has no '{name}' (known: {', '.join(known)})")
        everything = (*self.state_names, *self._actuators)
        for name in everything:
            if everything.count(name) > 1:
                raise ValueError(f"names: '{name}' is used twice: give distinct names")
        for field, chosen, names in (
            ("actions", self.actions or (), self._actuators),
            ("wrap", self.wrap, self.state_names),
        ):
            for name in chosen:
                if name not in names:
                    raise ValueError(f"{field}: the model has no '{name}' (known: {', '.join(names)})")

    @property
    def _solver(self) -> _Solver:
        return _solver(self.model, self.sha256)

    @property
    def state_names(self) -> tuple[str, ...]:
        solver = self._solver
        of_sensor = {state: self.names.get(sensor, sensor) for sensor, state in solver.sensors.items()}
        return tuple([self.names.get(state, of_sensor.get(state, state)) for state in solver.states])

    @property
    def velocities_at(self) -> tuple[int, ...]:
        """All velocities."""
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
        """Velocities and accelerations."""
        found: tuple[V, ...] = self._for_each_plant(self._solver.rates, state, action, 0.0)
        return found

    def integrate(self, xp: Maths[V], state: tuple[V, ...], action: tuple[V, ...], h: V | float) -> tuple[V, ...]:
        """State after ``h`` seconds, in equal steps of the model's solver, none longer than the model's timestep."""
        found: tuple[V, ...] = self._for_each_plant(self._solver.advance, state, action, h)
        return found

    def constrain(self, xp: Maths[V], state: tuple[V, ...]) -> tuple[V, ...]:
        """Wrap angles; the solver handles limits and contacts."""
        wrapping = self.wrap and {self.state_names.index(name) for name in self.wrap}
        return tuple([wrapped(xp, x) if i in wrapping else x for i, x in enumerate(state)]) if wrapping else state

    def moves_freely(self, state: tuple[Array, ...]) -> Array | bool:
        """Whether the joints are clear of their limits."""
        free: Any = True
        for at, low, high in self._solver.limits:
            near = _NEAR * (high - low)
            free = free & (state[at] > low + near) & (state[at] < high - near)
        clear: Array | bool = free
        return clear

    def released(self, friction_share: float | Array = 1.0) -> Self:
        """The model with actuators of gain 0."""
        return self.varied({"gain": 0.0, "damping": self.damping * friction_share})

    def sketch(self, rig: Rig) -> Sketch | None:
        """The model's geoms as seen along its hinges, if these are parallel."""
        from onrig.sim.plants.mujoco_sketch import sketch_of

        solver = self._solver
        observed = {o.sensor or o.name: o.name for o in rig.observations if o.derivative_of is None}
        states = dict(zip(solver.states[: len(solver.states) // 2], self.state_names, strict=False))
        seen = {joint: observed[state] for joint, state in states.items() if state in observed}
        return sketch_of(solver.model, seen)

    def _for_each_plant(
        self, act: Callable[..., Array], state: tuple[V, ...], action: tuple[V, ...], h: V | float
    ) -> Any:
        """Apply a function of the solver to a state, or to each of many in turn."""
        at = [self._actuators.index(name) for name in self.action_names]
        factors = (self.mass, self.damping, self.friction, self.gain)
        if isinstance(state[0], float) and not any(isinstance(f, np.ndarray) for f in factors):
            return tuple(act(np.array(state), np.array(action), at, h, factors).tolist())
        # Broadcast everything to one row per plant.
        every = np.broadcast_arrays(*state, *action, h, *factors)
        rows = np.stack([x.ravel() for x in every], axis=1)
        n, m = len(state), len(state) + len(action)
        found = np.empty((len(rows), n))
        for k, row in enumerate(rows):
            found[k] = act(row[:n], row[n:m], at, float(row[m]), tuple(row[m + 1 :].tolist()))
        return tuple([np.ascontiguousarray(column).reshape(every[0].shape) for column in found.T])


class _Solver:
    """A compiled model and its data; raises ValueError for features that a rig's frames cannot represent."""

    def __init__(self, path: str) -> None:
        try:
            import mujoco
        except ImportError:
            raise ValueError(f"the plant 'mujoco' {_MISSING}") from None
        mujoco.set_mju_user_warning(lambda message: None)  # else a log file in the working directory
        self._mujoco: Any = mujoco
        try:
            self.model: Any = mujoco.MjModel.from_xml_path(path)
        except ValueError as error:
            raise ValueError(f"model: {' '.join(str(error).split())}") from None
        if problem := next(self._problems(), None):
            raise ValueError(f"model: {problem}")
        # A divergence must be visible: no automatic reset.
        self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        self._data: Any = mujoco.MjData(self.model)
        self._timestep_s = float(self.model.opt.timestep)
        joints = [self.model.joint(i) for i in range(self.model.njnt)]
        names = [joint.name for joint in joints]
        self.states: Final = (*names, *(name + _RATE for name in names))
        self.sensors: Final = dict(self._sensors(names))
        """State of each sensor of a position or velocity, by its name."""
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
        slides = [int(joint.type[0]) == mujoco.mjtJoint.mjJNT_SLIDE for joint in joints]
        places = ["m" if slides_ else "rad" for slides_ in slides]
        self.units: Final = (*places, *(f"{place}/s" for place in places), *self._actuator_units(slides))
        """Units of states and actuators."""
        m = self.model
        self._model_values: Final = {
            name: np.array(getattr(m, name))
            for name in ("body_mass", "body_inertia", "dof_damping", "dof_frictionloss")
        } | {name: np.array(getattr(m, name)) for name in ("actuator_gainprm", "actuator_biasprm")}
        self._factors: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)

    def _problems(self) -> Iterator[str]:
        """List features that a rig's frames cannot represent, by name."""
        m, kinds = self.model, self._mujoco.mjtJoint
        for i in range(m.njnt):
            joint = m.joint(i)
            kind = kinds(int(joint.type[0]))
            if kind.name not in ("mjJNT_HINGE", "mjJNT_SLIDE"):
                yield f"the joint '{joint.name}' is {kind.name.removeprefix('mjJNT_').lower()}: use hinges and slides"
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

    def _actuator_units(self, slides: list[bool]) -> Iterator[str]:
        """Unit of each actuator: N or N m if it is the joint's force or torque, else 1."""
        m = self.model
        for i in range(m.nu):
            actuator = m.actuator(i)
            is_direct = actuator.gear[0] == 1.0 and actuator.gainprm[0] == 1.0 and not actuator.biasprm.any()
            of_joint = int(actuator.trntype[0]) == self._mujoco.mjtTrn.mjTRN_JOINT
            yield ("N" if slides[int(actuator.trnid[0])] else "N m") if is_direct and of_joint else "1"

    def _sensors(self, joints: list[str]) -> Iterator[tuple[str, str]]:
        kinds = self._mujoco.mjtSensor
        suffixes = {int(kinds.mjSENS_JOINTPOS): "", int(kinds.mjSENS_JOINTVEL): _RATE}
        for i in range(self.model.nsensor):
            sensor = self.model.sensor(i)
            suffix = suffixes.get(int(sensor.type[0]))
            if suffix is not None and sensor.name:
                yield sensor.name, joints[int(sensor.objid[0])] + suffix

    def _set_state(self, state: Array, action: Array, at: list[int], factors: tuple[float, ...]) -> None:
        m, d = self.model, self._data
        if factors != self._factors:
            mass, damping, friction, gain = self._factors = factors
            for names, factor in (
                (("body_mass", "body_inertia"), mass),
                (("dof_damping",), damping),
                (("dof_frictionloss",), friction),
                (("actuator_gainprm", "actuator_biasprm"), gain),
            ):
                for name in names:
                    getattr(m, name)[:] = self._model_values[name] * factor
            self._mujoco.mj_setConst(m, d)
        n = m.nq
        d.time = 0.0
        d.qpos[:], d.qvel[:] = state[:n], state[n:]
        d.qacc_warmstart[:] = 0.0
        d.ctrl[at] = action

    def rates(self, state: Array, action: Array, at: list[int], h: float, factors: tuple[float, ...]) -> Array:
        """Velocities and accelerations (2 n,)."""
        self._set_state(state, action, at, factors)
        self._mujoco.mj_forward(self.model, self._data)
        return np.concatenate([self._data.qvel, self._data.qacc])

    def advance(self, state: Array, action: Array, at: list[int], h: float, factors: tuple[float, ...]) -> Array:
        """State (2 n,) after ``h`` seconds; NaN if the solver diverges."""
        if h <= 0.0:
            return state
        self._set_state(state, action, at, factors)
        steps = max(1, math.ceil(h / self._timestep_s - _ROUNDING))
        self.model.opt.timestep = h / steps
        self._mujoco.mj_step(self.model, self._data, steps)
        after = np.concatenate([self._data.qpos, self._data.qvel])
        return after if np.all(np.abs(after) < _DIVERGED) else np.full(len(after), np.nan)


@lru_cache(maxsize=8)
def _solver(path: str, sha256: str) -> _Solver:
    """The process's instance of a model; raises ValueError for a missing, invalid or changed file."""
    try:
        digest = hashlib.sha256(read_file(Path(path), _MAX_BYTES)).hexdigest()
    except OSError as error:
        raise ValueError(f"model: {path}: {error.strerror or error}") from None
    if sha256 not in ("", digest):
        raise ValueError(f"model: {path} has changed since this configuration was resolved")
    return _Solver(path)
