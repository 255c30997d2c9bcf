"""What must hold of a run once it is over: its own account agrees with what it left, and no loss goes unreported.

Pure: it compares what a run says of itself with what is on disk (``run_folder``) and what was counted beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import RunConfig
from onrig.tools.faultlab.run_folder import Fields, Left

AS_ASKED: Final = (ExitCode.INTERRUPTED, ExitCode.INCOMPLETE)
"""Exit codes of a run that somebody ended."""
_ACCOUNTED: Final = (ExitCode.OK, ExitCode.INCOMPLETE, ExitCode.HARDWARE, ExitCode.SAFETY, ExitCode.INTERRUPTED)
"""Ends after which a summary must exist and be true; the others say that a part of the rig was lost."""


class Observed(NamedTuple):
    """What was seen of a run from outside."""

    code: int | None
    """Exit code, negative for a signal; None while it is not over."""
    closed: int | None = None
    """Training episodes that the loop closed, by the board; None where that was not read."""
    resumed: bool = False
    """Whether it was started more than once: then what came after a checkpoint was done again."""


def lost(left: Left, config: RunConfig, observed: Observed) -> list[str]:
    """What ought to be on disk and is not, one line each."""
    return [
        *([left.rows_problem] if left.rows_problem else []),
        *_lost_rows(left, config, observed),
        *_lost_records(left),
        *_lost_experiences(left, config, observed),
        *_lost_policies(left),
    ]


def findings(left: Left, config: RunConfig, observed: Observed) -> list[str]:
    """Where a run's own account does not agree with what is on disk; empty where nothing is wrong."""
    missing = lost(left, config, observed)
    if observed.code not in _ACCOUNTED:  # which says that a part of it died
        return []
    if not left.summary:
        return [f"ended with {observed.code} and left no summary.json"]
    whole = left.summary.get("whole")
    names = ", ".join(sorted(left.half_written)[:5])
    told = isinstance(whole, dict) and whole.get("complete") is False
    found = [f"{len(left.half_written)} files were left half-written: {names}"] if left.half_written else []
    if missing and not told:
        found += [f"lost without a word (exit {observed.code}): {line}" for line in missing]
    if told and observed.code == ExitCode.OK:
        found.append("summary.json says that data are missing, and the exit code is 0")
    if observed.code == ExitCode.INCOMPLETE and not told:
        found.append("the exit code says that data are missing, and summary.json does not")
    if isinstance(whole, dict):
        found += _false_counts(whole, left)
        if told and not whole.get("lost"):
            found.append("summary.json says that data are missing, and not which")
    return found


def unlike(ours: Left, reference: Left) -> list[str]:
    """Differences from a run that was left alone; in lockstep there must be none."""
    found = []
    if ours.rows != reference.rows:
        first = next((i for i, (a, b) in enumerate(zip(ours.rows, reference.rows, strict=False)) if a != b), None)
        where = f"from row {first + 1} on" if first is not None else f"{len(ours.rows)} of {len(reference.rows)}"
        found.append(f"episodes.csv differs: {where}")
    if _digest(ours) != _digest(reference):
        found.append(f"the memory differs: {_offered(ours)} experiences offered, {_offered(reference)} when left alone")
    return found


def unlike_policies(ours: dict[int, bytes], reference: dict[int, bytes]) -> list[str]:
    """Policies, by id, that differ from those of a run that was left alone."""
    other = sorted(i for i in ours.keys() | reference.keys() if ours.get(i) != reference.get(i))
    return [f"policies differ: {_ranges(other)}"] if other else []


def _digest(left: Left) -> str:
    return "" if left.checkpoint is None else left.checkpoint.digest


def _offered(left: Left) -> int | None:
    return None if left.checkpoint is None else left.checkpoint.offered


def _lost_rows(left: Left, config: RunConfig, observed: Observed) -> list[str]:
    trained = [row.episode for row in left.rows if row.kind == "train"]
    evaluated = [row.episode for row in left.rows if row.kind == "eval"]
    last = max(trained, default=0)
    if left.summary.get("exit_reason") == "completed":
        last = config.episodes
    if observed.closed is not None and not observed.resumed:
        last = max(last, observed.closed)
    wanted, found = range(1, last + 1), []
    if absent := sorted(set(wanted) - set(trained)):
        found.append(f"rows of training episodes {_ranges(absent)} of {last} are missing")
    if twice := sorted({n for n in trained if trained.count(n) > 1}):
        found.append(f"rows of training episodes {_ranges(twice)} are there twice")
    every = config.evaluate_every
    behind = range(every, max(trained, default=0), every) if every else range(0)  # the last one may be unfinished
    redone = config.lockstep or not observed.resumed  # in real time an interrupted evaluation is not repeated
    if absent := sorted(set(behind) - set(evaluated) if redone else ()):
        found.append(f"rows of evaluation episodes {_ranges(absent)} are missing")
    return found


def _lost_records(left: Left) -> list[str]:
    log, found = left.log, []
    if log is None:
        return []
    if log.problem:
        found.append(f"the log cannot be read: {log.problem}")
    if log.missing:
        found.append(f"the log lacks {log.missing} records between those that it holds")
    absent = [row for row in left.rows if (row.episode, row.kind) not in log.episodes]
    if absent:
        found.append(f"the log lacks the records of episodes {_ranges(row.episode for row in absent)}")
    for row in left.rows:
        logged = log.episodes.get((row.episode, row.kind))
        if logged is not None and logged.steps != row.steps:
            found.append(f"the log has {logged.steps} steps of {row.kind} episode {row.episode}, its row {row.steps}")
    return found


def _lost_experiences(left: Left, config: RunConfig, observed: Observed) -> list[str]:
    """A row counts the steps of its episode that make experiences; as many must have been offered to the memory."""
    made, offered = sum(row.steps for row in left.rows if row.kind == "train"), _offered(left)
    if offered is None:
        return [f"no checkpoint that can be read, and {made} experiences made"] if made else []
    short = offered != made if config.lockstep else offered < made and not observed.resumed
    return [f"{offered} experiences of {made}"] if short else []


def _lost_policies(left: Left) -> list[str]:
    acted = {row.policy_id for row in left.rows} - {0}
    if left.log is not None:
        acted |= {number for episode in left.log.episodes.values() for number in episode.policies}
    absent = sorted(acted - left.policies)
    return [f"policies {_ranges(absent)} acted and are not kept"] if absent else []


def _false_counts(whole: Fields, left: Left) -> list[str]:
    rows = whole.get("rows")
    present = rows.get("present") if isinstance(rows, dict) else None
    if present is None or present == len(left.rows):
        return []
    return [f"summary.json counts {present} rows, episodes.csv holds {len(left.rows)}"]


def _ranges(numbers: Iterable[int]) -> str:
    """``1-3, 7``."""
    spans: list[list[int]] = []
    for n in sorted(set(numbers)):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in spans)
