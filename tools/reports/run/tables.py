"""Tables of a run's report: headline figures, events, policies, and commands to reproduce it."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from onrig.runtime.scoring import FORMAT
from onrig.runtime.view.run_view import RunFiles, count_by_episode, to_number
from onrig.runtime.view.sentences import Event, event_text, format_fields
from onrig.tools.quantity import format_count, format_duration
from onrig.tools.reports.page import Tile
from onrig.tools.reports.run.charts import VERDICT_STYLES
from onrig.tools.reports.run.expectations import warn_of_unexpected_scores
from onrig.tools.reports.sheet import Sheet
from onrig.tools.run_description import describe_bounds, describe_promise
from onrig.tools.run_facts import N_AVERAGED_EPISODES, RunFacts, facts_from_files

_MAX_ROWS: Final = 120
"""Maximum number of rows in the table of events; excess rows are omitted from the middle."""
_FIRST_ROWS: Final = 40
_UNLISTED_KINDS: Final = frozenset(
    {"tick", "transition", "policy_admitted", "policy_warning", "policy_probation_passed", "learner_attached"}
)
"""Kinds of events that the figures or other events already show."""
_MAX_MISSED_SHARE: Final = 1e-3
"""Share of missed ticks above which the tile is highlighted."""


def tiles(m: RunFiles, facts: RunFacts) -> list[Tile]:
    """Return the headline figures."""
    title, words = facts.measure.title, facts.words()
    headline_tiles = []
    score_label = f"{title}, last {min(N_AVERAGED_EPISODES, len(m.train['episode']))} episodes"
    for value, label in ((facts.score, score_label), (facts.evaluated, "evaluated without noise")):
        if value is not None:
            headline_tiles.append(Tile(facts.score_of(value), label))
    headline_tiles.append(Tile(f"{len(m.train['episode'])} of {facts.episodes}", "training episodes"))
    if facts.missed is not None and facts.ticks is not None:
        missed_text = f"{format_count(facts.missed)} of {format_count(facts.ticks)}"
        headline_tiles.append(Tile(missed_text, "ticks missed", facts.missed > _MAX_MISSED_SHARE * facts.ticks))
    for times, label in ((facts.lateness, "lateness p99"), (facts.tick, "tick p99")):
        if "p99" in times:
            headline_tiles.append(Tile(format_duration(times["p99"] * 1e-6), label))
    if facts.acted is not None:
        headline_tiles.append(Tile(format_count(facts.acted), "ticks in which the shield acted"))
    if m.summary:
        n_faults = len(_fault_events(m))
        headline_tiles.append(Tile(str(n_faults), "faults", n_faults > 0))
    if facts.stored is not None:
        headline_tiles.append(Tile(facts.memory_fill, "experiences in the memory"))
    if facts.offered is not None:
        refused_text = format_count(facts.refused + facts.rolled_back)
        headline_tiles.append(
            Tile(
                f"{format_count(facts.admitted)} of {format_count(facts.offered)}",
                f"policies admitted, {refused_text} refused or rolled back",
            )
        )
    if facts.updates is not None:
        headline_tiles.append(Tile(words["learner"].partition(" ")[0], "learner updates"))
    return headline_tiles


def _fault_events(m: RunFiles) -> list[Event]:
    """Return the events that latch a fault: transitions of the loop, and fault events of the supervisor."""
    return [e for e in m.events if e.fields.get("fault") and _is_new_fault(e)]


def _is_new_fault(event: Event) -> bool:
    if event.kind == "transition":
        return event.fields.get("event") in ("trip", "link_lost") and event.fields.get("before") != "fault"
    return event.kind == "fault" and event.fields.get("source") == "supervisor"


def warnings(m: RunFiles, facts: RunFacts, notes: Sequence[str]) -> list[str]:
    """Return the warnings shown above the figures."""
    lines = []
    if not m.summary:
        lines.append("No summary: the run is still running, or was killed before it wrote one.")
    elif not facts.is_completed:
        lines.append(f"The run did not complete: {facts.ended or '?'}.")
    if facts.lost:
        lines.append(f"{format_count(facts.lost)} step records were lost before the replay process read them.")
    if to_number(m.summary.get("mirror_mismatches")):
        lines.append("The learner's mirror differed from the rig's memory.")
    if m.meta.get("git_dirty"):
        lines.append("The code had uncommitted changes, so the recorded revision does not identify it.")
    hides_ends = m.config.task.may_terminate and m.config.task.normalization is not None
    if hides_ends and to_number(m.meta.get("score_format")) < FORMAT:
        ends_note = "its normalised rewards are means over the completed steps, which hides early ends"
        lines.append(f"This run began with an earlier version: {ends_note}.")
    return [*lines, *warn_of_unexpected_scores(m), *notes]


def events_sheet(m: RunFiles) -> Sheet | None:
    """Return the events not covered by the figures; equal consecutive events share a row that shows their count."""
    start = m.events[0].t_unix_s if m.events else 0.0
    rows: list[tuple[str, str, str, str]] = []
    for event in m.events:
        if event.kind in _UNLISTED_KINDS:
            continue
        n = event.n_occurrences
        row = (f"{event.t_unix_s - start:.1f}", event.kind, str(n) if n > 1 else "", _event_text(event))
        if rows and rows[-1][1::2] == row[1::2]:
            previous = rows[-1]
            rows[-1] = (previous[0], previous[1], str(int(previous[2] or 1) + n), previous[3])
        else:
            rows.append(row)
    if not rows:
        return None
    n_omitted = len(rows) - _MAX_ROWS
    notes: tuple[str, ...] = ("Every event, with all its fields, is in events.jsonl.",)
    if n_omitted > 0:
        notes = (f"{n_omitted} lines between the first {_FIRST_ROWS} and the last are omitted.", *notes)
        rows = [*rows[:_FIRST_ROWS], *rows[len(rows) - (_MAX_ROWS - _FIRST_ROWS) :]]
    unlisted: Counter[str] = Counter()
    for event in m.events:
        if event.kind in _UNLISTED_KINDS:
            unlisted[event.kind] += event.n_occurrences
    if unlisted:
        notes = (*notes, "Not listed: " + ", ".join(f"{n} {kind}" for kind, n in sorted(unlisted.items())) + ".")
    return Sheet("Events", 4, ("s after start", "event", "times", "description"), tuple(rows), notes)


def _event_text(event: Event) -> str:
    message = event_text(event)
    text = message.text if message is not None else format_fields(event.fields)
    return text if len(text) <= 300 else f"{text[:297]}..."


def policies_sheet(m: RunFiles) -> Sheet | None:
    """Return the policies that were refused, were rolled back or failed their probation, each with the reason.

    Returns None if there are none.
    """
    rejected = m.events_of_kind(*(kind for kind in VERDICT_STYLES if kind != "policy_admitted"))
    if not rejected:
        return None
    rows = tuple(
        (
            f"{to_number(e.fields.get('policy')):.0f}" if e.fields.get("policy") else "",
            VERDICT_STYLES[e.kind][0],
            ": ".join(str(e.fields[w]) for w in ("stage", "reason", "detail") if e.fields.get(w))
            + (f" (the last of {e.n_occurrences})" if e.n_occurrences > 1 else ""),
        )
        for e in rejected[-_MAX_ROWS:]
    )
    notes = (f"Only the last {_MAX_ROWS} of {len(rejected)} are listed.",) if len(rejected) > _MAX_ROWS else ()
    return Sheet("Rejected policies", 3, ("policy", "verdict", "reason"), rows, notes)


def counts_sheet(m: RunFiles) -> Sheet | None:
    """Return the numbers of interventions by rule and of missed ticks by cause; None if there are none."""
    rules, causes = count_by_episode(m.events, "rule"), count_by_episode(m.events, "cause", "missed")
    rules.pop("fallback", None)
    rows = [("intervention", rule, str(sum(n.values())), str(len(n))) for rule, n in sorted(rules.items())]
    rows += [("missed ticks", cause, str(sum(n.values())), str(len(n))) for cause, n in sorted(causes.items())]
    header = ("event", "cause", "times", "number of episodes")
    return Sheet("Interventions and misses", 2, header, tuple(rows)) if rows else None


def environment_facts(m: RunFiles) -> list[tuple[str, str]]:
    """Return the run's start, versions and machine, and the guarantees of its shield, as names and values."""
    versions = m.meta.get("versions")
    versions_text = ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, dict) else "?"
    revision = str(m.meta.get("git_revision") or "unknown")
    dirty_note = " (with uncommitted changes)" if m.meta.get("git_dirty") else ""
    rows = [
        ("started", str(m.meta.get("started", "?"))),
        ("seed", str(m.config.seed)),
        ("shield keeps", describe_bounds(m.config)),
        ("promise", describe_promise(m.config, withdrawn=facts_from_files(m).withdrawn)),
        ("revision", f"{revision}{dirty_note}"),
        ("versions", versions_text),
        ("board", f"{m.meta.get('board', '?')}, {m.meta.get('cpus', '?')} CPUs"),
        ("kernel", str(m.meta.get("kernel", "?"))),
    ]
    memory = m.section("peak_rss_mb")
    if memory:
        rows.append(("peak memory", ", ".join(f"{k} {to_number(v):.0f} MB" for k, v in memory.items())))
    return rows


def how_to_reproduce(m: RunFiles) -> Iterator[str]:
    """Yield the commands that reproduce and inspect the run, with comments."""
    folder = m.folder.resolve()
    command = m.meta.get("command")
    if isinstance(command, list) and command:
        words = [Path(str(command[0])).name, *map(str, command[1:])]
        yield "# the original command"
        yield shlex.join(words)
    repeatable_text = "the same run, bit for bit"
    equality = repeatable_text if m.config.lockstep else "the same configuration, but no real-time run is repeatable"
    yield f"# from the resolved configuration: {equality}"
    yield shlex.join(["onrig", "run", str(folder / "config.yaml"), "--run-dir", f"{folder}-again"])
    yield "# replays the recorded ticks and compares the decisions bit for bit"
    yield shlex.join(["onrig", "replay", str(folder)])
    yield f"# writes this page, last written {time.strftime('%Y-%m-%d %H:%M')}"
    yield shlex.join(["onrig", "report", str(folder)])
