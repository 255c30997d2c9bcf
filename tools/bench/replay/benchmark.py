"""Benchmark of the replay memory against other libraries' buffers, each in a separate process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from onrig.tools.bench.processes import START_UP_TIME_S, ProcessGroup, Worker, round_robin
from onrig.tools.bench.replay.cases import (
    CASES,
    DRAW_TESTED_MEMORIES,
    GROUPS,
    MEMORIES,
    SHAPES,
    Case,
    Operation,
    Shape,
    case_title,
)
from onrig.tools.bench.replay.figures import (
    FigureKey,
    Figures,
    MemorySize,
    MemorySizes,
    memory_checks,
    speed_checks,
    summarize_rounds,
    verdict_checks,
)
from onrig.tools.bench.replay.peers import PEERS
from onrig.tools.bench.replay.subject import MeasuredSize, Verdict
from onrig.tools.bench.report import (
    Report,
    Row,
    checks_table,
    conclude,
    describe_subjects,
    format_number,
    installed_version,
    skipped_lines,
)
from onrig.tools.bench.timing import Timings, quantiles_us
from onrig.tools.progress import Progress, progress_for
from onrig.tools.terminal import align, complain, file_problem

_SUBJECT: Final = "onrig.tools.bench.replay.subject"
_SEED: Final = 0
# Approximate durations of steps in seconds, for the estimate of the remaining time.
_DRAW_TEST_S: Final = 1.0
_FILL_S_PER_TRANSITION: Final = 4e-6


class Plan(msgspec.Struct, frozen=True):
    """Shapes, capacities and numbers of calls to measure."""

    shapes: tuple[Shape, ...]
    capacities: tuple[int, ...]
    rounds: int
    calls: int
    """Maximum number of calls in a round."""
    limit_ms: int
    """Maximum duration of a round."""
    draws: int
    """Number of tested draws per kind."""
    measured_capacity: int
    """Capacity of the memories whose size is measured."""

    def estimate_s(self, packages: Sequence[str]) -> float:
        """Estimate the total duration."""
        groups_s = sum(self.estimate_group_s(group, capacity) for group in GROUPS for capacity in self.capacities)
        fixed_s = (
            2 * START_UP_TIME_S
            + len(DRAW_TESTED_MEMORIES) * _DRAW_TEST_S
            + len(self.shapes) * (self.estimate_sizes_s() + groups_s)
        )
        return len(packages) * fixed_s

    def estimate_sizes_s(self) -> float:
        """Estimate the duration of one library's size measurements."""
        return len(MEMORIES) * self.measured_capacity * _FILL_S_PER_TRANSITION

    def estimate_group_s(self, group: Sequence[Case], capacity: int) -> float:
        """Estimate the duration of one library's group of cases."""
        return (
            len(_memory_kinds(group, "onrig")) * capacity * _FILL_S_PER_TRANSITION
            + len(group) * self.rounds * self.limit_ms / 1e3
        )


class Session:
    """Measurements of all libraries; a library that fails is skipped, and the reason is recorded."""

    def __init__(self, plan: Plan, packages: Sequence[str], progress: Progress) -> None:
        self._plan: Final = plan
        self._packages: Final = tuple(packages)
        self._progress: Final = progress
        self._process_group: Final = ProcessGroup(progress, _SUBJECT)
        self.unavailable_reasons: Final = self._process_group.unavailable_reasons
        self.verdicts: Final[list[tuple[str, Verdict]]] = []
        self.figures: Final[Figures] = {}
        self.sizes: Final[MemorySizes] = {}
        self.spans: Final[list[int]] = []
        """Durations of all spans of clock reads (ns)."""

    def run(self) -> None:
        """Measure everything."""
        for package in self._packages:
            # Sizes are measured in a new process, where no earlier allocations have left free memory to be reused.
            with ExitStack() as stack:
                for worker in self._process_group.start([package], stack):
                    self._measure_sizes(worker)
        with ExitStack() as stack:
            workers = self._process_group.start(self._packages, stack)
            for worker in workers:
                self._test_draws(worker)
            for shape in self._plan.shapes:
                for capacity in self._plan.capacities:
                    for group in GROUPS:
                        self._time_group(workers, group, shape, capacity)

    def _measure_sizes(self, worker: Worker) -> None:
        n = self._plan.measured_capacity
        for shape in self._plan.shapes:
            for memory in MEMORIES:
                kind = memory.kind(worker.subject)
                if kind is None:
                    continue
                self._progress.begin_step(f"measuring the size of {worker.subject} {kind}, {shape}")
                size = self._process_group.ask(
                    worker, kind, "measure_size", kind, shape, n, _SEED, returns=MeasuredSize
                )
                if size is not None:
                    resident_bytes = None if size.resident is None else size.resident / n
                    array_bytes = None if size.arrays is None else size.arrays / n
                    self.sizes[FigureKey(memory.name, shape, n, worker.subject)] = MemorySize(
                        resident_bytes, array_bytes
                    )
            self._progress.finish_step(self._plan.estimate_sizes_s())

    def _test_draws(self, worker: Worker) -> None:
        for memory in DRAW_TESTED_MEMORIES:
            kind = memory.kind(worker.subject)
            if kind is not None:
                self._progress.begin_step(f"testing the draws of {worker.subject} {kind}")
                verdict = self._process_group.ask(
                    worker, kind, "check_draws_of_kind", kind, self._plan.draws, _SEED, returns=Verdict
                )
                if verdict is not None:
                    self.verdicts.append((worker.subject, verdict))
            self._progress.finish_step(_DRAW_TEST_S)

    def _time_group(self, workers: Sequence[Worker], group: Sequence[Case], shape: Shape, capacity: int) -> None:
        for worker in workers:
            for kind in _memory_kinds(group, worker.subject):
                self._progress.begin_step(f"filling {worker.subject} {kind}, {shape}, {capacity}")
                self._process_group.ask(worker, kind, "fill", kind, shape, capacity, _SEED, returns=type(None))
        for case in group:
            self._progress.begin_step(f"{case.name}, {shape}, {capacity}")
            self._time_case(workers, case, shape, capacity)
        for worker in workers:
            self._process_group.ask(worker, "", "drop", returns=type(None))
            self._progress.finish_step(self._plan.estimate_group_s(group, capacity))

    def _time_case(self, workers: Sequence[Worker], case: Case, shape: Shape, capacity: int) -> None:
        rounds: dict[str, list[Timings]] = {worker.subject: [] for worker in workers}
        stall_timings: list[Timings] = []
        for worker in round_robin(workers, self._plan.rounds):
            rounds[worker.subject] += self._time_round(worker, case)
            if worker.subject == "onrig" and case.operation is Operation.INSERT:
                stall_timings += self._time_round(worker, case, with_stalls=True)
        for package, timings in rounds.items():
            if timings:
                tail_timings = stall_timings if package == "onrig" else []
                self.figures[FigureKey(case.name, shape, capacity, package)] = summarize_rounds(timings, tail_timings)
        self.spans.extend(ns for t in stall_timings for ns in t.spans)

    def _time_round(self, worker: Worker, case: Case, *, with_stalls: bool = False) -> list[Timings]:
        """Time one round; the list is empty if nothing was timed."""
        kind, plan = case.kind(worker.subject), self._plan
        if kind is None:
            return []
        arguments = (case, kind, plan.calls, plan.limit_ms * 1_000_000, with_stalls)
        timings = self._process_group.ask(worker, kind, "time", *arguments, returns=Timings)
        return [timings] if timings is not None and timings.calls else []


def _memory_kinds(group: Iterable[Case], package: str) -> list[str]:
    return list(dict.fromkeys(kind for case in group if (kind := case.kind(package)) is not None))


_VERB: Final = "bench replay"
_MIN_CAPACITY: Final = 512
"""Minimum capacity, because samples contain up to 256 transitions."""
FULL: Final = Plan(SHAPES, (10_000, 100_000, 1_000_000), 6, 20_000, 80, 200_000, 1_000_000)
QUICK: Final = Plan(SHAPES, (10_000,), 4, 20_000, 40, 100_000, 100_000)


def benchmark(capacities: Sequence[int], json: Path | None, *, quick: bool) -> int:
    """Measure, print the tables and the checks, and return the exit code."""
    plan = QUICK if quick else FULL
    if capacities:
        if min(capacities) < _MIN_CAPACITY:
            return complain(_VERB, f"--capacity: expected at least {_MIN_CAPACITY}, got {min(capacities)}")
        plan = msgspec.structs.replace(plan, capacities=tuple(capacities))
    if problem := file_problem("json", json):
        return complain(_VERB, problem)
    versions = {package: installed_version(package) for package in ("onrig", *PEERS)}
    installed_versions = {
        package: version or "" for package, version in versions.items() if version or package == "onrig"
    }
    for package in (package for package in versions if package not in installed_versions):
        print(f"{package}: not installed, skipped (pip install 'onrig[bench]')")
    progress = progress_for(plan.estimate_s(tuple(installed_versions)))
    try:
        session = Session(plan, tuple(installed_versions), progress)
        session.run()
    finally:
        progress.close()
    report = build_report(session, installed_versions)
    conclude(report, describe(session, plan, tuple(installed_versions), report), json)
    return 0


def build_report(session: Session, versions: dict[str, str]) -> Report:
    """Build the report's rows and checks from a session."""
    machine, floor_us = describe_subjects(versions, session.spans, session.unavailable_reasons)
    rows = []
    for key, f in session.figures.items():
        name, q = case_title(key.case, key.shape, key.capacity), f.calls
        rows.append(Row(name, key.package, "us", *(round(x, 3) for x in (q.p50, q.p99, q.p999, q.max))))
    for key, size in session.sizes.items():
        for kind, value in (("process", size.resident), ("arrays", size.arrays)):
            if value is not None:
                name = case_title(f"{key.case} {kind}", key.shape, key.capacity)
                rows.append(Row(name, key.package, "bytes_per_transition", *[round(value, 2)] * 4))
    checks = verdict_checks(session.verdicts)
    for shape in dict.fromkeys(key.shape for key in session.figures):
        checks += speed_checks(session.figures, shape)
    return Report(machine, floor_us, rows, checks + memory_checks(session.sizes))


def describe(session: Session, plan: Plan, packages: Sequence[str], report: Report) -> list[str]:
    """Return the tables, with notes on missing and marked results."""
    peers = [package for package in packages if package != "onrig" and (package, "") not in session.unavailable_reasons]
    failed_draws = {(package, v.kind) for package, v in session.verdicts if not v.passed}
    parts = [times_table(session.figures, s, n, peers, failed_draws) for s in plan.shapes for n in plan.capacities]
    parts.append(memory_table(session.sizes, plan.shapes, ["onrig", *peers]))
    parts.append(checks_table(report.checks))
    notes = skipped_lines(session.unavailable_reasons)
    notes += [
        f"{package} {kind}: FAILED the test of its draws; times are marked with '!'" for package, kind in failed_draws
    ]
    if session.spans:
        q = quantiles_us(session.spans)._asdict()
        stalls = ", ".join(f"{name} {format_number(value)}" for name, value in q.items())
        notes.append(f"machine stalls, us (spans of clock reads between inserts): {stalls}")
    n_passed = sum(c.holds for c in report.checks)
    notes.append(f"{n_passed} of {len(report.checks)} checks hold")
    return [*parts, "\n".join(notes)]


FailedDraws = Collection[tuple[str, str]]
"""Pairs (package, kind) whose draws failed the test."""


def times_table(figures: Figures, shape: Shape, capacity: int, peers: Sequence[str], failed_draws: FailedDraws) -> str:
    """Return the table of times for one shape and capacity.

    It contains Onrig's percentiles, and the peers' medians with their ratios to Onrig's. A "!" marks a library whose
    draws failed the test.
    """
    head = [f"{shape}, {capacity:_}: us", "onrig p50", "p99", "p99.9", "max", *peers]
    rows = [head]
    for case in CASES:
        figure = figures.get(FigureKey(case.name, shape, capacity, "onrig"))
        if figure is None:
            continue
        mark = "!" if ("onrig", case.onrig) in failed_draws else ""
        q = figure.calls
        row = [
            case.name,
            format_number(q.p50) + mark,
            format_number(q.p99),
            format_number(q.p999),
            format_number(q.max),
        ]
        rows.append(row + [_peer_cell(figures, case, shape, capacity, peer, q.p50, failed_draws) for peer in peers])
    return align(rows)


def _peer_cell(
    figures: Figures, case: Case, shape: Shape, capacity: int, peer: str, onrig_p50: float, failed_draws: FailedDraws
) -> str:
    peer_figure = figures.get(FigureKey(case.compared_with or case.name, shape, capacity, peer))
    if peer_figure is None:
        return ""
    kind = next(c.peer for c in CASES if c.name == (case.compared_with or case.name))
    mark = "!" if (peer, kind) in failed_draws else ""
    return f"{format_number(peer_figure.calls.p50)}{mark} ({peer_figure.calls.p50 / onrig_p50:.1f}x)"


def memory_table(sizes: MemorySizes, shapes: Iterable[Shape], packages: Sequence[str]) -> str:
    """Return the table of bytes per transition: the growth of each process, and the size of Onrig's arrays."""
    rows = [["bytes per transition", "raw", "arrays", *packages]]
    for shape in shapes:
        for memory in MEMORIES:
            size_by_package = {p.package: w for p, w in sizes.items() if (p.case, p.shape) == (memory.name, shape)}
            if "onrig" not in size_by_package:
                continue
            array_bytes = size_by_package["onrig"].arrays
            cells = [
                ""
                if p not in size_by_package or (resident_bytes := size_by_package[p].resident) is None
                else f"{resident_bytes:.1f}"
                for p in packages
            ]
            rows.append(
                [f"{memory.name}, {shape}", str(shape.raw_bytes), f"{array_bytes:.1f}" if array_bytes else "", *cells]
            )
    return align(rows)
