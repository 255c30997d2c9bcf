"""Gymnasium tasks as worlds: ``Pendulum-v1``, ``HalfCheetah-v4``, ``LunarLanderContinuous-v3``, ...

Observations are one-dimensional boxes, as float32 and not normalised, or images with one channel, for which a world
passes on the numbers of the last few frames (``frames``).  Actions are bounded boxes, mapped from [-1, 1], or one
discrete choice.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from onrig.learner.algorithm_config import Image
from onrig.learner.trials.worlds import Bools, NoSuchTask, Spaces, StepResult, Values, atari, make_actors
from onrig.learner.trials.worlds.frames import FrameStack, FrameStore
from onrig.runtime.normalisation import Normalisation
from onrig.runtime.random_streams import Role, device_seed
from onrig.sim.envs import register_envs

Env = gymnasium.Env[Any, Any]
INSTALL_COMMAND: Final = "pip install 'onrig[envs]'"


def make(
    task: str,
    horizon: int | None,
    options: Mapping[str, object],
    *,
    is_training: bool = False,
    image: tuple[int, int] | None = None,
) -> Env:
    """Create one environment, with episodes truncated after ``horizon`` steps (None: as registered).

    ``is_training`` and ``image`` (rows and columns of a frame) apply only to Atari games.  Raises NoSuchTask if the
    environment cannot be created.
    """
    register_envs()
    atari.register_games()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about old versions of tasks, which papers specify
        try:
            if atari.is_game(task):
                size = atari.SCREEN_SIZE if image is None else image[0]
                env = gymnasium.make(task, max_episode_steps=None, disable_env_checker=True, **options)
                return atari.preprocess(env, is_training=is_training, horizon=horizon, size=size)
            return gymnasium.make(task, max_episode_steps=horizon, disable_env_checker=True, **options)
        except gymnasium.error.DependencyNotInstalled as error:
            raise NoSuchTask(
                f"'{task}' needs a package that is not installed ({_one_line(error)}): {INSTALL_COMMAND}"
            ) from None
        except gymnasium.error.Error as error:
            raise NoSuchTask(f"gymnasium has no task '{task}' ({_one_line(error)})") from None
        except (ImportError, TypeError, ValueError, AttributeError) as error:
            raise NoSuchTask(f"gymnasium cannot create '{task}': {type(error).__name__}: {_one_line(error)}") from None


def spaces_of(task: str, env: Env, frames: int = 1) -> Spaces:
    """Return the sizes of a task with ``frames`` images in an observation; raise NoSuchTask for spaces that no learner
    here can use."""
    observations, actions = env.observation_space, env.action_space
    limit = None if env.spec is None else env.spec.max_episode_steps
    horizon = limit or getattr(env.unwrapped, "episode_steps", None)  # the limit of a twin's task
    if horizon is None:
        raise NoSuchTask(f"the episodes of '{task}' have no limit: set a horizon in steps")
    image = None
    if isinstance(observations, Box) and observations.dtype == np.uint8 and len(observations.shape) == 2:
        n, image = frames, (observations.shape[0], observations.shape[1])
    elif isinstance(observations, Box) and len(observations.shape) == 1:
        n = observations.shape[0]
    else:
        raise NoSuchTask(
            f"the observations of '{task}' are {observations}: expected a one-dimensional box, or images of one "
            "channel (uint8)"
        )
    if isinstance(actions, Discrete):
        return Spaces(n, 1, int(actions.n), horizon, image)
    if not isinstance(actions, Box) or len(actions.shape) != 1 or not actions.is_bounded() or actions.dtype.kind != "f":
        raise NoSuchTask(
            f"the actions of '{task}' are {actions}: expected a bounded one-dimensional box of floats, or one discrete "
            "choice"
        )
    if not n or not actions.shape[0]:
        raise NoSuchTask(f"'{task}' has {n} observations and {actions.shape[0]} actions: expected at least one of each")
    return Spaces(n, actions.shape[0], None, horizon, image)


class GymWorld:
    """One environment for every actor in every trial; an episode's seed depends on trial, role and index."""

    def __init__(
        self,
        task: str,
        seeds: Sequence[int],
        roles: Sequence[Role],
        *,
        horizon: int | None = None,
        options: Mapping[str, object] | None = None,
        image: Image | None = None,
        store: FrameStore | None = None,
    ) -> None:
        """Create an environment for each role in each trial; their images are stored in ``store`` (None: a new store).

        ``image``: images that the algorithm expects.  Raises NoSuchTask if an environment cannot be created.
        """
        self._actors: Final = make_actors(seeds, roles)
        self._envs: Final = [
            make(
                task,
                horizon,
                options or {},
                is_training=a.role is Role.PLANT_TRAIN,
                image=None if image is None else image.size,
            )
            for a in self._actors
        ]
        frames = 1 if image is None else image.frames
        self.spaces: Final = spaces_of(task, self._envs[0], frames)
        self._episodes: Final = np.zeros(len(self._envs), np.int64)
        self._shape: Final = (len(seeds), len(roles))
        self._stack: Final = self._make_stack(store, frames)
        self._observation: Final = (
            np.zeros((len(self._envs), self.spaces.n), np.float32) if self._stack is None else self._stack.numbers
        )
        box = self._envs[0].action_space
        self._first_choice = int(box.start) if isinstance(box, Discrete) else 0
        if isinstance(box, Box):
            low, high = box.low.astype(np.float64), box.high.astype(np.float64)
            self._actions = Normalisation(0.5 * (low + high), 0.5 * (high - low))
            self._dtype = box.dtype

    def _make_stack(self, store: FrameStore | None, frames: int) -> FrameStack | None:
        if self.spaces.image is None:
            return None
        store = store or FrameStore(math.prod(self.spaces.image), len(self._envs) * (frames + 1))
        return FrameStack(store, len(self._envs), frames)

    def begin(self, actor_mask: Bools) -> Values:
        if self._stack is not None:
            self._stack.make_room()
        for i in np.flatnonzero(actor_mask).tolist():
            actor = self._actors[i]
            seed = device_seed(actor.seed, actor.role, actor.episode(int(self._episodes[i])))
            self._episodes[i] += 1
            self._observe(i, self._envs[i].reset(seed=seed)[0], is_first=True)
        return self._observation.reshape(*self._shape, -1).copy()

    def step(self, action: NDArray[np.floating], actor_mask: Bools) -> StepResult:
        clipped_action = np.clip(action.astype(np.float64), -1.0, 1.0)
        if not np.isfinite(clipped_action).all():
            raise ValueError("non-finite action")
        reward = np.zeros(len(self._envs))
        terminated, truncated, no_shield = np.zeros((3, len(self._envs)), np.bool_)
        actions = self._to_task_actions(clipped_action.reshape(len(self._envs), -1))
        if self._stack is not None:
            self._stack.make_room()
        for i in np.flatnonzero(actor_mask).tolist():
            frame_or_vector, reward[i], terminated[i], is_truncated, _ = self._envs[i].step(actions[i])
            self._observe(i, frame_or_vector, is_first=False)
            truncated[i] = is_truncated and not terminated[i]
        observation = self._observation.reshape(*self._shape, -1).copy()
        has_terminated, has_timed_out, no_interventions = (
            column.reshape(self._shape) for column in (terminated, truncated, no_shield)
        )
        return StepResult(
            observation,
            reward.reshape(self._shape),
            has_terminated,
            has_timed_out,
            clipped_action,
            no_interventions,
            no_interventions,
        )

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _observe(self, i: int, frame_or_vector: Any, *, is_first: bool) -> None:
        if self._stack is None:
            self._observation[i] = frame_or_vector
        else:
            self._stack.push(i, frame_or_vector, is_first=is_first)

    def _to_task_actions(self, action: NDArray[np.float64]) -> Sequence[Any]:
        """Convert actions to the task's own: indices of choices, or values within its box."""
        if self.spaces.levels is not None:
            choices = self._first_choice + np.rint(0.5 * (action[:, 0] + 1.0) * (self.spaces.levels - 1)).astype(int)
            return cast("list[int]", choices.tolist())
        return list(self._actions.to_si(action).astype(self._dtype))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
