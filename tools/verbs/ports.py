"""List the serial ports, what is plugged in, and who holds each.

No port is opened. Configure the name by id (device.port.path, --device): it survives replugging. Holders are the
processes visible to this user.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import Json


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    _: KW_ONLY
    json: Json | None = None


def main(options: Options) -> int:
    """List them; returns the exit code, 0 even if there are none."""
    from onrig.tools.port_list import show

    return show(options.json)
