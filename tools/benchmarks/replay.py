"""``onrig bench replay``: the memory of experiences beside the buffers of other libraries.

Every library runs in a process of its own.  A gate first puts what it draws to a test; then all take turns, round by
round, so that the moods of the machine hit all alike.  The checks are bounds on Onrig; exit 0 whether or not they hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from onrig.tools.benchmarks.cases import SHAPES, title
from onrig.tools.benchmarks.peers import MODULES, installed_version
from onrig.tools.benchmarks.progress import progress_for
from onrig.tools.benchmarks.replay_checks import memory_checks, speed_checks, verdict_checks
from onrig.tools.benchmarks.replay_session import Plan, Session
from onrig.tools.benchmarks.replay_tables import memory_table, times_table
from onrig.tools.benchmarks.report import Report, Row, describe_machine, write_json
from onrig.tools.benchmarks.table import checks_table, number
from onrig.tools.benchmarks.timing import quantiles_us

_LEAST: Final = 512
"""Smallest capacity: the largest sample is 256."""
FULL: Final = Plan(SHAPES, (10_000, 100_000, 1_000_000), 6, 20_000, 80, 200_000, 1_000_000)
QUICK: Final = Plan(SHAPES, (10_000,), 4, 20_000, 40, 100_000, 100_000)


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="onrig bench replay", description=__doc__)
    p.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    p.add_argument("--quick", action="store_true", help="a minute instead of six: 10000 transitions, fewer rounds")
    p.add_argument("--capacity", type=int, action="append", metavar="N", help="only this capacity (repeatable)")
    return p


def main(arguments: list[str]) -> int:
    """Measure, print tables and checks; returns the exit code."""
    args = _parser().parse_args(arguments)
    plan = QUICK if args.quick else FULL
    if args.capacity:
        if min(args.capacity) < _LEAST:
            return _complain(f"--capacity: at least {_LEAST}, got {min(args.capacity)}")
        plan = msgspec.structs.replace(plan, capacities=tuple(args.capacity))
    if args.json is not None and not args.json.absolute().parent.is_dir():
        return _complain(f"--json: there is no folder '{args.json.parent}'")
    versions = {package: installed_version(package) for package in MODULES}
    present = [package for package, version in versions.items() if version is not None or package == "onrig"]
    for package in MODULES:
        if package not in present:
            print(f"{package}: not installed, left out (pip install 'onrig[bench]')")
    progress = progress_for(plan.seconds(present))
    try:
        session = Session(plan, present, progress)
        session.run()
    finally:
        progress.close()
    report = build_report(session, {package: versions[package] or "" for package in present})
    print(describe(session, plan, present, report))
    if args.json is not None:
        write_json(report, args.json)
    return 0


def build_report(session: Session, versions: dict[str, str]) -> Report:
    """Put what ``session`` measured into the report."""
    machine = describe_machine() | {"packages": versions}
    floor = 0.0
    if session.spans:
        q = quantiles_us(session.spans)
        floor = q.p9999
        machine["stalls_us"] = {name: round(value, 3) for name, value in q._asdict().items()}
    if session.unavailable:
        machine["unavailable"] = {f"{p} {kind}".strip(): why for (p, kind), why in session.unavailable.items()}
    rows = []
    for place, f in session.figures.items():
        name, q = title(place.case, place.shape, place.capacity), f.all
        rows.append(Row(name, place.package, "us", *(round(x, 3) for x in (q.p50, q.p99, q.p999, q.max))))
    for place, weight in session.weights.items():
        for what, value in (("process", weight.resident), ("arrays", weight.arrays)):
            if value is not None:
                name = title(f"{place.case} {what}", place.shape, place.capacity)
                rows.append(Row(name, place.package, "bytes_per_transition", *[round(value, 2)] * 4))
    checks = verdict_checks(session.verdicts)
    for shape in dict.fromkeys(place.shape for place in session.figures):
        checks += speed_checks(session.figures, shape)
    return Report(machine, round(floor, 3), rows, checks + memory_checks(session.weights))


def describe(session: Session, plan: Plan, packages: Sequence[str], report: Report) -> str:
    """Return the tables, and a line for whatever is missing or marked."""
    peers = [package for package in packages if package != "onrig" and (package, "") not in session.unavailable]
    marked = {(package, v.kind) for package, v in session.verdicts if not v.passed}
    parts = [times_table(session.figures, s, n, peers, marked) for s in plan.shapes for n in plan.capacities]
    parts.append(memory_table(session.weights, plan.shapes, ["onrig", *peers]))
    parts.append(checks_table(report.checks))
    notes = [f"{package} {kind}: left out, {why}" for (package, kind), why in session.unavailable.items()]
    notes += [f"{package} {kind}: FAILED THE GATE, its times are marked '!'" for package, kind in marked]
    if session.spans:
        q = quantiles_us(session.spans)._asdict()
        stalls = ", ".join(f"{name} {number(value)}" for name, value in q.items())
        notes.append(f"stalls of the machine, us (spans of clock reads between inserts): {stalls}")
    held = sum(c.holds for c in report.checks)
    notes.append(f"{held} of {len(report.checks)} checks hold")
    return "\n\n".join([*parts, "\n".join(notes)])


def _complain(problem: str) -> int:
    sys.stderr.write(f"onrig bench replay: {problem}\n")
    return 2
