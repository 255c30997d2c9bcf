"""Report the results of a run or an experiment.

For a run, the report is one HTML page with figures, events and post-mortems; for an experiment, it consists of figures,
tables and a page.
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
    """Write the page of a run to FILE (default: RUN/report.html)."""
    tensorboard: Folder | None = None
    """Write TensorBoard event files to DIR instead of the page."""
    pages: Folder | None = None
    """Also write a Markdown page of an experiment, with its figures, to DIR."""
    trust: Trust = False


def main(options: Options) -> int:
    """Report the results and return the exit code."""
    if options.out is not None and options.tensorboard is not None:
        return complain("report", "--tensorboard cannot be combined with --out")
    from onrig.tools.report import report

    return report(options.folder, options.out, options.tensorboard, options.pages)
