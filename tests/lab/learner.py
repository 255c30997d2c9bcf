"""``python -m tests.lab.learner``: DDPG, TD3 and SAC compared with Stable-Baselines3, sbx (JAX) and the limit of one
core.

Every subject runs in a separate process on one thread; measurements alternate between subjects, round by round.  One
call runs 100 updates (those after an episode) of every trial; rates are per second of processor time.  The checks are
bounds on Onrig; the exit code is 0 whether or not they hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from onrig.tools.bench.report import (
    Report,
    checks_table,
    conclude,
    describe_subjects,
    format_number,
    installed_version,
    skipped_lines,
)
from onrig.tools.progress import progress_for
from onrig.tools.terminal import VerbParser, align, file_problem
from tests.lab.command import complain, execute, parser_of
from tests.lab.learners.cases import (
    GROUPS,
    JAX_PEER,
    LARGE,
    LIMIT,
    ONRIG,
    PEER,
    LearnerCase,
    Rates,
    Share,
    StrategyRun,
    Work,
    row,
    share,
    share_rows,
    speed_checks,
    times_faster,
)
from tests.lab.learners.session import (
    Minutes,
    Plan,
    Session,
    StrategyPlan,
    measure_strategies,
    strategy_checks,
    strategy_rows,
    strategy_table,
)

FULL: Final = Plan(GROUPS, 7, 500)
QUICK: Final = Plan(GROUPS, 3, 100)
STRATEGY_RUNS: Final = StrategyPlan()
QUICK_STRATEGY_RUNS: Final = StrategyPlan(episodes=3)
PEERS: Final = (PEER, JAX_PEER)
_NAME: Final = "learner"
_FAIRNESS: Final = (
    f"{PEER} and {JAX_PEER}: one trial at a time",
    f"{PEER}: DDPG's critic takes the action at its input, not in layer 2; no weight decay",
    "sample and update: Onrig from its memory of 10000, a peer from its buffer of 10000; update: one fixed minibatch "
    "for a peer, 100 packed anew for Onrig",
)


def parser() -> VerbParser:
    """Build the argument parser."""
    p = parser_of(_NAME, __doc__, quick="two minutes instead of six: fewer and shorter rounds")
    p.add_argument(
        "--strategy", action="store_true", help="also time complete episodes of four strategies (takes long)"
    )
    return p


def main(arguments: list[str]) -> int:
    """Measure, print tables and checks; returns the exit code."""
    args = parser().parse_args(arguments)
    if problem := file_problem("json", args.json):
        return complain(_NAME, problem)
    versions = {package: installed_version(package) for package in (ONRIG, *PEERS, LIMIT)}
    present = {package: version or "" for package, version in versions.items() if version or package == ONRIG}
    for peer in PEERS:
        if peer not in present:
            print(f"{peer}: not installed, left out (pip install 'onrig[bench]')")
    plan, strategies = (QUICK, QUICK_STRATEGY_RUNS) if args.quick else (FULL, STRATEGY_RUNS)
    progress = progress_for(plan.seconds(tuple(present)) + (strategies.seconds() if args.strategy else 0.0))
    measured: dict[StrategyRun, Minutes] = {}
    try:
        session = Session(plan, tuple(present), progress)
        session.run()
        unavailable = dict(session.unavailable_reasons)
        if args.strategy:
            measured, failed = measure_strategies(strategies, progress)
            unavailable |= failed
    finally:
        progress.close()
    report = build_report(session.rates, session.spans, unavailable, present)
    report.rows.extend(strategy_rows(measured, strategies))
    report.checks.extend(strategy_checks(measured, strategies))
    parts = [rates_table(session.rates), limit_table(session.rates)]
    if measured:
        parts.append(strategy_table(measured, strategies))
    if report.checks:
        parts.append(checks_table(report.checks))
    conclude(report, [*parts, "\n".join(notes(session.rates, unavailable, report))], args.json)
    return 0


def build_report(
    rates: Rates, spans: Sequence[int], unavailable: dict[tuple[str, str], str], versions: dict[str, str]
) -> Report:
    """Build the report of the measurements."""
    machine, floor = describe_subjects(versions, spans, unavailable)
    machine["fairness"] = "; ".join(_FAIRNESS)
    sentence = limit_sentence(rates)
    if sentence is not None:
        machine["floating_point_limit"] = sentence
    rows = [row(case, subject, of_case) for (case, subject), of_case in rates.items()]
    return Report(machine, floor, rows + share_rows(rates), speed_checks(rates))


def notes(rates: Rates, unavailable: dict[tuple[str, str], str], report: Report) -> list[str]:
    """Return the notes below the tables."""
    sentence = limit_sentence(rates)
    lines = [] if sentence is None else [sentence]
    if any(subject in PEERS for _, subject in rates):
        lines += _FAIRNESS
    lines += skipped_lines(unavailable)
    lines.append(f"{sum(c.holds for c in report.checks)} of {len(report.checks)} checks hold")
    return lines


def rates_table(rates: Rates) -> str:
    """Tabulate trial-updates per second of processor time, and the peers' single trial."""
    rows = [
        ["trial-updates per s", "onrig p50", "p99", "max", *(cell for peer in PEERS for cell in (peer, "times it"))]
    ]
    for case in _ours(rates):
        ours = rates[case, ONRIG]
        sorted_slots = sorted(ours.all)
        cells = [
            case.title,
            format_number(ours.p50),
            format_number(sorted_slots[int(0.99 * (len(sorted_slots) - 1))]),
            format_number(sorted_slots[-1]),
        ]
        for peer in PEERS:
            theirs, ratio = rates.get((case.single_trial, peer)), times_faster(rates, case, peer)
            cells += ["" if theirs is None else format_number(theirs.p50), "" if ratio is None else f"{ratio:.1f}x"]
        rows.append(cells)
    return align(rows)


def limit_table(rates: Rates) -> str:
    """Tabulate an update's floating-point operations and rate, compared with bare products."""
    rows = [["matrix products", "Mflop", "Gflop/s", "of those alone", "", f"of {LARGE} x {LARGE}", ""]]
    for case, ratio in _shares(rates):
        bare = rates[LearnerCase(Work.PRODUCTS, case.network, case.shape, case.trials), LIMIT].p50
        large = rates[LearnerCase(Work.LARGE, case.network, case.shape, 1), LIMIT].p50
        own = [format_number(x) for x in (ratio.mega_flop, ratio.gflop_per_s)]
        rows.append(
            [
                case.title,
                *own,
                format_number(bare),
                f"{ratio.of_products:.0%}",
                format_number(large),
                f"{ratio.of_large:.0%}",
            ]
        )
    return align(rows)


def limit_sentence(rates: Rates) -> str | None:
    """Describe the distance from the machine's limit of the update with the most trials; None if not measured."""
    shares = _shares(rates)
    if not shares:
        return None
    case, ratio = max(shares, key=lambda found: found[0].trials)
    return (
        f"{case.title}: the matrix products run at {ratio.gflop_per_s:.1f} Gflop/s, {ratio.of_large:.0%} of what one "
        f"of {LARGE} x {LARGE} reaches on this core and "
        f"{ratio.of_products:.0%} of what the same small products alone reach"
    )


def _shares(rates: Rates) -> list[tuple[LearnerCase, Share]]:
    updates = [case for case in _ours(rates) if case.work is Work.UPDATE]
    return [(case, ratio) for case in updates if (ratio := share(rates, case)) is not None]


def _ours(rates: Rates) -> Iterable[LearnerCase]:
    return [case for case, subject in rates if subject == ONRIG]


if __name__ == "__main__":
    execute(main)
