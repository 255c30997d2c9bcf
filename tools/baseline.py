"""Scores of the random controller and the model-based controllers on a configuration's task, for any plant."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import msgspec
import numpy as np

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig
from onrig.runtime.scoring import lowest_cut_off_reward
from onrig.runtime.task import episode_steps
from onrig.sim.baselines.finite_horizon import Progress
from onrig.sim.baselines.reference_scores import (
    Fineness,
    cache_folder,
    efforts_for,
    fuzzy_baseline,
    grids_for,
    horizon_grids_for,
    noisy_baseline,
    optimum_baseline,
    random_baseline,
    sampling_baseline,
)
from onrig.sim.baselines.task_model import TaskModel, grid_problems, task_model_problems
from onrig.sim.twin.options import TwinOptions, exact_problems
from onrig.tools.load import load, print_problems
from onrig.tools.terminal import complain, drawing_stream


def baseline(name: str, overrides: Sequence[str], fineness: Fineness) -> int:
    """Compute or look up the scores, print them, and return the exit code."""
    try:
        config = load(name, overrides)
    except ConfigError as error:
        return print_problems(error)
    if config.device.twin is None:
        return complain("baseline", f"{name} uses a port; a baseline needs a twin ('device: {{twin: ...}}')")
    twin = msgspec.convert(config.device.twin, TwinOptions)
    problems = [*task_model_problems(config.rig, config.task, twin.plant), *exact_problems(twin)]
    if problems:
        return complain("baseline", f"{name}: {'; '.join(problems)}")
    model, folder = task_model(config, twin), cache_folder()
    table = _Table(config, model.steps)
    random_score = random_baseline(model, folder)
    table.line("random controller", random_score.mean, f"  +- {random_score.standard_error:.4f} (standard error)")
    problems = grid_problems(config.rig, config.task, twin.plant)
    best_reward = -math.inf if problems else _score_grids(table, model, fineness, twin.noise(config.rig))
    best_reward = max(best_reward, _score_sampling(table, model, fineness, random_score.mean))
    if problems:
        print(f"  fuzzy Q-iteration and the finite-horizon optimum were skipped: {'; '.join(problems)}")
    if config.task.normalization is None:
        rewards = f"random_reward: {random_score.mean:.5g}, reference_reward: {best_reward:.5g}"
        print(f"normalization: {{{rewards}}}  # for the task")
    return ExitCode.OK


def task_model(config: RunConfig, twin: TwinOptions) -> TaskModel:
    """Return the exact model of a configuration's task."""
    steps = episode_steps(config.task, config.rate_hz)
    return TaskModel(config.rig, config.task, twin.plant, config.period_us * 1e-6, steps, twin.substeps)


class _Table:
    """Printed table of mean rewards per step, with normalised values if task.normalization is set."""

    def __init__(self, config: RunConfig, steps: int) -> None:
        self._scale = scale = config.task.normalization
        columns = "" if scale is None else ", then normalized"
        subject = f"task {config.task.name} on rig {config.rig.name}"
        print(f"{subject}: mean reward per step over {steps} steps{columns}")
        if scale is not None:
            self.line("task: normalization.random_reward", scale.random_reward)
            self.line("task: normalization.reference_reward", scale.reference_reward)

    def line(self, name: str, reward: float, notes: str = "") -> None:
        performance = "" if self._scale is None else f"  {self._scale.performance(reward):>7.4f}"
        print(f"  {name:<46}{reward:>10.4f}{performance}{notes}", flush=True)


def _score_grids(table: _Table, model: TaskModel, fineness: Fineness, sigma: Sequence[float]) -> float:
    """Print the scores of the controllers computed on grids over two states, and return the highest mean reward."""
    folder = cache_folder()
    rewards: list[float] = []
    for grid in grids_for(model, fineness):
        row = fuzzy_baseline(model, grid, folder)
        name = f"fuzzy-QI {' x '.join(map(str, grid.nodes))}, {grid.levels} levels"
        table.line(f"{name}, interpolated", row.scores.interpolated, f"  ({row.iterations} iterations)")
        table.line(f"{name}, look-ahead", row.scores.look_ahead)
        rewards += row.scores
    if any(sigma):
        noisy_score = noisy_baseline(model, grid, sigma, folder)
        error = f"  +- {noisy_score.standard_error:.4f} (standard error)"
        table.line(f"{name}, interpolated, best controller under noise", noisy_score.mean, error)
    for grid in horizon_grids_for(model, fineness):
        name = f"horizon {' x '.join(map(str, grid.nodes))}, {grid.levels} levels"
        optimum = optimum_baseline(model, grid, folder, _progress("backward induction"))
        table.line(f"{name}, estimate", optimum.estimate, "  (no bound)")
        table.line(f"{name}, look-ahead", optimum.look_ahead)
        table.line(f"{name}, polished", optimum.polished, "  (earned)")
        rewards += [optimum.look_ahead, optimum.polished]
    return max(rewards)


def _score_sampling(table: _Table, model: TaskModel, fineness: Fineness, random_reward: float) -> float:
    """Print the score of the sampling controller's best episodes for each effort, and return the highest score."""
    cut_off_reward = lowest_cut_off_reward(model.task, random_reward)
    rewards: list[float] = []
    for effort in efforts_for(model, fineness):
        result = sampling_baseline(model, effort, cut_off_reward, cache_folder(), _progress("sampling controller"))
        scores = result.mean_rewards(model.steps, cut_off_reward)
        n = len(scores)
        notes = [f"+- {scores.std(ddof=1) / math.sqrt(n):.4f}, standard error over {n} episodes"] if n > 1 else []
        if model.task.may_terminate:
            notes.append(f"{np.mean(result.n_steps >= model.steps):.0%} of episodes reach the end")
        if rewards and scores.mean() > max(rewards):
            notes.append(f"{scores.mean() - max(rewards):+.4f}")
        name = f"sampling MPC, {effort.samples} samples, {effort.horizon * model.period_s:.3g} s"
        table.line(name, float(scores.mean()), f"  ({'; '.join(notes)})" if notes else "")
        rewards.append(float(scores.mean()))
    return max(rewards)


def _progress(computation: str) -> Progress:
    """Return a function that shows a computation's progress on one line if stderr is a terminal, and erases it at the
    end.
    """

    def show(step: int, steps: int) -> None:
        if sys.stderr.isatty():
            text = f"  {computation}: step {step} of {steps}" if step < steps else ""
            print(f"\r{text:<60}\r", end="", file=drawing_stream(sys.stderr), flush=True)

    return show
