"""Run trials of many configurations, on all cores or on a cluster.

Each finished trial is stored in a file of its own. --resume continues a stopped experiment; trials that were in
progress start again. The result of a trial does not depend on --resume, --workers, --chunk or --cluster.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from onrig.tools.options import Count, Experiment, Folder, Trust, Value


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    spec: Experiment
    """Path or shipped name of an experiment, such as figure-12-quick."""
    _: KW_ONLY
    out: Folder | None = None
    """Folder for the results (default: runs/NAME-N)."""
    resume: bool = False
    """Continue in DIR (default: the latest runs/NAME-N)."""
    workers: Count | None = None
    """Processes on this machine (default: one per core)."""
    cluster: Annotated[str, Value("ADDRESS")] | None = None
    """Run on a Ray cluster: HOST:PORT, ray://HOST:PORT or auto."""
    trials: Count | None = None
    """Number of trials per cell, instead of the number in SPEC."""
    only: Annotated[tuple[str, ...], Value("AXIS=VALUE")] = ()
    """Run only the cells with this value of a setting; may be repeated."""
    chunk: Count | None = None
    """Number of trials trained together (default: as many as keep all cores busy)."""
    costs: bool = False
    """Only measure the time per update in each cell of DIR, for the report (one trial, on an idle machine)."""
    dry_run: bool = False
    """Only check the experiment, and list the cells and their cost."""
    trust: Trust = False


def main(options: Options) -> int:
    """Run the experiment and return the exit code."""
    from onrig.tools.experiments.experiment import run_experiment_command
    from onrig.tools.experiments.options import ExperimentOptions

    experiment_options = ExperimentOptions(
        options.workers, options.cluster, options.trials, options.chunk, options.only
    )
    return run_experiment_command(
        options.spec,
        options.out,
        experiment_options,
        resume=options.resume,
        costs=options.costs,
        dry_run=options.dry_run,
    )
