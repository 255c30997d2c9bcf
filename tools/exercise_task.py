"""Checks of a task's expressions and third-party plugins: reward terms, terminations, targets, input transforms,
resets, exploration processes.

Each is built and evaluated at the middle and the corners of the rig's ranges. The checks cover shapes, finite values,
equal results for equal inputs, and bit-for-bit equality of batched and single evaluations. Plugins that are called in
the tick are also timed against their budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime import registry
from onrig.runtime.config.problem import Finding, NodePath, collect_findings, format_path
from onrig.runtime.explore.settings import ActionNoise
from onrig.runtime.guard import MAX_BUDGET_NS, budget_ns, measure_ns
from onrig.runtime.inputs import PolicyInput
from onrig.runtime.reward_terms import ExpressionTerm
from onrig.runtime.rewards import RewardTerm, Transitions, probe_points
from onrig.runtime.run_config import RunConfig
from onrig.runtime.starts import middle_start
from onrig.runtime.targets import Target, sample_times
from onrig.runtime.task import episode_steps
from onrig.runtime.terminations import ExpressionTermination, Termination

Function = Callable[..., Any]
_MAX_STEPS: Final = 1000


def task_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield the problems with the expressions and third-party plugins of a task and its exploration."""
    for location, subject, problems in _task_checks(config):
        with np.errstate(all="ignore"):
            findings = [*collect_findings(lambda p=problems, a=location: ((a, m) for m in p()), subject, location)]  # type: ignore[misc]
        for path, message in findings:
            text = message if message.startswith(subject) else f"{subject} {message}"
            yield path, f"{text} at {format_path(location)}"


def _task_checks(config: RunConfig) -> Iterator[tuple[NodePath, str, Callable[[], Iterator[str]]]]:
    """Yield the path, name and check of each third-party plugin and each expression."""
    task = config.task
    for name, term in (task.reward.terms or {}).items():
        if registry.is_third_party(term) or isinstance(term, ExpressionTerm):
            yield ("task", "reward", "terms", name), f"the reward term '{name}'", partial(_term_problems, config, term)
    for name, termination in (task.terminations or {}).items():
        if registry.is_third_party(termination) or isinstance(termination, ExpressionTermination):
            path: NodePath = ("task", "terminations", name)
            yield path, f"the termination '{name}'", partial(_termination_problems, config, termination)
    for i, input_term in enumerate(task.inputs or ()):
        if registry.is_third_party(input_term.transform):
            subject = f"the input of kind '{input_term.transform.__struct_config__.tag}'"
            yield ("task", "inputs", i, "form"), subject, partial(_input_problems, config, input_term)
    for name, target in (task.targets or {}).items():
        if registry.is_third_party(target):
            yield ("task", "targets", name), f"the target '{name}'", partial(_target_problems, config, target)
    if task.reset is not None and registry.is_third_party(task.reset):
        yield ("task", "reset"), "the reset", partial(_reset_problems, config)
    if registry.is_third_party(config.exploration):
        yield (
            ("exploration",),
            f"the process '{config.exploration.__struct_config__.tag}'",
            partial(_noise_problems, config),
        )


def _term_problems(config: RunConfig, term: RewardTerm) -> Iterator[str]:
    reward = term.build(config.rig)
    yield from _function_problems(lambda *arrays: reward(Transitions(*arrays)), probe_points(config.rig), float)


def _termination_problems(config: RunConfig, termination: Termination) -> Iterator[str]:
    yield from _tick_function_problems(
        config, termination.build(config.rig), termination.build_scalar(config.rig), bool
    )
    if isinstance(termination, ExpressionTermination):
        observations = probe_points(config.rig).observation
        for i in np.flatnonzero(
            np.broadcast_to(termination.build_undefined(config.rig)(observations), len(observations))
        )[:1]:
            yield f"compares a non-finite value for {_describe_point([observations], i)}"


def _function_problems(function: Function, arrays: Sequence[NDArray[Any]], dtype: type) -> Iterator[str]:
    """Yield the problems with a function that maps (k, ...) arrays to one value per row."""
    n = len(arrays[0])
    copies = [array.copy() for array in arrays]
    batch = np.asarray(function(*copies))
    if any(not np.array_equal(a, b) for a, b in zip(copies, arrays, strict=True)):
        yield "changes its argument arrays"
        return
    if batch.shape not in ((), (n,)):
        yield f"returns values of shape {batch.shape} for {n} observations, expected {(n,)}"
        return
    if (batch.dtype.kind == "b") != (dtype is bool) or batch.dtype.kind not in "bfiu":
        yield f"returns values of type {batch.dtype}, expected {'true or false' if dtype is bool else 'numbers'}"
        return
    batch = np.broadcast_to(batch, (n,)).astype(dtype)
    invalid_rows = np.flatnonzero(~np.isfinite(batch))
    if len(invalid_rows):
        yield f"returns {batch[invalid_rows[0]]} for {_describe_point(arrays, invalid_rows[0])}"
    repeated_values: NDArray[Any] = np.broadcast_to(np.asarray(function(*copies)), (n,)).astype(dtype)
    if repeated_values.tobytes() != batch.tobytes():
        yield "returns different results for the same input: it must neither draw random numbers nor keep state"
        return
    for i in range(n):
        single_value = np.asarray(function(*[array[i] for array in copies]))
        if single_value.shape != () or single_value.astype(dtype).tobytes() != batch[i].tobytes():
            values = f"{batch[i]} in a batch and {single_value} in a single evaluation"
            yield f"returns {values} for {_describe_point(arrays, i)}: use numpy's functions for both"
            return
    pairs = [np.stack([array, array]) for array in copies]
    if np.broadcast_to(np.asarray(function(*pairs)), (2, n)).astype(dtype).tobytes() != np.stack([batch] * 2).tobytes():
        yield "returns a different result for two-dimensional arrays"


def _describe_point(arrays: Sequence[NDArray[Any]], i: int) -> str:
    names = ("the observation", "the action", "the previous action")
    return ", ".join(f"{name} {array[i].tolist()}" for name, array in zip(names, arrays, strict=False))


def _tick_function_problems(
    config: RunConfig, batched_function: Function, scalar_function: Function, dtype: type
) -> Iterator[str]:
    """Yield the problems with the batched and scalar versions of a function of the observation that is called in each
    tick.
    """
    observations = probe_points(config.rig).observation
    problems = [*_function_problems(batched_function, [observations], dtype)]
    yield from problems
    if problems:
        return
    rows = [tuple(row) for row in observations.tolist()]
    for row, value in zip(rows, np.broadcast_to(np.asarray(batched_function(observations)), len(rows)), strict=True):
        if np.asarray(scalar_function(row), dtype).tobytes() != np.asarray(value, dtype).tobytes():
            yield f"returns {scalar_function(row)} for floats but {value} for arrays, for the observation {list(row)}"
            return
    yield from _budget_problems(lambda: scalar_function(rows[0]), budget_ns(config.period_us))


def _budget_problems(call: Callable[[], object], budget_ns: int) -> Iterator[str]:
    elapsed_ns = measure_ns(call)
    if elapsed_ns > budget_ns:
        budget_text = f"its tick budget is {budget_ns / 1e3:.0f} us"
        yield f"takes {elapsed_ns / 1e3:.0f} us (99 of 100 calls), but {budget_text}"


def _input_problems(config: RunConfig, term: PolicyInput) -> Iterator[str]:
    rig, transform = config.rig, term.transform
    index = [o.name for o in rig.signals].index(term.observation)
    signal = transform.signal(rig.signals[index])
    if not -np.inf < signal.low < signal.high < np.inf:
        yield f"has a range of {signal.low} to {signal.high}, expected low < high"
    yield from _tick_function_problems(config, transform.build(index, rig), transform.build_scalar(index, rig), float)


def _target_problems(config: RunConfig, target: Target) -> Iterator[str]:
    steps = min(episode_steps(config.task, config.rate_hz), _MAX_STEPS)
    times = sample_times(steps, config.period_us * 1e-6)
    values, repeated_values = (
        np.asarray(target.draw(times.copy(), np.random.default_rng(1)), np.float64) for _ in range(2)
    )
    low, high = target.span()
    if values.shape not in ((), times.shape):
        yield f"draws values of shape {values.shape} for {len(times)} times, expected {times.shape}"
    elif not np.isfinite(values).all():
        yield "draws non-finite values"
    elif values.tobytes() != repeated_values.tobytes():
        yield "draws different values from equal generators: use no other source of randomness"
    elif values.min() < low or values.max() > high:
        yield f"draws values from {values.min():g} to {values.max():g}, outside its span of {low:g} to {high:g}"


def _reset_problems(config: RunConfig) -> Iterator[str]:
    reset, rig = config.task.reset, config.rig
    assert reset is not None
    drivers = [reset.driver(middle_start(config.task.all_starts), rig) for _ in range(2)]
    for driver in drivers:
        driver.begin(1)
    width = len(rig.observations)
    for row in probe_points(rig).observation[:, :width].tolist():
        first, second = (tuple(driver.drive(tuple(row), 0.0)) for driver in drivers)
        if len(first) != len(rig.actuators) or not np.isfinite(first).all():
            yield f"returns the action {first} for the observation {row}, expected {len(rig.actuators)} finite values"
            return
        if first != second:
            yield f"returns different actions for the same observation: {first} and {second}"
            return
    yield from _budget_problems(lambda: drivers[0].drive(tuple(row), 0.0), MAX_BUDGET_NS)


def _noise_problems(config: RunConfig) -> Iterator[str]:
    process = config.exploration
    if not isinstance(process, ActionNoise):
        yield "is not a subclass of onrig.runtime.explore.settings.ActionNoise"
        return
    steps, m = min(episode_steps(config.task, config.rate_hz), _MAX_STEPS), len(config.rig.actuators)
    first, second = (np.asarray(process.draw(np.random.default_rng(1), steps, m), np.float64) for _ in range(2))
    if first.shape != (steps, m):
        yield f"draws a signal of shape {first.shape} for {steps} steps and {m} actuators, expected {(steps, m)}"
    elif not np.isfinite(first).all():
        yield "draws a signal with non-finite values"
    elif first.tobytes() != second.tobytes():
        yield "draws different signals from equal generators: use no other source of randomness"
