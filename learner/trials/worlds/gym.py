"""Tasks of gymnasium as worlds: ``Pendulum-v1``, ``HalfCheetah-v4``, ``LunarLanderContinuous-v3``, ...

Observations are boxes of one dimension, as float32 and not normalised.  Actions are bounded boxes, mapped from [-1, 1],
or one discrete choice.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from onrig.learner.trials.worlds import Bools, NoSuchTask, Spaces, Stepped, Values, actors_of
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.random_streams import Role, device_seed
from onrig.sim.envs import register_envs

Env = gymnasium.Env[Any, Any]
MISSING: Final = "pip install 'onrig[envs]'"


def make(task: str, horizon: int | None, options: Mapping[str, object]) -> Env:
    """Make one environment, its episodes truncated after ``horizon`` steps (None: as registered).

    Raises NoSuchTask.
    """
    register_envs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a version is old: papers name the one that they used
        try:
            return gymnasium.make(task, max_episode_steps=horizon, disable_env_checker=True, **options)
        except gymnasium.error.DependencyNotInstalled as error:
            raise NoSuchTask(f"'{task}' needs what is not installed ({_line(error)}): {MISSING}") from None
        except gymnasium.error.Error as error:
            raise NoSuchTask(f"gymnasium has no task '{task}' ({_line(error)})") from None
        except (ImportError, TypeError, ValueError, AttributeError) as error:
            raise NoSuchTask(f"gymnasium cannot make '{task}': {type(error).__name__}: {_line(error)}") from None


def spaces_of(task: str, env: Env) -> Spaces:
    """Sizes of a task; raises NoSuchTask for spaces that no learner here can use."""
    seen, acted = env.observation_space, env.action_space
    limit = None if env.spec is None else env.spec.max_episode_steps
    horizon = limit or getattr(env.unwrapped, "episode_steps", None)  # a twin's task has its own
    if horizon is None:
        raise NoSuchTask(f"the episodes of '{task}' have no limit: give a horizon in steps")
    if not isinstance(seen, Box) or len(seen.shape) != 1:
        raise NoSuchTask(f"'{task}' is observed as {seen}: expected a box of one dimension")
    n = seen.shape[0]
    if isinstance(acted, Discrete):
        return Spaces(n, 1, int(acted.n), horizon)
    if not isinstance(acted, Box) or len(acted.shape) != 1 or not acted.is_bounded() or acted.dtype.kind != "f":
        raise NoSuchTask(
            f"'{task}' acts by {acted}: expected a bounded box of one dimension, of floats, or one discrete choice"
        )
    if not n or not acted.shape[0]:
        raise NoSuchTask(f"'{task}' has {n} observations and {acted.shape[0]} actions: expected one at least of each")
    return Spaces(n, acted.shape[0], None, horizon)


class GymWorld:
    """One environment for every actor of every trial; an episode is seeded by trial, role and its number."""

    def __init__(
        self,
        task: str,
        seeds: Sequence[int],
        roles: Sequence[Role],
        *,
        horizon: int | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Make an environment for each role in each trial; raises NoSuchTask."""
        self._actors: Final = actors_of(seeds, roles)
        self._envs: Final = [make(task, horizon, options or {}) for _ in self._actors]
        self.spaces: Final = spaces_of(task, self._envs[0])
        self._episodes: Final = np.zeros(len(self._envs), np.int64)
        self._shape: Final = (len(seeds), len(roles))
        self._observation: Final = np.zeros((len(self._envs), self.spaces.n), np.float32)
        box = self._envs[0].action_space
        self._first = int(box.start) if isinstance(box, Discrete) else 0
        if isinstance(box, Box):
            low, high = box.low.astype(np.float64), box.high.astype(np.float64)
            self._actions = Normalisation(0.5 * (low + high), 0.5 * (high - low))
            self._dtype = box.dtype

    def begin(self, which: Bools) -> Values:
        for i in np.flatnonzero(which).tolist():
            actor = self._actors[i]
            seed = device_seed(actor.seed, actor.role, actor.episode(int(self._episodes[i])))
            self._episodes[i] += 1
            self._observation[i], _ = self._envs[i].reset(seed=seed)
        return self._observation.reshape(*self._shape, -1).copy()

    def step(self, action: NDArray[np.floating], which: Bools) -> Stepped:
        wide = np.clip(action.astype(np.float64), -1.0, 1.0)
        if not np.isfinite(wide).all():
            raise ValueError("an action is not finite")
        reward = np.zeros(len(self._envs))
        terminated, truncated, nothing = np.zeros((3, len(self._envs)), np.bool_)
        actions = self._native(wide.reshape(len(self._envs), -1))
        for i in np.flatnonzero(which).tolist():
            self._observation[i], reward[i], terminated[i], late, _ = self._envs[i].step(actions[i])
            truncated[i] = late and not terminated[i]
        observation = self._observation.reshape(*self._shape, -1).copy()
        over, out_of_time, none = (column.reshape(self._shape) for column in (terminated, truncated, nothing))
        return Stepped(observation, reward.reshape(self._shape), over, out_of_time, wide, none, none)

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _native(self, action: NDArray[np.float64]) -> Sequence[Any]:
        """Actions as the task takes them: choices by number, or values within its box."""
        if self.spaces.levels is not None:
            choices = self._first + np.rint(0.5 * (action[:, 0] + 1.0) * (self.spaces.levels - 1)).astype(int)
            return cast("list[int]", choices.tolist())
        return list(self._actions.si(action).astype(self._dtype))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
