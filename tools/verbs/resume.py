"""Resume a paused or faulted run from another terminal.

A faulted run has latched a fault, and remains disarmed until an operator resumes it.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import RunFolder


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    run: RunFolder | None = None
    """Run folder (default: the only active run under the current folder)."""
    _: KW_ONLY
    yes: bool = False
    """Skip the confirmation that is required if RUN is not given, because the rig moves again."""


def main(options: Options) -> int:
    """Resume a run and return the exit code."""
    from onrig.tools.active_runs import resume

    return resume(options.run, confirmed=options.yes)
