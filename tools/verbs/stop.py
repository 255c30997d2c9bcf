"""Stop a running rig from another terminal, actuators first.

This works even if the rig's supervisor hangs.

Exit codes: 0 stopped, and the actuators are safe according to a state frame; 2 no active run, or several; 4 the
actuators are unconfirmed, or the run has not ended.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import RunFolder


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    run: RunFolder | None = None
    """Run folder (default: this user's only active run)."""
    _: KW_ONLY
    now: bool = False
    """Disarm immediately instead of fading the command out."""


def main(options: Options) -> int:
    """Stop a run, wait for its end, and return the exit code."""
    from onrig.tools.active_runs import stop

    return stop(options.run, now=options.now)
