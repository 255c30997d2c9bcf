"""Atari games as the papers on Rainbow play them (Mnih et al. 2015, Methods; van Hasselt et al. 2019, App. E).

Each action is repeated for four frames, of which the last two are combined by their maximum, in grey and scaled to a
square; an episode begins with up to 30 idle actions.  In training, rewards are clipped to [-1, 1], and a lost life ends
the episode; the next episode continues the game.
"""

from __future__ import annotations

from typing import Any, Final

import gymnasium
from gymnasium.wrappers import AtariPreprocessing, TimeLimit, TransformReward

Env = gymnasium.Env[Any, Any]
SCREEN_SIZE: Final = 84
"""Number of rows and columns of a frame."""
_NAMESPACE: Final = "ale_py"
_MAX_STEPS: Final = 27_000
"""Maximum number of steps in an episode, which take 108 000 frames."""


def register_games() -> None:
    """Register the games with gymnasium, if ale-py is installed."""
    try:
        import ale_py
    except ImportError:
        return
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner
    gymnasium.register_envs(ale_py)


def is_game(task: str) -> bool:
    """Return whether a task is an Atari game."""
    try:
        return str(gymnasium.spec(task).entry_point).startswith(_NAMESPACE)
    except gymnasium.error.Error:
        return False


def preprocess(env: Env, *, is_training: bool, horizon: int | None, size: int) -> Env:
    """Wrap a game that shows every frame (``frameskip=1``); ``size``: rows and columns of a frame."""
    game: Env = AtariPreprocessing(env, screen_size=size)
    if is_training:
        game = TransformReward(LifeEndsEpisode(game), lambda reward: min(max(float(reward), -1.0), 1.0))
    return TimeLimit(game, horizon or _MAX_STEPS)


class LifeEndsEpisode(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Game whose episodes end with each lost life; ``reset`` continues the game until all lives are lost."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._lives = 0
        self._is_over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._is_over:
            observation, info = self.env.reset(seed=seed, options=options)
        else:
            observation, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                observation, info = self.env.reset(seed=seed, options=options)
        self._is_over, self._lives = False, info["lives"]
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._is_over = terminated or truncated
        has_lost_life, self._lives = info["lives"] < self._lives, info["lives"]
        return observation, reward, terminated or has_lost_life, truncated, info
