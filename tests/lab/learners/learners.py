"""The learners of ``python -m tests.lab.learning``: Onrig, and Stable-Baselines3 or sbx with their own settings."""

from __future__ import annotations

import importlib
from typing import Any, Final, NamedTuple

import gymnasium
import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.engine import world_trials
from onrig.learner.trials.step_run import StepRun
from onrig.learner.trials.worlds import NoSuchTask as NoSuchTask
from onrig.learner.trials.worlds import Values, episode_returns
from onrig.learner.trials.worlds.gym import GymWorld, make
from onrig.runtime.random_streams import Role
from tests.lab.learners.cases import JAX_PEER, MODULES, PEER

RANDOM_EPISODES: Final = 100
_SETTINGS: Final[dict[str, dict[str, object]]] = {
    "td3": {"hidden": [400, 300], "batch": 256, "lr": 1e-3, "reward_scale": 1.0},
    "sac": {"hidden": [256, 256], "batch": 256, "lr": 3e-4, "reward_scale": 1.0},
    "droq": {"reward_scale": 1.0},
    "crossq": {"reward_scale": 1.0},
    "ppo": {
        "initial": "orthogonal",
        "filter": False,
        "anneal": False,
        "standardise": "minibatch",
        "max_norm": 0.5,
        "value_weight": 0.5,
    },
}
"""The peer's settings that differ from ours: networks, batch, step size, unscaled rewards."""
_UPDATES: Final = {"droq": 20}
"""Updates per step, where not 1."""
_LAYERS: Final = {"batch_size": 64, "policy_kwargs": {"net_arch": [64, 64]}}
_DROPOUT: Final = {"net_arch": [64, 64], "dropout_rate": 0.01, "layer_norm": True}
_SBX: Final[dict[str, tuple[str, dict[str, object]]]] = {
    "droq": ("SAC", _LAYERS | {"gradient_steps": 20, "policy_delay": 20, "policy_kwargs": _DROPOUT}),
    "crossq": ("CrossQ", _LAYERS),
}
"""Class and arguments of what sbx compares: the layers of our presets, all else its own."""
_STEP_S: Final = {"td3": 0.019, "sac": 0.022, "ppo": 0.002, "droq": 0.012, "crossq": 0.003}
"""Time of one environment step and its updates on a core of a small x86 machine."""


class Case(NamedTuple):
    """One algorithm on one task."""

    algorithm: str
    run: StepRun

    @property
    def name(self) -> str:
        """Name in files and reports."""
        return f"{self.run.task}-{self.algorithm}"

    @property
    def peer(self) -> str:
        """Package that it is compared with."""
        return JAX_PEER if self.algorithm in _SBX else PEER

    @property
    def cost_s(self) -> float:
        """Approximate processor time of a trial."""
        return _STEP_S[self.algorithm] * self.run.steps


def case_of(algorithm: str, task: str, steps: int, every: int = 1000) -> Case:
    """Build a case with the peer's settings, evaluated every ``every`` steps; TD3 uses noise N(0, 0.1) in both."""
    run = {
        "world": f"gym:{task}",
        "steps": steps,
        "evaluation": {"every": every, "episodes": 10},
        "random_steps": 100,
        "exploration_std": 0.1,
        "updates_per_step": _UPDATES.get(algorithm, 1),
        "learner": {"algorithm": algorithm, algorithm: _SETTINGS[algorithm]},
    }
    return Case(algorithm, msgspec.convert(run, StepRun))


CASES: Final = (
    *(
        case_of(algorithm, task, steps)
        for task, steps in (("Pendulum-v1", 20_000), ("InvertedDoublePendulum-v4", 30_000))
        for algorithm in ("td3", "sac")
    ),
    case_of("droq", "Pendulum-v1", 5000, 500),
    case_of("crossq", "Pendulum-v1", 10_000, 500),
    *(case_of("ppo", task, 100_000, 5000) for task in ("Pendulum-v1", "InvertedPendulum-v4")),
)


def train_onrig(case: Case, seed: int) -> NDArray[np.float64]:
    """Train one trial of Onrig; returns the mean return of each evaluation, (P,)."""
    trials = world_trials(case.run, [seed])
    try:
        return np.array([trials.advance().evaluation[0] for _ in range(case.run.points)])
    finally:
        trials.close()


def train_peer(case: Case, seed: int) -> NDArray[np.float64]:
    """Train one trial of the case's peer; returns the mean return of each evaluation, (P,).

    PPO of Stable-Baselines3 has unbounded actions, and acts on normalised ones like ours.
    """
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.noise import NormalActionNoise

    run = case.run
    m = GymWorld(run.task, [seed], [Role.PLANT_TRAIN]).spaces.m
    env = make(run.task, run.horizon, run.options)
    own_settings: dict[str, object] = {} if case.algorithm == "ppo" else {"learning_starts": run.random_steps}
    own_settings |= {"device": "cpu"} if case.peer == PEER else {}
    if case.algorithm == "td3":
        own_settings["action_noise"] = NormalActionNoise(np.zeros(m), np.full(m, run.exploration_std))
    elif case.algorithm == "ppo":
        env = gymnasium.wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0))
    name, settings = _SBX.get(case.algorithm, (case.algorithm.upper(), {}))
    made = getattr(importlib.import_module(MODULES[case.peer]), name)
    model: Any = made("MlpPolicy", env, seed=seed, **own_settings, **settings)
    model.set_logger(Logger(None, []))  # the default logger leaves a folder behind
    actors = (1, run.evaluation.episodes)
    world = GymWorld(run.task, [seed], [Role.PLANT_EVAL] * actors[1])
    box = model.action_space

    def act(observation: Values) -> NDArray[np.floating]:
        native, _ = model.predict(observation[0], deterministic=True)
        normalised: NDArray[np.floating] = 2.0 * (native - box.low) / (box.high - box.low) - 1.0
        return normalised[None]

    returns: list[float] = []

    class Evaluate(BaseCallback):  # type: ignore[misc]
        """Callback that evaluates as often as our trials."""

        def _on_step(self) -> bool:
            if self.num_timesteps % run.evaluation.every == 0:
                returns.append(float(episode_returns(world, actors, act).mean()))
            return True

    model.learn(run.steps, callback=Evaluate())
    return np.array(returns)


def random_returns(case: Case) -> NDArray[np.float64]:
    """Return the returns of uniformly random actions, (episodes,)."""
    run, random = case.run, np.random.default_rng(0)
    world = GymWorld(run.task, [0], [Role.PLANT_EVAL] * RANDOM_EPISODES)
    actors = (1, RANDOM_EPISODES)
    returns = episode_returns(world, actors, lambda _: random.uniform(-1.0, 1.0, (*actors, world.spaces.m)))
    return returns.reshape(-1)
