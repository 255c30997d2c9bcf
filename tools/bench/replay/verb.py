"""``onrig bench replay``: the memory of experiences beside the buffers of other libraries.

Every library runs in a process of its own.  A gate first puts what it draws to a test; then all take turns, round by
round, so that the moods of the machine hit all alike.  The checks are bounds on Onrig; exit 0 whether or not they hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from onrig.tools.arguments import VerbParser, complain
from onrig.tools.bench.progress import progress_for
from onrig.tools.bench.replay.cases import CASES, MEMORIES, SHAPES, Case, Shape, title
from onrig.tools.bench.replay.figures import Figures, Place, Weights, memory_checks, speed_checks, verdict_checks
from onrig.tools.bench.replay.peers import PEERS
from onrig.tools.bench.replay.session import Plan, Session
from onrig.tools.bench.report import (
    Report,
    Row,
    aligned,
    checks_table,
    conclude,
    describe_subjects,
    installed_version,
    left_out,
    missing_folder,
    number,
    parser_of,
)
from onrig.tools.bench.timing import quantiles_us

_VERB: Final = "bench replay"
_LEAST: Final = 512
"""Smallest capacity: the largest sample is 256."""
FULL: Final = Plan(SHAPES, (10_000, 100_000, 1_000_000), 6, 20_000, 80, 200_000, 1_000_000)
QUICK: Final = Plan(SHAPES, (10_000,), 4, 20_000, 40, 100_000, 100_000)


def parser() -> VerbParser:
    """Build the benchmark's argument parser."""
    p = parser_of("replay", __doc__, quick="a minute instead of six: 10000 transitions, fewer rounds")
    p.add_argument("--capacity", type=int, action="append", metavar="N", help="only this capacity (repeatable)")
    return p


def main(arguments: list[str]) -> int:
    """Measure, print tables and checks; returns the exit code."""
    args = parser().parse_args(arguments)
    plan = QUICK if args.quick else FULL
    if args.capacity:
        if min(args.capacity) < _LEAST:
            return complain(_VERB, f"--capacity: at least {_LEAST}, got {min(args.capacity)}")
        plan = msgspec.structs.replace(plan, capacities=tuple(args.capacity))
    if problem := missing_folder("json", args.json):
        return complain(_VERB, problem)
    versions = {package: installed_version(package) for package in ("onrig", *PEERS)}
    present = {package: version or "" for package, version in versions.items() if version or package == "onrig"}
    for package in (package for package in versions if package not in present):
        print(f"{package}: not installed, left out (pip install 'onrig[bench]')")
    progress = progress_for(plan.seconds(tuple(present)))
    try:
        session = Session(plan, tuple(present), progress)
        session.run()
    finally:
        progress.close()
    report = build_report(session, present)
    conclude(report, describe(session, plan, tuple(present), report), args.json)
    return 0


def build_report(session: Session, versions: dict[str, str]) -> Report:
    """Put what ``session`` measured into the report."""
    machine, floor = describe_subjects(versions, session.spans, session.unavailable)
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
    return Report(machine, floor, rows, checks + memory_checks(session.weights))


def describe(session: Session, plan: Plan, packages: Sequence[str], report: Report) -> list[str]:
    """Return the tables, and a line for whatever is missing or marked."""
    peers = [package for package in packages if package != "onrig" and (package, "") not in session.unavailable]
    marked = {(package, v.kind) for package, v in session.verdicts if not v.passed}
    parts = [times_table(session.figures, s, n, peers, marked) for s in plan.shapes for n in plan.capacities]
    parts.append(memory_table(session.weights, plan.shapes, ["onrig", *peers]))
    parts.append(checks_table(report.checks))
    notes = left_out(session.unavailable)
    notes += [f"{package} {kind}: FAILED THE GATE, its times are marked '!'" for package, kind in marked]
    if session.spans:
        q = quantiles_us(session.spans)._asdict()
        stalls = ", ".join(f"{name} {number(value)}" for name, value in q.items())
        notes.append(f"stalls of the machine, us (spans of clock reads between inserts): {stalls}")
    held = sum(c.holds for c in report.checks)
    notes.append(f"{held} of {len(report.checks)} checks hold")
    return [*parts, "\n".join(notes)]


Marked = Collection[tuple[str, str]]
"""(package, kind) of what did not pass the gate."""


def times_table(figures: Figures, shape: Shape, capacity: int, peers: Sequence[str], marked: Marked) -> str:
    """Set out the times of one shape and capacity: Onrig's percentiles, the peers' medians and how often ours goes in.

    A "!" behind a figure says that its library did not pass the gate.
    """
    head = [f"{shape}, {capacity:_}: us", "onrig p50", "p99", "p99.9", "max", *peers]
    rows = [head]
    for case in CASES:
        ours = figures.get(Place(case.name, shape, capacity, "onrig"))
        if ours is None:
            continue
        mark = "!" if ("onrig", case.onrig) in marked else ""
        q = ours.all
        row = [case.name, number(q.p50) + mark, number(q.p99), number(q.p999), number(q.max)]
        rows.append(row + [_beside(figures, case, shape, capacity, peer, q.p50, marked) for peer in peers])
    return aligned(rows)


def _beside(figures: Figures, case: Case, shape: Shape, capacity: int, peer: str, ours: float, marked: Marked) -> str:
    theirs = figures.get(Place(case.beside or case.name, shape, capacity, peer))
    if theirs is None:
        return ""
    kind = next(c.peer for c in CASES if c.name == (case.beside or case.name))
    mark = "!" if (peer, kind) in marked else ""
    return f"{number(theirs.all.p50)}{mark} ({theirs.all.p50 / ours:.1f}x)"


def memory_table(weights: Weights, shapes: Iterable[Shape], packages: Sequence[str]) -> str:
    """Set out bytes per transition: what the process grew by, and Onrig's arrays."""
    rows = [["bytes per transition", "raw", "arrays", *packages]]
    for shape in shapes:
        for memory in MEMORIES:
            found = {p.package: w for p, w in weights.items() if (p.case, p.shape) == (memory.name, shape)}
            if "onrig" not in found:
                continue
            arrays = found["onrig"].arrays
            cells = ["" if p not in found or (grown := found[p].resident) is None else f"{grown:.1f}" for p in packages]
            rows.append([f"{memory.name}, {shape}", str(shape.raw_bytes), f"{arrays:.1f}" if arrays else "", *cells])
    return aligned(rows)
