"""``python -m tests.lab.learning``: returns of the algorithms, compared with Stable-Baselines3 or sbx at its settings.

Seeds are paired; every seed is evaluated on the same noise-free episodes.  Finished trials are rows of the file --out;
the same command continues from there, also concurrently. It takes hours: --dry-run shows the remaining work.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.learner.trials.intervals import MIN_TRIALS, paired_difference
from onrig.learner.trials.measures import final_mean
from onrig.runtime.exit_codes import ExitCode
from onrig.tools.bench.report import (
    Check,
    Report,
    Row,
    check_at_least,
    checks_table,
    conclude,
    describe_machine,
    installed_version,
    percentiles,
)
from onrig.tools.experiments.spec import cell_id
from onrig.tools.quantity import format_duration, format_estimate
from onrig.tools.terminal import VerbParser, align, file_problem
from tests.lab.command import complain, execute, parser_of
from tests.lab.learners.cases import JAX_PEER, ONRIG, PEER
from tests.lab.learners.learners import CASES, Case, NoSuchTask, random_returns, train_onrig, train_peer
from tests.lab.trials_file import append_rows, read_rows

_NAME: Final = "learning"
FINAL_SHARE: Final = 0.1
"""Fraction of the evaluations, the last ones, whose mean is the final return."""
MARGIN: Final = 0.1
"""Maximum deficit, as a fraction of the peer's final return relative to random actions."""
Learner = Callable[[Case, int], NDArray[np.float64]]
"""Function from a case and a seed to the mean return of each evaluation, (P,)."""
LEARNERS: Final[dict[str, Learner]] = {ONRIG: train_onrig, PEER: train_peer, JAX_PEER: train_peer}


class TrialResult(NamedTuple):
    """One finished trial."""

    returns: NDArray[np.float64]
    """(P,) mean return of each evaluation."""
    busy_s: float
    """Processor time."""

    @property
    def final(self) -> float:
        """Mean of the last evaluations."""
        return float(final_mean(self.returns[None], FINAL_SHARE)[0])

    @property
    def area(self) -> float:
        """Mean over all evaluations."""
        return float(self.returns.mean())


Key = tuple[str, str, int]
"""Case, learner, seed."""
COLUMNS: Final = ("case", "learner", "seed", "steps", "return", "cpu_s", "made_by")
"""Columns of the file: one row per evaluation, with the processor time of the complete trial and the digest of its
settings (empty if unknown)."""


def parser() -> VerbParser:
    """Build the argument parser."""
    p = parser_of(_NAME, __doc__)
    p.add_argument("--out", type=Path, default=Path("runs/learning.csv"), metavar="FILE", help="default: %(default)s")
    p.add_argument("--seeds", type=int, default=10, metavar="N", help="pairs of trials (default: %(default)s)")
    p.add_argument(
        "--case", action="append", default=[], metavar="TEXT", help=f"only cases whose name contains TEXT: {_named()}"
    )
    p.add_argument("--dry-run", action="store_true", help="print the remaining work, run nothing")
    return p


def main(arguments: list[str]) -> int:
    """Run the missing trials, then compare; returns the exit code."""
    args = parser().parse_args(arguments)
    cases = [case for case in CASES if all(text in case.name for text in args.case)]
    if not cases:
        return complain(_NAME, f"--case: no case has all of these in its name; there are {_named()}")
    if not 1 <= args.seeds <= 1000:
        return complain(_NAME, f"--seeds: expected 1 to 1000, got {args.seeds}")
    if problem := file_problem("json", args.json):
        return complain(_NAME, problem)
    missing = sorted({case.peer for case in cases if installed_version(case.peer) is None})
    for peer in missing:
        print(f"{peer}: not installed, left out (pip install 'onrig[bench]')")
    try:
        finished = read(args.out)
    except (OSError, ValueError) as error:
        return complain(_NAME, f"'{args.out}' cannot be read: {getattr(error, 'strerror', None) or error}")
    missing_trials = [
        (case, subject, seed)
        for seed in range(args.seeds)
        for case in cases
        for subject in (ONRIG, case.peer)
        if subject not in missing and (case.name, subject, seed) not in finished
    ]
    cost = format_duration(sum(case.cost_s for case, _, _ in missing_trials))
    print(f"{args.out}: {len(missing_trials)} trials to run, about {cost} of a core")
    if args.dry_run:
        return ExitCode.OK
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        for case, subject, seed in missing_trials:
            result = run_trial(case, subject, seed)
            write(args.out, case, subject, seed, result)
            finished[case.name, subject, seed] = result
            print(
                f"{case.name}, {subject}, seed {seed}: final {result.final:.1f}, {format_duration(result.busy_s)}",
                flush=True,
            )
        report, tables = compare(finished, cases, args.seeds)
        conclude(report, tables, args.json)
    except NoSuchTask as error:
        return complain(_NAME, str(error), ExitCode.PREFLIGHT)
    except OSError as error:
        return complain(_NAME, f"'{error.filename or args.out}' cannot be written: {error.strerror or error}")
    except KeyboardInterrupt:
        return complain(_NAME, "stopped; the same command continues from here", ExitCode.INTERRUPTED)
    return ExitCode.OK


def run_trial(case: Case, subject: str, seed: int) -> TrialResult:
    """Run one trial on one thread."""
    import torch

    torch.set_num_threads(1)
    start = time.process_time()
    returns = LEARNERS[subject](case, seed)
    return TrialResult(returns, time.process_time() - start)


def compare(finished: Mapping[Key, TrialResult], cases: Sequence[Case], seeds: int) -> tuple[Report, list[str]]:
    """Compare the available pairs."""
    table = [["case", "peer", "pairs", "random", ONRIG, "peer", "lowest", "difference", "of areas", "CPU s", "peer"]]
    rows: list[Row] = []
    checks: list[Check] = []
    for case in cases:
        found = {s: [finished.get((case.name, s, seed)) for seed in range(seeds)] for s in (ONRIG, case.peer)}
        pairs = [(a, b) for a, b in zip(*found.values(), strict=True) if a is not None and b is not None]
        for subject, trials in found.items():
            finals = [trial.final for trial in trials if trial is not None]
            if finals:
                rows.append(percentiles(f"{case.name}, final return", subject, "return", finals))
        if not pairs:
            continue
        a, b = np.array([p.final for p, _ in pairs]), np.array([p.final for _, p in pairs])
        random_return = float(random_returns(case).mean())
        final = paired_difference(a, b)
        area = paired_difference(*(np.array([pair[k].area for pair in pairs]) for k in (0, 1)))
        cpu_s = [f"{np.mean([pair[k].busy_s for pair in pairs]):.0f}" for k in (0, 1)]
        medians = [f"{value:.1f}" for value in (random_return, np.median(a), np.median(b))]
        lowest = f"{a.min():.1f}, {b.min():.1f}"
        shown = (f"{format_estimate(of, 1, signed=True)}, p = {of.p:.2g}" for of in (final, area))
        table.append([case.name, case.peer, str(len(pairs)), *medians, lowest, *shown, *cpu_s])
        margin = -MARGIN * abs(float(np.median(b)) - random_return)
        if len(pairs) >= MIN_TRIALS:
            checks.append(check_at_least(f"{case.name}: lower bound of the difference at least", final.low, margin))
    machine = describe_machine() | {"packages": {p: installed_version(p) or "" for p in (*LEARNERS, "gymnasium")}}
    notes = (
        f"Mean return of the last {FINAL_SHARE:.0%} of the evaluations: medians over the trials, the lowest of either "
        "learner, medians of the differences by seed with 95 % intervals and p of a sign test; areas are means over "
        "all evaluations."
    )
    parts = [align(table), notes, *([checks_table(checks)] if checks else [])]
    return Report(machine, 0.0, rows, checks), parts


def settings_digest(case: Case, subject: str) -> str:
    """Return the digest of a case's settings, for the peer including its version; trials with another digest are
    repeated."""
    return cell_id(case.run) if subject == ONRIG else f"{cell_id(case.run)} {subject} {installed_version(subject)}"


def write(path: Path, case: Case, subject: str, seed: int, result: TrialResult) -> None:
    """Append a finished trial; raises OSError."""
    every, last = case.run.evaluation.every, (f"{result.busy_s:.1f}", settings_digest(case, subject))
    returns = enumerate(result.returns.tolist())
    append_rows(path, COLUMNS, [(case.name, subject, seed, every * (k + 1), repr(r), *last) for k, r in returns])


def read(path: Path) -> dict[Key, TrialResult]:
    """Read the complete trials; none if the file is missing.  Raises OSError, and ValueError for other files."""

    def parse(row: Sequence[str]) -> tuple[Key, int, float, float, str]:
        case, subject, seed, steps, value, busy_s, by = row
        return (case, subject, int(seed)), int(steps), float(value), float(busy_s), by

    now = {(case.name, subject): settings_digest(case, subject) for case in CASES for subject in (ONRIG, case.peer)}
    found: defaultdict[Key, dict[int, tuple[float, float]]] = defaultdict(dict)
    for key, steps, value, busy_s, by in read_rows(path, COLUMNS, parse):
        if not by or by == now.get(key[:2]):
            found[key][steps] = value, busy_s
    due = {case.name: [case.run.evaluation.every * (k + 1) for k in range(case.run.points)] for case in CASES}
    return {
        key: TrialResult(np.array([of_trial[step][0] for step in due[key[0]]]), of_trial[due[key[0]][-1]][1])
        for key, of_trial in found.items()
        if sorted(of_trial) == due.get(key[0])
    }


def _named() -> str:
    return ", ".join(case.name for case in CASES)


if __name__ == "__main__":
    execute(main)
