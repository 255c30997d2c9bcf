"""Validate a configuration and explain it.

Reports every problem that would make a run refuse the configuration, all at once.  If CONFIG is an experiment, all its
cells are checked.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import Config, File, Overrides, Trust


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    config: Config
    """Path or shipped name of a configuration, or a folder that contains a run.yaml."""
    _: KW_ONLY
    explain: bool = False
    """Also print limits and schedules as tables (--plot draws them)."""
    set: Overrides = ()
    trust: Trust = False
    plot: File | None = None
    """Print the tables of --explain, and draw plots to FILE."""


def main(options: Options) -> int:
    """Check the configuration and return the exit code."""
    from onrig.tools.check import show

    return show(options.config, options.set, in_detail=options.explain, plot=options.plot)
