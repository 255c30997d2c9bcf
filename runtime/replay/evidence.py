"""Comparison of a run folder with its checksums: files that differ from what the run wrote.

``checksums.json`` covers the files that no longer change, the newest readable checkpoint the part of the others written
by then.  Content after that checkpoint has no checksum until the run ends.
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
from onrig.runtime.replay.learners.policy_watch import RolledBack
from onrig.runtime.replay.recovery import Point, decode_point
from onrig.runtime.run_state.checksums import (
    CHECKSUM_FILE,
    EMPTY_EXTENT,
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

_CONFIG: Final = "config.yaml"
_ROWS: Final = "episodes.csv"
_ROLLED_BACK: Final = f"policies/{ROLLED_BACK}"


class Grade(enum.Enum):
    """Consequence of a fault for a run that is resumed."""

    ESSENTIAL = enum.auto()
    """The run would continue from another state than its own."""
    LOST = enum.auto()
    """It can continue, but its data are incomplete."""
    NOTED = enum.auto()
    """No consequence: the file is written again, or is not used."""


class Fault(NamedTuple):
    """File that differs from what the run wrote."""

    name: str
    what: str
    """A few words that follow its name."""
    grade: Grade = Grade.LOST

    def __str__(self) -> str:
        return f"{self.name} {self.what}"


class Evidence(NamedTuple):
    """Facts about a run's files."""

    listed: FileList
    point: Point | None = None
    """Extents of the append-only files at the newest readable checkpoint."""
    counts: Mapping[str, int] = MappingProxyType({})
    """Checksums of the list of rolled-back policies at the same checkpoint."""
    number: int = 0
    """Number of that checkpoint; 0 for none."""


def run_identity(run_folder: Path) -> str:
    """Return the unique identity of the run from ``meta.json``; "" if missing."""
    return str(read_fields(run_folder / "meta.json").get("run", ""))


def evidence_of(folder: Path) -> Evidence:
    """Read ``checksums.json`` and the newest readable checkpoint, without the memory."""
    listed = read_list(folder)
    for number in manifest_numbers(folder / "buffer"):
        try:
            manifest = read_manifest(folder / "buffer", number)
            return Evidence(listed, decode_point(bytes(manifest.note)), manifest.extra, number)
        except (CheckpointDamage, ValueError):  # the next older one is used, as in restoring the memory
            continue
    return Evidence(listed)


def faults(
    folder: Path, evidence: Evidence, wants: Callable[[str], bool] = lambda name: True, *, lockstep: bool = False
) -> list[Fault]:
    """Compare the files whose path in the folder the caller ``wants``; at most one fault per file.

    ``lockstep``: the run is to be resumed from its checkpoint, so that rows after it do not matter.
    """
    all_faults = [
        *_list(folder, evidence),
        *_identity(folder, evidence),
        *_files(folder, evidence, wants),
        *_stray_logs(folder, evidence, wants),
        *(() if lockstep or not wants(_ROWS) else _rows(folder)),
        *_policies(folder, evidence, wants, lockstep=lockstep),
        *(_rolled_back(folder, evidence) if wants(_ROLLED_BACK) else ()),
    ]
    return list({fault.name: fault for fault in reversed(all_faults)}.values())[::-1]


def _list(folder: Path, evidence: Evidence) -> Iterator[Fault]:
    """Yield faults of the list itself; runs of earlier versions have neither list nor identity."""
    if evidence.listed.problem and (evidence.point is not None or run_identity(folder)):
        yield Fault(CHECKSUM_FILE, evidence.listed.problem, Grade.NOTED)


def _identity(folder: Path, evidence: Evidence) -> Iterator[Fault]:
    run = run_identity(folder)
    if evidence.point is not None and run and evidence.point.run != run:
        yield Fault("buffer", "holds the checkpoint of another run", Grade.ESSENTIAL)


def _files(folder: Path, evidence: Evidence, wants: Callable[[str], bool]) -> Iterator[Fault]:
    listed, point = evidence.listed.files, evidence.point
    growing = {} if point is None else {name: e for name, e in point.files.items() if name not in listed}
    for name, extent in (*listed.items(), *growing.items()):
        problem = difference(folder / name, extent, may_be_longer=name in growing) if wants(name) else None
        if problem is not None:
            yield Fault(name, problem, _grade(name))


def _grade(name: str) -> Grade:
    if name in (_CONFIG, _ROWS, POLICY_INDEX):
        return Grade.ESSENTIAL
    return Grade.NOTED if name == SUMMARY_FILE else Grade.LOST


def _stray_logs(folder: Path, evidence: Evidence, wants: Callable[[str], bool]) -> Iterator[Fault]:
    """Yield logs that the run did not write, as far as this is known before its end."""
    known = {*evidence.listed.files, *(evidence.point.files if evidence.point is not None else ())}
    logs = [path for path in log_files(folder) if wants(path.name) and path.is_file()]
    for path in (p for p in logs if p.name not in known):
        if evidence.listed.is_final:
            yield Fault(path.name, "is not one of the run's files", Grade.NOTED)
            continue
        size = path.stat().st_size
        for other in (p for p in logs if p.name in known and p.stat().st_size == size):
            if measure(other) == measure(path):
                yield Fault(path.name, f"is a copy of {other.name}", Grade.NOTED)


def _rows(folder: Path) -> Iterator[Fault]:
    try:
        problem = sequence_gap(read_rows(folder / _ROWS).rows)
    except OSError as error:
        yield Fault(_ROWS, f"cannot be read: {error.strerror or error}", Grade.ESSENTIAL)
    except ValueError as error:
        yield Fault(_ROWS, f"has an invalid row: {error}", Grade.ESSENTIAL)
    else:
        if problem:
            yield Fault(_ROWS, f"has rows out of sequence: {problem}", Grade.ESSENTIAL)


def _policies(folder: Path, evidence: Evidence, wants: Callable[[str], bool], *, lockstep: bool) -> Iterator[Fault]:
    point, ended = evidence.point, evidence.listed.is_final
    up_to = None if ended or point is None else point.files.get(POLICY_INDEX, EMPTY_EXTENT).bytes
    index, filed = read_index(folder / POLICY_INDEX), read_index(folder / POLICY_INDEX, up_to)
    existing = {int(p.stem): p for p in (folder / "policies").glob("*.onnx") if p.stem.isdecimal()}
    for policy_id, path in sorted(existing.items()):
        name = f"policies/{path.name}"
        if not wants(name):
            continue
        if policy_id not in index and (index or ended or point is not None):
            yield Fault(name, "is not one of the run's policies", Grade.NOTED)
        elif policy_id in index and (problem := difference(path, index[policy_id])) is not None:
            yield Fault(name, problem, Grade.ESSENTIAL if policy_id in filed else Grade.NOTED)
    for policy_id in _needed(folder, evidence, max(filed, default=0), lockstep=lockstep) - existing.keys():
        if wants(name := f"policies/{policy_id}.onnx"):
            yield Fault(name, "is missing", Grade.ESSENTIAL)


def _needed(folder: Path, evidence: Evidence, newest: int, *, lockstep: bool) -> set[int]:
    """Return the policies that acted up to the checkpoint (or the run's end), and the ``newest`` one filed by then.

    In real time a later one may have replaced the newest.
    """
    try:
        rows = read_rows(folder / _ROWS).rows
    except (OSError, ValueError):
        rows = []
    known = len(rows) if evidence.listed.is_final else evidence.counts.get("rows", 0)
    needed = {row.policy_id for row in rows[:known] if row.policy_id}
    later = any(int(p.stem) > newest for p in (folder / "policies").glob("*.onnx") if p.stem.isdecimal())
    return needed | ({newest} if newest and (lockstep or not later) else set())


def _rolled_back(folder: Path, evidence: Evidence) -> Iterator[Fault]:
    if evidence.point is None:
        return
    count, listed = evidence.counts.get("rolled_back_policies", 0), RolledBack(folder / "policies")
    if listed.damaged or listed.crc32(count) != evidence.point.rolled_back_crc32:
        description = (
            "is missing" if count and not (folder / _ROLLED_BACK).exists() else "differs from what the run wrote"
        )
        yield Fault(_ROLLED_BACK, description, Grade.ESSENTIAL)
