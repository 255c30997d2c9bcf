"""Checks of configurations for trials of a run or in a world; importing this module needs no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import msgspec

from onrig.learner.algorithm_config import Image, format_algorithm_names
from onrig.learner.settings import LearnerSettings, process_problem
from onrig.learner.trials.step_run import StepRun, step_problems
from onrig.learner.trials.worlds import NoSuchTask, Spaces
from onrig.learner.trials.worlds.factory import spaces_of_world
from onrig.runtime.explore.schedule import depends_on_episode_only
from onrig.runtime.explore.settings import ActionNoise, EpsilonGreedy, Exploration, NoExploration, OwnNoise
from onrig.runtime.memory.keepers.keeper import Signal
from onrig.runtime.memory.layout import Layout
from onrig.runtime.memory.settings import machine_bytes
from onrig.runtime.memory.strategy import parse_strategy
from onrig.runtime.run_config import RunConfig
from onrig.sim.synthetic.model import model_problems
from onrig.sim.twin.faults import FaultPlan
from onrig.sim.twin.options import TwinOptions, exact_problems


def trials_problems(config: RunConfig, settings: LearnerSettings) -> list[str]:
    """List reasons why a configuration cannot run as trials."""
    if config.device.twin is None:
        return ["trials run on a twin: set device.twin"]
    twin = msgspec.convert(config.device.twin, TwinOptions)
    problems = [*model_problems(config.rig, twin.plant), *exact_problems(twin)]
    if twin.latency_us or twin.faults != FaultPlan():
        problems.append("trials run on an exact plant: omit device.twin.latency_us and device.twin.faults")
    if config.selection.seeds is not None or settings.start is not None:
        problems.append(
            "trials start without experiences and networks: omit selection.seed_from and learner.start_from"
        )
    if config.cameras:
        problems.append("trials have no cameras: give task.inputs without images, or use `onrig run`")
    if config.rig.previous_command:
        problems.append("trials do not observe the previous command: rig.previous_command must be false")
    if config.task.may_terminate:
        problems.append(
            "trials of a run have episodes of fixed length, but this task ends them early: use a world (plant:)"
        )
    if settings.algorithm_config.successors > 1 and config.selection.synthetic is not None:
        problems.append(f"{settings.algorithm} learns from successive experiences: omit selection.synthetic")
    needs_exploration = Signal.EXPLORATION in parse_strategy(config.selection.strategy).keeper.required_signals
    if needs_exploration and hasattr(settings.algorithm_config, "levels") and config.selection.synthetic is not None:
        problems.append("synthetic experiences of random levels have no exploration signal, which the retention needs")
    if settings.learning_starts is not msgspec.UNSET:
        problems.append("trials learn from the first minibatch on: omit learner.learning_starts")
    if settings.updates_per_episode is None and not settings.algorithm_config.batch_steps:
        problems.append("trials learn between episodes: set learner.updates_per_episode")
    if settings.algorithm_config.single_action and len(config.rig.actuators) != 1:
        supported_names = format_algorithm_names(lambda section: not section.single_action)
        problems.append(f"{settings.algorithm} supports one action, but this rig has several: use {supported_names}")
    if settings.algorithm_config.batch_steps:
        problems.append(
            f"{settings.algorithm} learns from its own batches, but trials of a run learn from memories: use a world"
        )
    if settings.algorithm_config.window > 1:
        problems.append("trials of a run do not support recurrent policies: use a world instead")
    problems += _exploration_problems(config.exploration, settings)
    return problems


def _exploration_problems(exploration: Exploration, settings: LearnerSettings) -> Iterator[str]:
    name, tag = settings.algorithm, exploration.__struct_config__.tag
    if settings.algorithm_config.noisy_weights and not isinstance(exploration, NoExploration):
        yield f"trials of {name} explore with noise in the network weights: expected process 'none', got {tag!r}"
    elif isinstance(exploration, OwnNoise) and not settings.stochastic:
        yield f"the policies of {name} have no noise of their own: use process ou or none"
    elif (settings.stochastic or isinstance(exploration, EpsilonGreedy)) and (
        problem := process_problem(settings, exploration)
    ):
        yield problem[1]
    elif not isinstance(exploration, ActionNoise | NoExploration | OwnNoise | EpsilonGreedy):
        yield f"trials cannot explore with process {tag}: use one that adds noise to actions, own, or none"
    elif not depends_on_episode_only(exploration):
        yield "trials have no shield: exploration must be scheduled over episodes, without gates or budgets"


def world_problems(run: StepRun) -> list[tuple[str, str]]:
    """List reasons why trials cannot run in their world, such as a missing package, as (path, message)."""
    problems = list(step_problems(run))
    if any(path == "world" for path, _ in problems):
        return problems
    spaces, reason = _spaces(
        run.world, run.horizon, msgspec.json.encode(run.options), run.learner.algorithm_config.image
    )
    if spaces is None:
        return [*problems, ("options" if run.options else "world", reason)]
    if not problems:
        problems += memory_problems(run, spaces)
    return [*problems, *space_problems(run, spaces)]


def space_problems(run: StepRun, spaces: Spaces) -> Iterator[tuple[str, str]]:
    """List reasons why the algorithm cannot learn a task that has these observations and actions, as
    (path, message)."""
    learner, algorithm_config, (_, m, levels, _, image) = run.learner, run.learner.algorithm_config, spaces
    if image is not None and algorithm_config.image is None:
        supported_names = format_algorithm_names(
            lambda section: section.supports_images and section.single_action == (levels is not None)
        )
        hint = f"use {supported_names} with images.size [{image[0]}, {image[1]}]"
        message = f"'{run.task}' has image observations, which {learner.algorithm} does not expect: {hint}"
        yield "learner.algorithm", message
    elif algorithm_config.image is not None and algorithm_config.image.size != image:
        actual_images = "no images" if image is None else f"images of {image[0]} by {image[1]}"
        rows, columns = algorithm_config.image.size
        yield (
            f"learner.{learner.algorithm}.images.size",
            f"'{run.task}' has {actual_images}, expected images of {rows} by {columns}",
        )
    if not algorithm_config.single_action:
        if levels is not None:
            supported_names = format_algorithm_names(lambda section: section.single_action)
            yield (
                "learner.algorithm",
                f"'{run.task}' has discrete actions, which {learner.algorithm} does not support: use {supported_names}",
            )
        return
    algorithm_levels = getattr(algorithm_config, "levels", levels)
    if m != 1:
        supported_names = format_algorithm_names(lambda section: not section.single_action)
        yield (
            "learner.algorithm",
            f"{learner.algorithm} supports one action, but '{run.task}' has {m}: use {supported_names}",
        )
    elif levels is not None and algorithm_levels != levels:
        yield (
            f"learner.{learner.algorithm}.levels",
            f"'{run.task}' has {levels} discrete actions, got {algorithm_levels}",
        )


def memory_problems(run: StepRun, spaces: Spaces) -> Iterator[tuple[str, str]]:
    """Report a memory that is too large for this machine, which trials would discover only when they start."""
    required_bytes, available_bytes = _memory_bytes(run, spaces), machine_bytes()
    if required_bytes > available_bytes:
        size = f"take {required_bytes / 1e9:.3g} GB per trial, but this machine has {available_bytes / 1e9:.3g} GB"
        path = "steps" if run.selection.capacity is None else "selection.capacity"
        yield path, f"{run.capacity(spaces.n, spaces.m)} experiences {size}: keep fewer (selection.capacity)"


def trial_bytes(run: StepRun) -> int:
    """Return the number of bytes that a trial's experiences take; 0 for on-policy algorithms, or if the trial cannot
    run."""
    spaces, _ = _spaces(run.world, run.horizon, msgspec.json.encode(run.options), run.learner.algorithm_config.image)
    return 0 if spaces is None else _memory_bytes(run, spaces)


def _memory_bytes(run: StepRun, spaces: Spaces) -> int:
    if run.learner.algorithm_config.batch_steps:
        return 0
    layout = Layout(spaces.n, spaces.m, behaviour=run.learner.stochastic)
    frame = 0 if spaces.image is None else math.prod(spaces.image)
    return round(run.capacity(spaces.n, spaces.m) * (layout.row_bytes + run.learner.note_bytes + frame))


@lru_cache(maxsize=64)
def _spaces(world: str, horizon: int | None, options: bytes, image: Image | None) -> tuple[Spaces | None, str]:
    """Return the sizes of a world, or the reason why it cannot be created."""
    try:
        run = StepRun(world, 1, horizon=horizon, options=msgspec.json.decode(options))
        return spaces_of_world(run, image), ""
    except NoSuchTask as error:
        return None, str(error)
