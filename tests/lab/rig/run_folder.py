"""Contents of a run folder, read independently of the run's own account: rows, records, policies, memory, output."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from onrig.runtime.files import read_fields
from onrig.runtime.record import Flag
from onrig.runtime.replay.checkpoint.blocks import CheckpointError, CorruptionError
from onrig.runtime.replay.checkpoint.manifest import Manifest, identity_of, manifest_numbers, read_manifest
from onrig.runtime.replay.checkpoint.restore import restore
from onrig.runtime.replay.experiences import Memory
from onrig.runtime.run_config import RunConfig
from onrig.runtime.run_loading import load_resolved
from onrig.runtime.run_state.episodes import EpisodeRow, read_rows

_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\)|Fatal Python error|Exception ignored")

Fields = dict[str, object]


class Episode(NamedTuple):
    """One episode in the log: the number of its steps that count, and the policies that acted in it."""

    steps: int
    policies: frozenset[int]


class LoggedRun(NamedTuple):
    """Contents of the log files of a run."""

    missing: int
    """Gaps in the record numbers."""
    episodes: dict[tuple[int, str], Episode]
    """Complete episodes by number and kind; the last one if recorded twice."""
    problem: str
    """Reason why it could not be read completely; empty if it could."""


@dataclass
class ReportedCounts:
    """A run's own counts, from its summary, or from its newest checkpoint if it left no summary."""

    taken_in: int = 0
    """Records read from the ring by the replay process."""
    missed: int = 0
    offered: int = 0
    """Experiences offered to the memory."""
    kept: int = 0
    """Writes to the memory."""
    gaps: int = 0
    policies_offered: int | None = None
    policies_admitted: int | None = None
    policies_refused: int | None = None
    rolled_back: int = 0
    mirror_mismatches: int = 0
    error_batches: int | None = None
    dropped: int = 0
    digest: str = ""
    """Digest of the memory; empty if the checkpoint has no intact one."""
    stored: int = 0
    capacity: int = 0


class FolderContents(NamedTuple):
    """Contents of a run folder."""

    summary: Fields
    """Content of ``summary.json``; empty if missing."""
    rows: list[EpisodeRow]
    rows_problem: str
    policies: frozenset[int]
    log: LoggedRun | None
    """None without a log, or without the library to read it."""
    checkpoint: ReportedCounts | None
    """Counts of the newest checkpoint; None if none is readable."""
    unfinished_files: list[str]
    """Names of files that were being written."""

    @property
    def counts_from_checkpoint(self) -> ReportedCounts:
        """Counts of the newest checkpoint if its memory is intact, else zeros."""
        return self.checkpoint if self.checkpoint is not None and self.checkpoint.digest else ReportedCounts()

    @property
    def counts_from_summary(self) -> ReportedCounts | None:
        """Counts of the summary (writes to the memory are only in the last checkpoint); None without a summary."""
        try:
            reported = msgspec.convert(self.summary, _Summary)
        except msgspec.ValidationError:
            return None
        return ReportedCounts(
            taken_in=reported.ticks,
            missed=reported.missed_ticks,
            offered=reported.transitions,
            kept=self.counts_from_checkpoint.kept,
            gaps=reported.gaps,
            policies_offered=reported.policies.offered,
            policies_admitted=reported.policies.admitted,
            policies_refused=reported.policies.refused,
            rolled_back=reported.policies.rolled_back,
            mirror_mismatches=reported.mirror_mismatches,
            error_batches=reported.learner.error_batches,
            digest=reported.buffer.digest,
            stored=reported.buffer.stored,
            capacity=reported.buffer.capacity,
        )


class _Buffer(msgspec.Struct):
    capacity: int
    stored: int
    digest: str


class _Policies(msgspec.Struct):
    offered: int
    admitted: int
    refused: int
    rolled_back: int = 0


class _Learner(msgspec.Struct):
    error_batches: int | None = None


class _Summary(msgspec.Struct):
    ticks: int
    missed_ticks: int
    transitions: int
    gaps: int
    buffer: _Buffer
    policies: _Policies
    learner: _Learner
    mirror_mismatches: int = 0


def newest_manifest(folder: Path) -> Manifest | None:
    """The newest readable manifest; None if there is none."""
    for number in manifest_numbers(folder / "buffer"):
        with contextlib.suppress(CorruptionError, OSError):
            return read_manifest(folder / "buffer", number)
    return None


def kept_memory(config: RunConfig, folder: Path) -> Memory | None:
    """Restore the memory of the newest checkpoint; None if none is readable and intact."""
    memory = Memory(config)
    try:
        restored = restore(folder / "buffer", memory, identity_of(memory, config.seed))
    except (CheckpointError, OSError):
        return None
    return None if restored is None or restored.damaged else memory


def checkpoint_counts(config: RunConfig, folder: Path) -> ReportedCounts | None:
    """Return the counts of the newest checkpoint of a run folder; None if none is readable."""
    manifest, memory = newest_manifest(folder), kept_memory(config, folder)
    if manifest is None:
        return None
    reported = ReportedCounts(
        taken_in=manifest.extra["ticks"],
        missed=manifest.extra["missed"],
        offered=manifest.counts["offered"],
        kept=manifest.counts["inserted"],
        gaps=manifest.extra["gaps"],
        error_batches=manifest.extra.get("error_batches"),
    )
    if memory is None:
        return reported
    storage = memory.storage
    return replace(reported, digest=storage.digest().hex(), stored=storage.stored, capacity=storage.capacity)


def config_of(folder: Path) -> RunConfig:
    """Return the configuration of a run, even if its first policy is missing; raises ConfigError or OSError."""
    return load_resolved(folder / "config.yaml")


def read_folder(folder: Path, config: RunConfig) -> FolderContents:
    """Read a run folder."""
    rows: list[EpisodeRow] = []
    rows_problem = ""
    try:
        table = read_rows(folder / "episodes.csv")
        rows = table.rows
        rows_problem = (
            f"episodes.csv ends in {table.n_partial_bytes} bytes of half a row" if table.n_partial_bytes else ""
        )
    except ValueError as error:
        rows_problem = str(error)
    names = [path.name for path in folder.rglob("*") if path.name.endswith((".tmp", ".part"))]
    return FolderContents(
        read_fields(folder / "summary.json"),
        rows,
        rows_problem,
        frozenset(int(p.stem) for p in (folder / "policies").glob("*.onnx") if p.stem.isdecimal()),
        logged(folder, config),
        checkpoint_counts(config, folder),
        names,
    )


def logged(folder: Path, config: RunConfig) -> LoggedRun | None:
    """Read the log files of a run; returns None without logs, or if the extra ``log`` is not installed."""
    try:
        from onrig.runtime.log.reading import LogDamagedError, LogStart, read_log
        from onrig.runtime.log.staged_file import log_files
    except ImportError:
        return None
    if not list(log_files(folder)):
        return None
    missing = expected = 0
    session = problem = ""
    open_: list[NDArray[np.void]] = []
    episodes: dict[tuple[int, str], Episode] = {}
    try:
        for part in read_log(folder, config.rig, behaviour=config.stochastic, inputs=config.input_names):
            if isinstance(part, LogStart):
                if part.metadata.get("session") != session:
                    session, expected, open_ = part.metadata.get("session", ""), 0, []
            elif isinstance(part, np.ndarray) and len(part):
                numbers = part["seq"].astype(np.int64)
                steps = np.diff(numbers, prepend=expected - 1)
                missing += int((steps - 1)[steps > 1].sum())
                expected = int(numbers[-1]) + 1
                open_ = _close(open_, part, episodes)
    except LogDamagedError as error:
        problem = str(error)
    return LoggedRun(missing, episodes, problem)


def _close(
    open_: list[NDArray[np.void]], part: NDArray[np.void], episodes: dict[tuple[int, str], Episode]
) -> list[NDArray[np.void]]:
    """Add the episodes that a batch of records completes; returns the records of one that is still open."""
    start = 0
    for end in (np.flatnonzero(part["flags"] & Flag.NO_ACTION) + 1).tolist():
        records = np.concatenate([*open_, part[start:end]])
        last = records[-1]
        own = records[(records["episode"] == last["episode"]) & (records["kind"] == last["kind"])]
        steps = own[(own["flags"] & (Flag.NO_ACTION | Flag.INVALID)) == 0]
        kind = "eval" if last["kind"] else "train"
        acted = frozenset(np.unique(own["policy_id"]).tolist()) - {0}
        episodes[int(last["episode"]), kind] = Episode(len(steps), acted)
        open_, start = [], end
    return [*open_, part[start:].copy()] if start < len(part) else open_


def tracebacks(folder: Path) -> list[str]:
    """Return the exceptions that ended programs of a run: ``FILE: last line``, once each."""
    found: dict[str, None] = {}
    for path in sorted({*folder.parent.glob("*.out"), *folder.rglob("stderr*.log"), *folder.rglob("*.out")}):
        with contextlib.suppress(OSError):
            text = path.read_text(errors="replace")
            for match in _TRACEBACK.finditer(text):
                lines = [line for line in text[match.start() :].splitlines()[1:] if line and not line.startswith(" ")]
                found[f"{path.name}: {lines[0][:200] if lines else text[match.start() :][:200]}"] = None
    return list(found)
