"""Checking and explaining a configuration, or an experiment with all its cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from onrig.runtime.config.document import find_config, load_document
from onrig.runtime.config.problem import ConfigError, Problem
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.lease import describe_lease
from onrig.runtime.run_config import RunConfig
from onrig.runtime.safety.promise import promise_of
from onrig.tools.load import load_for_rig, print_problems, print_warning
from onrig.tools.run_description import describe_run
from onrig.tools.terminal import complain, file_problem, plot_problem, reason


class CheckedRun(NamedTuple):
    """A valid configuration and its warnings."""

    config: RunConfig
    warnings: tuple[Problem, ...]
    """Valid but questionable settings, each with its location."""


def check(name: str, overrides: Sequence[str] = ()) -> CheckedRun:
    """Check a run's configuration, given by its path or shipped name, with overrides such as ``rate_hz=100``.

    Raises ConfigError with every problem found.
    """
    warnings: list[Problem] = []
    config = load_for_rig(name, overrides, on_warning=warnings.append)
    return CheckedRun(config, tuple(warnings))


def show(name: str, overrides: Sequence[str], *, in_detail: bool, plot: Path | None) -> int:
    """Check a configuration, print the result (if ``in_detail``, with explanatory tables), and return the exit code."""
    if problem := file_problem("plot", plot) or plot_problem("plot", plot):
        return complain("check", problem)
    spec = _experiment_path(name)
    if spec is not None:
        return _check_experiment(name, spec, run_options=in_detail or plot or overrides)
    try:
        config, warnings = check(name, overrides)
    except ConfigError as error:
        return print_problems(error)
    for warning in warnings:
        print_warning(warning)
    print(f"{name}: valid: {describe_run(config)}", flush=True)
    print(f"the promise: {promise_of(config.limits)}", flush=True)
    if config.device.twin is None:
        print(f"the lease: {describe_lease(config)}", flush=True)
    if not in_detail and plot is None:
        return ExitCode.OK
    from onrig.tools.explain import tables

    for table in tables(config):
        print(f"\n{table}")
    return ExitCode.OK if plot is None else _write_plot(config, plot)


def _experiment_path(name: str) -> Path | None:
    """Return the path of an experiment's spec, or None if ``name`` is not an experiment."""
    for folder in ("", "experiments"):
        try:
            path = find_config(name, folder)
            data = load_document(path).data
        except FileNotFoundError:
            continue
        except ConfigError:
            return None
        return path if isinstance(data, dict) and "blocks" in data else None
    return None


def _check_experiment(name: str, path: Path, *, run_options: object) -> int:
    if run_options:
        return complain("check", f"'{name}' is an experiment: --explain, --plot and --set are for runs")
    from onrig.learner.trials.supported import trials_problems
    from onrig.tools.experiments.grid import expand_spec
    from onrig.tools.experiments.spec import load_spec

    try:
        file = load_spec(path)
        cells = expand_spec(file, trials_problems)
    except ConfigError as error:
        return print_problems(error)
    length = f"{file.spec.steps} steps" if file.spec.steps else f"{file.spec.episodes} episodes"
    print(f"{name}: valid: an experiment of {len(cells)} cells, {file.spec.trials} trials of {length} each")
    return ExitCode.OK


def _write_plot(config: RunConfig, path: Path) -> int:
    from onrig.tools.explain_plot import plot_explanation

    try:
        is_written = plot_explanation(config, path)
    except Exception as error:  # matplotlib's exceptions share no base class
        return complain("check", f"--plot: '{path}' cannot be written: {reason(error)}")
    print(f"\nsee {path}" if is_written else "\nno plot: it needs matplotlib (pip install 'onrig[viz]')")
    return ExitCode.OK
