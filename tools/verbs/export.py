"""Export a run as tables or as a data set of transitions.

parquet and csv write every record, experience, episode, policy and event; minari and lerobot write the episodes of the
log, split at missing frames (docs/data.md). A run that is in progress or was killed is exported up to its last complete
record.  The folder appears only when the export is complete.

Exit codes: 0 exported; 6 exported, but the run's data are incomplete; 2 nothing to export; 3 a library is missing.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from onrig.tools.options import Folder, RunFolder, Trust


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    run: RunFolder
    """Folder of a run."""
    _: KW_ONLY
    format: Literal["parquet", "csv", "minari", "lerobot"]
    """Format of the exported data."""
    out: Folder | None = None
    """Folder for the exported data (default: RUN-FORMAT; for minari, RUN-v0)."""
    trust: Trust = False


def main(options: Options) -> int:
    """Export the run and return the exit code."""
    from onrig.tools.export import export_run

    return export_run(options.run, options.format, options.out)
