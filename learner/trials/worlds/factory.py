"""Creation of a run's world: a gymnasium task, or one of our plants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from onrig.learner.algorithm_config import Image
from onrig.learner.trials.step_run import PLANT_PREFIX, StepRun
from onrig.learner.trials.worlds import NoSuchTask, Spaces, World
from onrig.learner.trials.worlds.frames import FrameStore
from onrig.learner.trials.worlds.plants import PlantOptions, PlantWorld, draw_plants, load_plant_run
from onrig.runtime.random_streams import Role
from onrig.runtime.run_config import RunConfig


def make_world(
    run: StepRun,
    seeds: Sequence[int],
    roles: Sequence[Role],
    image: Image | None = None,
    store: FrameStore | None = None,
) -> World:
    """Create the world for trials with ``seeds``, with an actor for each role; raise NoSuchTask if that is impossible.

    ``image``: images that the algorithm expects, whose frames are in ``store``.
    """
    if run.world.startswith(PLANT_PREFIX):
        options = _plant_options(run.options)
        try:
            config = load_plant_run(run.task, options)
            plant = draw_plants(config, options, seeds, len(roles))
            return PlantWorld(config, seeds, roles, horizon=run.horizon, options=options, plant=plant)
        except (ValueError, MemoryError) as error:
            raise NoSuchTask(f"'{run.task}': {error}") from None
    try:
        from onrig.learner.trials.worlds.gym import GymWorld
    except ModuleNotFoundError as error:
        raise NoSuchTask(f"{error.name} is not installed: pip install 'onrig[learner]'") from None
    return GymWorld(run.task, seeds, roles, horizon=run.horizon, options=run.options, image=image, store=store)


def run_of_world(run: StepRun) -> RunConfig | None:
    """Return the current configuration of a plant world's run; None for other tasks.  Raises NoSuchTask."""
    return load_plant_run(run.task, _plant_options(run.options)) if run.world.startswith(PLANT_PREFIX) else None


def spaces_of_world(run: StepRun, image: Image | None = None) -> Spaces:
    """Return the sizes of a run's world after a test step; raise NoSuchTask if the world cannot be created or the step
    fails."""
    world = make_world(run, [0], [Role.PLANT_EVAL], image)
    actor = np.ones((1, 1), np.bool_)
    try:
        world.begin(actor)
        world.step(np.zeros((1, 1, world.spaces.m)), actor)
        return world.spaces
    except Exception as error:  # a task is third-party code with unchecked options
        raise NoSuchTask(f"'{run.task}' fails at its first step: {type(error).__name__}: {error}") from None
    finally:
        world.close()


def _plant_options(options: Mapping[str, object]) -> PlantOptions:
    try:
        return msgspec.convert(options, PlantOptions)
    except msgspec.ValidationError as error:
        raise NoSuchTask(f"options of a plant: {error}") from None
