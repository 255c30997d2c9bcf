"""The answer of a race: table, sentences, ``advised.yaml``, ``advice.json`` and a page."""

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
from onrig.tools.advice.field import RECIPES, Entry
from onrig.tools.advice.race import FLOOR, RUNGS, Interval, Standing, State
from onrig.tools.advised import ADVICE_FILE, Advice
from onrig.tools.experiments.cost import Cost
from onrig.tools.experiments.store import Cell, write_atomically
from onrig.tools.quantity import format_estimate, size
from onrig.tools.reports.page import Claims, Page, Properties, Source
from onrig.tools.reports.scores import memory_bytes
from onrig.tools.reports.sheet import Sheet

ADVISED: Final = "advised.yaml"
PAGE: Final = "advice.html"
_END_REASONS: Final = {
    "one left": "all others are worse, settled",
    "alone": "its closest rivals are worse, settled",
    "equal": "all that are left are practically equal",
    "budget": "the budget is used up",
    "pairs": "no more plants are drawn",
    "": "stopped before the end of the budget",
}


class Answer(NamedTuple):
    """Result after a rung."""

    name: str
    """Configuration, as named."""
    objective: str
    plants: str
    """Origin of the plants."""
    state: State
    table: Sequence[Standing]
    entries: Mapping[str, Entry]
    out: Mapping[str, str]
    """Reasons of candidates that were excluded, by name."""
    double_budget: tuple[int, Sequence[str]]
    """Number of pairs with twice the budget, and candidates that they would separate from the leader."""
    scores: Values
    """Scores of the leader."""
    costs: Mapping[str, Cost]
    """Cost of a first rung's trials together, by the cell's id; empty if trials are counted."""

    @property
    def best(self) -> Entry:
        """The leader."""
        return self.entries[self.state.leader]

    @property
    def advice(self) -> Advice:
        """The best candidate and the expected score of a run with it."""
        config, top, n = self.best.config, self.table[0], len(self.scores)
        spread = max(FLOOR, float(self.scores.std(ddof=1))) * math.sqrt(1.0 + 1.0 / n)
        reach, mean = student_quantile(0.5 + 0.5 * COVERAGE, n - 1) * spread, float(self.scores.mean())
        candidate = self.best.candidate
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
            *top.figure,
            mean - reach,
            mean + reach,
            tuple(self.state.left[1:]),
        )

    def sheet(self) -> Sheet:
        """The ranked table."""
        heads = ("candidate", "score", "behind the best", "pairs", "memory", "updates/s", "verdict")
        rows = [
            (
                one.name,
                _figure(one.figure),
                "" if one.name == self.state.leader else _figure(one.behind, signed=True),
                str(one.pairs),
                size(memory_bytes(Cell("", {}, self.entries[one.name].config))),
                f"{updates_per_s(self.entries[one.name].config):.0f}{self._busy(one.name)}",
                self._verdict(one),
            )
            for one in self.table
        ]
        title = OBJECTIVES[self.objective].title
        note = (
            f"Score: {title}; mean over pairs of a seed and a plant, with bounds that hold at 95 % for all candidates "
            "together that are left. Updates in a second of the rig's time"
            + (", and the share of one core of this machine that they take." if self.costs else ".")
        )
        return Sheet("Candidates", 1, heads, tuple(rows), (note,))

    def _busy(self, name: str) -> str:
        cost = self.costs.get(self.entries[name].cell.id)
        if cost is None:
            return ""
        return f" ({100 * cost.update_s / RUNGS[0] * updates_per_s(self.entries[name].config):.1f} %)"

    def _verdict(self, one: Standing) -> str:
        if one.name == self.state.leader:
            return "best"
        if not one.left:
            return "worse, settled"
        return "undecided" if one.name in self.state.active else "undecided, paused"

    def sentences(self) -> Iterator[str]:
        """Yield the findings that the table does not show."""
        advice, best = self.advice, self.best.candidate
        yield f"{best.name}: {best.reason}; {_END_REASONS[self.state.ended]}."
        yield (
            f"Expected score of a run with it: {advice.run_low:.2f} to {advice.run_high:.2f} (95 %, over seeds and "
            f"plants drawn {self.plants})."
        )
        if undecided := self.state.left[1:]:
            yield f"Undecided: {', '.join(undecided)}."
            pairs, separated = self.double_budget
            what = f"would separate {', '.join(separated)} from it" if separated else "would separate none of them"
            yield f"Twice the budget, {pairs} pairs, {what}, if differences and spreads remain the same."
        for name, why in self.out.items():
            yield f"Excluded: {name}: {why}."

    def text(self) -> str:
        """Return the answer as text for a terminal."""
        return "\n".join((self.sheet().text(), "", *self.sentences()))

    def yaml(self) -> str:
        """Return the configuration with the best candidate's settings and the reasons as comments."""
        config, best = self.best.config, self.best.candidate
        data, top = to_plain_data(config), self.table[0]
        first = {key: data.pop(key) for key in ("learner", "selection", "exploration")}
        head = [
            f"`onrig advise {self.name}` chose {best.name}: {best.reason}.",
            f"{OBJECTIVES[self.objective].title}: {_figure(top.figure)} over {top.pairs} pairs of a seed and a plant;",
            f"plants were drawn {self.plants}.",
        ]
        behind = [f"  {one.name}: {_figure(one.behind, signed=True)} ({self._verdict(one)})" for one in self.table[1:]]
        lines = [f"# {line}" for line in (*head, *(["Behind it:", *behind] if behind else []))]
        rest = f"# Rig, task, limits and all other settings are those of {self.name}."
        return "\n".join((*lines, dump_yaml(first).rstrip(), rest, dump_yaml(data)))

    def page(self) -> Page:
        """The answer as a page."""
        lead = f"{OBJECTIVES[self.objective].title}; plants drawn {self.plants}."
        parts = (
            Claims("Advice", {"": list(self.sentences())}),
            self.sheet(),
            Properties("Candidates' reasons", [(n, e.candidate.reason) for n, e in self.entries.items()]),
            Source("The configuration", self.yaml(), ADVISED),
        )
        return Page(f"Advice for {self.name}", lead, parts, "Learning curves: `onrig report` on this folder.")


def updates_per_s(config: RunConfig) -> float:
    """Return a run's updates per second of device time."""
    learner = learner_settings(config.learner)
    if learner.updates_per_episode is not None:
        return learner.updates_per_episode / episode_steps(config.task, config.rate_hz) * config.rate_hz
    return (learner.updates_per_transition or 0.0) * config.rate_hz


def _figure(interval: Interval, *, signed: bool = False) -> str:
    return format_estimate(Bounds(*interval), 3, signed=signed)


def write_answer(folder: Path, answer: Answer) -> None:
    """Write ``advised.yaml``, ``advice.json`` and the page.  Raises OSError."""
    write_atomically(folder / ADVISED, answer.yaml().encode())
    write_atomically(folder / ADVICE_FILE, msgspec.json.format(msgspec.json.encode(answer.advice), indent=1) + b"\n")
    write_atomically(folder / PAGE, answer.page().html().encode())
