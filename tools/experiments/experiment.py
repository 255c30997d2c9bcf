"""Running an experiment: the missing trials, their cost, and the command that continues a stopped experiment."""

from __future__ import annotations

import contextlib
import errno
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from onrig.hw.native import Executor, executor
from onrig.runtime.config.document import MAX_BYTES, find_config, shipped_names
from onrig.runtime.config.problem import START, ConfigError, Problem
from onrig.runtime.exit_codes import ExitCode, Failure
from onrig.runtime.files import read_file
from onrig.tools.experiments.folder import (
    UnsuitableFolder,
    check_executor,
    check_folder,
    last_folder,
    lock_folder,
    next_folder,
    record_start,
)
from onrig.tools.experiments.grid import cell_text, expand_spec
from onrig.tools.experiments.options import ExperimentOptions, check_cluster, start_workers
from onrig.tools.experiments.runner import (
    MAX_JOINT_TRIALS,
    Display,
    Tally,
    max_joint_trials,
    missing_units,
    new_display,
    run_units,
    split_units,
)
from onrig.tools.experiments.spec import SpecFile, load_spec
from onrig.tools.experiments.store import META, AnyCell, NoSuchCells, finite_trials, read_trials, select_cells
from onrig.tools.load import print_problems
from onrig.tools.machine import Machine
from onrig.tools.plugins import third_party_plugins
from onrig.tools.quantity import format_duration
from onrig.tools.terminal import StreamLost, complain, warn_missing_library


class Trials(NamedTuple):
    """Numbers of trials in the folder of an experiment."""

    folder: Path
    finished: int
    total: int
    lost: int
    """Number of trials whose workers failed; resume the experiment to repeat them."""
    diverged: int
    """Number of finished trials with non-finite rewards."""


def experiment(
    spec: str | Path,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    manner: ExperimentOptions = ExperimentOptions(),  # noqa: B008
    progress: Callable[[Tally], object] = lambda tally: None,
) -> Trials:
    """Run the missing trials of an experiment, from a notebook, a program or a thread. No signal handlers are
    installed.

    ``spec`` is a path or shipped name. ``progress`` receives the tally of the trials (``tally.line()`` formats it).
    Finished trials are kept if ``progress`` raises an exception or the experiment is interrupted. Raises ConfigError
    and Failure.
    """

    class ProgressDisplay:
        """Display that calls ``progress``."""

        def show(self, tally: Tally) -> None:
            progress(tally)

        def warn(self, message: str) -> None:
            sys.stderr.write(f"{message}\n")

        def close(self) -> None:
            pass

    plan = _plan(str(spec), None if out is None else Path(out), manner, resume=resume, costs=False)
    with _lock(plan, resume=resume):
        return _run(plan, ProgressDisplay)


class _Plan(NamedTuple):
    """An experiment that is ready to start."""

    spec: str
    file: SpecFile
    options: ExperimentOptions
    folder: Path
    cells: Sequence[AnyCell]
    selected_cells: Sequence[AnyCell]
    seeds: range

    @property
    def resume_advice(self) -> str:
        """Advice on how to continue, for messages of a stopped experiment."""
        option_arguments = [
            *self.options.command_line_arguments,
            *(argument for choice in self.options.only for argument in ("--only", choice)),
        ]
        command = ["onrig", "experiment", self.spec, "--out", str(self.folder), *option_arguments, "--resume"]
        return f"continue with `{shlex.join(command)}`"


def _plan(spec: str, out: Path | None, options: ExperimentOptions, *, resume: bool, costs: bool) -> _Plan:
    """Choose the cells, seeds and folder. Raises ConfigError for an invalid spec, and Failure for invalid options."""
    problem = options.problem(costs=costs)
    if problem is not None:
        raise Failure(problem)
    if options.cluster:
        check_cluster(options.cluster)
    from onrig.learner.trials.supported import trials_problems

    try:
        file = _load(spec)
        cells = expand_spec(file, trials_problems)
        selected_cells = select_cells(cells, options.only)
    except NoSuchCells as error:
        raise Failure(f"--only: {error}") from None
    folder = out or (last_folder(file.spec.name) if resume or costs else None)
    if folder is None and resume:
        raise Failure(f"--resume: no folder runs/{file.spec.name}-N; omit --resume to start the experiment")
    first_seed = file.spec.first_seed
    seeds = range(first_seed, first_seed + (options.trials or file.spec.trials))
    return _Plan(spec, file, options, folder or next_folder(file.spec.name), cells, selected_cells, seeds)


@contextlib.contextmanager
def _check_folder(plan: _Plan, *, resume: bool, costs: bool = False) -> Iterator[Executor | None]:
    """Context manager that checks the folder, yields the executor of existing trials, and converts errors in the
    context to Failure.
    """
    folder = plan.folder
    try:
        check_folder(folder, plan.cells, resume=resume or (costs and folder.exists()))
        yield None if costs else check_executor(folder)
    except UnsuitableFolder as error:
        raise Failure(str(error)) from None
    except OSError as error:
        is_environment_error = resume or error.errno in (errno.ENOSPC, errno.EDQUOT)
        code = ExitCode.PREFLIGHT if is_environment_error else ExitCode.CONFIGURATION
        raise Failure(f"'{folder}' cannot be written: {error.strerror or error}", code) from None


@contextlib.contextmanager
def _lock(plan: _Plan, *, resume: bool, costs: bool = False) -> Iterator[Executor | None]:
    with (
        _check_folder(plan, resume=resume, costs=costs) as recorded_executor,
        lock_folder(plan.folder, read_file(plan.file.path, MAX_BYTES), plan.cells),
    ):
        yield recorded_executor


def run_experiment_command(
    spec: str, out: Path | None, options: ExperimentOptions, *, resume: bool, costs: bool, dry_run: bool
) -> int:
    """Run an experiment in a terminal, and return the exit code.

    If ``dry_run``, only list its cells; if ``costs``, only measure their costs.
    """
    try:
        plan = _plan(spec, out, options, resume=resume, costs=costs)
        if dry_run:
            cpus = None if options.cluster else _count_busy_cpus(options.workers)
            with _check_folder(plan, resume=resume, costs=costs):
                return _print_cells(
                    plan.file, plan.selected_cells, plan.seeds, plan.folder, options.chunk or MAX_JOINT_TRIALS, cpus
                )
        with _lock(plan, resume=resume, costs=costs) as recorded_executor:
            if costs:
                return _measure_costs(plan.folder, plan.selected_cells)
            return _report_outcome(_run_interruptibly(plan, recorded_executor), plan.resume_advice)
    except ConfigError as error:
        return print_problems(error)
    except Failure as failure:
        return complain("experiment", str(failure), failure.code)


def _run_interruptibly(plan: _Plan, recorded_executor: Executor | None) -> Trials:
    """Run the missing trials; SIGTERM interrupts them like Ctrl-C."""
    missing_trials = missing_units(plan.folder, plan.selected_cells, plan.seeds)
    total = len(plan.selected_cells) * len(plan.seeds)
    n_finished = total - sum(len(unit.seeds) for unit in missing_trials)
    print(
        f"{plan.folder}: {len(plan.selected_cells)} cells of {len(plan.seeds)} trials, {n_finished} finished",
        flush=True,
    )
    if missing_trials and n_finished and recorded_executor is None:
        reason = f"'{plan.folder / META}' does not record the executor of its trials"
        complain("experiment", f"{reason}; the missing trials are computed by {executor()}")
    if missing_trials:
        warn_missing_library("experiment")
    previous_handler = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(plan, new_display)
    except StreamLost as error:
        raise Failure(f"stopped because {error}; {plan.resume_advice}", ExitCode.PREFLIGHT) from None
    except KeyboardInterrupt:
        raise Failure(f"stopped; {plan.resume_advice}", ExitCode.INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _run(plan: _Plan, create_display: Callable[[], Display]) -> Trials:
    """Run the missing trials in a locked folder."""
    folder, cells, options = plan.folder, plan.selected_cells, plan.options
    missing_trials = missing_units(folder, cells, plan.seeds)
    total = len(cells) * len(plan.seeds)
    n_finished = total - sum(len(unit.seeds) for unit in missing_trials)
    if not missing_trials:
        return Trials(folder, n_finished, total, 0, _count_diverged(folder, cells))
    record_start(folder, "trials", third_party_plugins(*(cell.config for cell in cells)))
    with start_workers(options, folder, plan.resume_advice) as workers:
        chunk = options.chunk or (MAX_JOINT_TRIALS if options.cluster else max_joint_trials(cells, workers.slots))
        display = create_display()
        try:
            outcome = run_units(folder, split_units(missing_trials, workers.slots, chunk), n_finished, workers, display)
        finally:
            display.close()
    n_lost = sum(len(lost_unit.unit.seeds) for lost_unit in outcome.lost_units)
    return Trials(folder, outcome.trials, outcome.total, n_lost, _count_diverged(folder, cells))


def _measure_costs(folder: Path, cells: Sequence[AnyCell]) -> int:
    """Measure the cost of a single trial of each cell, and return the exit code."""
    from onrig.tools.experiments.cost import COSTS, estimate_costs, read_costs, write_costs

    try:
        earlier_costs = read_costs(folder)
    except ValueError as error:
        return complain("experiment", str(error))
    costs = estimate_costs(cells, 1)
    write_costs(folder, earlier_costs | costs)
    record_start(folder, "costs", third_party_plugins(*(cell.config for cell in cells)))
    for cell in cells:
        print(f"{1e3 * costs[cell.id].update_s:9.3f} ms  {cell_text(cell)}")
    print(
        f"{folder / COSTS} contains the time per update of {len(cells)} cells; `onrig report {folder}` then compares "
        "at equal compute"
    )
    return ExitCode.OK


def _report_outcome(trials: Trials, resume_advice: str) -> int:
    """Report lost and diverged trials, and return the exit code, which indicates failure if any were lost or all
    diverged.
    """
    folder = trials.folder
    print(f"{trials.finished} of {trials.total} trials are in {folder}; report them with `onrig report {folder}`")
    if trials.lost:
        return complain("experiment", f"{trials.lost} trials were lost (see above); {resume_advice}", ExitCode.INTERNAL)
    if not trials.diverged:
        return ExitCode.OK
    has_only_diverged = trials.diverged == trials.finished
    count = f"all {trials.finished}" if has_only_diverged else f"{trials.diverged} of {trials.finished}"
    code = complain("experiment", f"{count} trials diverged: their rewards are non-finite", ExitCode.INCOMPLETE)
    return code if has_only_diverged else ExitCode.OK


def _count_diverged(folder: Path, cells: Sequence[AnyCell]) -> int:
    """Return the number of trials with non-finite rewards."""
    return sum(int((~finite_trials(cell, read_trials(folder, cell))).sum()) for cell in cells)


def _load(name: str) -> SpecFile:
    try:
        return load_spec(find_config(name, "experiments"))
    except FileNotFoundError as error:
        is_run = name in shipped_names() or (Path(name) / "run.yaml").is_file()
        message = f"this is a run; use `onrig run {name}`" if is_run else str(error)
        raise ConfigError([Problem(name, START, message)]) from None


def _count_busy_cpus(workers: int | None) -> float:
    """Return the number of CPUs that local workers use."""
    available_cpus = Machine().usable_cpu_count()
    return available_cpus if workers is None else min(workers, available_cpus)


def _print_cells(
    file: SpecFile, cells: Sequence[AnyCell], seeds: range, folder: Path, chunk: int, cpus: float | None
) -> int:
    from onrig.tools.experiments.cost import describe_basis, estimate_costs

    n_joint_trials = min(chunk, len(seeds))
    costs = estimate_costs(cells, n_joint_trials)
    n_missing = {unit.cell.id: len(unit.seeds) for unit in missing_units(folder, cells, seeds)}
    cell_s = [costs[cell.id].trial_s(cell) * n_missing.get(cell.id, 0) / n_joint_trials for cell in cells]
    for cell, cost_s in zip(cells, cell_s, strict=True):
        print(f"{cell.id}  {format_duration(cost_s):>11}  {cell_text(cell)}")
    length = f"{file.spec.steps} steps" if file.spec.steps else f"{file.spec.episodes} episodes"
    machine_text = (
        ""
        if cpus is None
        else f", {format_duration(sum(cell_s) / cpus)} on the {cpus:.2g} CPUs available to this process"
    )
    n_finished = len(cells) * len(seeds) - sum(n_missing.values())
    print(
        f"{len(cells)} cells of {len(seeds)} trials, {length} each"
        f"{f', {n_finished} trials are finished' * bool(n_finished)}, about {format_duration(sum(cell_s))} on one core"
        f"{machine_text} ({describe_basis(cells, costs, n_joint_trials)}); would run in {folder}"
    )
    return ExitCode.OK


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
