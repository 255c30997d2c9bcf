"""Exporting a run's data in a terminal: progress, result and exit code."""

from __future__ import annotations

import sys
from pathlib import Path

from onrig.runtime.exit_codes import ExitCode
from onrig.tools.api.run_data import NoRun, RunData, open_run
from onrig.tools.exporting.export import Format, export
from onrig.tools.exporting.source import CannotExport
from onrig.tools.progress import show_progress
from onrig.tools.quantity import format_count
from onrig.tools.terminal import complain


def export_run(folder: Path, format_: Format, out: Path | None) -> int:
    """Export the run in ``folder`` and return the exit code."""
    try:
        run = open_run(folder)
    except NoRun as error:
        return complain("export", str(error))
    name = folder.resolve().name
    out = out or Path(f"{name}-v0" if format_ == "minari" else f"{name}-{format_}")
    try:
        with show_progress("records", float(max(1, _count_records(run)))) as report:
            exported_records = 0

            def add_records(records: int) -> None:
                nonlocal exported_records
                exported_records += records
                report(float(exported_records))

            result = export(run, format_, out, add_records)
    except CannotExport as error:
        return complain("export", str(error), error.code)
    except OSError as error:
        return complain("export", f"'{error.filename or out}' cannot be written: {error.strerror or error}")
    print(f"{result.folder}: {', '.join(f'{format_count(n)} {kind}' for kind, n in result.counts.items())}")
    for line in result.never_recorded:
        print(f"not exported: {line}")
    for line in result.missing:
        sys.stderr.write(f"onrig export: {folder}: {line}\n")
    return ExitCode.INCOMPLETE if result.missing else ExitCode.OK


def _count_records(run: RunData) -> int:
    """Return the number of records in the run's log, or 0 if the library for reading it is missing."""
    try:
        from onrig.runtime.log.reading import count_steps
    except ImportError:
        return 0
    return count_steps(run.folder)
