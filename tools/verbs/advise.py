"""Race learner configurations on randomly drawn plants, and recommend the best.

All candidates are tested on the same pairs, each of a seed and a plant drawn from the uncertainty of the rig's
parameters. A candidate is eliminated only if it is significantly worse (docs/advice.md). Finished trials are kept, so
that --resume can continue a stopped race, with a larger budget if desired. The race writes advised.yaml, the recipes of
all candidates and a page; `onrig run CONFIG --advised DIR` uses the best candidate.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from onrig.tools.options import Config, Count, Folder, Overrides, Trust, Value
from onrig.tools.terminal import complain


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    config: Config
    _: KW_ONLY
    objective: Literal["final", "rise", "regret", "robust"] = "final"
    """Objective that the best candidate maximises."""
    minutes: Annotated[float, Value("M")] | None = None
    """Computing time in minutes, on all workers (default: 20)."""
    trials: Count | None = None
    """Number of trials to run, instead of minutes; the result is then the same on all machines of the same kind."""
    out: Folder | None = None
    """Folder for the race (default: runs/advice-NAME-N)."""
    resume: bool = False
    """Continue in DIR (default: the latest runs/advice-NAME-N)."""
    workers: Count | None = None
    """Processes on this machine (default: one per core)."""
    cluster: Annotated[str, Value("ADDRESS")] | None = None
    """Run on a Ray cluster: HOST:PORT, ray://HOST:PORT or auto."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Run the race and return the exit code."""
    if options.minutes is not None and options.trials is not None:
        return complain("advise", "give the budget by either --minutes or --trials, not both")
    if options.minutes is not None and not 0.0 < options.minutes <= 1e6:
        return complain("advise", f"--minutes: expected more than 0, got {options.minutes:g}")
    from onrig.tools.advice.advise import AdviseOptions, show_advice
    from onrig.tools.advice.field import Subject
    from onrig.tools.experiments.options import ExperimentOptions

    experiment_options = ExperimentOptions(options.workers, options.cluster)
    if fault := experiment_options.problem(costs=False):
        return complain("advise", fault)
    subject = Subject(options.config, options.set)
    return show_advice(
        AdviseOptions(
            subject, options.objective, options.minutes, options.trials, options.out, options.resume, experiment_options
        )
    )
