"""Run of an experiment: its missing trials, their cost, and the command to continue."""

from __future__ import annotations

import errno
import math
import shlex
import signal
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from onrig.hw.native import Executor, executor
from onrig.runtime.config.document import find, shipped
from onrig.runtime.config.problem import START, ConfigError, Problem
from onrig.runtime.exit_codes import ExitCode
from onrig.tools.experiments.folder import (
    Unsuitable,
    check_executor,
    check_folder,
    last_folder,
    lock_folder,
    next_folder,
    record_start,
)
from onrig.tools.experiments.grid import cells_of, shown
from onrig.tools.experiments.runner import (
    AT_ONCE,
    Outcome,
    at_once_of,
    missing_units,
    new_display,
    run_units,
    split,
)
from onrig.tools.experiments.spec import MAX_TRIALS, SpecFile, load_spec
from onrig.tools.experiments.store import META, AnyCell, NoSuchCells, finite_trials, read_trials, select_cells
from onrig.tools.experiments.workers import LocalWorkers, NoWorkers, OtherExecutor, Workers
from onrig.tools.foreign import pieces_of
from onrig.tools.load import explain
from onrig.tools.machine import Machine
from onrig.tools.quantity import duration
from onrig.tools.terminal import StreamLost, complain, warn_missing_library

_NO_RAY = "--cluster needs Ray: pip install 'onrig[cluster]'"


class ExperimentOptions(NamedTuple):
    """Options that select trials and how they run; None if not given."""

    workers: int | None = None
    cluster: str | None = None
    trials: int | None = None
    chunk: int | None = None
    only: Sequence[str] = ()

    @property
    def words(self) -> list[str]:
        """The options as typed, without ``only``."""
        given = {name: value for name, value in self._asdict().items() if value is not None and name != "only"}
        return [word for name, value in given.items() for word in (f"--{name}", str(value))]

    def problem(self, *, costs: bool) -> str | None:
        """Problem with the options, or None."""
        if costs and self.words:
            return f"--costs measures one trial of each cell, here: leave out {shlex.join(self.words)}"
        for name in ("workers", "trials", "chunk"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MAX_TRIALS:
                return f"--{name}: expected 1 to {MAX_TRIALS}, got {value}"
        if self.cluster is not None and self.workers is not None:
            return "--workers is for this machine; a cluster has its own CPUs: leave out one of --workers and --cluster"
        return None


def experiment(
    spec: str, out: Path | None, manner: ExperimentOptions, *, resume: bool, costs: bool, dry_run: bool
) -> int:
    """Run the experiment, or list (``dry_run``) or measure (``costs``) its cells; returns the exit code."""
    fault = manner.problem(costs=costs)
    if fault is not None:
        return complain("experiment", fault)
    if manner.cluster:
        if find_spec("ray") is None:
            return complain("experiment", _NO_RAY, ExitCode.PREFLIGHT)
        from onrig.tools.experiments.cluster import address_problem

        fault = address_problem(manner.cluster)
        if fault is not None:
            return complain("experiment", f"--cluster: {fault}")
    from onrig.learner.trials.supported import trials_problems

    try:
        file = _load(spec)
        cells = cells_of(file, trials_problems)
        wanted = select_cells(cells, manner.only)
    except ConfigError as error:
        return explain(error)
    except NoSuchCells as error:
        return complain("experiment", f"--only: {error}")
    folder = out or (last_folder(file.spec) if resume or costs else None)
    if folder is None and resume:
        return complain("experiment", f"--resume: there is no runs/{file.spec.name}-N; leave out --resume to start one")
    folder = folder or next_folder(file.spec)
    seeds = range(file.spec.first_seed, file.spec.first_seed + (manner.trials or file.spec.trials))
    try:
        check_folder(folder, cells, resume=resume or (costs and folder.exists()))
        recorded = None if costs else check_executor(folder)
        if dry_run:
            cpus = None if manner.cluster else _cpus(manner.workers)
            return _list(file, wanted, seeds, folder, manner.chunk or AT_ONCE, cpus)
        with lock_folder(folder, file.path, cells):
            return _measure(folder, wanted) if costs else _run(spec, manner, folder, wanted, seeds, recorded)
    except Unsuitable as error:
        return complain("experiment", str(error))
    except OSError as error:
        full = resume or error.errno in (errno.ENOSPC, errno.EDQUOT)
        code = ExitCode.PREFLIGHT if full else ExitCode.CONFIGURATION
        return complain("experiment", f"'{folder}' cannot be written: {error.strerror or error}", code)


def _run(
    spec: str,
    manner: ExperimentOptions,
    folder: Path,
    cells: Sequence[AnyCell],
    seeds: range,
    recorded: Executor | None,
) -> int:
    """Run the missing trials in an open folder; ``recorded``: executor of the existing ones, if known."""
    part = [*manner.words, *(word for choice in manner.only for word in ("--only", choice))]
    command = shlex.join(["onrig", "experiment", spec, "--out", str(folder), *part, "--resume"])
    again = f"continue with `{command}`"
    todo = missing_units(folder, cells, seeds)
    there = len(cells) * len(seeds) - sum(len(unit.seeds) for unit in todo)
    print(f"{folder}: {len(cells)} cells of {len(seeds)} trials, {there} finished", flush=True)
    if not todo:
        return _score(folder, cells)
    if there and recorded is None:
        complain(
            "experiment",
            f"'{folder / META}' does not record the executor of its trials; the others are computed by {executor()}",
        )
    warn_missing_library("experiment")
    record_start(folder, "trials", pieces_of(*(cell.config for cell in cells)))
    before = signal.signal(signal.SIGTERM, _interrupt)
    display = None
    workers: Workers | None = None
    try:
        workers = _workers(manner)
        display = new_display()
        chunk = manner.chunk or (AT_ONCE if manner.cluster else at_once_of(cells, workers.slots))
        outcome = run_units(folder, split(todo, workers.slots, chunk), there, workers, display)
    except NoWorkers as error:
        return complain("experiment", f"{error}; {again}", ExitCode.HARDWARE if manner.cluster else ExitCode.INTERNAL)
    except OtherExecutor as error:
        return complain("experiment", f"{error}; {again}")
    except OSError as error:
        path = error.filename2 or error.filename or folder
        message = f"'{path}' cannot be written: {error.strerror or error}; {again}"
        return complain("experiment", message, ExitCode.PREFLIGHT)
    except StreamLost as error:
        return complain("experiment", f"stopped, because {error}; {again}", ExitCode.PREFLIGHT)
    except KeyboardInterrupt:
        return complain("experiment", f"stopped; {again}", ExitCode.INTERRUPTED)
    finally:
        if display is not None:
            display.close()
        if workers is not None:
            workers.close()
        signal.signal(signal.SIGTERM, before)
    return _conclude(outcome, folder, again) or _score(folder, cells)


def _measure(folder: Path, cells: Sequence[AnyCell]) -> int:
    """Measure the cost of one trial alone."""
    from onrig.tools.experiments.cost import COSTS, costs_of, read_costs, write_costs

    try:
        before = read_costs(folder)
    except ValueError as error:
        return complain("experiment", str(error))
    costs = costs_of(cells, 1)
    write_costs(folder, before | costs)
    record_start(folder, "costs", pieces_of(*(cell.config for cell in cells)))
    for cell in cells:
        print(f"{1e3 * costs[cell.id].update_s:9.3f} ms  {shown(cell)}")
    print(f"{folder / COSTS}: an update of {len(cells)} cells; `onrig report {folder}` compares at equal computing")
    return ExitCode.OK


def _conclude(outcome: Outcome, folder: Path, again: str) -> int:
    print(f"{outcome.trials} of {outcome.total} trials are in {folder}; `onrig report {folder}` draws them")
    if outcome.lost:
        n = sum(len(lost.unit.seeds) for lost in outcome.lost)
        return complain("experiment", f"{n} trials were lost, see above; {again}", ExitCode.INTERNAL)
    return ExitCode.OK


def _score(folder: Path, cells: Sequence[AnyCell]) -> int:
    """Report how many trials have diverged; returns the exit code, which is a failure if all have."""
    finite = [finite_trials(cell, read_trials(folder, cell)) for cell in cells]
    trials, diverged = sum(map(len, finite)), sum(int((~of).sum()) for of in finite)
    if not diverged:
        return ExitCode.OK
    what = f"all {trials}" if diverged == trials else f"{diverged} of {trials}"
    code = complain("experiment", f"{what} trials diverged: their rewards are not finite", ExitCode.INCOMPLETE)
    return code if diverged == trials else ExitCode.OK


def _workers(manner: ExperimentOptions) -> Workers:
    if manner.cluster:
        from onrig.tools.experiments.cluster import ClusterWorkers

        return ClusterWorkers(manner.cluster)
    return LocalWorkers(manner.workers or math.ceil(Machine().cpus_to_use()))


def _load(name: str) -> SpecFile:
    try:
        return load_spec(find(name, "experiments"))
    except FileNotFoundError as error:
        a_run = name in shipped() or (Path(name) / "run.yaml").is_file()
        message = f"this is a run; run it with onrig run {name}" if a_run else str(error)
        raise ConfigError([Problem(name, START, message)]) from None


def _cpus(workers: int | None) -> float:
    """Number of CPUs that local workers keep busy."""
    there = Machine().cpus_to_use()
    return there if workers is None else min(workers, there)


def _list(file: SpecFile, cells: Sequence[AnyCell], seeds: range, folder: Path, chunk: int, cpus: float | None) -> int:
    from onrig.tools.experiments.cost import costs_of, describe_basis

    at_once = min(chunk, len(seeds))
    costs = costs_of(cells, at_once)
    left = {unit.cell.id: len(unit.seeds) for unit in missing_units(folder, cells, seeds)}
    cell_s = [costs[cell.id].trial_s(cell) * left.get(cell.id, 0) / at_once for cell in cells]
    for cell, cost_s in zip(cells, cell_s, strict=True):
        print(f"{cell.id}  {duration(cost_s):>11}  {shown(cell)}")
    length = f"{file.spec.steps} steps" if file.spec.steps else f"{file.spec.episodes} episodes"
    here = "" if cpus is None else f", {duration(sum(cell_s) / cpus)} on the {cpus:.2g} CPUs available to this process"
    there = len(cells) * len(seeds) - sum(left.values())
    print(
        f"{len(cells)} cells of {len(seeds)} trials, {length} each{f', {there} trials are there' * bool(there)}, about "
        f"{duration(sum(cell_s))} of one core{here} ({describe_basis(cells, costs, at_once)}); would run in {folder}"
    )
    return ExitCode.OK


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt
