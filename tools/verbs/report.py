"""Report the results of a run or an experiment.

The report of a run is one HTML page with figures, events and post-mortems; an experiment's is figures, tables and a
page.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import File, Folder, RunFolder, Trust
from onrig.tools.terminal import complain


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    folder: RunFolder
    """Folder of a run or of an experiment."""
    _: KW_ONLY
    out: File | None = None
    """Write the run's page to FILE (default: RUN/report.html)."""
    tensorboard: Folder | None = None
    """Write TensorBoard event files to DIR instead of the page."""
    pages: Folder | None = None
    """Also write the page of an experiment to DIR: NAME.md and its figures."""
    trust: Trust = False


def main(options: Options) -> int:
    """Report the results; returns the exit code."""
    if options.out is not None and options.tensorboard is not None:
        return complain("report", "--tensorboard: not allowed with argument --out")
    from onrig.tools.report import report

    return report(options.folder, options.out, options.tensorboard, options.pages)
