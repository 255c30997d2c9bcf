"""Disarm the device on a port when its run is gone.

Sets the outputs of the device to their safe values. To stop a running rig use onrig stop --now.
"""

from __future__ import annotations

import math
import sys
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from onrig.tools.options import Count, Seconds, Trust, Value
from onrig.tools.terminal import complain

if TYPE_CHECKING:
    from onrig.hw.line import Line


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    port: Annotated[str, Value("PORT|CONFIG", complete="port")]
    """Serial port of the device, or the configuration (FILE.yaml) that names its line."""
    _: KW_ONLY
    baud: Count = 921_600
    """Baud rate."""
    wait: Seconds = 5.0
    """Seconds to wait for the device."""
    trust: Trust = False


def main(options: Options) -> int:
    """Disarm; returns the exit code."""
    if not 0 < options.wait < math.inf:
        return complain("disarm", f"--wait: expected a number of seconds above 0, got {options.wait:g}")
    import time

    from onrig.hw.disarm import disarm
    from onrig.hw.line import Serial
    from onrig.hw.transport import LinkError
    from onrig.runtime.config.problem import ConfigError
    from onrig.runtime.exit_codes import ExitCode
    from onrig.tools.ports import missing_port

    try:
        line = _line(options.port, options.baud)
    except ConfigError as error:
        return complain("disarm", str(error))
    if line is None or not line.disarms:
        what = "a twin, which ends with its run" if line is None else "on a transport that this verb cannot use"
        return complain("disarm", f"{options.port}: its device is {what}")
    try:
        transport = line.open()
        try:
            done = disarm(transport, time, options.wait)
        finally:
            transport.close()
    except LinkError as error:
        missing = missing_port(line.path) if isinstance(line, Serial) else None
        why = error if missing is None else f"{line.place}: {missing}"
        advice = "unconfirmed: the device goes safe by itself when its lease expires; check the rig"
        sys.stderr.write(f"onrig disarm: {why}; {advice}\n")
        return ExitCode.HARDWARE
    how = "; it had sent none, so it was configured first" if done.configured else ""
    print(f"{line.place}: device '{done.rig}' is disarmed, confirmed by a state frame{how}")
    return ExitCode.OK


def _line(where: str, baud: int) -> Line | None:
    """Return the line named by a port or a rig's configuration; None for a twin's. Raises ConfigError."""
    if Path(where).suffix not in (".yaml", ".yml"):
        from onrig.hw.line import Serial

        return Serial(where, baud)
    from onrig.tools.load import load

    return load(where).device.line


if __name__ == "__main__":  # as the unit of `onrig service` starts it
    from onrig.tools.options import run_verb

    sys.exit(run_verb("disarm", sys.argv[1:]))
