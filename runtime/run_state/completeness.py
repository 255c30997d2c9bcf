"""Completeness of a run's data over all its sessions, checked at its end.

* *Rows*: ``episodes.csv`` has one row for each training and evaluation episode that the loop closed, in order.
* *Experiences*: every step record that the loop wrote was read, and the memory on disk covers it.
* *Policies*: ``policies/`` has every policy that acted in an episode of the rows, unchanged.
* *Log*: unless disabled or ended by a configured limit, it has every record read.
* *Files*: no file is missing, truncated, or was found damaged when the run was resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onrig.runtime.run_state.checksums import Extent, measure
from onrig.runtime.run_state.episodes import EpisodeRow, read_rows
from onrig.runtime.run_state.policy_index import NAME as POLICY_INDEX
from onrig.runtime.run_state.policy_index import read_index

_SHOWN: Final = 5


class Counted(msgspec.Struct, frozen=True):
    """Expected and actual number of items."""

    expected: int
    present: int


class Completeness(msgspec.Struct, frozen=True):
    """The section ``whole`` of ``summary.json``."""

    complete: bool
    rows: Counted
    experiences: Counted | None = None
    """Step records written by the loop, and those covered by memory and checkpoints."""
    policies: Counted | None = None
    log: Counted | None = None
    """Step records; None without a log."""
    files: Counted | None = None
    """Files with a checksum, and how many of them are intact."""
    lost: tuple[str, ...] = ()
    """Missing items, one line each."""
    reproducible: bool | None = None
    """Lockstep: whether the result equals that of an undisturbed run; None in real time."""


class LogAccount(NamedTuple):
    """Records passed to a log, and those missing in it."""

    given: int
    missing: int
    reason: str = ""
    """Reason for the missing records."""
    by_request: bool = False
    """Whether a configured limit ended the log."""


class Account(NamedTuple):
    """Final account of the replay process."""

    rows: int
    """Episodes closed by the loop since the start of the run."""
    taken: int
    """Records read since the start of the run."""
    waiting: int
    """Records left unread in the ring."""
    dropped: int
    """Records dropped because the ring was full."""
    lost: int
    """Records lost in a crash of the replay process."""
    newer: int
    """Records newer than the last checkpoint, lost when the run was killed (real time)."""
    covered: bool
    """Whether the newest checkpoint on disk covers everything (or a resumed run reproduces it)."""
    log: LogAccount | None
    departures: int | None = None
    """Lockstep: number of deviations from an undisturbed run."""


class Found(NamedTuple):
    """Content of a run folder at the end."""

    rows: int
    sequence_gap: str = ""
    """Problem in the sequence of the rows, or empty."""
    missing: tuple[int, ...] = ()
    """Policies that acted but have no file."""
    altered: tuple[int, ...] = ()
    """Policies that acted but whose file has changed."""
    acted: int = 0
    """Number of policies that acted."""
    files: int = 0
    """Files with a checksum."""
    lost_files: tuple[str, ...] = ()
    """Problems with them, one line each."""


def assess(
    account: Account,
    folder: Path,
    acted: Iterable[int] = (),
    files: Mapping[str, Extent] | None = None,
    damaged: Iterable[str] = (),
) -> Completeness:
    """Compare the account with the run folder.

    ``acted``: policies in addition to those of the rows; ``files``: files with their extents; ``damaged``: files found
    damaged when the run was resumed.
    """
    try:
        filed = read_rows(folder / "episodes.csv").rows
    except (OSError, ValueError):
        filed = []
    ids = sorted({row.policy_id for row in filed if row.policy_id}.union(acted))
    index = read_index(folder / POLICY_INDEX)
    missing, altered = [], []
    for policy_id in ids:
        try:
            if measure(folder / "policies" / f"{policy_id}.onnx") != index.get(policy_id):
                altered.append(policy_id)
        except OSError:
            missing.append(policy_id)
    lines = {name: _shrunk(folder, name, extent) for name, extent in (files or {}).items()}
    lines |= {
        name: f"{name} was missing or damaged when the run was resumed" for name in damaged if not lines.get(name)
    }
    contents = Found(
        rows=len(filed),
        sequence_gap=sequence_gap(filed),
        missing=tuple(missing),
        altered=tuple(altered),
        acted=len(ids),
        files=len(lines),
        lost_files=tuple(line for line in lines.values() if line),
    )
    return judge(account, contents)


def sequence_gap(rows: Sequence[EpisodeRow]) -> str:
    """Describe the first gap in the sequence of a run's rows; empty if there is none."""
    last, evaluated = 0, False
    for row in rows:
        if row.kind == "eval" and row.episode == last and not evaluated:
            evaluated = True
        elif row.kind == "train" and row.episode == last + 1:
            last, evaluated = row.episode, False
        else:
            previous = f"{'eval' if evaluated else 'train'} episode {last}" if last else "the heading"
            return f"{row.kind} episode {row.episode} after {previous}"
    return ""


def _shrunk(folder: Path, name: str, extent: Extent) -> str:
    """Describe a missing or truncated file of this session, whose content is not read again."""
    path = folder / name
    if not path.is_file():
        return f"{name} is missing"
    size = path.stat().st_size
    return f"{name} is truncated to {size} of {extent.bytes} bytes" if size < extent.bytes else ""


def judge(account: Account, found: Found) -> Completeness:
    """Determine completeness from the account and the folder's content."""
    lost = []
    if found.rows < account.rows:
        lost.append(f"rows: {account.rows - found.rows} of {account.rows} are not in episodes.csv")
    if found.rows > account.rows:
        lost.append(f"rows: episodes.csv has {found.rows - account.rows} rows more than closed episodes")
    if found.sequence_gap:
        lost.append(f"rows: out of sequence in episodes.csv ({found.sequence_gap})")
    n_missing = account.waiting + account.dropped + account.lost + account.newer
    reasons = (
        (account.dropped, "found the ring full"),
        (account.lost, "died with a replay process"),
        (account.newer, "were newer than the checkpoint when the run was killed"),
        (account.waiting, "were not read"),
    )
    if n_missing:
        reason = ", ".join(f"{n} {subject}" for n, subject in reasons if n)
        lost.append(f"experiences: {n_missing} step records are missing ({reason})")
    if not account.covered:
        lost.append("experiences: the last checkpoint of the memory could not be written")
    for ids, subject in ((found.missing, "are not stored"), (found.altered, "have changed")):
        if ids:
            some = ", ".join(map(str, ids[:_SHOWN])) + (", ..." if len(ids) > _SHOWN else "")
            lost.append(f"policies: {len(ids)} of {found.acted} that acted {subject} ({some})")
    log = account.log
    if log is not None and log.missing and not log.by_request:
        lost.append(f"log: {log.missing} of {log.given} step records are not in it ({log.reason})")
    lost += (f"files: {line}" for line in found.lost_files)
    departs = account.departures
    return Completeness(
        complete=not lost,
        rows=Counted(account.rows, found.rows),
        experiences=Counted(account.taken + n_missing, account.taken),
        policies=Counted(found.acted, found.acted - len(found.missing) - len(found.altered)),
        log=None if log is None else Counted(log.given, log.given - log.missing),
        files=Counted(found.files, found.files - len(found.lost_files)),
        lost=tuple(lost),
        reproducible=None if departs is None else not (departs or account.dropped or account.lost),
    )


def assess_without_account(rows: int, folder: Path) -> Completeness:
    """Determine completeness without the account of a crashed replay process; ``rows``: episodes closed by the loop."""
    try:
        present = len(read_rows(folder / "episodes.csv").rows)
    except (OSError, ValueError):
        present = 0
    lost = ["the replay process did not finish: data that it had not written are missing"]
    if present < rows:
        lost.append(f"rows: {rows - present} of {rows} are not in episodes.csv")
    return Completeness(complete=False, rows=Counted(rows, present), lost=tuple(lost))


def summary_line(whole: Completeness) -> str:
    """One line for users."""
    if not whole.complete:
        return f"DATA INCOMPLETE: {'; '.join(whole.lost)}" + _reproducible(whole)
    parts = [f"{whole.rows.present} rows"]
    for name, counted in (("records", whole.experiences), ("policies", whole.policies), ("logged", whole.log)):
        if counted is not None:
            parts.append(f"{counted.present} {name}")
    return f"data complete: {', '.join(parts)}" + _reproducible(whole)


def _reproducible(whole: Completeness) -> str:
    return "; NOT REPRODUCIBLE" if whole.reproducible is False else ""
