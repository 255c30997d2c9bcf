"""Result of a race as text, ``advised.yaml``, ``advice.json`` and a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onrig.learner.settings import learner_settings
from onrig.learner.trials.intervals import COVERAGE, Bounds, student_quantile
from onrig.learner.trials.objectives import OBJECTIVES, Values
from onrig.runtime.config.yaml_nodes import dump_yaml
from onrig.runtime.run_config import RunConfig, to_plain_data
from onrig.runtime.task import episode_steps
from onrig.tools.advice.field import RECIPES, Entrant
from onrig.tools.advice.race import MIN_STD, RUNGS, Interval, Standing, State
from onrig.tools.advised import ADVICE_FILE, Advice
from onrig.tools.experiments.cost import Cost
from onrig.tools.experiments.store import Cell, write_atomically
from onrig.tools.quantity import format_estimate, format_size
from onrig.tools.reports.page import Claims, Page, Properties, Source
from onrig.tools.reports.scores import memory_bytes
from onrig.tools.reports.sheet import Sheet

CONFIG_FILE: Final = "advised.yaml"
PAGE: Final = "advice.html"
_END_REASONS: Final = {
    "one left": "all others are significantly worse",
    "alone": "its closest rivals are significantly worse",
    "equal": "all remaining candidates are practically equal",
    "budget": "the budget is used up",
    "pairs": "all drawn plants are used",
    "": "stopped before the budget was used up",
}


class RaceResult(NamedTuple):
    """Result after a rung."""

    name: str
    """Path or shipped name of the configuration."""
    objective: str
    plants: str
    """How the plants were drawn."""
    state: State
    table: Sequence[Standing]
    entrants: Mapping[str, Entrant]
    exclusion_reasons: Mapping[str, str]
    """Reason for exclusion, by excluded candidate."""
    double_budget: tuple[int, Sequence[str]]
    """Number of pairs that twice the budget allows, and the candidates that they would eliminate."""
    scores: Values
    """Scores of the leader."""
    costs: Mapping[str, Cost]
    """Total cost of the first rung's trials, by cell id; empty if the budget is a number of trials."""

    @property
    def winner(self) -> Entrant:
        """Leader of the race."""
        return self.entrants[self.state.leader]

    @property
    def advice(self) -> Advice:
        """Best candidate, and the expected score of a run that uses it."""
        config, leader, n = self.winner.config, self.table[0], len(self.scores)
        spread = max(MIN_STD, float(self.scores.std(ddof=1))) * math.sqrt(1.0 + 1.0 / n)
        half_width, mean = student_quantile(0.5 + 0.5 * COVERAGE, n - 1) * spread, float(self.scores.mean())
        candidate = self.winner.candidate
        return Advice(
            self.name,
            config.rig.name,
            config.task.name,
            config.rate_hz,
            config.episodes,
            self.objective,
            candidate.name,
            None if candidate.recipe is None else f"{RECIPES}/{candidate.file}",
            n,
            *leader.figure,
            mean - half_width,
            mean + half_width,
            tuple(self.state.remaining_names[1:]),
        )

    def sheet(self) -> Sheet:
        """Return the ranked table."""
        columns = ("candidate", "score", "behind the leader", "pairs", "memory", "updates/s", "verdict")
        rows = [
            (
                standing.name,
                _format_interval(standing.figure),
                "" if standing.name == self.state.leader else _format_interval(standing.deficit, signed=True),
                str(standing.n_pairs),
                format_size(memory_bytes(Cell("", {}, self.entrants[standing.name].config))),
                f"{updates_per_s(self.entrants[standing.name].config):.0f}{self._core_load(standing.name)}",
                self._verdict(standing),
            )
            for standing in self.table
        ]
        title = OBJECTIVES[self.objective].title
        note = (
            f"Score: {title}; mean over pairs of a seed and a plant, with simultaneous 95 % bounds over all remaining "
            "candidates.  Updates per second of device time"
            + (", with their share of one core of this machine." if self.costs else ".")
        )
        return Sheet("Candidates", 1, columns, tuple(rows), (note,))

    def _core_load(self, name: str) -> str:
        cost = self.costs.get(self.entrants[name].cell.id)
        if cost is None:
            return ""
        return f" ({100 * cost.update_s / RUNGS[0] * updates_per_s(self.entrants[name].config):.1f} %)"

    def _verdict(self, standing: Standing) -> str:
        if standing.name == self.state.leader:
            return "best"
        if not standing.may_be_best:
            return "significantly worse"
        return "undecided" if standing.name in self.state.active_names else "undecided, paused"

    def findings(self) -> Iterator[str]:
        """Yield the findings that are not in the table."""
        advice, candidate = self.advice, self.winner.candidate
        yield f"{candidate.name}: {candidate.reason}; {_END_REASONS[self.state.end_reason]}."
        yield (
            f"Expected score of a run with these settings: {advice.run_low:.2f} to {advice.run_high:.2f} (95 %, over "
            f"seeds and plants drawn {self.plants})."
        )
        if undecided_names := self.state.remaining_names[1:]:
            yield f"Undecided: {', '.join(undecided_names)}."
            n_pairs, eliminated_names = self.double_budget
            effect = (
                f"would eliminate {', '.join(eliminated_names)}" if eliminated_names else "would eliminate none of them"
            )
            yield f"Twice the budget ({n_pairs} pairs) {effect} if differences and spreads remained the same."
        for name, reason in self.exclusion_reasons.items():
            yield f"Excluded: {name}: {reason}."

    def text(self) -> str:
        """Return the result as text for a terminal."""
        return "\n".join((self.sheet().text(), "", *self.findings()))

    def yaml(self) -> str:
        """Return the configuration with the best candidate's settings as YAML, and the reasons for them as comments."""
        config, candidate = self.winner.config, self.winner.candidate
        data, leader = to_plain_data(config), self.table[0]
        learning_sections = {key: data.pop(key) for key in ("learner", "selection", "exploration")}
        reasons = [
            f"`onrig advise {self.name}` chose {candidate.name}: {candidate.reason}.",
            f"{OBJECTIVES[self.objective].title}: {_format_interval(leader.figure)} over {leader.n_pairs} pairs of a "
            "seed and a plant;",
            f"plants were drawn {self.plants}.",
        ]
        rivals = [
            f"  {standing.name}: {_format_interval(standing.deficit, signed=True)} ({self._verdict(standing)})"
            for standing in self.table[1:]
        ]
        lines = [
            f"# {line}"
            for line in (*reasons, *(["Other candidates, compared with this one:", *rivals] if rivals else []))
        ]
        last_line = f"# Rig, task, limits and all other settings are those of {self.name}."
        return "\n".join((*lines, dump_yaml(learning_sections).rstrip(), last_line, dump_yaml(data)))

    def page(self) -> Page:
        """Return the result as a page."""
        introduction = f"{OBJECTIVES[self.objective].title}; plants drawn {self.plants}."
        parts = (
            Claims("Advice", {"": list(self.findings())}),
            self.sheet(),
            Properties("Why each candidate was raced", [(n, e.candidate.reason) for n, e in self.entrants.items()]),
            Source("The configuration", self.yaml(), CONFIG_FILE),
        )
        return Page(f"Advice for {self.name}", introduction, parts, "Learning curves: `onrig report` on this folder.")


def updates_per_s(config: RunConfig) -> float:
    """Return the number of updates per second of device time in a run."""
    learner = learner_settings(config.learner)
    if learner.updates_per_episode is not None:
        return learner.updates_per_episode / episode_steps(config.task, config.rate_hz) * config.rate_hz
    return (learner.updates_per_transition or 0.0) * config.rate_hz


def _format_interval(interval: Interval, *, signed: bool = False) -> str:
    return format_estimate(Bounds(*interval), 3, signed=signed)


def write_result(folder: Path, result: RaceResult) -> None:
    """Write ``advised.yaml``, ``advice.json`` and the page.  Raises OSError."""
    write_atomically(folder / CONFIG_FILE, result.yaml().encode())
    write_atomically(folder / ADVICE_FILE, msgspec.json.format(msgspec.json.encode(result.advice), indent=1) + b"\n")
    write_atomically(folder / PAGE, result.page().html().encode())
