"""Translation of a run's configuration to trials, including shield, exploration and updates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from onrig.learner.settings import LearnerSettings, learner_settings
from onrig.learner.trials.step_run import PLANT_PREFIX, Evaluation, StepRun
from onrig.learner.trials.supported import world_problems
from onrig.runtime.explore.settings import Budgets, Exploration, OwnNoise, ScheduledNoise
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.run_config import RunConfig, capacity_of
from onrig.runtime.task import episode_steps

MAX_EVALUATIONS: Final = 50
"""Maximum number of evaluations per trial."""


class Untranslatable(Exception):
    """Settings that trials do not support; the message names them and the remedy."""


def to_trial(config: RunConfig, world: str, options: Mapping[str, object]) -> StepRun:
    """Translate a run to trials of the same length; the configuration ``world`` describes rig, task and plant.

    The length is rounded down so that evaluations are evenly spaced. ``options`` are the options of the plant's world.
    Exploration gates and budgets are omitted, since they need a rig and can only reduce the amplitude. Raises
    Untranslatable if trials do not support a setting.
    """
    learner, selection = learner_settings(config.learner), config.selection
    if selection.seeds is not None or learner.start is not None:
        raise Untranslatable(
            "trials support no initial experiences or networks: omit selection.seed_from and learner.start_from"
        )
    steps = episode_steps(config.task, config.rate_hz)
    evaluation_episodes = math.ceil(config.episodes / MAX_EVALUATIONS)
    keeps_all = parse_strategy(selection.strategy).keeper.keeps_all
    capacity = None if keeps_all else capacity_of(config)
    run = StepRun(
        f"{PLANT_PREFIX}{world}",
        steps=config.episodes // evaluation_episodes * evaluation_episodes * steps,
        evaluation=Evaluation(evaluation_episodes * steps, 1),
        options={
            **options,
            "shield": True,
            "counts": all(o.derivative_of is None for o in config.rig.observations),
            "cut_off": config.task.may_terminate,
        },
        random_steps=0,
        updates_per_step=_updates(learner, steps),
        update_every=1 if learner.algorithm_config.batch_steps else steps,
        exploration=_exploration(config.exploration, learner),
        selection=msgspec.structs.replace(selection, capacity=capacity, capacity_bytes=None),
        learner=msgspec.structs.replace(learner, updates_per_episode=None, updates_per_transition=None),
    )
    for path, message in world_problems(run):
        raise Untranslatable(f"{message} at {path}")
    return run


def _updates(learner: LearnerSettings, steps: int) -> float:
    if learner.algorithm_config.batch_steps:
        return 1.0
    if learner.updates_per_episode is None:
        return round((learner.updates_per_transition or 0.0) * steps) / steps
    return learner.updates_per_episode / steps


def _exploration(exploration: Exploration, learner: LearnerSettings) -> Exploration | UnsetType:
    if learner.algorithm_config.batch_steps:
        if not isinstance(exploration, OwnNoise) or exploration != OwnNoise(budgets=exploration.budgets):
            raise Untranslatable(
                f"trials of {learner.algorithm} explore with the policy's own noise, without schedule or gates"
            )
        return UNSET
    changes: dict[str, Any] = {"budgets": Budgets()}
    if isinstance(exploration, ScheduledNoise):
        changes |= {"near_envelope": None, "back_off": None}
    return msgspec.structs.replace(exploration, **changes)
