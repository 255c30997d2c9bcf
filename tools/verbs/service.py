"""Set up a rig as a service: systemd unit, udev rule, limits.

Without --write, the files are only shown.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from onrig.tools.options import Config, Folder, Overrides, Port, Trust


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    config: Config
    """Path or shipped name of the rig's configuration."""
    _: KW_ONLY
    write: bool = False
    """Write the files (default: only show them)."""
    user: bool = False
    """Set up a user service, which consists of the unit only and needs no root privileges."""
    root: Folder = Path("/")
    """Write under DIR (for system images)."""
    device: Port | None = None
    """Serial port, in place of the configured device."""
    set: Overrides = ()
    trust: Trust = False


def main(options: Options) -> int:
    """Show the files, write them if --write is given, and return the exit code."""
    from onrig.tools.service.installation import install

    return install(
        options.config,
        options.set,
        options.device,
        options.root,
        for_user=options.user,
        writes=options.write,
        trusted=options.trust,
    )
