"""Streamed data of a run for the formats of `onrig export`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Final

import numpy as np
from numpy.typing import NDArray

from onrig.runtime.config.document import MAX_BYTES
from onrig.runtime.exit_codes import Failure
from onrig.runtime.files import read_file
from onrig.runtime.record import Flag, Kind
from onrig.tools.api.run_data import DataMissing, RunData
from onrig.tools.api.tables import Table, experience_table
from onrig.tools.exporting.pieces import Piece, pieces
from onrig.tools.plugins import META_KEY

CONFIG: Final = "config.yaml"
Progress = Callable[[int], None]
"""Function that receives the number of newly exported records."""


class CannotExport(Failure):
    """Raised if the export cannot be carried out."""


class Source:
    """Tables, episodes and provenance of a run; the tables and episodes are streamed only once."""

    def __init__(self, run: RunData, progress: Progress) -> None:
        self.run: Final = run
        self._progress: Final = progress
        self._closed_episodes: set[tuple[str, int]] = set()
        self.never_recorded: list[str] = []
        """Data that the run never recorded, one line each."""

    def records(self) -> Iterator[Table]:
        """Yield the step records, or none for a run without a log."""
        try:
            for batch in self.run.record_batches():
                is_closing = batch["flags"] & Flag.NO_ACTION != 0
                kinds, episodes = batch["kind"][is_closing].tolist(), batch["episode"][is_closing].tolist()
                self._closed_episodes |= {(Kind(k).name.lower(), e) for k, e in zip(kinds, episodes, strict=True)}
                yield batch
                self._progress(batch.rows)
        except DataMissing as error:
            self.never_recorded.append(str(error))

    def pieces(self) -> Iterator[Piece]:
        """Return the pieces of the episodes. Raises CannotExport if the log does not contain every tick."""
        if self.run.config.log.decimation > 1:
            reason = f"the log of '{self.run.folder}' contains only every n-th tick (log.decimation), so no transitions"
            raise CannotExport(f"{reason}; export the memory instead: --format parquet")
        try:
            self.run.require_log()
        except DataMissing as error:
            raise CannotExport(f"{error}; export the memory instead: --format parquet") from None
        return pieces(_to_structured_array(batch) for batch in self.records())

    def experiences(self) -> Iterator[Table]:
        """Yield the experiences in the memory, or none for a run without a checkpoint."""
        try:
            for rows in self.run.experience_rows():
                yield experience_table(self.run.config, rows)
        except DataMissing as error:
            self.never_recorded.append(str(error))

    @property
    def provenance(self) -> dict[str, object]:
        """Origin of the data."""
        meta, config = self.run.meta, read_file(self.run.folder / CONFIG, MAX_BYTES)
        return {
            "run": self.run.folder.resolve().name,
            "run_id": meta.get("run", ""),
            "config_sha256": hashlib.sha256(config).hexdigest(),
            **({META_KEY: meta[META_KEY]} if META_KEY in meta else {}),
            "git_revision": meta.get("git_revision"),
            "git_dirty": meta.get("git_dirty"),
            "versions": meta.get("versions", {}),
            "seed": self.run.config.seed,
            "rig": self.run.config.rig.name,
            "task": self.run.config.task.name,
            "rate_hz": self.run.config.rate_hz,
            "exported_by": f"onrig {version('onrig')}",
        }

    def missing_data(self) -> tuple[str, ...]:
        """Return the run's missing data, one line each.

        The list is complete only once `records` or `pieces` is exhausted.
        """
        rows = {
            (str(kind), int(e)) for kind, e in zip(*(self.run.episodes[n] for n in ("kind", "episode")), strict=True)
        }
        n_incomplete = (
            len(rows - self._closed_episodes) if not self.never_recorded and self.run.config.log.decimation == 1 else 0
        )
        lines = list(self.run.missing)
        if n_incomplete:
            lines.append(f"{n_incomplete} of {len(rows)} episodes in episodes.csv are not complete in the log")
        return tuple(lines)


def _to_structured_array(table: Table) -> NDArray[np.void]:
    """Return the records as one structured array with the dtype of `onrig.runtime.record.RecordLayout`."""
    types = [(f.name, f.dtype, (len(f.components),)) if f.components else (f.name, f.dtype) for f in table.schema]
    records = np.empty(table.rows, np.dtype(types))
    for name in table:
        records[name] = table[name]
    return records
