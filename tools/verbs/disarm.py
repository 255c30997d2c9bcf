"""``onrig disarm PORT``: tells the device behind a port to put its outputs to their safe values, whoever drove it."""

from __future__ import annotations

import argparse
import sys
import time

from onrig.hw.disarm import HELLO_S, disarm
from onrig.hw.transport import LinkError, open_port
from onrig.runtime.exit_codes import ExitCode
from onrig.runtime.run_config import Port
from onrig.tools.terminal import VerbParser


def parser() -> argparse.ArgumentParser:
    """Build the verb's argument parser."""
    p = VerbParser(
        prog="onrig disarm",
        description=__doc__,
        epilog="A run that is under way is stopped by `onrig stop --now`; this is for when nothing is left of it.",
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
    try:
        transport = open_port(args.port, args.baud)
        try:
            done = disarm(transport, time, args.wait)
        finally:
            transport.close()
    except LinkError as error:
        advice = "unconfirmed: a lease that runs out makes a device safe by itself; look at the rig"
        sys.stderr.write(f"onrig disarm: {error}; {advice}\n")
        return ExitCode.HARDWARE
    how = "; it sent none before, and was configured for that" if done.configured else ""
    print(f"{args.port}: device '{done.rig}' is disarmed: a state frame shows it{how}")
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
