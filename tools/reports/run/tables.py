"""The tables of a run's report: its figures, its events, its policies, and how to run it again."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from onrig.runtime.scoring import FORMAT, measure_of
from onrig.runtime.view.run_view import RunFiles, by_episode, number
from onrig.runtime.view.sentences import Event, in_fields, sentence
from onrig.tools.reports.page import Sheet, Tile
from onrig.tools.reports.run.charts import VERDICTS

_MOST: Final = 120
"""Rows of the table of events: the first few, and the last ones."""
_FIRST: Final = 40
_QUIET: Final = frozenset(
    {"tick", "transition", "policy_admitted", "policy_warning", "policy_probation_passed", "learner_attached"}
)
"""Kinds that the figures show, or of which another event tells."""
_LAST: Final = 20


def tiles(m: RunFiles) -> list[Tile]:
    """Headline figures."""
    s = m.summary
    measure = measure_of(m.config.task)
    last = m.train[measure.column][-_LAST:]
    found = [Tile(f"{len(m.train['episode'])} of {m.config.episodes}", "training episodes")]
    if len(last):
        found.insert(0, Tile(f"{np.nanmean(last):{measure.form}}", f"{measure.title}, last {len(last)} episodes"))
    if len(m.evaluation["episode"]):
        best = m.evaluation[measure.column][-_LAST:]
        found.insert(1, Tile(f"{np.nanmean(best):{measure.form}}", f"evaluated without noise, last {len(best)}"))
    if not s:
        return found
    ticks, missed = number(s.get("ticks")), number(s.get("missed_ticks"))
    found.append(Tile(f"{missed:.0f} of {ticks:.0f}", "ticks missed", missed > 1e-3 * ticks))
    for key, label in (("lateness_us", "lateness p99"), ("tick_us", "tick p99")):
        p99 = m.section(key).get("p99")
        if isinstance(p99, float):
            found.append(Tile(f"{p99:.0f} us" if p99 < 1e4 else f"{p99 / 1e3:.0f} ms", label))
    found.append(Tile(f"{number(s.get('interventions')):.0f}", "ticks in which the shield acted"))
    faults = len(_faults(m))
    found.append(Tile(str(faults), "faults", faults > 0))
    buffer, policies, learner = m.section("buffer"), m.section("policies"), m.section("learner")
    if buffer:
        found.append(Tile(f"{buffer.get('stored')} of {buffer.get('capacity')}", "experiences kept"))
    if policies:
        refused = number(policies.get("refused")) + number(policies.get("rolled_back"))
        told = f"policies admitted, {refused:.0f} refused or rolled back"
        found.append(Tile(str(policies.get("admitted", 0)), told))
    if learner:
        found.append(Tile(f"{number(learner.get('updates')):.0f}", "updates of the learner"))
    return found


def _faults(m: RunFiles) -> list[Event]:
    """Where a fault was latched: by the loop, which then changes its state, or by the supervisor."""
    return [e for e in m.events if e.fields.get("fault") and _begins(e)]


def _begins(event: Event) -> bool:
    if event.kind == "transition":
        return event.fields.get("event") in ("trip", "link_lost") and event.fields.get("before") != "fault"
    return event.kind == "fault" and event.fields.get("source") == "supervisor"


def warnings(m: RunFiles, notes: Sequence[str]) -> list[str]:
    """Caveats on the figures."""
    lines = []
    s = m.summary
    if not s:
        lines.append("There is no summary: the run is still running, or was killed before it wrote one.")
    elif s.get("exit_reason") != "completed":
        lines.append(f"It did not complete: {s.get('exit_reason', '?')}.")
    if number(s.get("dropped_records")):
        lines.append(f"{number(s.get('dropped_records')):.0f} step records were lost: nobody took them in.")
    if number(s.get("mirror_mismatches")):
        lines.append("The learner's mirror differed from the rig's memory.")
    if m.meta.get("git_dirty"):
        lines.append("The program had changes that were not committed: its revision alone does not tell what ran.")
    hides_ends = m.config.task.terminates and m.config.task.normalization is not None
    if hides_ends and number(m.meta.get("score_format")) < FORMAT:
        early = "its normalised rewards are means over the steps lived, which hides early ends"
        lines.append(f"This run began with an earlier version: {early}.")
    return [*lines, *notes]


def events_sheet(m: RunFiles) -> Sheet | None:
    """Events not covered by the figures; equal consecutive lines are counted."""
    start = m.events[0].t_unix_s if m.events else 0.0
    rows: list[tuple[str, str, str, str]] = []
    for event in m.events:
        if event.kind in _QUIET:
            continue
        n = event.times
        row = (f"{event.t_unix_s - start:.1f}", event.kind, str(n) if n > 1 else "", _told(event))
        if rows and rows[-1][1::2] == row[1::2]:
            before = rows[-1]
            rows[-1] = (before[0], before[1], str(int(before[2] or 1) + n), before[3])
        else:
            rows.append(row)
    if not rows:
        return None
    left_out = len(rows) - _MOST
    notes: tuple[str, ...] = ("Every event, with all its fields, is in events.jsonl.",)
    if left_out > 0:
        notes = (f"{left_out} lines between the first {_FIRST} and the last are left out here.", *notes)
        rows = [*rows[:_FIRST], *rows[len(rows) - (_MOST - _FIRST) :]]
    quiet: Counter[str] = Counter()
    for event in m.events:
        if event.kind in _QUIET:
            quiet[event.kind] += event.times
    if quiet:
        notes = (*notes, "Not listed: " + ", ".join(f"{n} {kind}" for kind, n in sorted(quiet.items())) + ".")
    return Sheet("Events", 4, ("s after start", "event", "times", "what"), tuple(rows), notes)


def _told(event: Event) -> str:
    said = sentence(event)
    told = said.text if said is not None else in_fields(event.fields)
    return told if len(told) <= 300 else f"{told[:297]}..."


def policies_sheet(m: RunFiles) -> Sheet | None:
    """The policies that were refused, rolled back or failed, each with the reason; None where there were none."""
    bad = m.of_kind(*(kind for kind in VERDICTS if kind != "policy_admitted"))
    if not bad:
        return None
    rows = tuple(
        (
            f"{number(e.fields.get('policy')):.0f}" if e.fields.get("policy") else "",
            VERDICTS[e.kind][0],
            ": ".join(str(e.fields[w]) for w in ("stage", "reason", "detail") if e.fields.get(w))
            + (f" (the last of {e.times})" if e.times > 1 else ""),
        )
        for e in bad[-_MOST:]
    )
    notes = (f"The last {_MOST} of {len(bad)}.",) if len(bad) > _MOST else ()
    return Sheet("Policies that were not kept", 3, ("policy", "verdict", "why"), rows, notes)


def counts_sheet(m: RunFiles) -> Sheet | None:
    """Interventions by rule and missed ticks by cause, in numbers."""
    rules, causes = by_episode(m.events, "rule"), by_episode(m.events, "cause", "missed")
    rules.pop("fallback", None)
    rows = [("intervention", rule, str(sum(n.values())), str(len(n))) for rule, n in sorted(rules.items())]
    rows += [("missed ticks", cause, str(sum(n.values())), str(len(n))) for cause, n in sorted(causes.items())]
    heads = ("what", "by", "times", "in so many episodes")
    return Sheet("Interventions and misses", 2, heads, tuple(rows)) if rows else None


def circumstances(m: RunFiles) -> list[tuple[str, str]]:
    """Versions, machine and time of the run."""
    versions = m.meta.get("versions")
    listed = ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, dict) else "?"
    revision = str(m.meta.get("git_revision") or "unknown")
    dirty = " (with uncommitted changes)" if m.meta.get("git_dirty") else ""
    rows = [
        ("started", str(m.meta.get("started", "?"))),
        ("seed", str(m.config.seed)),
        ("revision", f"{revision}{dirty}"),
        ("versions", listed),
        ("board", f"{m.meta.get('board', '?')}, {m.meta.get('cpus', '?')} CPUs"),
        ("kernel", str(m.meta.get("kernel", "?"))),
    ]
    memory = m.section("peak_rss_mb")
    if memory:
        rows.append(("peak memory", ", ".join(f"{k} {number(v):.0f} MB" for k, v in memory.items())))
    return rows


def how_to_reproduce(m: RunFiles) -> list[str]:
    """Commands that run it again, and look at what is there."""
    return list(_commands(m))


def _commands(m: RunFiles) -> Iterator[str]:
    folder = m.folder.resolve()
    started = m.meta.get("command")
    if isinstance(started, list) and started:
        words = [Path(str(started[0])).name, *map(str, started[1:])]
        yield "# as it was started"
        yield shlex.join(words)
    same = "bit for bit the same" if m.config.lockstep else "the same configuration; a real-time run is never the same"
    yield f"# from the resolved configuration that it left behind: {same}"
    yield shlex.join(["onrig", "run", str(folder / "config.yaml"), "--run-dir", f"{folder}-again"])
    yield "# its recorded ticks through the pure core, decisions compared bit for bit"
    yield shlex.join(["onrig", "replay", str(folder)])
    yield f"# this page, made {time.strftime('%Y-%m-%d %H:%M')}"
    yield shlex.join(["onrig", "report", str(folder)])
