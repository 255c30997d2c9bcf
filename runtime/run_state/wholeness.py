"""Whether a run has all that it is to have: rows, experiences, policies, log.  The one definition, checked at its end.

* *Rows*: ``episodes.csv`` has one for each training and evaluation episode that the loop closed.
* *Experiences*: every step record that the loop wrote was taken in, and the memory on disk covers them.
* *Policies*: ``policies/`` has each one that acted in a row's episode.
* *Log*: every record taken in is in it, where a log is kept at all and no limit of the configuration has ended it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from onrig.runtime.run_state.episodes import read_rows


class Counted(msgspec.Struct, frozen=True):
    """How many there are to be, and how many there are."""

    expected: int
    present: int


class Whole(msgspec.Struct, frozen=True):
    """The section ``whole`` of ``summary.json``."""

    complete: bool
    rows: Counted
    experiences: Counted | None = None
    """Step records written by the loop, and those of them that memory and checkpoints were made of."""
    policies: Counted | None = None
    log: Counted | None = None
    """Step records; None where there is no log."""
    lost: tuple[str, ...] = ()
    """What is missing, one line each."""
    reproducible: bool | None = None
    """Lockstep: whether everything is as it would be if the run had been left alone; None in real time."""


class LogAccount(NamedTuple):
    """What a log has of the records that it was given."""

    given: int
    missing: int
    reason: str = ""
    """Why some are missing."""
    by_request: bool = False
    """Whether the configuration ended it."""


class Account(NamedTuple):
    """What the replay process knows at its end."""

    rows: int
    """Episodes that the loop closed, over the whole life of the run."""
    taken: int
    """Records taken in, in this life of the run."""
    waiting: int
    """Records that wait in the ring and will not be taken in."""
    dropped: int
    """Records that found the ring full."""
    lost: int
    """Records that were taken in by a process that died, and are nowhere any more."""
    covered: bool
    """Whether the newest checkpoint on disk has everything (or a resumed run makes it again)."""
    log: LogAccount | None
    departures: int | None = None
    """Lockstep: how often the run went on otherwise than it would have if left alone."""


def whole_of(account: Account, folder: Path, acted: Iterable[int] = ()) -> Whole:
    """Compare what is to be there with what is in the run folder; ``acted``: policies beside those of the rows."""
    try:
        filed = read_rows(folder / "episodes.csv").rows
    except (OSError, ValueError):
        filed = []
    ids = sorted({row.policy_id for row in filed if row.policy_id}.union(acted))
    there = {n for n in ids if (folder / "policies" / f"{n}.onnx").is_file()}
    return judge(account, rows=len(filed), acted=ids, filed_policies=there)


def judge(account: Account, *, rows: int, acted: list[int], filed_policies: set[int]) -> Whole:
    """Decide, from what was to be there and what was found: ``rows`` in the file, policies that acted and are filed."""
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
        lost.append(f"policies: {len(missing)} of {len(acted)} that acted are not filed ({some})")
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
    """What can be said without the replay process, which did not come to its end; ``rows``: as the loop closed them."""
    try:
        present = len(read_rows(folder / "episodes.csv").rows)
    except (OSError, ValueError):
        present = 0
    lost = ["the replay process did not come to its end: what it had not written is missing"]
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
