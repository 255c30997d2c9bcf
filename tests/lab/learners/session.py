"""Measurements of ``python -m tests.lab.learner`` in interleaved processes: update rates, and whole strategies.

The duration of a strategy is integrated from whole episodes measured at several points of the experiment.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

import msgspec

from onrig.tools.bench.processes import START_UP_TIME_S, ProcessGroup, Worker, round_robin
from onrig.tools.bench.report import Check, Row, check_at_most, format_number, percentiles
from onrig.tools.bench.timing import Timings
from onrig.tools.progress import Progress
from onrig.tools.terminal import align
from tests.lab.learners.cases import (
    ONRIG,
    STRATEGY_EPISODES,
    STRATEGY_RUNS,
    STRATEGY_TRIALS,
    WARM_UP,
    LearnerCase,
    Rates,
    StrategyRun,
    throughput,
)

_SUBJECT: Final = "tests.lab.learners.subjects"
_SEED: Final = 0
_CALLS: Final = 100_000
_BUILD_S: Final = 0.5


class Plan(msgspec.Struct, frozen=True):
    """Extent of the measurements."""

    groups: tuple[tuple[LearnerCase, ...], ...]
    rounds: int
    limit_ms: int
    """Maximum duration of a round."""
    updates: int = 100
    """Number of updates per call: those after one episode."""

    def seconds(self, subjects: Sequence[str]) -> float:
        """Estimated duration."""
        return START_UP_TIME_S * len(subjects) + sum(self.group_s(group, subjects) for group in self.groups)

    def group_s(self, group: Sequence[LearnerCase], subjects: Sequence[str]) -> float:
        """Estimated duration of one group."""
        n = sum(subject in subjects for case in group for subject in case.subjects)
        return n * (_BUILD_S + 1.5 * self.rounds * self.limit_ms / 1e3)


class Session:
    """Measurements so far; a library that fails is dropped, with the reason."""

    def __init__(self, plan: Plan, subjects: Sequence[str], progress: Progress) -> None:
        self._plan: Final = plan
        self._subjects: Final = tuple(subjects)
        self._progress: Final = progress
        self._process_group: Final = ProcessGroup(progress, _SUBJECT)
        self.unavailable_reasons: Final = self._process_group.unavailable_reasons
        self.rates: Final[Rates] = {}
        self.spans: Final[list[int]] = []
        """All time intervals between clock reads, in ns."""

    def run(self) -> None:
        """Measure every case."""
        with ExitStack() as stack:
            workers = self._process_group.start(self._subjects, stack)
            for group in self._plan.groups:
                self._time_group(workers, group)
                self._progress.finish_step(self._plan.group_s(group, self._subjects))

    def _time_group(self, workers: Sequence[Worker], group: Sequence[LearnerCase]) -> None:
        plan = self._plan
        rounds: dict[tuple[LearnerCase, str], list[list[int]]] = {}
        for worker in round_robin(workers, plan.rounds):
            for case in group:
                if worker.subject not in case.subjects:
                    continue
                self._progress.begin_step(f"{case.title}: {worker.subject}")
                arguments = (case, plan.updates, _CALLS, plan.limit_ms * 1_000_000, _SEED)
                timings = self._process_group.ask(worker, case.title, "time", *arguments, returns=Timings)
                if timings is not None and timings.calls:
                    rounds.setdefault((case, worker.subject), []).append(timings.calls)
                    self.spans.extend(timings.spans)
        for case in group:
            for subject in case.subjects:
                if (case, subject) in rounds:
                    self.rates[case, subject] = throughput(case, plan.updates, rounds[case, subject])


WEIGHTS: Final = {0.1: 0.3, 0.5: 0.45, 1.0: 0.25}
"""Weight of each measured point: the integral of linear interpolation between the points, constant before the first."""
_EPISODE_S: Final = 0.5
_FILL_S: Final = 40.0


class StrategyPlan(msgspec.Struct, frozen=True):
    """Extent of the measurements."""

    runs: tuple[StrategyRun, ...] = STRATEGY_RUNS
    trials: int = STRATEGY_TRIALS
    of_episodes: int = STRATEGY_EPISODES
    episodes: int = 10
    """Number of episodes timed at each point."""

    def seconds(self) -> float:
        """Estimated duration."""
        return len(self.runs) * self.run_s()

    def run_s(self) -> float:
        """Estimated duration of one strategy."""
        return START_UP_TIME_S + _FILL_S + len(WEIGHTS) * self.episodes * _EPISODE_S


class Minutes(NamedTuple):
    """Duration of a complete strategy, in minutes."""

    fastest: float
    """Estimate from the fastest episode of each point."""
    rounds: tuple[float, ...]
    """Estimates from the first episodes of all points, from the second ones, and so on."""
    episode_s: tuple[float, ...]
    """Median duration of an episode at each point."""
    busy: float
    """Medians by processor time, which excludes time lost to other processes."""

    @property
    def median(self) -> float:
        """Median over rounds."""
        return statistics.median(self.rounds)


def minutes(points: Sequence[Timings], episodes: int) -> Minutes:
    """Combine durations of episodes at the points of ``WEIGHTS``."""
    weights = tuple(WEIGHTS.values())

    def total_minutes(of_points: Sequence[float]) -> float:
        return episodes * sum(w * ns for w, ns in zip(weights, of_points, strict=True)) / 60e9

    return Minutes(
        total_minutes([min(at.calls) for at in points]),
        tuple(total_minutes(of_round) for of_round in zip(*(at.calls for at in points), strict=True)),
        tuple(statistics.median(at.calls) / 1e9 for at in points),
        total_minutes([statistics.median(at.busy_calls) for at in points]),
    )


def measure_strategies(
    plan: StrategyPlan, progress: Progress
) -> tuple[dict[StrategyRun, Minutes], dict[tuple[str, str], str]]:
    """Measure the strategies in separate processes; returns their durations, and reasons for missing ones."""
    process_group = ProcessGroup(progress, _SUBJECT)
    measured = {}
    for run in plan.runs:
        with ExitStack() as stack:
            for worker in process_group.start([ONRIG], stack):
                points = []
                for share in WEIGHTS:
                    progress.begin_step(f"{run.strategy}, at {share:.0%} of its episodes")
                    done = min(round(share * plan.of_episodes), plan.of_episodes - plan.episodes - WARM_UP)
                    arguments = (run.strategy, plan.trials, done, plan.episodes)
                    timings = process_group.ask(worker, run.strategy, "play", *arguments, returns=Timings)
                    if timings is not None:
                        points.append(timings)
                if len(points) == len(WEIGHTS):
                    measured[run] = minutes(points, plan.of_episodes)
        progress.finish_step(plan.run_s() - START_UP_TIME_S)
    return measured, process_group.unavailable_reasons


def strategy_rows(measured: dict[StrategyRun, Minutes], plan: StrategyPlan) -> list[Row]:
    """Return the rows of the report."""
    rows = []
    for run, m in measured.items():
        name = f"{run.strategy}, {plan.trials} trials x {plan.of_episodes} episodes"
        rows.append(percentiles(name, ONRIG, "minutes", m.rounds))
        rows.append(Row(f"{name}, quietest episodes", ONRIG, "minutes", *[round(m.fastest, 3)] * 4))
        rows.append(Row(f"{name}, processor time", ONRIG, "minutes", *[round(m.busy, 3)] * 4))
    return rows


def strategy_checks(measured: dict[StrategyRun, Minutes], plan: StrategyPlan) -> list[Check]:
    """Return the bounds on complete strategies."""
    size = f"{plan.trials} trials x {plan.of_episodes} episodes"
    return [
        check_at_most(f"{r.strategy}, {size}: minutes at most", m.median, r.bound_minutes) for r, m in measured.items()
    ]


def strategy_table(measured: dict[StrategyRun, Minutes], plan: StrategyPlan) -> str:
    """Tabulate minutes per strategy, and seconds per episode at each point."""
    head = [f"{plan.trials} trials x {plan.of_episodes} episodes, one core", "minutes", "quietest", "processor"]
    rows = [head + [f"s/episode at {share:.0%}" for share in WEIGHTS]]
    for run, m in measured.items():
        rows.append(
            [
                run.strategy,
                format_number(m.median),
                format_number(m.fastest),
                format_number(m.busy),
                *(f"{s:.3f}" for s in m.episode_s),
            ]
        )
    return align(rows)
