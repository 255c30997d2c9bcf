"""``onrig bench learner``: DDPG updates per second beside Stable-Baselines3's, and beside what one core can do.

Every subject runs in a process of its own, on one thread, and all take turns, round by round.  One call is 100 updates
(those after an episode) of every trial.  The checks are bounds on Onrig; exit 0 whether or not they hold.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from onrig.tools.benchmarks.learner_cases import GROUPS, LIMIT, ONRIG, PEER, Ride
from onrig.tools.benchmarks.learner_figures import Rates, row, share_rows, speed_checks
from onrig.tools.benchmarks.learner_session import Plan, Session
from onrig.tools.benchmarks.learner_strategies import (
    Minutes,
    RidePlan,
    measure_strategies,
    strategy_checks,
    strategy_rows,
    strategy_table,
)
from onrig.tools.benchmarks.learner_tables import limit_sentence, limit_table, rates_table
from onrig.tools.benchmarks.peers import installed_version
from onrig.tools.benchmarks.progress import progress_for
from onrig.tools.benchmarks.report import Report, describe_machine, write_json
from onrig.tools.benchmarks.table import checks_table
from onrig.tools.benchmarks.timing import quantiles_us
from onrig.tools.load import complain

FULL: Final = Plan(GROUPS, 7, 500)
QUICK: Final = Plan(GROUPS, 3, 100)
RIDES: Final = RidePlan()
QUICK_RIDES: Final = RidePlan(episodes=3)
_VERB: Final = "bench learner"
_FAIRNESS: Final = (
    f"{PEER}: its critic takes the action at its input, not in the second layer; no weight decay; one trial at a time",
    "sample and update: Onrig from its memory of 10000, the peer from its buffer of 10000; update: one fixed minibatch "
    "for the peer, 100 packed anew for Onrig",
)


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog=f"onrig {_VERB}", description=__doc__)
    p.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    p.add_argument("--quick", action="store_true", help="half a minute instead of three: fewer and shorter rounds")
    p.add_argument(
        "--strategy", action="store_true", help="also whole episodes of four strategies: minutes for all of them (long)"
    )
    return p


def main(arguments: list[str]) -> int:
    """Measure, print tables and checks; returns the exit code."""
    args = _parser().parse_args(arguments)
    if args.json is not None and not args.json.absolute().parent.is_dir():
        return complain(_VERB, f"--json: there is no folder '{args.json.parent}'")
    versions = {package: installed_version(package) for package in (ONRIG, PEER, LIMIT)}
    if versions[LIMIT] is None:
        return complain(_VERB, "torch is not installed (pip install 'onrig[learner]')")
    present = [package for package, version in versions.items() if version is not None or package == ONRIG]
    if PEER not in present:
        print(f"{PEER}: not installed, left out (pip install 'onrig[bench]')")
    plan, rides = (QUICK, QUICK_RIDES) if args.quick else (FULL, RIDES)
    progress = progress_for(plan.seconds(present) + (rides.seconds() if args.strategy else 0.0))
    measured: dict[Ride, Minutes] = {}
    try:
        session = Session(plan, present, progress)
        session.run()
        unavailable = dict(session.unavailable)
        if args.strategy:
            measured, failed = measure_strategies(rides, progress)
            unavailable |= failed
    finally:
        progress.close()
    report = build_report(
        session.rates, session.spans, unavailable, {package: versions[package] or "" for package in present}
    )
    report.rows.extend(strategy_rows(measured, rides))
    report.checks.extend(strategy_checks(measured, rides))
    parts = [rates_table(session.rates), limit_table(session.rates)]
    if measured:
        parts.append(strategy_table(measured, rides))
    if report.checks:
        parts.append(checks_table(report.checks))
    print("\n\n".join([*parts, "\n".join(notes(session.rates, unavailable, report))]))
    if args.json is not None:
        write_json(report, args.json)
    return 0


def build_report(
    rates: Rates, spans: Sequence[int], unavailable: dict[tuple[str, str], str], versions: dict[str, str]
) -> Report:
    """Put what was measured into the report."""
    machine = describe_machine() | {"packages": versions, "fairness": "; ".join(_FAIRNESS)}
    floor = 0.0
    if spans:
        q = quantiles_us(spans)
        floor = q.p9999
        machine["stalls_us"] = {name: round(value, 3) for name, value in q._asdict().items()}
    if unavailable:
        machine["unavailable"] = {f"{p} {kind}".strip(): why for (p, kind), why in unavailable.items()}
    said = limit_sentence(rates)
    if said is not None:
        machine["floating_point_limit"] = said
    rows = [row(case, subject, of_case) for (case, subject), of_case in rates.items()]
    return Report(machine, round(floor, 3), rows + share_rows(rates), speed_checks(rates))


def notes(rates: Rates, unavailable: dict[tuple[str, str], str], report: Report) -> list[str]:
    """Say what the tables leave open."""
    said = limit_sentence(rates)
    lines = [] if said is None else [said]
    if any(subject == PEER for _, subject in rates):
        lines += _FAIRNESS
    lines += [f"{package} {kind}: left out, {why}" for (package, kind), why in unavailable.items()]
    lines.append(f"{sum(c.holds for c in report.checks)} of {len(report.checks)} checks hold")
    return lines
