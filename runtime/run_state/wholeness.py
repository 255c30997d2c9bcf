"""Completeness of a run's data (rows, experiences, policies, log): the one definition, checked at its end.

* *Rows*: ``episodes.csv`` has one row for each training and evaluation episode that the loop closed.
* *Experiences*: every step record that the loop wrote was read, and the memory on disk covers it.
* *Policies*: ``policies/`` has every policy that acted in an episode of the rows.
* *Log*: if one is kept and no limit of the configuration ended it, it has every record read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from onrig.runtime.run_state.episodes import read_rows


class Counted(msgspec.Struct, frozen=True):
    """Expected and actual number of items."""

    expected: int
    present: int


class Whole(msgspec.Struct, frozen=True):
    """The section ``whole`` of ``summary.json``."""

    complete: bool
    rows: Counted
    experiences: Counted | None = None
    """Step records written by the loop, and those that went into memory and checkpoints."""
    policies: Counted | None = None
    log: Counted | None = None
    """Step records; None without a log."""
    lost: tuple[str, ...] = ()
    """What is missing, one line each."""
    reproducible: bool | None = None
    """Lockstep: whether the result equals that of an undisturbed run; None in real time."""


class LogAccount(NamedTuple):
    """Records given to a log, and those missing in it."""

    given: int
    missing: int
    reason: str = ""
    """Why some are missing."""
    by_request: bool = False
    """Whether the configuration ended it."""


class Account(NamedTuple):
    """Final account of the replay process."""

    rows: int
    """Episodes closed by the loop since the start of the run."""
    taken: int
    """Records read since the last start or resumption."""
    waiting: int
    """Records left unread in the ring."""
    dropped: int
    """Records dropped because the ring was full."""
    lost: int
    """Records lost with a replay process that died."""
    covered: bool
    """Whether the newest checkpoint on disk has everything (or a resumed run reproduces it)."""
    log: LogAccount | None
    departures: int | None = None
    """Lockstep: number of deviations from an undisturbed run."""


def whole_of(account: Account, folder: Path, acted: Iterable[int] = ()) -> Whole:
    """Compare the account with the run folder; ``acted``: policies in addition to those of the rows."""
    try:
        filed = read_rows(folder / "episodes.csv").rows
    except (OSError, ValueError):
        filed = []
    ids = sorted({row.policy_id for row in filed if row.policy_id}.union(acted))
    there = {n for n in ids if (folder / "policies" / f"{n}.onnx").is_file()}
    return judge(account, rows=len(filed), acted=ids, filed_policies=there)


def judge(account: Account, *, rows: int, acted: list[int], filed_policies: set[int]) -> Whole:
    """Judge completeness from the rows in the file, and the policies that acted and are stored."""
    lost = []
    if rows < account.rows:
        lost.append(f"rows: {account.rows - rows} of {account.rows} are not in episodes.csv")
    gone = account.waiting + account.dropped + account.lost
    reasons = (
        (account.dropped, "found the ring full"),
        (account.lost, "died with a replay process"),
        (account.waiting, "were not taken in"),
    )
    if gone:
        why = ", ".join(f"{n} {what}" for n, what in reasons if n)
        lost.append(f"experiences: {gone} step records are missing ({why})")
    if not account.covered:
        lost.append("experiences: the last checkpoint of the memory could not be written")
    missing = [n for n in acted if n not in filed_policies]
    if missing:
        some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        lost.append(f"policies: {len(missing)} of {len(acted)} that acted are not stored ({some})")
    log = account.log
    if log is not None and log.missing and not log.by_request:
        lost.append(f"log: {log.missing} of {log.given} step records are not in it ({log.reason})")
    departs = account.departures
    return Whole(
        complete=not lost,
        rows=Counted(account.rows, rows),
        experiences=Counted(account.taken + gone, account.taken),
        policies=Counted(len(acted), len(filed_policies)),
        log=None if log is None else Counted(log.given, log.given - log.missing),
        lost=tuple(lost),
        reproducible=None if departs is None else not (departs or account.dropped or account.lost),
    )


def unaccounted(rows: int, folder: Path) -> Whole:
    """Verdict without the account of a replay process that died; ``rows``: those the loop closed."""
    try:
        present = len(read_rows(folder / "episodes.csv").rows)
    except (OSError, ValueError):
        present = 0
    lost = ["the replay process did not finish: data that it had not written are missing"]
    if present < rows:
        lost.append(f"rows: {rows - present} of {rows} are not in episodes.csv")
    return Whole(complete=False, rows=Counted(rows, present), lost=tuple(lost))


def told(whole: Whole) -> str:
    """One line for a person."""
    if not whole.complete:
        return f"DATA INCOMPLETE: {'; '.join(whole.lost)}" + _reproducible(whole)
    parts = [f"{whole.rows.present} rows"]
    for name, counted in (("records", whole.experiences), ("policies", whole.policies), ("logged", whole.log)):
        if counted is not None:
            parts.append(f"{counted.present} {name}")
    return f"data complete: {', '.join(parts)}" + _reproducible(whole)


def _reproducible(whole: Whole) -> str:
    return "; NOT REPRODUCIBLE" if whole.reproducible is False else ""
