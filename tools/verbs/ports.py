"""List the serial ports, the connected devices, and the processes that have each port open.

No port is opened. Use the path by id in configurations and for --device: it survives replugging. Only
processes visible to this user are listed.
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
    """List the ports; returns the exit code: 0 even without ports."""
    from onrig.tools.port_list import show

    return show(options.json)
