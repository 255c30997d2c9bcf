"""Race candidates for a run's learning on drawn plants, and recommend the best.

Pairs of a seed and a plant, drawn from what is known of the rig, are the same for all candidates; one leaves only if it
is worse with certainty (docs/advice.md). Finished trials are kept: --resume continues a stopped race, or one with a
larger budget. Writes advised.yaml, recipes of all candidates and a page; `onrig run CONFIG --advised DIR` takes the
best.
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
    """What the best candidate has most of."""
    minutes: Annotated[float, Value("M")] | None = None
    """Budget of computing on all workers (default: 20)."""
    trials: Count | None = None
    """Budget in trials instead: the same answer on every machine of a kind."""
    out: Folder | None = None
    """Folder of the race (default: runs/advice-NAME-N)."""
    resume: bool = False
    """Continue in DIR (default: the latest runs/advice-NAME-N)."""
    workers: Count | None = None
    """Processes on this machine (default: one per core)."""
    cluster: Annotated[str, Value("ADDRESS")] | None = None
    """Run on a Ray cluster: HOST:PORT, ray://HOST:PORT or auto."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Race; returns the exit code."""
    if options.minutes is not None and options.trials is not None:
        return complain("advise", "a budget is given by either --minutes or --trials: drop one")
    if options.minutes is not None and not 0.0 < options.minutes <= 1e6:
        return complain("advise", f"--minutes: expected more than 0, got {options.minutes:g}")
    from onrig.tools.advice.advise import AdviseOptions, show_advice
    from onrig.tools.advice.field import Subject
    from onrig.tools.experiments.options import ExperimentOptions

    manner = ExperimentOptions(options.workers, options.cluster)
    if fault := manner.problem(costs=False):
        return complain("advise", fault)
    subject = Subject(options.config, options.set)
    return show_advice(
        AdviseOptions(subject, options.objective, options.minutes, options.trials, options.out, options.resume, manner)
    )
