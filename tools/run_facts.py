"""Facts about a run and their texts, identical on the page, in a terminal, in ``onrig watch`` and in the report (pure
functions).

Facts come from the live figures, from a progress report, or from the files of a run; unknown facts are None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.histogram import CoarseHistogram
from onrig.runtime.record import Miss, Rule
from onrig.runtime.run_config import RunConfig, capacity_of
from onrig.runtime.scoring import Measure, measure_of
from onrig.runtime.view.reader import Figures
from onrig.runtime.view.run_view import RunFiles, count_by_episode, to_number
from onrig.tools.quantity import format_count, format_duration, format_size

WITHDRAWN_EVENT: Final = "promise_withdrawn"
"""Kind of event that reports that the shield's promise was withdrawn."""
WITHHELD_EVENT: Final = "policy_withheld"
"""Kind of event that reports that a policy failed the learner's screening."""
N_AVERAGED_EPISODES: Final = 20
"""Number of episodes over which performance is averaged."""
PERCENTILES: Final = {"p50": "p50", "p99": "p99", "p999": "p99.9", "max": "max"}
"""Titles of the percentiles, by their names in a run's files."""
_COMPLETED_REASON: Final = "completed"

Times = Mapping[str, float]
"""Percentiles in µs, by their names in the files."""


class RunFacts(NamedTuple):
    """Facts about a run."""

    measure: Measure
    episodes: int
    """Number of planned training episodes."""
    episode: int = 0
    """Number of the current training episode, or of the last one."""
    score: float | None = None
    """Mean score of the most recent training episodes."""
    evaluated: float | None = None
    """Mean score of the most recent evaluation episodes."""
    policy: int | None = None
    ticks: int | None = None
    missed: int | None = None
    causes: Mapping[str, int] = MappingProxyType({})
    """Number of missed ticks by cause."""
    late_commands: int | None = None
    acted: int | None = None
    """Number of ticks in which the shield acted."""
    rules: Mapping[str, int] = MappingProxyType({})
    """Number of ticks in which the shield acted, by rule."""
    faults: int | None = None
    tick: Times = MappingProxyType({})
    lateness: Times = MappingProxyType({})
    stored: int | None = None
    capacity: int = 0
    stored_bytes: int | None = None
    synthetic: int = 0
    inserted: int | None = None
    updates: int | None = None
    updates_per_s: float = 0.0
    offered: int | None = None
    admitted: int = 0
    refused: int = 0
    too_soon: int = 0
    rolled_back: int = 0
    withheld: int = 0
    """Number of policies that failed the learner's screening."""
    lost: int = 0
    """Number of lost step records."""
    ended: str = ""
    """Reason why the run ended; empty if it is in progress or was killed."""
    fault: str = ""
    """Fault that ended the run; empty if there was none."""
    actuators: str = ""
    withdrawn: bool = False
    """Whether the shield's promise was withdrawn."""

    @property
    def is_completed(self) -> bool:
        """Whether the run ended because all episodes were complete."""
        return self.ended == _COMPLETED_REASON

    def score_of(self, value: float | None) -> str:
        """Format a performance value."""
        return "–" if value is None or not math.isfinite(value) else f"{value:{self.measure.number_format}}"

    def words(self) -> dict[str, str]:
        """Return the text of each known fact, by name, in the order in which tables show them."""
        texts = {
            "ended": self.ended,
            "episodes": f"{self.episode} of {self.episodes}",
            "performance": self._performance_text(),
            "policy": "" if self.policy is None else f"policy {self.policy}",
            "ticks": self._ticks_text(),
            "time of a tick": format_times(self.tick),
            "lateness": format_times(self.lateness),
            "late commands": self._late_commands_text(),
            "shield": _describe_counts("acted in", self.acted, "tick", self.rules)
            if self.acted
            else self._inactive_text(),
            "promise": "withdrawn" if self.withdrawn else "",
            "faults": "" if self.faults is None else str(self.faults or "none"),
            "memory": self._memory_text(),
            "learner": self._learner_text(),
            "policies": self._policies_text(),
            "records lost": format_count(self.lost) if self.lost else "",
            "actuators": self.actuators,
        }
        return {name: text for name, text in texts.items() if text}

    def line(self) -> str:
        """Return the most important facts in one line."""
        texts = self.words()
        return ", ".join(
            texts[name] for name in ("performance", "policy", "memory", "learner", "ticks") if name in texts
        )

    def _performance_text(self) -> str:
        if self.score is None and self.evaluated is None:
            return ""
        evaluated = "" if self.evaluated is None else f", {self.score_of(self.evaluated)} evaluated"
        return f"{self.measure.title} {self.score_of(self.score)}{evaluated}"

    def _ticks_text(self) -> str:
        if self.missed is None:
            return ""
        total = "" if self.ticks is None else f"{format_count(self.ticks)} ticks, "
        return f"{total}{_describe_counts('', self.missed, '', self.causes, suffix='missed')}"

    def _late_commands_text(self) -> str:
        if self.late_commands is None:
            return ""
        return f"{format_count(self.late_commands)} of {format_count(self.ticks or 0)}"

    def _inactive_text(self) -> str:
        return "" if self.acted is None else "did not act"

    @property
    def memory_fill(self) -> str:
        """Number of experiences in the memory, and its capacity."""
        return f"{format_count(self.stored or 0)} of {format_count(self.capacity)}"

    def _memory_text(self) -> str:
        if self.stored is None:
            return ""
        synthetic = f", {format_count(self.synthetic)} synthetic" if self.synthetic else ""
        written = ""
        if self.inserted is not None and self.inserted > self.stored:
            written = f", {format_count(self.inserted)} written"
        return f"{self.memory_fill} experiences{synthetic}{written}" + (
            f", {format_size(self.stored_bytes)}" if self.stored_bytes is not None else ""
        )

    def _learner_text(self) -> str:
        if self.updates is None:
            return ""
        has_rate = math.isfinite(self.updates_per_s) and self.updates_per_s
        rate = f", {format_count(self.updates_per_s)}/s" if has_rate else ""
        return f"{format_count(self.updates)} updates{rate}"

    def _policies_text(self) -> str:
        if self.offered is None:
            return ""
        not_admitted = {
            "refused": self.refused,
            "too soon": self.too_soon,
            "rolled back": self.rolled_back,
            "withheld by the learner": self.withheld,
        }
        others = "".join(f", {format_count(n)} {name}" for name, n in not_admitted.items() if n)
        return f"{format_count(self.admitted)} of {format_count(self.offered)} admitted{others}"


def _describe_counts(prefix: str, n: int, unit: str, parts: Mapping[str, int], suffix: str = "") -> str:
    """Format a total and its parts: ``acted in 12 ticks: 10 predicted, 2 rate``; ``3 missed: 2 link, 1 host``."""
    units = unit + "s" * bool(unit and n != 1)
    listed = ", ".join(f"{format_count(k)} {name}" for name, k in parts.items() if k)
    return " ".join(filter(None, (prefix, format_count(n), units, suffix))) + (f": {listed}" if listed else "")


def format_times(times: Times, names: Mapping[str, str] = PERCENTILES, between: str = ", ") -> str:
    """Format percentiles: ``p50 120 µs, p99 1.4 ms, p99.9 2 ms, max 5 ms``."""
    return between.join(f"{names[name]} {format_duration(times[name] * 1e-6)}" for name in names if name in times)


def histogram_times(histogram: CoarseHistogram) -> dict[str, float]:
    """Return the percentiles of a histogram in µs, or an empty dictionary if it contains no durations."""
    if not histogram.counts.any():
        return {}
    times = {"p50": 50.0, "p99": 99.0, "p999": 99.9}
    percentiles = {name: histogram.percentile_us(q) for name, q in times.items()}
    return {**{name: us for name, us in percentiles.items() if us is not None}, "max": histogram.max_ns / 1000}


def facts_from_progress(config: RunConfig, values: Mapping[str, Any]) -> RunFacts:
    """Return the facts from a progress report."""
    measure = measure_of(config.task)
    score, policy = values.get(measure.column), values.get("policy")
    return RunFacts(
        measure,
        config.episodes,
        int(to_number(values.get("episode"))),
        score if isinstance(score, float) else None,
        policy=policy if isinstance(policy, int) else None,
        ticks=int(to_number(values.get("ticks"))),
        missed=int(to_number(values.get("missed"))),
        stored=int(to_number(values.get("stored"))),
        capacity=capacity_of(config),
        updates=int(to_number(values.get("updates"))),
        updates_per_s=to_number(values.get("updates_per_s")),
    )


def facts_from_counters(
    config: RunConfig, figures: Figures, policy: int, actuators: str = "", *, withdrawn: bool = False
) -> RunFacts:
    """Return the facts about a run in progress, from its live counters."""
    return RunFacts(
        measure_of(config.task),
        config.episodes,
        figures.episode,
        figures.score_last20,
        policy=policy,
        ticks=figures.ticks,
        missed=sum(figures.missed),
        causes=_counts_by_name(figures.missed, Miss),
        late_commands=figures.late_commands,
        acted=sum(figures.rules[1:]),
        rules=_counts_by_name(figures.rules, Rule),
        faults=figures.faults,
        tick=histogram_times(figures.tick),
        lateness=histogram_times(figures.lateness),
        stored=figures.stored,
        capacity=figures.capacity,
        inserted=figures.inserted,
        updates=figures.updates,
        updates_per_s=figures.updates_per_s,
        offered=figures.policies_offered,
        admitted=figures.policies_admitted,
        refused=figures.policies_refused,
        lost=figures.dropped,
        actuators=actuators,
        withdrawn=withdrawn,
    )


def _counts_by_name(counts: tuple[int, ...], names: type[Rule] | type[Miss]) -> dict[str, int]:
    """Return the counts by name, without the first one, which stands for none."""
    return {names(i).name.lower(): n for i, n in enumerate(counts) if i}


def facts_from_summary(config: RunConfig, summary: Mapping[str, object]) -> RunFacts:
    """Return the facts from ``summary.json``; missing entries are None, 0 or empty."""
    measure = measure_of(config.task)

    def integer(section: Mapping[str, object], key: str) -> int | None:
        return int(to_number(section[key])) if isinstance(section.get(key), int | float) else None

    buffer, policies, learner = (_section(summary, key) for key in ("buffer", "policies", "learner"))
    score = summary.get(f"{measure.column}_last20")
    return RunFacts(
        measure,
        config.episodes,
        integer(summary, "episodes") or 0,
        score if isinstance(score, float) else None,
        policy=integer(policies, "active"),
        ticks=integer(summary, "ticks"),
        missed=integer(summary, "missed_ticks"),
        acted=integer(summary, "interventions"),
        faults=integer(summary, "faults"),
        tick=_read_times(_section(summary, "tick_us")),
        lateness=_read_times(_section(summary, "lateness_us")),
        stored=integer(buffer, "stored"),
        capacity=integer(buffer, "capacity") or 0,
        stored_bytes=integer(buffer, "bytes"),
        synthetic=integer(buffer, "synthetic") or 0,
        updates=integer(learner, "updates"),
        updates_per_s=to_number(learner.get("updates_per_s")),
        offered=integer(policies, "offered"),
        admitted=integer(policies, "admitted") or 0,
        refused=integer(policies, "refused") or 0,
        too_soon=integer(policies, "too_soon") or 0,
        rolled_back=integer(policies, "rolled_back") or 0,
        lost=integer(summary, "dropped_records") or 0,
        ended=str(summary.get("exit_reason") or ""),
        fault=str(summary.get("fault") or ""),
        actuators=str(summary.get("actuators") or ""),
        withdrawn=summary.get("promise_withdrawn") is True,
    )


def facts_from_files(m: RunFiles) -> RunFacts:
    """Return the facts from a run folder: its summary (if present), episodes and events."""
    facts = facts_from_summary(m.config, m.summary)
    column = facts.measure.column
    return facts._replace(
        episode=int(m.train["episode"][-1]) if len(m.train["episode"]) else facts.episode,
        score=_mean_of_last(m.train[column]),
        evaluated=_mean_of_last(m.evaluation[column]),
        withdrawn=facts.withdrawn or any(event.kind == WITHDRAWN_EVENT for event in m.events),
        withheld=sum(event.kind == WITHHELD_EVENT for event in m.events),
        causes={cause: sum(n.values()) for cause, n in sorted(count_by_episode(m.events, "cause", "missed").items())},
    )


def _mean_of_last(values: NDArray[np.float64]) -> float | None:
    last = values[-N_AVERAGED_EPISODES:]
    return float(np.nanmean(last)) if np.isfinite(last).any() else None


def _section(summary: Mapping[str, object], key: str) -> Mapping[str, object]:
    section = summary.get(key)
    return section if isinstance(section, dict) else {}


def _read_times(section: Mapping[str, object]) -> dict[str, float]:
    return {name: float(us) for name in PERCENTILES if isinstance(us := section.get(name), int | float)}
