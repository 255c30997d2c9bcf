"""The measurements of ``onrig bench learner``, on processes that take turns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

import msgspec

from onrig.tools.benchmarks.crew import START_S, Crew, in_turn
from onrig.tools.benchmarks.learner_cases import LearnerCase, Time
from onrig.tools.benchmarks.learner_figures import Rates, throughput
from onrig.tools.benchmarks.messages import Timings
from onrig.tools.benchmarks.progress import Progress
from onrig.tools.benchmarks.workers import Worker

_SEED: Final = 0
_CALLS: Final = 100_000
_BUILD_S: Final = 0.5


class Plan(msgspec.Struct, frozen=True):
    """How much is measured."""

    groups: tuple[tuple[LearnerCase, ...], ...]
    rounds: int
    limit_ms: int
    """At most so long a round, and one call."""
    updates: int = 100
    """Of one call: those after one episode of 000."""

    def seconds(self, subjects: Sequence[str]) -> float:
        """Say roughly how long it takes."""
        return START_S * len(subjects) + sum(self.group_s(group, subjects) for group in self.groups)

    def group_s(self, group: Sequence[LearnerCase], subjects: Sequence[str]) -> float:
        """Say how long one group takes."""
        n = sum(subject in subjects for case in group for subject in case.subjects)
        return n * (_BUILD_S + 1.5 * self.rounds * self.limit_ms / 1e3)


class Session:
    """Everything measured so far; a library that fails on the way falls out, with the reason."""

    def __init__(self, plan: Plan, subjects: Sequence[str], progress: Progress) -> None:
        self._plan: Final = plan
        self._subjects: Final = tuple(subjects)
        self._progress: Final = progress
        self._crew: Final = Crew(progress, partial(Worker, module="onrig.tools.benchmarks.learner_worker"))
        self.unavailable: Final = self._crew.unavailable
        self.rates: Final[Rates] = {}
        self.spans: Final[list[int]] = []
        """All spans of clock reads, in ns."""

    def run(self) -> None:
        """Measure every case."""
        with ExitStack() as stack:
            workers = self._crew.start(self._subjects, stack)
            for group in self._plan.groups:
                self._time_group(workers, group)
                self._progress.done(self._plan.group_s(group, self._subjects))

    def _time_group(self, workers: Sequence[Worker], group: Sequence[LearnerCase]) -> None:
        plan = self._plan
        rounds: dict[tuple[LearnerCase, str], list[list[int]]] = {}
        for turn in range(plan.rounds):
            for worker in in_turn(workers, turn):
                for case in group:
                    if worker.package not in case.subjects:
                        continue
                    self._progress.doing(f"{case.title}: {worker.package}")
                    call = Time(case, plan.updates, _CALLS, plan.limit_ms * 1_000_000, _SEED)
                    timings = self._crew.ask(worker, case.title, call, Timings)
                    if timings is not None and timings.calls:
                        rounds.setdefault((case, worker.package), []).append(timings.calls)
                        self.spans.extend(timings.spans)
        for case in group:
            for subject in case.subjects:
                if (case, subject) in rounds:
                    self.rates[case, subject] = throughput(case, plan.updates, rounds[case, subject])
