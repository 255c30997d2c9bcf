"""List the serial ports, the connected devices, and the processes that have each port open.

No port is opened. Use the path by id in configurations and for --device, since it survives replugging. Only processes
that are visible to this user are listed.
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
    """List the ports and return the exit code, which is 0 even if there are none."""
    from onrig.tools.port_list import show

    return show(options.json)
