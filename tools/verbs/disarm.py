"""``onrig disarm PORT|CONFIG``: sets the outputs of the device on a port to their safe values, without a run."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

from onrig.hw.disarm import HELLO_S, disarm
from onrig.hw.line import Line, Serial
from onrig.hw.transport import LinkError
from onrig.runtime.config.problem import ConfigError
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
    p.add_argument("port", help="serial port of the device, or the configuration (FILE.yaml) that names its line")
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
        line = _line(args.port, args.baud)
    except ConfigError as error:
        return complain("disarm", str(error))
    if line is None or not line.disarms:
        what = "a twin, which ends with its run" if line is None else "on a transport that this verb cannot use"
        return complain("disarm", f"{args.port}: its device is {what}")
    try:
        transport = line.open()
        try:
            done = disarm(transport, time, args.wait)
        finally:
            transport.close()
    except LinkError as error:
        missing = missing_port(line.path) if isinstance(line, Serial) else None
        why = error if missing is None else f"{line.place}: {missing}"
        advice = "unconfirmed: the device goes safe by itself when its lease expires; look at the rig"
        sys.stderr.write(f"onrig disarm: {why}; {advice}\n")
        return ExitCode.HARDWARE
    how = "; it had sent none, so it was configured first" if done.configured else ""
    print(f"{line.place}: device '{done.rig}' is disarmed, confirmed by a state frame{how}")
    return ExitCode.OK


def _line(where: str, baud: int) -> Line | None:
    """The line that is named by its port, or by the configuration of a rig; None for a twin's.  Raises ConfigError."""
    if Path(where).suffix not in (".yaml", ".yml"):
        return Serial(where, baud)
    from onrig.tools.load import load

    return load(where).device.line


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
