"""Scores of the random and the model-based controllers on a configuration's task."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from onrig.runtime.config.problem import ConfigError
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig
from onrig.runtime.task import episode_steps
from onrig.sim.baselines.task_model import TaskModel, task_model_problems
from onrig.sim.baselines.yardstick import (
    Fineness,
    cache_folder,
    fuzzy_baseline,
    grids_for,
    horizon_grids_for,
    noisy_baseline,
    optimum_baseline,
    random_baseline,
)
from onrig.sim.twin.options import TwinOptions, exact_problems
from onrig.tools.load import explain, load
from onrig.tools.terminal import complain, drawing_stream


def baseline(name: str, overrides: Sequence[str], fineness: Fineness) -> int:
    """Compute or look up the scores and print them; returns the exit code."""
    try:
        config = load(name, overrides)
    except ConfigError as error:
        return explain(error)
    if config.device.twin is None:
        return complain("baseline", f"{name} names a port; a baseline needs a twin ('device: {{twin: ...}}')")
    twin = msgspec.convert(config.device.twin, TwinOptions)
    problems = [*task_model_problems(config.rig, config.task, twin.plant), *exact_problems(twin)]
    if problems:
        return complain("baseline", f"{name}: {'; '.join(problems)}")
    _show(config, task_model(config, twin), fineness, twin.noise(config.rig))
    return ExitCode.OK


def task_model(config: RunConfig, twin: TwinOptions) -> TaskModel:
    """Build the exact model of a configuration's task."""
    steps = episode_steps(config.task, config.rate_hz)
    return TaskModel(config.rig, config.task, twin.plant, config.period_us * 1e-6, steps, twin.substeps)


def _show(config: RunConfig, model: TaskModel, fineness: Fineness, sigma: Sequence[float]) -> None:
    task, folder = config.task, cache_folder()
    scale = task.normalization
    then = "" if scale is None else ", then normalized"
    print(f"task {task.name} on rig {config.rig.name}: mean reward per step over {model.steps} steps{then}")

    def line(name: str, reward: float, more: str = "") -> None:
        normal = "" if scale is None else f"  {scale.performance(reward):>7.4f}"
        print(f"  {name:<46}{reward:>10.4f}{normal}{more}", flush=True)

    if scale is not None:
        line("task: normalization.random_reward", scale.random_reward)
        line("task: normalization.reference_reward", scale.reference_reward)
    estimate = random_baseline(model, folder)
    line("random controller", estimate.mean, f"  +- {estimate.standard_error:.4f} (standard error)")
    for grid in grids_for(model, fineness):
        row = fuzzy_baseline(model, grid, folder)
        name = f"fuzzy-QI {' x '.join(map(str, grid.nodes))}, {grid.levels} levels"
        line(f"{name}, interpolated", row.reached.interpolated, f"  ({row.iterations} iterations)")
        line(f"{name}, look-ahead", row.reached.look_ahead)
    if any(sigma):
        noisy = noisy_baseline(model, grid, sigma, folder)
        line(
            "the same, interpolated, best under noise", noisy.mean, f"  +- {noisy.standard_error:.4f} (standard error)"
        )
    for grid in horizon_grids_for(model, fineness):
        name = f"horizon {' x '.join(map(str, grid.nodes))}, {grid.levels} levels"
        best = optimum_baseline(model, grid, folder, _progress)
        line(f"{name}, estimate", best.estimate, "  (no bound)")
        line(f"{name}, look-ahead", best.look_ahead)
        line(f"{name}, polished", best.polished, "  (earned)")


def _progress(done: int, steps: int) -> None:
    """Print the progress of the backward induction on a terminal; the line is erased at the end."""
    if sys.stderr.isatty():
        text = f"  backward induction: step {done} of {steps}" if done < steps else ""
        print(f"\r{text:<60}\r", end="", file=drawing_stream(sys.stderr), flush=True)
