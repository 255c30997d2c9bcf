"""Gymnasium environments on the lockstep twin, for libraries that train on a single environment in their own process.

Unlike `onrig.make`, they have no processes, no shield and no run folder.  Unlike in `onrig.make_vec`, which takes 2.5
times as long for a single plant, each step passes through the device and its protocol, so these environments are the
reference in tests of both.

Importing this module registers ``onrig/PendulumTwin-v0``, ``onrig/MagmanTwin-v0`` and ``onrig/PendulumStar-v0``
(gymnasium 1.x has no plugins; ``gymnasium.make("onrig.sim.envs:onrig/PendulumTwin-v0")`` imports it implicitly).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import gymnasium
import msgspec
import numpy as np
from gymnasium.envs.registration import register, registry
from numpy.typing import NDArray

from onrig.hw import messages as m
from onrig.hw.messages import Op, Result
from onrig.hw.rig import Rig, rig_problems
from onrig.runtime.config.conversion import convert
from onrig.runtime.config.document import find_config, load_document
from onrig.runtime.config.tables import with_tables
from onrig.runtime.control.observe import Observer
from onrig.runtime.inputs import build_composition, cameras_in_use, policy_signals
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.random_streams import target_stream
from onrig.runtime.targets import draw_values
from onrig.runtime.task import Task, compile_reward, compile_termination, episode_steps
from onrig.runtime.task_checks import task_problems
from onrig.runtime.tracking import tracking_rig
from onrig.sim.twin.device import TwinDevice
from onrig.sim.twin.options import TwinOptions

OBSERVATION_BOUND: Final = 10.0
"""Bound of the observation space.  Velocities are normalised but not clipped: a pendulum's reaches about 2."""

Observation = NDArray[np.float32]
Action = NDArray[np.float32]
_Config = TypeVar("_Config", Rig, Task)


class _Twin:
    """A twin in lockstep, driven through its protocol."""

    def __init__(self, rig: Rig, task: Task, options: TwinOptions, period_us: int) -> None:
        self._device: Final = TwinDevice(rig, options, task.all_starts, time_scale=0.0)
        self._state: Final = m.StateLayout(len(rig.sensors), len(rig.actuators))
        self._command: Final = m.CommandLayout(len(rig.actuators))
        self._resolution: Final = np.array([a.resolution for a in rig.actuators])
        self._request_id = 0
        self._request(Op.CONFIGURE, m.CONFIGURE_LAYOUT.pack(period_us, rig.lease_periods))
        self._request(Op.ARM)

    def reset(self, seed: int) -> None:
        """Reset the plant, after clearing any fault; a sample is due afterwards."""
        if self._device.fault:
            self._request(Op.CLEAR_FAULT)
            self._request(Op.ARM)
        self._request(Op.RESET, m.RESET_LAYOUT.pack(seed))

    def command(self, action: NDArray[np.float64]) -> None:
        """Command an action (m,) in SI units; a sample is due afterwards.  Raises RuntimeError before ``reset``."""
        counts = tuple(np.rint(action / self._resolution).astype(int).tolist())
        self._device.handle(self._command.encode(self._device.frame, counts))
        if not self._device.sample_due:
            raise RuntimeError("the twin refused the command: call reset() first")

    def sample(self) -> m.State:
        """Advance to the next sample.  Raises RuntimeError if the plant has diverged."""
        state = self._state.decode(self._device.sample())
        if state.fault:
            raise RuntimeError("the twin's plant diverged; increase twin.substeps")
        return state

    def _request(self, op: Op, payload: bytes = b"") -> None:
        self._request_id = self._request_id % 65535 + 1
        (reply,) = self._device.handle(m.encode_request(m.Request(self._request_id, op, payload)))
        result = m.decode_response(reply).result
        if result != Result.OK:
            raise ValueError(f"the twin refused {op.name}: {Result(result).name}")


class TwinEnv(gymnasium.Env[Observation, Action]):
    """Environment whose episodes are those of a task, with the device's quantisation, limits and noise.

    Observation (n,) float32 and action (m,) float32 are normalised by the rig's ranges; actions beyond [-1, 1] are
    clipped.  The reward is the task's raw reward times ``reward_scale``: the pendulum's raw rewards are near -130 per
    step, too large for most learners (docs/methods.md, "Reward scale").  ``info`` holds ``observation`` and ``applied``
    (action), both float64 in SI units.

    ``rig`` and ``task`` are values, names of shipped configurations or paths; ``twin`` is the YAML section
    ``device.twin`` (connection faults are ignored).
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (declared this way by gymnasium.Env)

    def __init__(
        self,
        rig: Rig | str | Path,
        task: Task | str | Path,
        twin: TwinOptions | Mapping[str, object],
        rate_hz: float = 50.0,
        reward_scale: float = 1.0,
        render_mode: None = None,
    ) -> None:
        self.rig = _load("rigs", rig, Rig)
        self.task = _load("tasks", task, Task)
        self.rig = tracking_rig(self.task, self.rig)
        problems = rig_problems(self.rig) + task_problems(self.task, self.rig)
        if cameras_in_use(self.task.inputs, self.rig):
            problems.append(("inputs", "this environment has no cameras: use onrig.make, or inputs without images"))
        if problems:
            raise ValueError("; ".join(f"{path}: {message}" for path, message in problems))
        options = twin if isinstance(twin, TwinOptions) else msgspec.convert(twin, TwinOptions)
        if not rate_hz > 0:
            raise ValueError(f"rate_hz must be positive, got {rate_hz}")
        if not 0 < reward_scale < math.inf:
            raise ValueError(f"reward_scale must be positive and finite, got {reward_scale}")
        self.render_mode = render_mode
        self.rate_hz = rate_hz
        self.reward_scale = reward_scale
        self.episode_steps = episode_steps(self.task, rate_hz)
        self._twin = _Twin(self.rig, self.task, options, round(1e6 / rate_hz))
        self._observer = Observer(self.rig, 1.0 / rate_hz)
        self._reward = compile_reward(self.task, self.rig)
        self._has_terminated = compile_termination(self.task, self.rig)
        self._steps = 0
        self._targets = tuple((self.task.targets or {}).values())
        self._target_values = np.zeros((1, 0))
        self._command_in_force: tuple[float, ...] = ()
        self._composition = build_composition(self.task.inputs, self.rig)
        signals = policy_signals(self.task.inputs, self.rig)
        self._observations, self._actions = (
            Normalisation.from_signals(signals),
            Normalisation.from_signals(self.rig.actuators),
        )
        self.observation_space = gymnasium.spaces.Box(
            -OBSERVATION_BOUND, OBSERVATION_BOUND, (len(signals),), np.float32
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (len(self.rig.actuators),), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Reset the plant to the task's start state; the seed determines the episode's start, targets and noise."""
        super().reset(seed=seed)
        noise_seed = int(self.np_random.integers(2**64, dtype=np.uint64))
        self._twin.reset(noise_seed)
        if self._targets:
            self._target_values = draw_values(
                self._targets, self.episode_steps, 1.0 / self.rate_hz, lambda i: target_stream(noise_seed, i)
            )
        self._observer.reset()
        self._history: list[tuple[float, ...]] = []
        self._steps = 0
        observation, info, _, self._command_in_force = self._sample()
        return observation, info

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Advance one control period.

        Raises ValueError if the action is non-finite, and RuntimeError if the plant diverges, at this and every further
        step until the next reset.
        """
        if not np.all(np.isfinite(action)):
            raise ValueError(f"action {action} is non-finite")
        self._twin.command(self._actions.to_si(np.clip(action, -1.0, 1.0)))
        self._steps += 1
        observation, info, observation_si, action_si = self._sample()
        terminated, truncated = self._has_terminated(observation_si), self._steps >= self.episode_steps
        reward = self.reward_scale * self._reward(observation_si, action_si, terminated, self._command_in_force)
        self._command_in_force = action_si
        return observation, reward, terminated, truncated, info

    def _sample(self) -> tuple[Observation, dict[str, Any], tuple[float, ...], tuple[float, ...]]:
        state = self._twin.sample()
        action_si = tuple([c * a.resolution for c, a in zip(state.u_end, self.rig.actuators, strict=True)])
        observation_si = self._observer.observe(state.sensors)
        if self.rig.previous_command:
            observation_si = observation_si + action_si
        if self._targets:
            observation_si = (*observation_si, *self._target_values[min(self._steps, self.episode_steps)].tolist())
        info = {"observation": np.array(observation_si), "applied": np.array(action_si)}
        values = np.array(observation_si)
        if self._composition is not None:
            self._history = [observation_si, *self._history[: self._composition.history]]
            values = np.array(self._composition(self._history))
        return self._observations.normalise(values).astype(np.float32), info, observation_si, action_si


def _load(folder: str, source: _Config | str | Path, type_: type[_Config]) -> _Config:
    """Return a value unchanged; read a path, or a shipped configuration by name."""
    if isinstance(source, type_):
        return source
    path = find_config(str(source), folder)
    return convert(with_tables(load_document(path), (), path.parent), (), type_)


def register_envs() -> None:
    """Register the environments with gymnasium; idempotent."""
    for name, rig, task, kind in (
        ("PendulumTwin-v0", "pendulum", "swingup", "pendulum"),
        ("MagmanTwin-v0", "magman", "positioning", "magman"),
    ):
        if f"onrig/{name}" not in registry:
            register(
                id=f"onrig/{name}",
                entry_point="onrig.sim.envs:TwinEnv",
                kwargs={"rig": rig, "task": task, "twin": {"plant": {"kind": kind}}},
            )
    if "onrig/PendulumStar-v0" not in registry:
        register(id="onrig/PendulumStar-v0", entry_point="onrig.sim.pendulum_star:PendulumStar", max_episode_steps=200)


register_envs()
