"""Disarm the device on a port when its run is gone.

Sets the outputs of the device to their safe values. To stop a running rig use onrig stop --now.
"""

from __future__ import annotations

import math
import sys
from dataclasses import KW_ONLY, dataclass

from onrig.tools.options import Count, Port, Seconds
from onrig.tools.terminal import complain


@dataclass(frozen=True)
class Options:
    """Arguments of the verb."""

    port: Port
    """Serial port of the device."""
    _: KW_ONLY
    baud: Count = 921_600
    """Baud rate."""
    wait: Seconds = 5.0
    """Seconds to wait for the device."""


def main(options: Options) -> int:
    """Disarm; returns the exit code."""
    if not 0 < options.wait < math.inf:
        return complain("disarm", f"--wait: expected a number of seconds above 0, got {options.wait:g}")
    import time

    from onrig.hw.disarm import disarm
    from onrig.hw.transport import LinkError, open_port
    from onrig.runtime.exit_codes import ExitCode
    from onrig.tools.ports import missing_port

    try:
        transport = open_port(options.port, options.baud)
        try:
            done = disarm(transport, time, options.wait)
        finally:
            transport.close()
    except LinkError as error:
        missing = missing_port(options.port)
        why = error if missing is None else f"{options.port}: {missing}"
        advice = "unconfirmed: the device goes safe by itself when its lease expires; look at the rig"
        sys.stderr.write(f"onrig disarm: {why}; {advice}\n")
        return ExitCode.HARDWARE
    how = "; it had sent none, so it was configured first" if done.configured else ""
    print(f"{options.port}: device '{done.rig}' is disarmed, confirmed by a state frame{how}")
    return ExitCode.OK


if __name__ == "__main__":  # as the unit of `onrig service` starts it
    from onrig.tools.options import run_verb

    sys.exit(run_verb("disarm", sys.argv[1:]))
