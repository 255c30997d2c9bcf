"""Comparison of a run folder with its checksums, to find files that have changed since the run wrote them.

``checksums.json`` covers the files that no longer change; the newest readable checkpoint covers the content that the
other files had when it was written.  Content added after that checkpoint has no checksum until the run ends.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from onrig.runtime.files import read_fields
from onrig.runtime.log.staged_file import log_files
from onrig.runtime.replay.checkpoint.blocks import CorruptionError as CheckpointDamage
from onrig.runtime.replay.checkpoint.manifest import manifest_numbers, read_manifest
from onrig.runtime.replay.learners.policy_watch import FILE_NAME as ROLLED_BACK
from onrig.runtime.replay.learners.policy_watch import RolledBackList
from onrig.runtime.replay.recovery import Point, decode_point
from onrig.runtime.run_state.checksums import (
    CHECKSUM_FILE,
    EMPTY_CHECKSUM,
    SUMMARY_FILE,
    FileList,
    difference,
    measure,
    read_list,
)
from onrig.runtime.run_state.completeness import sequence_gap
from onrig.runtime.run_state.episodes import read_rows
from onrig.runtime.run_state.policy_index import INDEX_FILE as POLICY_INDEX
from onrig.runtime.run_state.policy_index import read_index

_CONFIG_FILE: Final = "config.yaml"
_ROWS_FILE: Final = "episodes.csv"
_EVENTS_FILE: Final = "events.jsonl"
_ROLLED_BACK_FILE: Final = f"policies/{ROLLED_BACK}"


class Grade(enum.Enum):
    """Consequence of a fault for resuming the run."""

    ESSENTIAL = enum.auto()
    """The resumed run would continue from a wrong state."""
    LOST = enum.auto()
    """The run can be resumed, but its data are incomplete."""
    NOTED = enum.auto()
    """No consequence: the file is written again, or is not used."""


class Fault(NamedTuple):
    """File that differs from what the run wrote."""

    name: str
    description: str
    """Description of the fault, to be printed after the name."""
    grade: Grade = Grade.LOST

    def __str__(self) -> str:
        return f"{self.name} {self.description}"


class Evidence(NamedTuple):
    """Checksums of a run's files, and its newest readable checkpoint."""

    file_list: FileList
    point: Point | None = None
    """Content of the checkpoint, with the extents of the append-only files; None without a checkpoint."""
    counts: Mapping[str, int] = MappingProxyType({})
    """Counts of the checkpoint."""
    number: int = 0
    """Number of the checkpoint; 0 without one."""


def run_identity(run_folder: Path) -> str:
    """Return the unique identity of the run from ``meta.json``; "" if missing."""
    return str(read_fields(run_folder / "meta.json").get("run", ""))


def read_evidence(folder: Path) -> Evidence:
    """Read ``checksums.json`` and the newest readable checkpoint, without the memory."""
    file_list = read_list(folder)
    for number in manifest_numbers(folder / "buffer"):
        try:
            manifest = read_manifest(folder / "buffer", number)
            return Evidence(file_list, decode_point(bytes(manifest.note)), manifest.extra, number)
        except (CheckpointDamage, ValueError):  # use the next older one, as when restoring the memory
            continue
    return Evidence(file_list)


def faults(
    folder: Path, evidence: Evidence, is_wanted: Callable[[str], bool] = lambda name: True, *, lockstep: bool = False
) -> list[Fault]:
    """Compare files of a run folder with their checksums; return at most one fault per file.

    ``is_wanted`` selects files by their path within the folder.  ``lockstep``: whether the run will be resumed from its
    checkpoint, in which case later rows are not checked.
    """
    all_faults = [
        *_list_faults(folder, evidence),
        *_identity_faults(folder, evidence),
        *_file_faults(folder, evidence, is_wanted),
        *_stray_log_faults(folder, evidence, is_wanted),
        *(() if lockstep or not is_wanted(_ROWS_FILE) else _row_faults(folder)),
        *_policy_faults(folder, evidence, is_wanted, lockstep=lockstep),
        *(_rolled_back_faults(folder, evidence) if is_wanted(_ROLLED_BACK_FILE) else ()),
    ]
    return list({fault.name: fault for fault in reversed(all_faults)}.values())[::-1]


def _list_faults(folder: Path, evidence: Evidence) -> Iterator[Fault]:
    """Yield a fault if the list of checksums is missing or damaged.

    Runs of earlier versions, which have neither a list nor an identity, are exempt.
    """
    if evidence.file_list.problem and (evidence.point is not None or run_identity(folder)):
        yield Fault(CHECKSUM_FILE, evidence.file_list.problem, Grade.NOTED)


def _identity_faults(folder: Path, evidence: Evidence) -> Iterator[Fault]:
    run = run_identity(folder)
    if evidence.point is not None and run and evidence.point.run != run:
        yield Fault("buffer", "holds the checkpoint of another run", Grade.ESSENTIAL)


def _file_faults(folder: Path, evidence: Evidence, is_wanted: Callable[[str], bool]) -> Iterator[Fault]:
    listed_files, point = evidence.file_list.files, evidence.point
    growing_files = {} if point is None else {name: e for name, e in point.files.items() if name not in listed_files}
    # The replay process lists the files when it ends; until the list is final, the supervisor still adds events.
    may_grow = {*growing_files, *(() if evidence.file_list.is_final else (_EVENTS_FILE,))}
    for name, extent in (*listed_files.items(), *growing_files.items()):
        problem = difference(folder / name, extent, may_be_longer=name in may_grow) if is_wanted(name) else None
        if problem is not None:
            yield Fault(name, problem, _grade(name))


def _grade(name: str) -> Grade:
    if name in (_CONFIG_FILE, _ROWS_FILE, POLICY_INDEX):
        return Grade.ESSENTIAL
    return Grade.NOTED if name == SUMMARY_FILE else Grade.LOST


def _stray_log_faults(folder: Path, evidence: Evidence, is_wanted: Callable[[str], bool]) -> Iterator[Fault]:
    """Yield logs that the run did not write; until the run has ended, only copies of its own logs can be recognised."""
    known_names = {*evidence.file_list.files, *(evidence.point.files if evidence.point is not None else ())}
    logs = [path for path in log_files(folder) if is_wanted(path.name) and path.is_file()]
    for path in (p for p in logs if p.name not in known_names):
        if evidence.file_list.is_final:
            yield Fault(path.name, "is not one of the run's files", Grade.NOTED)
            continue
        size = path.stat().st_size
        for original in (p for p in logs if p.name in known_names and p.stat().st_size == size):
            if measure(original) == measure(path):
                yield Fault(path.name, f"is a copy of {original.name}", Grade.NOTED)


def _row_faults(folder: Path) -> Iterator[Fault]:
    try:
        problem = sequence_gap(read_rows(folder / _ROWS_FILE).rows)
    except OSError as error:
        yield Fault(_ROWS_FILE, f"cannot be read: {error.strerror or error}", Grade.ESSENTIAL)
    except ValueError as error:
        yield Fault(_ROWS_FILE, f"has an invalid row: {error}", Grade.ESSENTIAL)
    else:
        if problem:
            yield Fault(_ROWS_FILE, f"has rows out of sequence: {problem}", Grade.ESSENTIAL)


def _policy_faults(
    folder: Path, evidence: Evidence, is_wanted: Callable[[str], bool], *, lockstep: bool
) -> Iterator[Fault]:
    point, is_final = evidence.point, evidence.file_list.is_final
    index_bytes = None if is_final or point is None else point.files.get(POLICY_INDEX, EMPTY_CHECKSUM).bytes
    index, listed_at_checkpoint = read_index(folder / POLICY_INDEX), read_index(folder / POLICY_INDEX, index_bytes)
    path_by_id = {int(p.stem): p for p in (folder / "policies").glob("*.onnx") if p.stem.isdecimal()}
    for policy_id, path in sorted(path_by_id.items()):
        name = f"policies/{path.name}"
        if not is_wanted(name):
            continue
        if policy_id not in index and (index or is_final or point is not None):
            yield Fault(name, "is not one of the run's policies", Grade.NOTED)
        elif policy_id in index and (problem := difference(path, index[policy_id])) is not None:
            yield Fault(name, problem, Grade.ESSENTIAL if policy_id in listed_at_checkpoint else Grade.NOTED)
    for policy_id in (
        _needed_policies(folder, evidence, max(listed_at_checkpoint, default=0), lockstep=lockstep) - path_by_id.keys()
    ):
        if is_wanted(name := f"policies/{policy_id}.onnx"):
            yield Fault(name, "is missing", Grade.ESSENTIAL)


def _needed_policies(folder: Path, evidence: Evidence, newest_id: int, *, lockstep: bool) -> set[int]:
    """Return the ids of the policies that acted up to the checkpoint (or the run's end), and that of the newest one.

    In real time, the newest one (``newest_id``) is omitted if there is a later one, which may have replaced it.
    """
    try:
        rows = read_rows(folder / _ROWS_FILE).rows
    except (OSError, ValueError):
        rows = []
    n_known = len(rows) if evidence.file_list.is_final else evidence.counts.get("rows", 0)
    needed_ids = {row.policy_id for row in rows[:n_known] if row.policy_id}
    has_later_policy = any(int(p.stem) > newest_id for p in (folder / "policies").glob("*.onnx") if p.stem.isdecimal())
    return needed_ids | ({newest_id} if newest_id and (lockstep or not has_later_policy) else set())


def _rolled_back_faults(folder: Path, evidence: Evidence) -> Iterator[Fault]:
    if evidence.point is None:
        return
    count, rolled_back = evidence.counts.get("rolled_back_policies", 0), RolledBackList(folder / "policies")
    if rolled_back.damaged or rolled_back.crc32(count) != evidence.point.rolled_back_crc32:
        description = (
            "is missing" if count and not (folder / _ROLLED_BACK_FILE).exists() else "differs from what the run wrote"
        )
        yield Fault(_ROLLED_BACK_FILE, description, Grade.ESSENTIAL)
