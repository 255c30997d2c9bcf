"""``onrig disarm PORT``: sets the outputs of the device on a port to their safe values, without a run."""

from __future__ import annotations

import argparse
import math
import sys
import time

from onrig.hw.disarm import HELLO_S, disarm
from onrig.hw.transport import LinkError, open_port
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import Port
from onrig.tools.ports import missing_port
from onrig.tools.terminal import VerbParser, complain


def parser() -> argparse.ArgumentParser:
    """Build the verb's argument parser."""
    p = VerbParser(
        prog="onrig disarm",
        description=__doc__,
        epilog="To stop a running rig use `onrig stop --now`; this is for a device whose run is gone.",
    )
    p.add_argument("port", help="serial port of the device")
    p.add_argument("--baud", type=int, default=Port("").baud, help="baud rate (default: %(default)s)")
    p.add_argument(
        "--wait", type=float, default=HELLO_S, metavar="S", help="seconds to wait for the device (default: %(default)s)"
    )
    return p


def main(arguments: list[str]) -> int:
    """Disarm; returns the exit code."""
    args = parser().parse_args(arguments)
    if not 0 < args.wait < math.inf:
        return complain("disarm", f"--wait: expected a number of seconds above 0, got {args.wait:g}")
    try:
        transport = open_port(args.port, args.baud)
        try:
            done = disarm(transport, time, args.wait)
        finally:
            transport.close()
    except LinkError as error:
        missing = missing_port(args.port)
        why = error if missing is None else f"{args.port}: {missing}"
        advice = "unconfirmed: the device goes safe by itself when its lease expires; look at the rig"
        sys.stderr.write(f"onrig disarm: {why}; {advice}\n")
        return ExitCode.HARDWARE
    how = "; it had sent none, so it was configured first" if done.configured else ""
    print(f"{args.port}: device '{done.rig}' is disarmed, confirmed by a state frame{how}")
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
