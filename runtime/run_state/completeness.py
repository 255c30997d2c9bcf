"""Completeness of a run's data across all its sessions, checked at the end of the run.

* *Rows*: ``episodes.csv`` has one row for each training and evaluation episode that the loop closed, in order.
* *Experiences*: every step record that the loop wrote was read, and the memory on disk covers it.
* *Policies*: ``policies/`` has every policy that acted in an episode of the rows, unchanged.
* *Log*: unless it is disabled or a configured limit ended it, the log has every record that was read.
* *Files*: no file is missing or truncated, and none was found damaged when the run was resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from onrig.runtime.run_state.checksums import FileChecksum, measure
from onrig.runtime.run_state.episodes import EpisodeRow, read_rows
from onrig.runtime.run_state.policy_index import INDEX_FILE as POLICY_INDEX
from onrig.runtime.run_state.policy_index import read_index

_MAX_IDS_SHOWN: Final = 5


class ItemCount(msgspec.Struct, frozen=True):
    """Expected and actual number of items."""

    expected: int
    present: int


class Completeness(msgspec.Struct, frozen=True):
    """The section ``whole`` of ``summary.json``."""

    complete: bool
    rows: ItemCount
    experiences: ItemCount | None = None
    """Step records written by the loop, and how many of them the memory and its checkpoints cover."""
    policies: ItemCount | None = None
    log: ItemCount | None = None
    """Step records passed to the log, and how many of them it contains; None without a log."""
    files: ItemCount | None = None
    """Files with a checksum, and how many of them are intact."""
    lost: tuple[str, ...] = ()
    """Missing items, one line each."""
    reproducible: bool | None = None
    """Lockstep: whether the run equals an uninterrupted one bit for bit; None in real time."""


class LogAccount(NamedTuple):
    """Number of records passed to a log, and number of those missing from it."""

    offered: int
    missing: int
    reason: str = ""
    """Reason why records are missing."""
    ended_by_limit: bool = False
    """Whether a configured limit ended the log."""


class Account(NamedTuple):
    """Counts that the replay process reports at the end of a run."""

    rows: int
    """Episodes closed by the loop since the start of the run."""
    read: int
    """Records read since the start of the run."""
    unread: int
    """Records left unread in the ring."""
    dropped: int
    """Records dropped because the ring was full."""
    lost: int
    """Records lost in a crash of the replay process."""
    newer: int
    """Records newer than the last checkpoint, lost when the run was killed (real time)."""
    is_covered: bool
    """Whether the newest checkpoint on disk covers everything (or a resumed run reproduces it)."""
    log: LogAccount | None
    n_deviations: int | None = None
    """Lockstep: number of deviations from an uninterrupted run."""


class FolderContents(NamedTuple):
    """Content of a run folder at the end of the run."""

    rows: int
    sequence_gap: str = ""
    """Problem in the sequence of the rows; empty if there is none."""
    missing: tuple[int, ...] = ()
    """Policies that acted but have no file."""
    altered: tuple[int, ...] = ()
    """Policies that acted but whose file has changed."""
    acted: int = 0
    """Number of policies that acted."""
    files: int = 0
    """Files with a checksum."""
    lost_files: tuple[str, ...] = ()
    """Problems with these files, one line each."""


def assess(
    account: Account,
    folder: Path,
    acted: Iterable[int] = (),
    files: Mapping[str, FileChecksum] | None = None,
    damaged: Iterable[str] = (),
) -> Completeness:
    """Determine completeness by comparing the account with the run folder.

    ``acted``: policies that acted in addition to those in the rows; ``files``: files with their expected extents;
    ``damaged``: files found damaged when the run was resumed.
    """
    try:
        rows = read_rows(folder / "episodes.csv").rows
    except (OSError, ValueError):
        rows = []
    ids = sorted({row.policy_id for row in rows if row.policy_id}.union(acted))
    index = read_index(folder / POLICY_INDEX)
    missing, altered = [], []
    for policy_id in ids:
        try:
            if measure(folder / "policies" / f"{policy_id}.onnx") != index.get(policy_id):
                altered.append(policy_id)
        except OSError:
            missing.append(policy_id)
    lines = {name: _truncation_problem(folder, name, extent) for name, extent in (files or {}).items()}
    lines |= {
        name: f"{name} was missing or damaged when the run was resumed" for name in damaged if not lines.get(name)
    }
    contents = FolderContents(
        rows=len(rows),
        sequence_gap=sequence_gap(rows),
        missing=tuple(missing),
        altered=tuple(altered),
        acted=len(ids),
        files=len(lines),
        lost_files=tuple(line for line in lines.values() if line),
    )
    return judge(account, contents)


def sequence_gap(rows: Sequence[EpisodeRow]) -> str:
    """Describe the first gap in the sequence of a run's rows; empty if there is none."""
    last_episode, is_evaluated = 0, False
    for row in rows:
        if row.kind == "eval" and row.episode == last_episode and not is_evaluated:
            is_evaluated = True
        elif row.kind == "train" and row.episode == last_episode + 1:
            last_episode, is_evaluated = row.episode, False
        else:
            previous = (
                f"{'eval' if is_evaluated else 'train'} episode {last_episode}" if last_episode else "the heading"
            )
            return f"{row.kind} episode {row.episode} after {previous}"
    return ""


def _truncation_problem(folder: Path, name: str, extent: FileChecksum) -> str:
    """Describe a missing or truncated file of this session, without reading its content again; empty if intact."""
    path = folder / name
    if not path.is_file():
        return f"{name} is missing"
    size = path.stat().st_size
    return f"{name} is truncated to {size} of {extent.bytes} bytes" if size < extent.bytes else ""


def judge(account: Account, contents: FolderContents) -> Completeness:
    """Determine completeness from the account and the folder's contents."""
    lost = []
    if contents.rows < account.rows:
        lost.append(f"rows: {account.rows - contents.rows} of {account.rows} are not in episodes.csv")
    if contents.rows > account.rows:
        lost.append(f"rows: episodes.csv has {contents.rows - account.rows} rows more than closed episodes")
    if contents.sequence_gap:
        lost.append(f"rows: out of sequence in episodes.csv ({contents.sequence_gap})")
    n_missing = account.unread + account.dropped + account.lost + account.newer
    reasons = (
        (account.dropped, "found the ring full"),
        (account.lost, "were lost with a replay process"),
        (account.newer, "were newer than the checkpoint when the run was killed"),
        (account.unread, "were not read"),
    )
    if n_missing:
        reason = ", ".join(f"{n} {subject}" for n, subject in reasons if n)
        lost.append(f"experiences: {n_missing} step records are missing ({reason})")
    if not account.is_covered:
        lost.append("experiences: the last checkpoint of the memory could not be written")
    for ids, subject in ((contents.missing, "are not stored"), (contents.altered, "have changed")):
        if ids:
            shown_ids = ", ".join(map(str, ids[:_MAX_IDS_SHOWN])) + (", ..." if len(ids) > _MAX_IDS_SHOWN else "")
            lost.append(f"policies: {len(ids)} of {contents.acted} that acted {subject} ({shown_ids})")
    log = account.log
    if log is not None and log.missing and not log.ended_by_limit:
        lost.append(f"log: {log.missing} of {log.offered} step records are not in it ({log.reason})")
    lost += (f"files: {line}" for line in contents.lost_files)
    has_deviations = account.n_deviations
    return Completeness(
        complete=not lost,
        rows=ItemCount(account.rows, contents.rows),
        experiences=ItemCount(account.read + n_missing, account.read),
        policies=ItemCount(contents.acted, contents.acted - len(contents.missing) - len(contents.altered)),
        log=None if log is None else ItemCount(log.offered, log.offered - log.missing),
        files=ItemCount(contents.files, contents.files - len(contents.lost_files)),
        lost=tuple(lost),
        reproducible=None if has_deviations is None else not (has_deviations or account.dropped or account.lost),
    )


def assess_without_account(rows: int, folder: Path) -> Completeness:
    """Describe the completeness after a replay process crashed without an account; ``rows``: episodes closed by the
    loop."""
    try:
        present = len(read_rows(folder / "episodes.csv").rows)
    except (OSError, ValueError):
        present = 0
    lost = ["the replay process did not finish: data that it had not written are missing"]
    if present < rows:
        lost.append(f"rows: {rows - present} of {rows} are not in episodes.csv")
    return Completeness(complete=False, rows=ItemCount(rows, present), lost=tuple(lost))


def summary_line(completeness: Completeness) -> str:
    """Summarise completeness in one line for users."""
    if not completeness.complete:
        return f"DATA INCOMPLETE: {'; '.join(completeness.lost)}" + _reproducibility_note(completeness)
    parts = [f"{completeness.rows.present} rows"]
    for name, count in (
        ("records", completeness.experiences),
        ("policies", completeness.policies),
        ("logged", completeness.log),
    ):
        if count is not None:
            parts.append(f"{count.present} {name}")
    return f"data complete: {', '.join(parts)}" + _reproducibility_note(completeness)


def _reproducibility_note(completeness: Completeness) -> str:
    return "; NOT REPRODUCIBLE" if completeness.reproducible is False else ""
