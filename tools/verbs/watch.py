"""Watch a running rig from another terminal, locally or over ssh."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import RunFolder, Trust


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    run: RunFolder | None = None
    """Run folder (default: this user's only active run)."""
    _: KW_ONLY
    once: bool = False
    """Print one line and exit."""
    plain: bool = False
    """Print a line every two seconds instead of drawing a screen."""
    trust: Trust = False


def main(options: Options) -> int:
    """Watch until the run ends or q is pressed, and return the exit code."""
    from onrig.tools.watch import watch

    return watch(options.run, once=options.once, plain=options.plain)
