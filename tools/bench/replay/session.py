"""The measurements of ``onrig bench replay``, one step after the other, on processes that take turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Final

import msgspec

from onrig.tools.bench.processes import START_S, Crew, Worker, in_turn
from onrig.tools.bench.progress import Progress
from onrig.tools.bench.replay.cases import GATED, GROUPS, MEMORIES, Case, Operation, Shape
from onrig.tools.bench.replay.figures import Figures, Place, Weight, Weights, figure
from onrig.tools.bench.replay.subject import Verdict, Weighed
from onrig.tools.bench.timing import Timings

_SUBJECT: Final = "onrig.tools.bench.replay.subject"
_SEED: Final = 0
# Seconds that steps take, roughly: for the time left, only their proportions matter.
_GATE_S: Final = 1.0
_FILL_S: Final = 4e-6


class Plan(msgspec.Struct, frozen=True):
    """How much is measured."""

    shapes: tuple[Shape, ...]
    capacities: tuple[int, ...]
    rounds: int
    calls: int
    """At most so many in a round."""
    limit_ms: int
    """At most so long a round."""
    draws: int
    """Of the gate, for each kind."""
    weighed: int
    """Capacity of the memories that are weighed."""

    def seconds(self, packages: Sequence[str]) -> float:
        """Say roughly how long it takes."""
        once = 2 * START_S + len(GATED) * _GATE_S
        for shape in self.shapes:
            once += self.weigh_s(shape)
            once += sum(self.group_s(group, capacity) for group in GROUPS for capacity in self.capacities)
        return len(packages) * once

    def weigh_s(self, shape: Shape) -> float:
        """Say how long the memories of one library take to be weighed."""
        return len(MEMORIES) * self.weighed * _FILL_S

    def group_s(self, group: Sequence[Case], capacity: int) -> float:
        """Say how long one library takes for a group of cases."""
        return len(_kinds(group, "onrig")) * capacity * _FILL_S + len(group) * self.rounds * self.limit_ms / 1e3


class Session:
    """Everything measured so far; a library that fails on the way drops out, with the reason."""

    def __init__(self, plan: Plan, packages: Sequence[str], progress: Progress) -> None:
        self._plan: Final = plan
        self._packages: Final = tuple(packages)
        self._progress: Final = progress
        self._crew: Final = Crew(progress, _SUBJECT)
        self.unavailable: Final = self._crew.unavailable
        self.verdicts: Final[list[tuple[str, Verdict]]] = []
        self.figures: Final[Figures] = {}
        self.weights: Final[Weights] = {}
        self.spans: Final[list[int]] = []
        """All spans of clock reads, in ns."""

    def run(self) -> None:
        """Measure everything."""
        for package in self._packages:
            # A process of its own: what was measured before would leave holes for it to fill.
            with ExitStack() as stack:
                for worker in self._crew.start([package], stack):
                    self._weigh(worker)
        with ExitStack() as stack:
            workers = self._crew.start(self._packages, stack)
            for worker in workers:
                self._judge(worker)
            for shape in self._plan.shapes:
                for capacity in self._plan.capacities:
                    for group in GROUPS:
                        self._time_group(workers, group, shape, capacity)

    def _weigh(self, worker: Worker) -> None:
        n = self._plan.weighed
        for shape in self._plan.shapes:
            for memory in MEMORIES:
                kind = memory.kind(worker.subject)
                if kind is None:
                    continue
                self._progress.doing(f"weighing {worker.subject} {kind}, {shape}")
                weighed = self._crew.ask(worker, kind, "weigh", kind, shape, n, _SEED, returns=Weighed)
                if weighed is not None:
                    resident = None if weighed.resident is None else weighed.resident / n
                    arrays = None if weighed.arrays is None else weighed.arrays / n
                    self.weights[Place(memory.name, shape, n, worker.subject)] = Weight(resident, arrays)
            self._progress.done(self._plan.weigh_s(shape))

    def _judge(self, worker: Worker) -> None:
        for gated in GATED:
            kind = gated.kind(worker.subject)
            if kind is not None:
                self._progress.doing(f"testing what {worker.subject} {kind} draws")
                verdict = self._crew.ask(worker, kind, "judge", kind, self._plan.draws, _SEED, returns=Verdict)
                if verdict is not None:
                    self.verdicts.append((worker.subject, verdict))
            self._progress.done(_GATE_S)

    def _time_group(self, workers: Sequence[Worker], group: Sequence[Case], shape: Shape, capacity: int) -> None:
        for worker in workers:
            for kind in _kinds(group, worker.subject):
                self._progress.doing(f"filling {worker.subject} {kind}, {shape}, {capacity}")
                self._crew.ask(worker, kind, "fill", kind, shape, capacity, _SEED, returns=type(None))
        for case in group:
            self._progress.doing(f"{case.name}, {shape}, {capacity}")
            self._time_case(workers, case, shape, capacity)
        for worker in workers:
            self._crew.ask(worker, "", "drop", returns=type(None))
            self._progress.done(self._plan.group_s(group, capacity))

    def _time_case(self, workers: Sequence[Worker], case: Case, shape: Shape, capacity: int) -> None:
        rounds: dict[str, list[Timings]] = {worker.subject: [] for worker in workers}
        beside: list[Timings] = []
        for worker in in_turn(workers, self._plan.rounds):
            rounds[worker.subject] += self._timings(worker, case)
            if worker.subject == "onrig" and case.operation is Operation.INSERT:
                beside += self._timings(worker, case, beside_stalls=True)
        for package, of_package in rounds.items():
            if of_package:
                tails = beside if package == "onrig" else []
                self.figures[Place(case.name, shape, capacity, package)] = figure(of_package, tails)
        self.spans.extend(ns for t in beside for ns in t.spans)

    def _timings(self, worker: Worker, case: Case, *, beside_stalls: bool = False) -> list[Timings]:
        """Time one round; empty where there was nothing to time."""
        kind, plan = case.kind(worker.subject), self._plan
        if kind is None:
            return []
        arguments = (case, kind, plan.calls, plan.limit_ms * 1_000_000, beside_stalls)
        timings = self._crew.ask(worker, kind, "time", *arguments, returns=Timings)
        return [timings] if timings is not None and timings.calls else []


def _kinds(group: Iterable[Case], package: str) -> list[str]:
    return list(dict.fromkeys(kind for case in group if (kind := case.kind(package)) is not None))
